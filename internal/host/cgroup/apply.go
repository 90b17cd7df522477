package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Apply creates group and what is missing above it, and sets v. Values that v does not state stay as they are.
func (t *Tree) Apply(group string, v qos.Values) error {
	if err := check(group); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	for _, h := range t.hierarchies {
		if h.passive {
			continue
		}
		if err := t.create(h, group); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	set := t.setV1
	if t.mode == V2 {
		set = t.setV2
	}
	if err := set(group, v); err != nil {
		return fmt.Errorf("set cgroup %s: %w", group, err)
	}
	return nil
}

// create makes group in h, top down: on v2 a controller must be enabled in each group above, and on v1 a cpuset is empty,
// and takes no process, until it is copied from the one above.
func (t *Tree) create(h hierarchy, group string) error {
	if group == "/" {
		return nil
	}
	dir := filepath.Join(h.dir, group)
	if h.unified {
		if err := t.create(h, filepath.Dir(group)); err != nil {
			return err
		}
		if err := enable(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	err := t.makeDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := t.create(h, filepath.Dir(group)); err != nil {
			return err
		}
		err = t.makeDir(dir)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if cpuset := t.of["cpuset"]; cpuset != nil && !h.unified && cpuset.dir == h.dir {
		return t.fillCpuset(h.dir, group)
	}
	return nil
}

// fillCpuset copies cpus and mems from above into a v1 cpuset that has none.
func (t *Tree) fillCpuset(root, group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := readText(filepath.Join(root, group, file))
		if err != nil {
			return err
		}
		if own != "" {
			continue
		}
		above := filepath.Dir(group)
		inherited, err := readText(filepath.Join(root, above, file))
		if err != nil {
			return err
		}
		if inherited == "" && above != "/" { // an interrupted creation
			if err := t.fillCpuset(root, above); err != nil {
				return err
			}
			if inherited, err = readText(filepath.Join(root, above, file)); err != nil {
				return err
			}
		}
		if err := write(filepath.Join(root, group, file), inherited); err != nil {
			return err
		}
	}
	return nil
}

// enable makes the v2 controllers that dir has available to the groups below it.
func enable(dir string) error {
	available, err := readWords(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := readWords(control)
	if err != nil {
		return err
	}
	var add []string
	for _, c := range v2Controllers {
		if slices.Contains(available, c) && !slices.Contains(enabled, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	err = write(control, strings.Join(add, " "))
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w: the group has processes of its own, and v2 allows them only in leaves: choose another cgroupRoot or move them into a group below it", err)
	}
	return err
}

// setV1 writes values into the hierarchies of their controllers.
func (t *Tree) setV1(group string, v qos.Values) error {
	if shares, ok := v.CPUShares.Get(); ok {
		if err := t.set("cpu", group, "cpu.shares", int64(shares)); err != nil {
			return err
		}
	}
	if err := t.setQuotaV1(group, v); err != nil {
		return err
	}
	if err := setLimit(t, "memory", group, "memory.limit_in_bytes", v.Memory, "-1"); err != nil {
		if errors.Is(err, syscall.EBUSY) {
			usage, _ := readText(filepath.Join(t.dirOf("memory", group), "memory.usage_in_bytes"))
			return fmt.Errorf("%w: memory.usage_in_bytes is %s and could not be reclaimed below the limit", err, usage)
		}
		return err
	}
	if err := setLimit(t, "pids", group, "pids.max", v.PIDs, "max"); err != nil {
		return err
	}
	return t.setHugePages(group, v.HugePages, ".limit_in_bytes")
}

// setQuotaV1 writes quota and period, which the kernel checks against each other and against the group above, in the
// order in which no intermediate pair is refused.
func (t *Tree) setQuotaV1(group string, v qos.Values) error {
	quota, period := "", ""
	if q, ok := v.CPUQuota.Get(); ok {
		quota = strconv.FormatInt(q.Microseconds(), 10)
	} else if v.CPUQuota.IsUnlimited() {
		if t.of["cpu"] == nil {
			return nil
		}
		quota = "-1"
	}
	if v.CPUPeriod > 0 {
		period = strconv.FormatInt(v.CPUPeriod.Microseconds(), 10)
	}
	if quota == "" && period == "" {
		return nil
	}
	dir, err := t.need("cpu", group)
	if err != nil {
		return err
	}
	if period != "" {
		err := write(filepath.Join(dir, "cpu.cfs_period_us"), period)
		if errors.Is(err, syscall.EINVAL) && quota != "" {
			if err := write(filepath.Join(dir, "cpu.cfs_quota_us"), quota); err != nil {
				return err
			}
			return write(filepath.Join(dir, "cpu.cfs_period_us"), period)
		} else if err != nil {
			return err
		}
	}
	if quota == "" {
		return nil
	}
	return write(filepath.Join(dir, "cpu.cfs_quota_us"), quota)
}

// setV2 writes values into the one hierarchy.
func (t *Tree) setV2(group string, v qos.Values) error {
	if shares, ok := v.CPUShares.Get(); ok {
		if err := t.set("cpu", group, "cpu.weight", shares.Weight()); err != nil {
			return err
		}
	}
	if !v.CPUQuota.IsKept() {
		period := v.CPUPeriod
		if period <= 0 {
			period = qos.CFSPeriodDefault
		}
		bound := "max"
		if quota, ok := v.CPUQuota.Get(); ok {
			bound = strconv.FormatInt(quota.Microseconds(), 10)
		}
		if dir, err := t.need("cpu", group); err != nil && bound != "max" {
			return err
		} else if err == nil {
			if err := write(filepath.Join(dir, "cpu.max"), fmt.Sprintf("%s %d", bound, period.Microseconds())); err != nil {
				return err
			}
		}
	}
	if err := setLimit(t, "memory", group, "memory.max", v.Memory, "max"); err != nil {
		return err
	}
	if err := setLimit(t, "pids", group, "pids.max", v.PIDs, "max"); err != nil {
		return err
	}
	return t.setHugePages(group, v.HugePages, ".max")
}

// setLimit writes a bound. The absence of a bound is true without the controller, so that is no error.
func setLimit[T ~int64](t *Tree, controller, group, file string, l unit.Limit[T], unlimited string) error {
	if bound, ok := l.Get(); ok {
		return t.set(controller, group, file, int64(bound))
	}
	if l.IsKept() || t.of[controller] == nil {
		return nil
	}
	return write(filepath.Join(t.dirOf(controller, group), file), unlimited)
}

// setHugePages bounds every page size that the group has a file for. The controller is optional: without it huge pages
// are bounded by the node's capacity alone.
func (t *Tree) setHugePages(group string, limits map[unit.Bytes]unit.Bytes, suffix string) error {
	if limits == nil || t.of["hugetlb"] == nil {
		return nil
	}
	dir := t.dirOf("hugetlb", group)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "hugetlb.")
		if !ok {
			continue
		}
		// The suffix also ends hugetlb.2MB.rsvd.max, which is no page size and is skipped.
		size, ok := strings.CutSuffix(name, suffix)
		if bytes, err := parsePageSize(size); ok && err == nil {
			if err := write(filepath.Join(dir, e.Name()), strconv.FormatInt(int64(limits[bytes]), 10)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Tree) set(controller, group, file string, value int64) error {
	dir, err := t.need(controller, group)
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, file), strconv.FormatInt(value, 10))
}

// need returns the directory of group under controller, and an error when there is no such controller.
func (t *Tree) need(controller, group string) (string, error) {
	if t.of[controller] == nil {
		return "", fmt.Errorf("controller %s: not available under %s", controller, t.mount)
	}
	return t.dirOf(controller, group), nil
}

func (t *Tree) dirOf(controller, group string) string {
	return filepath.Join(t.of[controller].dir, group)
}

// write sets a kernel file. It never creates one: a missing file is a controller that is not enabled.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}

// Remove removes group and the groups below it, bottom up, from every hierarchy. A group that is not there is removed.
// Groups with processes stay, as does what is above them; the error then wraps ErrBusy.
func (t *Tree) Remove(group string) error {
	if err := check(group); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	var problems []error
	for _, h := range t.hierarchies {
		if err := t.remove(filepath.Join(h.dir, group)); err != nil {
			problems = append(problems, fmt.Errorf("remove cgroup %s: %w", group, err))
		}
	}
	return errors.Join(problems...)
}

func (t *Tree) remove(dir string) error {
	err := t.removeDir(dir)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if errors.Is(readErr, os.ErrNotExist) {
		return nil
	} else if readErr != nil {
		return readErr
	}
	children := false
	for _, e := range entries {
		if e.IsDir() {
			children = true
			if err := t.remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if children {
		err = t.removeDir(dir)
	}
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EBUSY):
		pids, _ := readPIDs(filepath.Join(dir, procsFile), nil)
		return fmt.Errorf("%s: %w: %v", dir, ErrBusy, pids)
	}
	return err
}

func removeDir(dir string) error {
	if err := syscall.Rmdir(dir); err != nil {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
