package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Footprint is the memory of a group and those below it, as far as evictions ask for it: what Usage says of memory, for a
// quarter of its price, and what reclaim could still take.
type Footprint struct {
	Charged    unit.Bytes
	WorkingSet unit.Bytes // Charged without inactive_file
	Cache      unit.Bytes // of WorkingSet, page cache that the kernel can drop although it is in use: active_file
	Swap       unit.Bytes // swapped out: not in Charged; 0 where swap is not accounted for
}

// Footprint reads group, which may be the root on v1. A group that is gone is an error with os.ErrNotExist in its chain.
func (t *Tree) Footprint(group string) (Footprint, error) {
	f, err := t.footprint(group)
	if err != nil {
		return Footprint{}, fmt.Errorf("read memory of cgroup %s: %w", group, err)
	}
	return f, nil
}

func (t *Tree) footprint(group string) (Footprint, error) {
	dir, err := t.need("memory", group)
	if err != nil {
		return Footprint{}, err
	}
	usage, prefix := "memory.usage_in_bytes", "total_"
	if t.mode == V2 {
		usage, prefix = "memory.current", ""
	}
	charged, err := readNumber(filepath.Join(dir, usage))
	if err != nil {
		return Footprint{}, err
	}
	v := []int64{0, 0, 0}
	if err := readKeys(filepath.Join(dir, "memory.stat"), []string{prefix + "inactive_file", prefix + "active_file", prefix + "swap"}, v); err != nil {
		return Footprint{}, err
	}
	if t.mode == V2 {
		if v[2], err = readNumber(filepath.Join(dir, "memory.swap.current")); errors.Is(err, os.ErrNotExist) {
			v[2] = 0
		} else if err != nil {
			return Footprint{}, err
		}
	}
	// The files are read one after the other, so that differences may come out below zero.
	working := max(0, charged-v[0])
	return Footprint{
		Charged: unit.Bytes(charged), WorkingSet: unit.Bytes(working), Cache: unit.Bytes(min(working, v[1])), Swap: unit.Bytes(v[2]),
	}, nil
}
