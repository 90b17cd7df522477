package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Set sets v on group, which must exist. Values that v does not state stay as they are.
func (t *Tree) Set(group string, v qos.Values) error {
	if err := check(group); err != nil {
		return fmt.Errorf("set cgroup: %w", err)
	}
	if t.units != nil {
		var err error
		if v, err = t.setUnit(group, v); err != nil {
			return fmt.Errorf("set cgroup %s: %w", group, err)
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
	if err := t.setMemoryV1(group, v.Memory); err != nil {
		return err
	}
	return t.setRest(group, v, ".limit_in_bytes")
}

// setQuotaV1 writes quota and period. The kernel checks them against each other and against the parent group, so they
// are written in an order in which no intermediate pair is refused.
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
		if errors.Is(err, unix.EINVAL) && quota != "" {
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
	for _, protection := range []struct {
		file  string
		bytes unit.Amount[unit.Bytes]
	}{{"memory.min", v.MemoryMin}, {"memory.low", v.MemoryLow}} {
		if bytes, ok := protection.bytes.Get(); ok {
			if err := t.set("memory", group, protection.file, int64(bytes)); err != nil {
				return err
			}
		}
	}
	for _, bound := range []struct {
		file  string
		bytes unit.Limit[unit.Bytes]
	}{{"memory.high", v.MemoryHigh}, {"memory.max", v.Memory}, {"memory.swap.max", v.Swap}} {
		if err := setLimit(t, "memory", group, bound.file, bound.bytes, "max"); err != nil {
			return err
		}
	}
	return t.setRest(group, v, ".max")
}

// setRest writes the values whose files have the same names in both versions; suffix ends the names of huge pages'
// files.
func (t *Tree) setRest(group string, v qos.Values, suffix string) error {
	if err := setLimit(t, "pids", group, "pids.max", v.PIDs, "max"); err != nil {
		return err
	}
	if !v.CPUs.IsEmpty() {
		dir, err := t.need("cpuset", group)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "cpuset.cpus"), v.CPUs.String()); err != nil {
			return err
		}
	}
	return t.setHugePages(group, v.HugePages, suffix)
}

// setMemoryV1 writes a limit. The kernel refuses it if it cannot reclaim the memory above it.
func (t *Tree) setMemoryV1(group string, limit unit.Limit[unit.Bytes]) error {
	err := setLimit(t, "memory", group, "memory.limit_in_bytes", limit, "-1")
	if errors.Is(err, unix.EBUSY) {
		usage, _ := readText(filepath.Join(t.dirOf("memory", group), "memory.usage_in_bytes"))
		return fmt.Errorf("%w: %w: memory.usage_in_bytes is %s and could not be reclaimed below the limit", ErrRefused, err,
			usage)
	}
	return err
}

// ErrRefused is in the chain of errors about a memory limit below what the kernel could reclaim.
var ErrRefused = errors.New("the kernel refuses the limit")

// setLimit writes a limit. Without the controller nothing is limited, so a missing controller is no error for an
// unlimited value.
func setLimit[T ~int64](t *Tree, controller, group, file string, l unit.Limit[T], unlimited string) error {
	if bound, ok := l.Get(); ok {
		return t.set(controller, group, file, int64(bound))
	}
	if l.IsKept() || t.of[controller] == nil {
		return nil
	}
	return write(filepath.Join(t.dirOf(controller, group), file), unlimited)
}

// setHugePages limits every page size for which the group has a file. The controller is optional: without it huge pages
// are limited only by the node's capacity.
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
		// The suffix also ends hugetlb.2MB.rsvd.max, which is not a page size and is skipped.
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

// need returns the directory of group under controller, or an error if the controller does not exist.
func (t *Tree) need(controller, group string) (string, error) {
	if t.of[controller] == nil {
		return "", fmt.Errorf("controller %s: not available under %s", controller, t.mount)
	}
	return t.dirOf(controller, group), nil
}

func (t *Tree) dirOf(controller, group string) string {
	return filepath.Join(t.of[controller].dir, group)
}

// write writes a kernel file. It never creates one: a missing file means that the controller is not enabled.
//
// It does not use os.File. memory.reclaim returns EAGAIN if less could be freed; os.File takes that as "try again when
// the file is writable", and its Write would wait forever (seen on Linux 6.1, 2026-11-20).
func write(file, value string) error {
	failed := func(op string, err error) error {
		return fmt.Errorf("write %q: %w", value, &os.PathError{Op: op, Path: file, Err: err})
	}
	fd, err := untilDone(func() (int, error) { return unix.Open(file, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0) })
	if err != nil {
		return failed("open", err)
	}
	_, err = untilDone(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		return failed("write", err)
	}
	return nil
}

// untilDone repeats a call while signals interrupt it. Go's runtime itself sends such signals.
func untilDone(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
