package cgroup

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Property is a property of a systemd unit (org.freedesktop.systemd1(5)). Value is a bool, string, uint64, []byte or
// []string.
type Property struct {
	Name  string
	Value any
}

// Units manages systemd units as far as needed here; *Bus calls a real systemd. A nil Units means no systemd.
type Units interface {
	Version() (int, error)                          // 252
	Start(name string, properties []Property) error // no error if the unit exists
	Set(name string, properties []Property) error   // the properties stay set until the next boot
	Stop(name string) error                         // no error if the unit does not exist
}

// UseSystemd makes systemd create the slices of t. A group whose name ends in .slice is created through u. Its values
// are then also set in systemd, so that systemd does not undo them when it reloads. What systemd does not manage (v1
// hierarchies that it does not use, huge pages, values of a fraction of a percent) is still written to the kernel's
// files, as runtimes do.
func (t *Tree) UseSystemd(u Units) { t.units, t.started = u, &startedUnits{names: map[string]bool{}} }

// startedUnits are the units that this process started, so that it does not start them again with each change.
type startedUnits struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (s *startedUnits) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

func (s *startedUnits) note(name string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		s.names[name] = true
	} else {
		delete(s.names, name)
	}
}

// unitOf returns the unit of a group. Groups below a unit's own group, which systemd does not manage, have none.
func unitOf(group string) (name string, slice, ok bool) {
	name = path.Base(group)
	for _, suffix := range []string{".slice", ".service", ".scope"} {
		if strings.HasSuffix(name, suffix) {
			return name, suffix == ".slice", true
		}
	}
	return "", false, false
}

// startUnit starts the slice of group. systemd also creates the slices above it, which it derives from the name.
func (t *Tree) startUnit(group string) error {
	name, slice, ok := unitOf(group)
	if !ok || !slice || t.started.has(name) {
		return nil
	}
	block := "IOAccounting"
	if t.mode != V2 {
		block = "BlockIOAccounting"
	}
	properties := []Property{
		{"Description", "Plimsoll: " + strings.TrimSuffix(name, ".slice")},
		{"MemoryAccounting", true}, {"CPUAccounting", true}, {block, true}, {"TasksAccounting", true},
		{"DefaultDependencies", false}, // at shutdown, pods are not stopped before everything else
	}
	if above := path.Base(path.Dir(group)); above != "/" {
		properties = append(properties, Property{"Wants", []string{above}})
	}
	if err := t.units.Start(name, properties); err != nil {
		return err
	}
	t.started.note(name, true)
	return nil
}

// setUnit sets the values in systemd, and returns those that must be written to the files afterwards.
func (t *Tree) setUnit(group string, v qos.Values) (qos.Values, error) {
	name, _, ok := unitOf(group)
	if !ok {
		return v, nil
	}
	version, err := t.units.Version()
	if err != nil {
		return v, err
	}
	v = roundQuota(v)
	properties := properties(v, t.mode, version)
	if len(properties) == 0 {
		return v, nil
	}
	return v, t.units.Set(name, properties)
}

// stopUnit stops the slice of group. A group with processes is left as it is, because systemd would end them.
func (t *Tree) stopUnit(group string) error {
	name, slice, ok := unitOf(group)
	if !ok || !slice || !t.started.has(name) && !t.anywhere(group) {
		return nil
	}
	pids, err := t.PIDs(group)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("%s: %w: %v", name, ErrBusy, pids)
	}
	if err := t.units.Stop(name); err != nil {
		return err
	}
	t.started.note(name, false)
	return nil
}

// anywhere reports whether group exists in any hierarchy.
func (t *Tree) anywhere(group string) bool {
	for _, h := range t.hierarchies {
		if _, err := os.Stat(filepath.Join(h.dir, group)); err == nil {
			return true
		}
	}
	return false
}

// Versions of systemd that introduced a property (systemd's NEWS).
const (
	sinceQuotaPeriod = 242
	sinceAllowedCPUs = 244
)

// infinity is systemd's value for "unlimited" (UINT64_MAX).
const infinity = uint64(math.MaxUint64)

// quotaStep is the precision of CPU quotas in systemd, per second: a percent of one CPU (CPUQuota= in
// systemd.resource-control(5)).
const quotaStep = 10 * time.Millisecond

// roundQuota rounds a CPU quota up to systemd's precision, as runtimes do. If it were rounded down, the containers of a
// pod could not use the pod's quota.
func roundQuota(v qos.Values) qos.Values {
	quota, ok := v.CPUQuota.Get()
	if !ok || v.CPUPeriod <= 0 {
		return v
	}
	exact, perSecond := quotaExactly(quota, v.CPUPeriod), quotaPerSecond(quota, v.CPUPeriod)
	if exact == perSecond {
		return v
	}
	micros := perSecond.Microseconds() * v.CPUPeriod.Microseconds() / time.Second.Microseconds()
	v.CPUQuota = unit.LimitTo(time.Duration(micros) * time.Microsecond)
	return v
}

// quotaExactly returns the CPU time per second of wall time.
func quotaExactly(quota, period time.Duration) time.Duration {
	return time.Duration(quota.Microseconds()*time.Second.Microseconds()/period.Microseconds()) * time.Microsecond
}

// quotaPerSecond returns the same, rounded up to quotaStep.
func quotaPerSecond(quota, period time.Duration) time.Duration {
	perSecond := quotaExactly(quota, period)
	if rest := perSecond % quotaStep; rest != 0 {
		perSecond += quotaStep - rest
	}
	return perSecond
}

// properties translates values into properties (systemd.resource-control(5)). Values without a property are left to the
// kernel's files.
func properties(v qos.Values, mode Mode, version int) []Property {
	var out []Property
	add := func(name string, value any) { out = append(out, Property{name, value}) }
	limit := func(name string, bound int64, bounded, stated bool) {
		switch {
		case bounded:
			add(name, uint64(max(0, bound)))
		case stated:
			add(name, infinity)
		}
	}
	memory, memoryBound := v.Memory.Get()
	if mode == V2 {
		if shares, ok := v.CPUShares.Get(); ok {
			add("CPUWeight", uint64(shares.Weight()))
		}
		limit("MemoryMax", int64(memory), memoryBound, v.Memory.IsUnlimited())
		high, bound := v.MemoryHigh.Get()
		limit("MemoryHigh", int64(high), bound, v.MemoryHigh.IsUnlimited())
		swap, bound := v.Swap.Get()
		limit("MemorySwapMax", int64(swap), bound, v.Swap.IsUnlimited())
		least, stated := v.MemoryMin.Get()
		limit("MemoryMin", int64(least), stated, false)
		low, stated := v.MemoryLow.Get()
		limit("MemoryLow", int64(low), stated, false)
	} else {
		if shares, ok := v.CPUShares.Get(); ok {
			add("CPUShares", uint64(shares))
		}
		limit("MemoryLimit", int64(memory), memoryBound, v.Memory.IsUnlimited())
	}
	if v.CPUPeriod > 0 && version >= sinceQuotaPeriod {
		add("CPUQuotaPeriodUSec", uint64(v.CPUPeriod.Microseconds()))
	}
	if quota, ok := v.CPUQuota.Get(); ok && v.CPUPeriod > 0 {
		add("CPUQuotaPerSecUSec", uint64(quotaPerSecond(quota, v.CPUPeriod).Microseconds()))
	} else if v.CPUQuota.IsUnlimited() {
		add("CPUQuotaPerSecUSec", infinity)
	}
	pids, bound := v.PIDs.Get()
	limit("TasksMax", max(1, pids), bound, v.PIDs.IsUnlimited()) // systemd refuses 0
	if !v.CPUs.IsEmpty() && version >= sinceAllowedCPUs {
		add("AllowedCPUs", cpuMask(v.CPUs))
	}
	return out
}

// cpuMask returns a set of CPUs as a bit mask, with the least significant byte first.
func cpuMask(cpus idset.Set) []byte {
	var mask []byte
	for cpu := range cpus.All() {
		for len(mask) <= cpu/8 {
			mask = append(mask, 0)
		}
		mask[cpu/8] |= 1 << (cpu % 8)
	}
	return mask
}
