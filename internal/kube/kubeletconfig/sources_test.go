package kubeletconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeFiles writes files below a new directory, and returns its path.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLayers: drop-ins override the file in the order of their paths, and flags override both. Maps are merged by
// drop-ins and replaced by flags, but for feature gates; lists are replaced. Defaults that depend on other fields are
// those of the file.
func TestLayers(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"config.yaml": head + "maxPods: 10\nport: 10300\nclusterDNS: [10.0.0.10]\nstaticPodPath: manifests\n" +
			"evictionHard: {memory.available: 1Gi}\nfeatureGates: {NodeSwap: true, QOSReserved: true}\n",
		"d/10-a.conf":      head + "maxPods: 20\nevictionHard: {nodefs.available: 5%}\nclusterDNS: [10.0.0.11]\n",
		"d/20/b.conf":      head + "maxPods: 30\nport: null\nauthentication: {anonymous: {enabled: true}}\n",
		"d/30-c.conf":      head + "nodeStatusUpdateFrequency: 20s\nsystemReserved: {cpu: 100m}\n",
		"d/README":         "not for the agent",
		"d/40-d.conf.save": head + "maxPods: 99\n",
	})
	s := Sources{File: filepath.Join(dir, "config.yaml"), DropIns: filepath.Join(dir, "d")}
	c, warnings, err := LoadFrom(s)
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxPods != 30 || c.Port != 10250 || !slices.Equal(c.ClusterDNS, []string{"10.0.0.11"}) ||
		!reflect.DeepEqual(c.EvictionHard, map[string]string{"memory.available": "1Gi", "nodefs.available": "5%"}) ||
		c.StaticPodPath != filepath.Join(dir, "manifests") || !*c.Authentication.Anonymous.Enabled ||
		!*c.Authentication.Webhook.Enabled || c.NodeStatusUpdateFrequency.Duration != 20*time.Second ||
		c.NodeStatusReportFrequency.Duration != 5*time.Minute || c.SystemReserved["cpu"] != "100m" {
		t.Errorf("with drop-ins: %+v", c)
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0], "40-d.conf.save: not read") ||
		!strings.Contains(warnings[1], "README: not read") {
		t.Errorf("warnings %q", warnings)
	}

	s.Settings = []Setting{
		{Flag: "--max-pods", Path: "maxPods", Value: int64(40)},
		{Flag: "--eviction-hard", Path: "evictionHard", Value: map[string]any{"imagefs.available": "3%"}},
		{Flag: "--feature-gates", Path: "featureGates", Value: map[string]any{"MemoryQoS": true}, Add: true},
		{Flag: "--anonymous-auth", Path: "authentication.anonymous.enabled", Value: false},
		{Flag: "--pod-max-pids", Path: "podPidsLimit", Value: int64(9007199254740993)},
	}
	if c, _, err = LoadFrom(s); err != nil {
		t.Fatal(err)
	}
	if c.MaxPods != 40 || !reflect.DeepEqual(c.EvictionHard, map[string]string{"imagefs.available": "3%"}) ||
		!reflect.DeepEqual(c.FeatureGates, map[string]bool{"NodeSwap": true, "QOSReserved": true, "MemoryQoS": true}) ||
		*c.Authentication.Anonymous.Enabled || *c.PodPidsLimit != 9007199254740993 {
		t.Errorf("with flags: %+v", c)
	}
}

// TestLayersWithoutFile: drop-ins and flags also work on top of the defaults.
func TestLayersWithoutFile(t *testing.T) {
	dir := writeFiles(t, map[string]string{"1.conf": head + "maxPods: 20\n"})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	port := Setting{Flag: "--port", Path: "port", Value: int64(10300)}
	c, _, err := LoadFrom(Sources{DropIns: link, Settings: []Setting{port}})
	if err != nil || c.MaxPods != 20 || c.Port != 10300 || len(c.EvictionHard) != 5 ||
		*c.Authentication.Anonymous.Enabled {
		t.Errorf("%+v, %v", c, err)
	}
	if c, warnings, err := LoadFrom(Sources{}); err != nil || c.MaxPods != 110 || len(warnings) > 0 {
		t.Errorf("nothing: %+v, %v, %v", c, warnings, err)
	}
}

// TestLayersRefused: what is wrong is named with its file or flag.
func TestLayersRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files    map[string]string
		settings []Setting
		want     []string
	}{
		"an empty drop-in": {files: map[string]string{"d/1.conf": " \n"},
			want: []string{"1.conf: is empty: want apiVersion"}},
		"a half-written drop-in": {files: map[string]string{"d/1.conf": head + "evictionHard: {memory.available"},
			want: []string{"1.conf: ", "yaml"}},
		"another kind": {files: map[string]string{"d/1.conf": "apiVersion: v1\nkind: Pod\n"},
			want: []string{`1.conf: 2 problems`, `kind: "Pod": want KubeletConfiguration`}},
		"an unknown field": {files: map[string]string{"d/1.conf": head + "maxPodz: 1\n"},
			want: []string{`1.conf: unknown field "maxPodz"`}},
		"a value of another type": {files: map[string]string{"d/1.conf": head + "maxPods: many\n"},
			want: []string{`1.conf: maxPods: "\"many\""`}},
		"a bad value": {files: map[string]string{"d/1.conf": head + "maxPods: -1\n", "d/2.conf": head + "port: 70000\n"},
			want: []string{"maxPods: -1: want 0 or more (set by ", "d/1.conf)", "port: 70000: want 1 to 65535 (set by ",
				"d/2.conf)"}},
		"a bad flag": {settings: []Setting{{Flag: "--max-pods", Path: "maxPods", Value: int64(-1)}},
			want: []string{"maxPods: -1: want 0 or more (set by --max-pods)"}},
		"a bad file": {files: map[string]string{"config.yaml": head + "maxPods: many\n"},
			settings: []Setting{{Flag: "--port", Path: "port", Value: int64(1)}}, want: []string{"config.yaml", "maxPods"}},
	} {
		files := map[string]string{"config.yaml": head, "d/9.conf": head + "eventBurst: 7\n"}
		for name, text := range c.files {
			files[name] = text
		}
		dir := writeFiles(t, files)
		_, _, err := LoadFrom(Sources{File: filepath.Join(dir, "config.yaml"), DropIns: filepath.Join(dir, "d"),
			Settings: c.settings})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in %v", name, want, err)
			}
		}
	}
	if _, _, err := LoadFrom(Sources{DropIns: "/nowhere/at/all"}); err == nil ||
		!strings.Contains(err.Error(), "--config-dir: lstat /nowhere") {
		t.Errorf("no directory: %v", err)
	}
}
