package podlog

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Only what is named like a pod's log directory is one: what others keep beside it is not ours to remove.
func TestPodsWithLogs(t *testing.T) {
	d := Directory(filepath.Join(t.TempDir(), "none yet"))
	if len(d.Pods()) != 0 {
		t.Error("no directory, yet pods")
	}
	for _, name := range []string{"ns_web_0a1b-2c", "ns_a.b-c_ff00", "kubelet", "a_b", "a_b_", "a_b_..", "a_b_c_0",
		"a_b_XY", "__0"} {
		if err := os.MkdirAll(filepath.Join(string(d), name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(string(d), "ns_file_00"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Pods(), []string{"ff00", "0a1b-2c"}; !slices.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}

// Of remains of a pod only the uid is known: its links go with its logs, and no other's.
func TestRemoveLogs(t *testing.T) {
	d := Directory(filepath.Join(t.TempDir(), "pods"))
	for _, name := range []string{"ns_web_0a", "ns_web_0b"} {
		if err := os.MkdirAll(filepath.Join(string(d), name, "c"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []string{"0a", "0b"} {
		d.Link("ns", "web", "zeta", "id-"+uid, filepath.Join(string(d), "ns_web_"+uid, "c", "0.log"))
	}
	d.RemovePod("0a")
	links, err := filepath.Glob(filepath.Join(d.links(), "*"))
	if err != nil || len(links) != 1 || filepath.Base(links[0]) != "web_ns_zeta-id-0b.log" {
		t.Errorf("links %q (%v), want that of 0b", links, err)
	}
	if dirs := d.Pods(); !slices.Equal(dirs, []string{"0b"}) {
		t.Errorf("log directories of %v, want of 0b", dirs)
	}
}

// A pod that may write to the log directory (a hostPath) puts links in the place of directories: nothing behind them is
// read, written or removed.
func TestLinksInPlaceOfLogDirectories(t *testing.T) {
	base := t.TempDir()
	d, outside := Directory(filepath.Join(base, "log", "pods")), filepath.Join(base, "outside")
	own := filepath.Join(string(d), "ns_web_uid-1")
	kept := []string{"0.log", "0.log.20260101-000000", "web_ns_zeta-id.log"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(errors.Join(os.MkdirAll(own, 0o700), os.Mkdir(outside, 0o700)))
	for _, name := range kept {
		must(os.WriteFile(filepath.Join(outside, name), []byte("2026-01-01T00:00:00Z stdout F secret\n"), 0o600))
	}
	must(os.Symlink(outside, filepath.Join(own, "zeta")))
	must(os.Symlink(outside, d.links()))

	if text, err := Tail(string(d), filepath.Join(own, "zeta", "0.log"), 10, 100); err == nil {
		t.Errorf("another's log is read: %q", text)
	}
	d.Link("ns", "web", "zeta", "new", filepath.Join(own, "zeta", "0.log"))
	d.RemoveRun(filepath.Join(own, "zeta"), "id", 0)
	must(os.Remove(filepath.Join(own, "zeta")))
	must(os.Remove(own))
	must(os.Symlink(outside, own))
	d.RemovePod("uid-1")
	entries, err := os.ReadDir(outside)
	must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, kept) {
		t.Errorf("outside is %q, want %q", names, kept)
	}
	if _, err := os.Lstat(own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link in the place of the pod's directory stays: %v", err)
	}
}

// A run's log is removed with its rotated files and its link; the logs of other runs stay, also where the number begins
// alike.
func TestRemoveLog(t *testing.T) {
	d := Directory(filepath.Join(t.TempDir(), "pods"))
	dir := filepath.Join(string(d), "ns_web_uid-1", "zeta")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.log", "1.log.20260101-000000", "1.log.20260101-000000.gz", "11.log", "2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.Link("ns", "web", "zeta", "id-1", filepath.Join(dir, "1.log"))
	d.Link("ns", "web", "zeta", "id-2", filepath.Join(dir, "2.log"))
	d.RemoveRun(dir, "id-1", 1)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "11.log"), filepath.Join(dir, "2.log")}; err != nil ||
		!slices.Equal(left, want) {
		t.Errorf("logs left %q (%v), want %q", left, err, want)
	}
	links, err := filepath.Glob(filepath.Join(d.links(), "*"))
	if err != nil || len(links) != 1 || filepath.Base(links[0]) != "web_ns_zeta-id-2.log" {
		t.Errorf("links left %q (%v), want that of id-2", links, err)
	}
}
