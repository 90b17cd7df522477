package sysfs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
)

const cpuDir = "devices/system/cpu"

// CPUs are the machine's logical CPUs (Documentation/ABI/testing/sysfs-devices-system-cpu).
type CPUs struct {
	Online   idset.Set // the kernel runs on them
	Offline  idset.Set // present, but switched off
	Isolated idset.Set // those of Online and Offline that are excluded from load balancing (isolcpus)
}

// CPUs reads which CPUs exist.
func (fs FS) CPUs() (CPUs, error) {
	online, _, err := fs.list(cpuDir, "online")
	if err == nil && online.IsEmpty() {
		err = fmt.Errorf("%s: missing or empty", fs.path(cpuDir, "online"))
	}
	if err != nil {
		return CPUs{}, fmt.Errorf("read CPUs: %w", err)
	}
	// The kernel's own offline file also lists CPUs that could be plugged in later, so the present ones are read.
	present, ok, err := fs.list(cpuDir, "present")
	if err != nil {
		return CPUs{}, fmt.Errorf("read CPUs: %w", err)
	}
	if !ok {
		present = online
	}
	isolated, _, err := fs.list(cpuDir, "isolated")
	if err != nil {
		return CPUs{}, fmt.Errorf("read CPUs: %w", err)
	}
	return CPUs{online, present.Minus(online), isolated.Intersect(present.Union(online))}, nil
}

// Topology lists which CPUs share what. Each level is a partition of the online CPUs, or empty if the kernel does not
// report it.
type Topology struct {
	Sockets map[machine.SocketID]idset.Set
	Dies    []idset.Set
	L3      map[machine.CacheID]idset.Set
	Cores   []idset.Set
}

// Topology reads the topology of the online CPUs.
func (fs FS) Topology(online idset.Set) (Topology, error) {
	var t Topology
	var err error
	if t.Sockets, err = fs.sockets(online); err != nil {
		return Topology{}, fmt.Errorf("read CPU topology: %w", err)
	}
	if t.Dies, err = fs.groups(online, "die_cpus_list"); err != nil {
		return Topology{}, fmt.Errorf("read CPU topology: %w", err)
	}
	// core_cpus_list is the name since Linux 5.3; the old one still exists too.
	if t.Cores, err = fs.groups(online, "core_cpus_list", "thread_siblings_list"); err != nil {
		return Topology{}, fmt.Errorf("read CPU topology: %w", err)
	}
	if t.L3, err = fs.l3Groups(online); err != nil {
		return Topology{}, fmt.Errorf("read caches: %w", err)
	}
	return t, nil
}

// ThermalThrottles returns the directories of the counters of thermal throttling of each CPU. Machines without such
// counters, such as most guests, have none.
func (fs FS) ThermalThrottles() []string {
	// only a bad pattern is an error
	dirs, _ := filepath.Glob(fs.path("devices", "system", "cpu", "cpu[0-9]*", "thermal_throttle"))
	return dirs
}

func cpuName(cpu int) string { return fmt.Sprintf("cpu%d", cpu) }

// sockets reads physical_package_id, which is -1 if the firmware does not report it.
func (fs FS) sockets(online idset.Set) (map[machine.SocketID]idset.Set, error) {
	sockets := map[machine.SocketID]idset.Set{}
	var untold idset.Set
	for cpu := range online.All() {
		id, ok, err := fs.number(cpuDir, cpuName(cpu), "topology/physical_package_id")
		if err != nil {
			return nil, err
		}
		if !ok || id == -1 {
			untold = untold.Union(idset.Of(cpu))
			continue
		}
		if id < 0 || id > math.MaxInt32 {
			return nil, fmt.Errorf("%s: %d: want an id", fs.path(cpuDir, cpuName(cpu), "topology/physical_package_id"), id)
		}
		socket := machine.SocketID(id)
		sockets[socket] = sockets[socket].Union(idset.Of(cpu))
	}
	if len(sockets) > 0 && !untold.IsEmpty() {
		return nil, fmt.Errorf("%s: CPUs %v have no socket; the others have one", fs.path(cpuDir), untold)
	}
	return sockets, nil
}

// groups reads a topology file in which each CPU lists the CPUs with which it shares something. It reads the first of
// names that the kernel has.
func (fs FS) groups(online idset.Set, names ...string) ([]idset.Set, error) {
	for _, name := range names {
		var p partition
		for cpu := range online.All() {
			file := filepath.Join(cpuDir, cpuName(cpu), "topology", name)
			group, ok, err := fs.list(file)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			if err := p.add(fs.path(file), cpu, group.Intersect(online)); err != nil {
				return nil, err
			}
		}
		if len(p.groups) == 0 {
			continue
		}
		if missing := online.Minus(p.seen); !missing.IsEmpty() {
			return nil, fmt.Errorf("%s: CPUs %v have no %s; the others have one", fs.path(cpuDir), missing, name)
		}
		return p.groups, nil
	}
	return nil, nil
}

// partition collects the groups that CPUs report, and detects CPUs of one group that report different groups.
type partition struct {
	groups []idset.Set
	seen   idset.Set
}

// add adds the group that one CPU reports.
func (p *partition) add(file string, cpu int, group idset.Set) error {
	if !group.Has(cpu) {
		return fmt.Errorf("%s: %q: CPU %d is not in its own group", file, group, cpu)
	}
	if p.seen.Intersect(group).IsEmpty() {
		p.groups, p.seen = append(p.groups, group), p.seen.Union(group)
		return nil
	}
	for _, g := range p.groups {
		if g.Equal(group) {
			return nil
		}
	}
	return fmt.Errorf("%s: %q: another CPU of this group reports another group: %v", file, group, p.groups)
}

// l3Groups reads which CPUs share a level 3 cache. If some CPUs have one and others do not (efficiency cores of mobile
// processors), those without are a group of their own with the first free number.
func (fs FS) l3Groups(online idset.Set) (map[machine.CacheID]idset.Set, error) {
	var p partition
	var ids []int64 // of p.groups; -1: not reported
	for cpu := range online.All() {
		index, ok, err := fs.l3Index(cpu)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		shared, ok, err := fs.list(index, "shared_cpu_list")
		if err != nil || !ok {
			return nil, errors.Join(err, fmt.Errorf("%s: want the CPUs that share it", fs.path(index, "shared_cpu_list")))
		}
		known := len(p.groups)
		if err := p.add(fs.path(index, "shared_cpu_list"), cpu, shared.Intersect(online)); err != nil {
			return nil, err
		}
		if len(p.groups) == known {
			continue
		}
		id, ok, err := fs.number(index, "id") // since Linux 4.11, and not on every architecture
		if err != nil {
			return nil, err
		}
		if !ok {
			id = -1
		}
		ids = append(ids, id)
	}
	groups := numbered(p.groups, ids)
	if without := online.Minus(p.seen); len(groups) > 0 && !without.IsEmpty() {
		id := machine.CacheID(0)
		for groups[id].Len() > 0 {
			id++
		}
		groups[id] = without
	}
	return groups, nil
}

// numbered gives each group its ID. Some hypervisors report no ID, or the same for two groups. Then each group has the
// number of its lowest CPU.
func numbered(groups []idset.Set, ids []int64) map[machine.CacheID]idset.Set {
	out := map[machine.CacheID]idset.Set{}
	for i, group := range groups {
		if ids[i] >= 0 && ids[i] <= math.MaxInt32 {
			out[machine.CacheID(ids[i])] = group
		}
	}
	if len(out) == len(groups) {
		return out
	}
	clear(out)
	for _, group := range groups {
		out[machine.CacheID(group.Lowest())] = group
	}
	return out
}

// l3Index returns the directory of the level 3 cache that cpu uses, relative to the root.
func (fs FS) l3Index(cpu int) (string, bool, error) {
	dir := filepath.Join(cpuDir, cpuName(cpu), "cache")
	entries, err := os.ReadDir(fs.path(dir))
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "index") {
			continue
		}
		level, _, err := fs.number(dir, e.Name(), "level")
		if err != nil {
			return "", false, err
		}
		if level == 3 {
			return filepath.Join(dir, e.Name()), true, nil
		}
	}
	return "", false, nil
}
