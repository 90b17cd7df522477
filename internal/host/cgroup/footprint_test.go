package cgroup

import (
	"math"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// What has its place in swap and is in memory may leave memory and take no more of swap.
func TestSwapRoom(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{
		"cgroup.controllers": "cpu cpuset memory pids\n", "cgroup.subtree_control": "memory\n",
		"some/memory.swap.max": "1000000\n", "some/memory.swap.current": "700000\n", "some/memory.stat": "anon 5000000\nswapcached 200000\n",
		"full/memory.swap.max": "1000000\n", "full/memory.swap.current": "1000000\n", "full/memory.stat": "anon 5000000\nswapcached 4096\n",
		"over/memory.swap.max": "0\n", "over/memory.swap.current": "8192\n", "over/memory.stat": "anon 5000000\nswapcached 0\n",
		"old/memory.swap.max": "1000000\n", "old/memory.swap.current": "700000\n", "old/memory.stat": "anon 5000000\n", // before Linux 5.12
		"free/memory.swap.max": "max\n", "free/memory.swap.current": "8192\n", "free/memory.stat": "anon 5000000\n",
		"none/memory.stat": "anon 5000000\n", // a kernel without swap
	})
	tree := open(t, dir)
	for group, want := range map[string]unit.Bytes{
		"/some": 500_000, "/full": 4096, "/over": 0, "/old": 300_000, "/free": math.MaxInt64 / 1024, "/none": 0,
	} {
		if got, err := tree.SwapRoom(group); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", group, got, err, want)
		}
	}
	fill(t, dir, map[string]string{"bad/memory.swap.max": "1000000\n", "bad/memory.swap.current": "0\n", "bad/memory.stat": "swapcached many\n"})
	if _, err := tree.SwapRoom("/bad"); err == nil || !strings.Contains(err.Error(), "/bad") || !strings.Contains(err.Error(), "swapcached") {
		t.Errorf("got %v", err)
	}
}
