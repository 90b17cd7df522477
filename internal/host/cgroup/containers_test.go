package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestContainersAreFoundWhereverTheyAre(t *testing.T) {
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	want := map[string]string{
		id("0"): "/k8s.io/" + id("0"),
		id("1"): "/system.slice/cri-containerd-" + id("1") + ".scope",
		id("2"): "/machine.slice/crio-" + id("2") + ".scope",
		id("3"): "/" + id("3"),
	}
	for name, memory := range map[string]string{"v2": "", "v1": "memory"} {
		root := t.TempDir()
		dirs := []string{
			"/machine.slice/crio-conmon-" + id("2") + ".scope", // CRI-O's own, not the container's
			"/k8s.io/" + id("0") + "/docker/" + id("4"),        // made by a container
			"/user.slice/" + id("5")[:63], "/user.slice/" + id("6") + "7",
		}
		for _, group := range want {
			dirs = append(dirs, group)
		}
		for _, dir := range dirs {
			if err := os.MkdirAll(filepath.Join(root, memory, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		file := map[string]string{"v2": "cgroup.controllers", "v1": "memory/cgroup.procs"}[name]
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		tree, err := Open(root)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree.Containers()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}
