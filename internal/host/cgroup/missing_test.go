package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

func TestMissingOnV1(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "systemd", "pids", "freezer"} { // no hugetlb
		fill(t, dir, map[string]string{c + "/cgroup.procs": "", c + "/a/cgroup.procs": ""})
	}
	fill(t, dir, map[string]string{"cpu/a/b/cgroup.procs": ""})
	tree := open(t, dir)
	missing, err := tree.Missing("/a/b")
	if err != nil {
		t.Fatal(err)
	}
	set := filepath.Join(dir, "cpuset/a")
	want := map[string]string{
		"cpuacct": "mkdir -p " + dir + "/cpuacct/a/b",
		"cpuset": "mkdir " + set + "/b && cat " + set + "/cpuset.cpus > " + set + "/b/cpuset.cpus && cat " + set +
			"/cpuset.mems > " + set + "/b/cpuset.mems",
		"memory":  "mkdir -p " + dir + "/memory/a/b",
		"systemd": "mkdir -p " + dir + "/systemd/a/b",
		"pids":    "mkdir -p " + dir + "/pids/a/b",
	}
	for _, m := range missing {
		if m.Command != want[m.Controller] || m.Path != filepath.Join(dir, m.Controller, "a/b") {
			t.Errorf("%+v, want %q", m, want[m.Controller])
		}
		delete(want, m.Controller)
	}
	if len(want) > 0 {
		t.Errorf("not missed: %v", want)
	}
}

func TestMissingOnV2(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": "cpu memory pids", "cgroup.procs": "",
		"system.slice/cgroup.controllers": "cpu memory pids", "system.slice/cgroup.subtree_control": "",
	})
	tree := open(t, dir)
	root := filepath.Join(dir, "cgroup.subtree_control")
	slice := filepath.Join(dir, "system.slice")
	if got, err := tree.Missing("/system.slice"); err != nil ||
		!slices.Equal(got, []Missing{{"cpuset", slice, "echo +cpuset > " + root}}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err := tree.Missing("/system.slice/a")
	if err != nil || len(got) != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	if want := "mkdir -p " + slice + "/a && echo +cpuset > " + root + " && echo +cpuset > " + slice +
		"/cgroup.subtree_control"; got[1].Command != want {
		t.Errorf("%s: %s, want %s", got[1].Controller, got[1].Command, want)
	}
	if want := "mkdir -p " + slice + "/a && echo +memory > " + slice + "/cgroup.subtree_control"; got[2].Command != want {
		t.Errorf("%s: %s, want %s", got[2].Controller, got[2].Command, want)
	}
}

// The commands do what they say, on this machine's kernel; so does Create.
func TestLiveMissingCommandsMakeTheGroup(t *testing.T) {
	tree, root := enterLive(t)
	for name, make := range map[string]func(group string, missing []Missing){
		"commands": func(_ string, missing []Missing) {
			for _, m := range missing {
				if out, err := exec.Command("/bin/sh", "-ec", m.Command).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", m.Command, err, out)
				}
			}
		},
		"create": func(group string, _ []Missing) {
			if err := tree.Create(group); err != nil {
				t.Error(err)
			}
		},
	} {
		group := root + "/" + name + "/reserved"
		if tree.Mode() != V2 { // exists already in one hierarchy
			if err := os.MkdirAll(filepath.Join(tree.dirOf("memory", group)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		missing, err := tree.Missing(group)
		if err != nil || len(missing) == 0 || tree.Mode() != V2 && slices.ContainsFunc(missing,
			func(m Missing) bool { return m.Controller == "memory" }) {
			t.Fatalf("%s: %+v, %v", name, missing, err)
		}
		make(group, missing)
		if missing, err = tree.Missing(group); err != nil || len(missing) > 0 {
			t.Errorf("%s: still missing %+v, %v", name, missing, err)
		}
		cpus, err := tree.CPUs(group)
		if err != nil || cpus.IsEmpty() {
			t.Errorf("%s: cpus %v, %v", name, cpus, err)
		}
		if err := tree.Set(group, qos.Values{CPUs: cpus}); err != nil {
			t.Error(err)
		}
	}
}

func TestGroupsThatAreNone(t *testing.T) {
	tree := open(t, "testdata/v2")
	if _, err := tree.Missing("/"); err == nil || !strings.Contains(err.Error(), "below the root") {
		t.Errorf("%v", err)
	}
}
