package machinefile

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Table returns f as a table for people. Its format is not stable, and no program reads it.
func (f File) Table() []byte {
	var out bytes.Buffer
	m := f.Machine
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	line := func(columns ...string) { fmt.Fprintln(w, strings.Join(columns, "\t")) }
	line("machine", f.Name)
	line("cpus", describeCPUs(m))
	line("memory", describeMemory(m))
	line("huge pages", describePages(m.HugePages))
	line("nodefs", describeFilesystem(m.NodeFS))
	if m.ImageFS == m.NodeFS {
		line("imagefs", "same")
	} else {
		line("imagefs", describeFilesystem(m.ImageFS))
	}
	for _, resource := range slices.Sorted(maps.Keys(m.Devices)) {
		line("devices", fmt.Sprintf("%s: %d", resource, len(m.Devices[resource])))
	}
	line()
	w.Flush()

	line("NUMA NODE", "CPUS", "CORES", "MEMORY", "INSTALLED", "HUGE PAGES", "DISTANCE: NODES")
	for _, n := range m.NUMANodes {
		line(fmt.Sprint(n.ID), orDash(n.CPUs.String()), fmt.Sprint(coresIn(m.Cores, n.CPUs)), amount(n.Memory),
			amount(n.Installed), nodePages(n), nodeDistances(n))
	}
	w.Flush()
	for _, level := range []struct {
		name   string
		groups mapping
		usual  int // with that many groups the table is left out, since each group is a whole group of the level above
	}{{"SOCKET", groups(m.Sockets), len(m.NUMANodes)}, {"L3 CACHE", groups(m.L3), len(m.Sockets)}} {
		if len(level.groups) == level.usual {
			continue
		}
		line()
		line(level.name, "CPUS")
		for _, g := range level.groups {
			line(g.key, fmt.Sprint(g.value))
		}
		w.Flush()
	}
	if len(m.PCIDevices) > 0 {
		line()
		line("PCI DEVICE", "CLASS", "VENDOR:DEVICE", "NUMA NODE")
		for _, d := range m.PCIDevices {
			line(d.Address, className(d.Class), fmt.Sprintf("%04x:%04x", d.Vendor, d.Device), fmt.Sprint(d.NUMANode))
		}
		w.Flush()
	}
	return out.Bytes()
}

func describeCPUs(m machine.Machine) string {
	text := fmt.Sprintf("%d online (%v): %s, %s, %s, %s", m.CPUs.Len(), m.CPUs, counted(len(m.Cores), "core"),
		counted(len(m.Sockets), "socket"), counted(len(m.Dies), "die"), counted(len(m.L3), "L3 group"))
	if !m.Offline.IsEmpty() {
		text += fmt.Sprintf("; offline %v", m.Offline)
	}
	if !m.Isolated.IsEmpty() {
		text += fmt.Sprintf("; isolated %v", m.Isolated)
	}
	return text
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func describeMemory(m machine.Machine) string {
	text := amount(m.Memory) + " usable"
	if installed := m.Installed().Memory; installed > m.Memory {
		text += fmt.Sprintf(" of %s installed", amount(installed))
	}
	if m.Swap > 0 {
		return text + ", swap " + amount(m.Swap)
	}
	return text + ", no swap"
}

func describePages(pages map[unit.Bytes]int64) string {
	var all []string
	for _, size := range slices.Sorted(maps.Keys(pages)) {
		if count := pages[size]; count == 0 {
			all = append(all, fmt.Sprintf("none of %v", size))
		} else {
			all = append(all, fmt.Sprintf("%d of %v (%s)", count, size, amount(size*unit.Bytes(count))))
		}
	}
	return orDash(strings.Join(all, ", "))
}

func describeFilesystem(fs machine.Filesystem) string {
	if fs.Inodes == 0 {
		return amount(fs.Capacity)
	}
	return fmt.Sprintf("%s, %d inodes", amount(fs.Capacity), fs.Inodes)
}

// amount rounds to three digits and a unit, for people.
func amount(b unit.Bytes) string {
	for _, u := range []struct {
		size unit.Bytes
		name string
	}{{unit.TiB, "Ti"}, {unit.GiB, "Gi"}, {unit.MiB, "Mi"}, {unit.KiB, "Ki"}} {
		if b < u.size {
			continue
		}
		if whole := b / u.size; b%u.size == 0 || whole >= 100 {
			return fmt.Sprintf("%d%s", whole, u.name)
		}
		return fmt.Sprintf("%.3g%s", float64(b)/float64(u.size), u.name)
	}
	return orDash(strings.TrimPrefix(fmt.Sprint(int64(b)), "0"))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// coresIn counts the cores that have a thread among cpus.
func coresIn(cores []idset.Set, cpus idset.Set) int {
	n := 0
	for _, threads := range cores {
		if !threads.Intersect(cpus).IsEmpty() {
			n++
		}
	}
	return n
}

func nodePages(n machine.NUMANode) string {
	var all []string
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		all = append(all, fmt.Sprintf("%d of %v", n.HugePages[size], size))
	}
	return orDash(strings.Join(all, ", "))
}

// nodeDistances groups nodes by distance: most nodes of a large machine are equally far.
func nodeDistances(n machine.NUMANode) string {
	at := map[int]idset.Set{}
	for id, d := range n.Distances {
		at[d] = at[d].Union(idset.Of(int(id)))
	}
	var all []string
	for _, d := range slices.Sorted(maps.Keys(at)) {
		all = append(all, fmt.Sprintf("%d: %v", d, at[d]))
	}
	return strings.Join(all, "  ")
}

// className names the common PCI base classes (PCI Code and ID Assignment Specification).
func className(class uint32) string {
	name := map[uint32]string{0x01: "storage", 0x02: "network", 0x03: "display", 0x04: "multimedia", 0x05: "memory",
		0x07: "communication",
		0x08: "system", 0x0b: "processor", 0x0c: "serial bus", 0x10: "encryption", 0x11: "signal processing",
		0x12: "accelerator"}[class>>16]
	if name == "" {
		return fmt.Sprintf("0x%06x", class)
	}
	return name
}
