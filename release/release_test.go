package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	there := t.TempDir()
	good := func() options {
		return options{
			out:     filepath.Join(there, "new"),
			version: "v0.1.0-rc.1",
			time:    time.Unix(1, 0),
			archs:   []string{"amd64", "arm64"},
		}
	}
	if err := good().check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*options){
		`--version "0.1.0"`:       func(o *options) { o.version = "0.1.0" },
		`--version "v01.0.0"`:     func(o *options) { o.version = "v01.0.0" },
		`--version "v0.1.0-rc_1"`: func(o *options) { o.version = "v0.1.0-rc_1" },
		`--version ""`:            func(o *options) { o.version = "" },
		"exists already":          func(o *options) { o.out = there },
		"--out: required":         func(o *options) { o.out = "" },
		"--time: required":        func(o *options) { o.time = time.Unix(0, 0) },
		`--arch "riscv64"`:        func(o *options) { o.archs = []string{"riscv64"} },
	} {
		o := good()
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// made builds a release and returns its directory.
func made(t *testing.T, o options) string {
	t.Helper()
	o.out = filepath.Join(t.TempDir(), "dist")
	o.time = time.Unix(1764000000, 0).UTC()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	if err := o.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o.out
}

// TestRelease builds a release for this machine. Its checksums fit, its bill names the modules of the program, and its
// package can be installed and removed: what there is then is what was there before, except for kubeconfigs.
func TestRelease(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("compiles what no other test needs; set PLIMSOLL_E2E_LONG=1")
	}
	dir := made(t, options{source: "..", version: "v0.1.0-rc.1", archs: []string{runtime.GOARCH}})
	name := "plimsoll_0.1.0~rc.1_" + runtime.GOARCH + ".deb"
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	if want := []string{"SHA256SUMS", "plimsoll_0.1.0-rc.1.cdx.json", name}; !slices.Equal(names, want) {
		t.Errorf("the release is %q, want %q", names, want)
	}
	sums := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = dir
	if out, err := sums.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "plimsoll_0.1.0-rc.1.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(text, &bill); err != nil || len(bill.Components) < 30 ||
		!strings.Contains(string(text), "pkg:golang/k8s.io/client-go@") {
		t.Errorf("the bill: %d components, %v", len(bill.Components), err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: installs the package in a mount namespace")
	}
	for _, program := range []string{"unshare", "apt-get", "systemd-analyze"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s, to install the package: %v", program, err)
		}
	}
	install := exec.Command("testdata/install.sh", t.TempDir(), filepath.Join(dir, name), "v0.1.0-rc.1")
	if out, err := install.CombinedOutput(); err != nil || !bytes.HasSuffix(out, []byte("installed and removed\n")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReproducible builds the release twice for both architectures, the second time from a copy of the repository in
// another directory, at another time, with another user's settings and without anything compiled before. Both have the
// same bytes.
func TestReproducible(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("compiles everything twice; set PLIMSOLL_E2E_LONG=1")
	}
	both := []string{"amd64", "arm64"}
	if out, err := exec.Command("git", "status", "--porcelain").Output(); err != nil || len(out) > 0 {
		t.Fatalf("%v: commit first: the second build has the last commit only\n%s", err, out)
	}
	source := filepath.Join(t.TempDir(), "elsewhere", "plimsoll")
	clone := exec.Command("git", "clone", "-q", "..", source)
	if out, err := clone.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	modules, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	first := made(t, options{source: "..", version: "v0.1.0", archs: both})
	cache := t.TempDir()
	second := made(t, options{
		source:  source,
		version: "v0.1.0",
		archs:   both,
		goEnv: []string{"GOCACHE=" + cache, "GOMODCACHE=" + strings.TrimSpace(string(modules)), "HOME=" + cache,
			"USER=somebody", "TZ=Asia/Tokyo", "LANG=de_DE.UTF-8"},
	})
	for _, name := range []string{"plimsoll_0.1.0_amd64.deb", "plimsoll_0.1.0_arm64.deb", "plimsoll_0.1.0.cdx.json",
		"SHA256SUMS"} {
		var texts [2][]byte
		for i, dir := range []string{first, second} {
			var err error
			if texts[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(texts[0], texts[1]) {
			t.Errorf("%s differs: %d and %d bytes%s", name, len(texts[0]), len(texts[1]), firstDifference(texts[0], texts[1]))
		}
	}
}

// firstDifference says where two files differ.
func firstDifference(a, b []byte) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf(", first at byte %d: %q, %q", i, a[i:min(len(a), i+40)], b[i:min(len(b), i+40)])
		}
	}
	return ""
}
