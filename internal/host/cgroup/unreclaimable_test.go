package cgroup

import (
	"strings"
	"testing"
)

func TestUnreclaimable(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"v1": {map[string]string{"memory/cgroup.procs": "",
			"memory/g/memory.stat":                "rss 1\ntotal_rss 100\ntotal_shmem 20\ntotal_cache 5000\n",
			"memory/g/memory.kmem.usage_in_bytes": "3\n"}, "123"},
		"v1 without kernel memory": {map[string]string{"memory/cgroup.procs": "", "memory/g/memory.stat": "total_rss 100\n"},
			"100"},
		"v2": {map[string]string{"cgroup.controllers": "memory\n",
			"g/memory.stat": "anon 100\nfile 5000\nkernel 30\nshmem 20\nslab_reclaimable 10\nslab_unreclaimable 5\n"}, "140"},
		"v2 before 5.18": {map[string]string{"cgroup.controllers": "memory\n",
			"g/memory.stat": "anon 100\nkernel_stack 2\npagetables 3\nshmem 20\nslab_reclaimable 10\nslab_unreclaimable 5\n"},
			"130"},
		"v2 without memory": {map[string]string{"cgroup.controllers": "cpu\n", "g/cpu.stat": ""}, "absent"},
	} {
		dir := t.TempDir()
		fill(t, dir, c.files)
		got, err := open(t, dir).Unreclaimable("/g")
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, c.want)
		}
	}
	dir := t.TempDir()
	fill(t, dir, map[string]string{"cgroup.controllers": "memory\n", "g/memory.stat": "anon many\n"})
	if _, err := open(t, dir).Unreclaimable("/g"); err == nil || !strings.Contains(err.Error(), "memory.stat") {
		t.Errorf("a number that is none: %v", err)
	}
	if _, err := open(t, dir).Unreclaimable("g/.."); err == nil {
		t.Error("a bad name was taken")
	}
}
