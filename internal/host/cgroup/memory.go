package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Memory reads what an allocatable.Lowering must know about group.
func (t *Tree) Memory(group string) (allocatable.GroupMemory, error) {
	if err := check(group); err != nil {
		return allocatable.GroupMemory{}, fmt.Errorf("read memory: %w", err)
	}
	seen, err := t.memory(group)
	if err != nil {
		return allocatable.GroupMemory{}, fmt.Errorf("read memory of cgroup %s: %w", group, err)
	}
	return seen, nil
}

func (t *Tree) memory(group string) (seen allocatable.GroupMemory, err error) {
	dir, err := t.need("memory", group)
	if err != nil {
		return seen, err
	}
	usage, cold := "memory.usage_in_bytes", "total_inactive_file"
	if t.mode == V2 {
		usage, cold = "memory.current", "inactive_file"
	}
	if seen.Limit, err = t.memoryLimit(dir); err != nil {
		return seen, err
	}
	charged, err := readNumber(filepath.Join(dir, usage))
	if err != nil {
		return seen, err
	}
	inactive := []int64{0}
	if err := readKeys(filepath.Join(dir, "memory.stat"), []string{cold}, inactive); err != nil {
		return seen, err
	}
	// The files are read one after the other, so their difference may be negative.
	seen.Usage, seen.Cold = unit.Bytes(charged), unit.Bytes(min(inactive[0], charged))
	return seen, nil
}

// MemoryLimit reads the limit of group's memory that is in effect.
func (t *Tree) MemoryLimit(group string) (unit.Limit[unit.Bytes], error) {
	if err := check(group); err != nil {
		return unit.Limit[unit.Bytes]{}, fmt.Errorf("read memory limit: %w", err)
	}
	dir, err := t.need("memory", group)
	if err != nil {
		return unit.Limit[unit.Bytes]{}, fmt.Errorf("read memory limit of cgroup %s: %w", group, err)
	}
	limit, err := t.memoryLimit(dir)
	if err != nil {
		return limit, fmt.Errorf("read memory limit of cgroup %s: %w", group, err)
	}
	return limit, nil
}

func (t *Tree) memoryLimit(dir string) (unit.Limit[unit.Bytes], error) {
	file := "memory.limit_in_bytes"
	if t.mode == V2 {
		file = "memory.max"
	}
	limit, err := readLimit(filepath.Join(dir, file))
	if err != nil {
		return unit.Limit[unit.Bytes]{}, err
	}
	if n, ok := limit.Get(); ok && !(t.mode != V2 && noLimitV1(n)) {
		return unit.LimitTo(unit.Bytes(n)), nil
	}
	return unit.Unlimited[unit.Bytes](), nil
}

// SetMemory makes one write of a Lowering. If the kernel refuses the limit, the error wraps ErrRefused. systemd does
// not get the intermediate values; Set sets the final limit.
func (t *Tree) SetMemory(group string, w allocatable.Write) error {
	if err := check(group); err != nil {
		return fmt.Errorf("set memory: %w", err)
	}
	var err error
	switch {
	case w.File == allocatable.Max && t.mode != V2:
		err = t.setMemoryV1(group, w.To)
	case w.File == allocatable.Max:
		err = setLimit(t, "memory", group, "memory.max", w.To, "max")
	case t.mode == V2:
		err = setLimit(t, "memory", group, "memory.high", w.To, "max")
	}
	if err != nil {
		return fmt.Errorf("set memory of cgroup %s: %w", group, err)
	}
	return nil
}

// AccountsSwap reports whether the kernel counts the swap of groups (CONFIG_MEMCG_SWAP; on v1 also swapaccount=1). On
// v2 the root has no file that shows it, so any group below it is used.
func (t *Tree) AccountsSwap() bool {
	if t.of["memory"] == nil {
		return false
	}
	if t.mode != V2 {
		_, err := os.Stat(filepath.Join(t.dirOf("memory", "/"), "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	entries, err := os.ReadDir(t.mount)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		_, err := os.Stat(filepath.Join(t.mount, e.Name(), "memory.swap.max"))
		return err == nil
	})
}

// CPUs returns the CPUs that group, which may be the root, is allowed to use.
func (t *Tree) CPUs(group string) (idset.Set, error) { return t.allowed(group, "cpus") }

// MemoryNodes returns the NUMA nodes from which group, which may be the root, may allocate memory.
func (t *Tree) MemoryNodes(group string) (idset.Set, error) { return t.allowed(group, "mems") }

// allowed reads a group's effective cpuset: those of its CPUs or nodes that are online and that its parents have too.
func (t *Tree) allowed(group, what string) (idset.Set, error) {
	if group != "/" {
		if err := check(group); err != nil {
			return idset.Set{}, fmt.Errorf("read %s: %w", what, err)
		}
	}
	dir, err := t.need("cpuset", group)
	if err != nil {
		return idset.Set{}, fmt.Errorf("read %s of cgroup %s: %w", what, group, err)
	}
	file := filepath.Join(dir, "cpuset.effective_"+what)
	if t.mode == V2 {
		file = filepath.Join(dir, "cpuset."+what+".effective")
	}
	text, err := readText(file)
	if err != nil {
		return idset.Set{}, fmt.Errorf("read %s of cgroup %s: %w", what, group, err)
	}
	ids, err := idset.Parse(text)
	if err != nil {
		return idset.Set{}, fmt.Errorf("read %s of cgroup %s: %s: %w", what, group, file, err)
	}
	return ids, nil
}
