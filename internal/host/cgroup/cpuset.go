package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// confineTries bounds how often narrowing a v1 cpuset is tried while new groups appear in it that have all its former
// CPUs. Chosen: a new group appears when a container starts, which takes tens of milliseconds; a try takes far less
// than one.
const confineTries = 100

// Confine limits a pod's group to the CPUs own and rest. Below it are the groups of containers. Those that have only
// CPUs of own stay as they are; the others get rest, with all groups below them. When Confine returns without error,
// nothing in the group runs on other CPUs: on v1 the kernel allows no group more than its parent, and on v2 CPUs that
// the parent does not have are ignored. If the group does not exist, nothing is to be done.
//
// The sets may contain offline CPUs. On v2 they stay in the group's cpuset, and are used again when they are online. v1
// removes them from every group for good, and refuses them.
func (t *Tree) Confine(group string, own, rest idset.Set) error {
	if err := t.confine(group, own, rest); err != nil && !vanished(err) {
		return fmt.Errorf("confine cgroup %s to CPUs %v: %w", group, own.Union(rest), err)
	}
	return nil
}

func (t *Tree) confine(group string, own, rest idset.Set) error {
	if err := check(group); err != nil {
		return err
	}
	dir, err := t.need("cpuset", group)
	if err != nil {
		return err
	}
	if t.mode != V2 {
		online, err := t.CPUs("/")
		if err != nil {
			return err
		}
		own, rest = own.Intersect(online), rest.Intersect(online)
	}
	all := own.Union(rest)
	if t.units != nil {
		if _, err := t.setUnit(group, qos.Values{CPUs: all}); err != nil {
			return err
		}
	}
	if t.mode == V2 {
		err = t.confineV2(dir, own, rest)
	} else {
		err = confineV1(dir, own, rest)
	}
	if err != nil {
		return err
	}
	has, err := t.CPUs(group)
	if err != nil {
		return err
	}
	if more := has.Minus(all); !more.IsEmpty() {
		return fmt.Errorf("the kernel still allows it CPUs %v", more)
	}
	return nil
}

func readCPUs(dir string) (idset.Set, error) {
	text, err := readText(filepath.Join(dir, "cpuset.cpus"))
	if err != nil {
		return idset.Set{}, err
	}
	return idset.Parse(text)
}

func writeCPUs(dir string, cpus idset.Set) error {
	return write(filepath.Join(dir, "cpuset.cpus"), cpus.String())
}

// below calls visit for each group directly below dir, with its CPUs. It skips groups that are removed meanwhile.
func below(dir string, visit func(dir string, cpus idset.Set) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		inner := filepath.Join(dir, e.Name())
		cpus, err := readCPUs(inner)
		if err == nil {
			err = visit(inner, cpus)
		}
		if err != nil && !vanished(err) {
			return err
		}
	}
	return nil
}

func vanished(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// confineV2 limits the group. This also limits, at once, the groups below it that have no cpuset of their own. On v2 a
// container has none unless one was set.
func (t *Tree) confineV2(dir string, own, rest idset.Set) error {
	if err := writeCPUs(dir, own.Union(rest)); err != nil {
		return err
	}
	return below(dir, func(inner string, cpus idset.Set) error {
		if cpus.IsEmpty() && own.IsEmpty() || !cpus.IsEmpty() && cpus.Minus(own).IsEmpty() || cpus.Equal(rest) {
			return nil
		}
		return writeCPUs(inner, rest)
	})
}

// confineV1 adds CPUs from the top down and removes them from the bottom up, since no group may have more than its
// parent.
func confineV1(dir string, own, rest idset.Set) error {
	all := own.Union(rest)
	for try := 0; ; try++ {
		has, err := readCPUs(dir)
		if err != nil {
			return err
		}
		if wide := has.Union(all); !wide.Equal(has) {
			if err := writeCPUs(dir, wide); err != nil {
				return err
			}
		}
		err = below(dir, func(inner string, cpus idset.Set) error {
			if !cpus.IsEmpty() && cpus.Minus(own).IsEmpty() {
				return nil
			}
			return followV1(inner, cpus, rest)
		})
		if err == nil && !all.Equal(has) {
			err = writeCPUs(dir, all)
		}
		if !errors.Is(err, syscall.EBUSY) || try == confineTries {
			return err
		}
	}
}

// followV1 changes a container's group from one set of CPUs to another. A group that the container made inside gets the
// new set if it had all of the old one. Otherwise it keeps those of its CPUs that are in the new set.
func followV1(dir string, from, to idset.Set) error {
	if wide := from.Union(to); !wide.Equal(from) {
		if err := writeCPUs(dir, wide); err != nil {
			return err
		}
	}
	err := below(dir, func(inner string, cpus idset.Set) error {
		target := cpus.Intersect(to)
		if target.IsEmpty() || cpus.Equal(from) {
			target = to
		}
		if target.Equal(cpus) {
			return nil
		}
		return followV1(inner, cpus, target)
	})
	if err != nil || from.Equal(to) {
		return err
	}
	return writeCPUs(dir, to)
}
