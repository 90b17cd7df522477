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
	Isolated idset.Set // of both, those out of load balancing (isolcpus)
}

// CPUs reads which there are.
func (fs FS) CPUs() (CPUs, error) {
	online, _, err := fs.list(cpuDir, "online")
	if err == nil && online.IsEmpty() {
		err = fmt.Errorf("%s: missing or empty", fs.path(cpuDir, "online"))
	}
	if err != nil {
		return CPUs{}, fmt.Errorf("read CPUs: %w", err)
	}
	// The kernel's own offline file also lists CPUs that could be plugged in one day: what is present decides.
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

// Topology says which CPUs share what. Each level is a partition of the online CPUs, or empty when the kernel does not
// tell it.
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
	// core_cpus_list has been the name since Linux 5.3; the old one is kept beside it.
	if t.Cores, err = fs.groups(online, "core_cpus_list", "thread_siblings_list"); err != nil {
		return Topology{}, fmt.Errorf("read CPU topology: %w", err)
	}
	if t.L3, err = fs.l3Groups(online); err != nil {
		return Topology{}, fmt.Errorf("read caches: %w", err)
	}
	return t, nil
}

// ThermalThrottles returns the directories that count how often each CPU was slowed down for heat. Machines without
// such counters, most guests among them, have none.
func (fs FS) ThermalThrottles() []string {
	dirs, _ := filepath.Glob(fs.path("devices", "system", "cpu", "cpu[0-9]*", "thermal_throttle")) // fails for a bad pattern only
	return dirs
}

func cpuName(cpu int) string { return fmt.Sprintf("cpu%d", cpu) }

// sockets reads physical_package_id, which is -1 where the firmware does not tell.
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
		return nil, fmt.Errorf("%s: CPUs %v have no socket, the others have", fs.path(cpuDir), untold)
	}
	return sockets, nil
}

// groups reads one of the topology files in which each CPU lists those it shares something with. The first name that
// the kernel has is read.
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
			return nil, fmt.Errorf("%s: CPUs %v have no %s, the others have", fs.path(cpuDir), missing, name)
		}
		return p.groups, nil
	}
	return nil, nil
}

// partition collects groups that every member tells of, and finds members who disagree.
type partition struct {
	groups []idset.Set
	seen   idset.Set
}

// add takes the word of one CPU for its group.
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
	return fmt.Errorf("%s: %q: another CPU of this group tells of another group: %v", file, group, p.groups)
}

// l3Groups reads which CPUs share a cache of level 3. Where some CPUs have one and others do not (efficiency cores of
// mobile processors), those without are a group of their own with the first free number.
func (fs FS) l3Groups(online idset.Set) (map[machine.CacheID]idset.Set, error) {
	var p partition
	var ids []int64 // of p.groups; -1: not told
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

// numbered gives each group its id. Where an id is not told, or told of two groups, as some hypervisors do, each group
// is named by its lowest CPU.
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

// l3Index returns the directory of the cache of level 3 that cpu uses, relative to the root.
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
