package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// Swap is the swap of a group and those below it.
type Swap struct {
	Used  unit.Amount[unit.Bytes] // absent: the kernel does not account for swap
	Limit unit.Limit[unit.Bytes]  // of swap alone
}

// Swap reads the swap of group. The root group has none; see /proc/meminfo.
func (t *Tree) Swap(group string) (Swap, error) {
	if err := check(group); err != nil {
		return Swap{}, fmt.Errorf("read swap: %w", err)
	}
	if t.of["memory"] == nil {
		return Swap{}, nil
	}
	read := t.swapV1
	if t.mode == V2 {
		read = t.swapV2
	}
	s, err := read(t.dirOf("memory", group))
	if err != nil {
		return Swap{}, fmt.Errorf("read swap of cgroup %s: %w", group, err)
	}
	return s, nil
}

// swapV1 computes the limit from the limit of memory and that of memory and swap together. Without swap accounting
// (swapaccount=0) the kernel has neither total_swap nor the second limit.
func (t *Tree) swapV1(dir string) (Swap, error) {
	used := []int64{Absent}
	if err := readKeys(filepath.Join(dir, "memory.stat"), []string{"total_swap"}, used); err != nil {
		return Swap{}, err
	}
	if used[0] < 0 {
		return Swap{}, nil
	}
	s := Swap{Used: unit.Of(unit.Bytes(used[0])), Limit: unit.Unlimited[unit.Bytes]()}
	both, err := readNumber(filepath.Join(dir, "memory.memsw.limit_in_bytes"))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	} else if err != nil {
		return Swap{}, err
	}
	memory, err := readNumber(filepath.Join(dir, "memory.limit_in_bytes"))
	if err != nil {
		return Swap{}, err
	}
	if !noLimitV1(both) && !noLimitV1(memory) {
		s.Limit = unit.LimitTo(unit.Bytes(max(0, both-memory)))
	}
	return s, nil
}

// swapV2 reads two files that a kernel without swap does not have.
func (t *Tree) swapV2(dir string) (Swap, error) {
	used, err := readNumber(filepath.Join(dir, "memory.swap.current"))
	if errors.Is(err, os.ErrNotExist) {
		return Swap{}, nil
	} else if err != nil {
		return Swap{}, err
	}
	limit, err := readLimit(filepath.Join(dir, "memory.swap.max"))
	if err != nil {
		return Swap{}, err
	}
	s := Swap{Used: unit.Of(unit.Bytes(used)), Limit: unit.Unlimited[unit.Bytes]()}
	if n, ok := limit.Get(); ok {
		s.Limit = unit.LimitTo(unit.Bytes(n))
	}
	return s, nil
}

// Pressure reads how long the tasks of group waited for a resource: cpu, memory or io. The error is psi.ErrNone if the
// kernel does not measure that for groups; on cgroup v1 it does not.
func (t *Tree) Pressure(group, resource string) (psi.Pressure, error) {
	if err := check(group); err != nil {
		return psi.Pressure{}, fmt.Errorf("read pressure: %w", err)
	}
	if t.mode != V2 {
		return psi.Pressure{}, fmt.Errorf("read pressure of cgroup %s: %w", group, psi.ErrNone)
	}
	return psi.Read(filepath.Join(t.mount, group, resource+".pressure"))
}
