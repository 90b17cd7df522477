// Package kubeletconfig reads a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), the file that the kubelet reads,
// unchanged: strictly, with upstream's defaults, all problems at once, and a warning for each field that is set and that
// Plimsoll does not honour yet.
//
// # Model
//
// Load decodes, checks, fills defaults and resolves relative paths, in this order, and returns the upstream type.
// fields.go holds one line for every field of that type: honoured, honoured for some values, or not, and then what
// happens instead. A test walks the type and fails for a field without a line, so that an upgrade cannot add a
// field that is silently ignored; whoever makes Plimsoll honour a field changes its line.
//
// # What it does not do
//
// It looks at no machine: whether a reservation fits or a cgroup exists is found where that is known. It reads no flags;
// the agent lays its few over the result. Of the feature gates only those in gates.go switch something: of the others, what
// upstream has on by default is on.
package kubeletconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	kind       = "KubeletConfiguration"

	// sizeMax bounds the file. Real ones have some KiB; a path to something else should not be read whole.
	sizeMax = 1 << 20
)

// Load reads the file at path. An empty path is an empty file: all defaults.
func Load(path string) (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	if path == "" {
		return Parse(nil, "")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > sizeMax {
		return nil, nil, fmt.Errorf("read kubelet configuration: %s: want a regular file of at most %d bytes, found %s of %d", path, sizeMax, info.Mode().Type(), info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	c, warnings, err := Parse(data, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %s: %w", path, err)
	}
	return c, warnings, nil
}

// Parse reads a configuration from YAML or JSON. Relative paths in it are relative to dir.
func Parse(data []byte, dir string) (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	var p problems
	c, ok := decode(data, &p)
	if !ok {
		return nil, nil, p.err()
	}
	// What could be decoded is checked even when something could not, to report everything at once.
	asked := c.DeepCopy()
	defaults(c)
	validate(c, &p)
	if len(p) > 0 {
		return nil, nil, p.err()
	}
	warnings := unhonoured(asked, c)
	resolvePaths(c, dir)
	return c, warnings, nil
}

// decode reads the document field by field, so that one bad field does not hide the next. It reports whether there is a
// configuration at all.
func decode(data []byte, p *problems) (*kubeletconfigv1beta1.KubeletConfiguration, bool) {
	c := &kubeletconfigv1beta1.KubeletConfiguration{}
	if len(strings.TrimSpace(string(data))) == 0 {
		return c, true
	}
	doc, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		p.add("", nil, err.Error())
		return nil, false
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(doc, &fields); err != nil {
		p.add("", nil, "want a mapping of fields, found something else")
		return nil, false
	}
	for name, want := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		if got := strings.Trim(string(fields[name]), `"`); got != want {
			p.add(name, got, "want "+want)
		}
		delete(fields, name)
	}
	c.APIVersion, c.Kind = apiVersion, kind
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err != nil {
			p.add(name, nil, err.Error())
			continue
		}
		// A field that does not decode stays as if it were absent, not half filled.
		if _, err := utiljson.UnmarshalStrict(one, &kubeletconfigv1beta1.KubeletConfiguration{}); err != nil {
			p.add(name, string(fields[name]), plain(err))
			continue
		}
		strict, err := utiljson.UnmarshalStrict(one, c)
		if err != nil {
			p.add(name, nil, plain(err))
		}
		for _, err := range strict {
			p.add("", nil, plain(err))
		}
	}
	return c, true
}

// plain removes Go's words from a decoder's error.
func plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "json: ")
	return strings.ReplaceAll(text, "Go struct field KubeletConfiguration.", "field ")
}

// resolvePaths makes paths absolute, as the kubelet does.
func resolvePaths(c *kubeletconfigv1beta1.KubeletConfiguration, dir string) {
	for _, path := range []*string{
		&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile,
		c.ResolverConfig, &c.VolumePluginDir, &c.PodLogsDir,
	} {
		if path != nil && *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}

// problems collects what is wrong with a configuration.
type problems []string

// add notes that the value at path breaks a rule.
func (p *problems) add(path string, value any, rule string) {
	text := rule
	if value != nil {
		if v := reflect.ValueOf(value); v.Kind() == reflect.String {
			text = fmt.Sprintf("%.200q: %s", value, rule)
		} else {
			text = fmt.Sprintf("%.200s: %s", fmt.Sprint(value), rule)
		}
	}
	if path != "" {
		text = path + ": " + text
	}
	*p = append(*p, text)
}

// err returns all problems in one error, in an order that does not change from run to run.
func (p problems) err() error {
	slices.Sort(p)
	if len(p) == 1 {
		return fmt.Errorf("%s", p[0])
	}
	return fmt.Errorf("%d problems:\n  - %s", len(p), strings.Join(p, "\n  - "))
}
