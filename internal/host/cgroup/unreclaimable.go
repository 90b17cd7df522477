package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Unreclaimable returns the memory of group and those below it that reclaim cannot free without swap: anonymous and
// shared memory, and the kernel's own. It is absent if memory is not accounted for.
func (t *Tree) Unreclaimable(group string) (unit.Amount[unit.Bytes], error) {
	none := unit.Amount[unit.Bytes]{}
	if err := check(group); err != nil {
		return none, fmt.Errorf("read memory: %w", err)
	}
	if t.of["memory"] == nil {
		return none, nil
	}
	read := t.unreclaimableV1
	if t.mode == V2 {
		read = t.unreclaimableV2
	}
	bytes, err := read(t.dirOf("memory", group))
	if err != nil {
		return none, fmt.Errorf("read memory of cgroup %s: %w", group, err)
	}
	return unit.Of(unit.Bytes(bytes)), nil
}

// unreclaimableV1 counts all kernel memory, since v1 does not show which of its caches could be freed.
// memory.kmem.usage_in_bytes is missing if the kernel's memory is not accounted for.
func (t *Tree) unreclaimableV1(dir string) (int64, error) {
	v := []int64{-1, -1}
	if err := readKeys(filepath.Join(dir, "memory.stat"), []string{"total_rss", "total_shmem"}, v); err != nil {
		return 0, err
	}
	kernel, err := readNumber(filepath.Join(dir, "memory.kmem.usage_in_bytes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	return max(0, v[0]) + max(0, v[1]) + max(0, kernel), nil
}

// unreclaimableV2 reads memory.stat (Documentation/admin-guide/cgroup-v2.rst). The key kernel exists since Linux 5.18;
// before, its larger parts are added up.
func (t *Tree) unreclaimableV2(dir string) (int64, error) {
	v := []int64{-1, -1, -1, -1, -1, -1, -1}
	keys := []string{"anon", "shmem", "kernel", "slab_reclaimable", "slab_unreclaimable", "kernel_stack", "pagetables"}
	if err := readKeys(filepath.Join(dir, "memory.stat"), keys, v); err != nil {
		return 0, err
	}
	has := v[2] >= 0
	for i := range v {
		v[i] = max(0, v[i])
	}
	if has {
		return v[0] + v[1] + max(0, v[2]-v[3]), nil
	}
	return v[0] + v[1] + v[4] + v[5] + v[6], nil
}
