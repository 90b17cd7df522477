package machinefile

import (
	"cmp"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// file reads the whole document.
func (d *decoder) file(v any) File {
	var f File
	var gotVersion, gotKind string
	if v == nil {
		v = map[string]any{}
	}
	d.fields("", v, map[string]field{
		"apiVersion": func(path string, v any) { gotVersion = d.string(path, v) },
		"kind":       func(path string, v any) { gotKind = d.string(path, v) },
		"metadata": func(path string, v any) {
			d.fields(path, v, map[string]field{"name": func(path string, v any) { f.Name = d.string(path, v) }})
		},
		"spec": func(path string, v any) { f.Machine = d.machine(path, v) },
	})
	if gotVersion != apiVersion {
		d.add("apiVersion", "%.80q: want %s", gotVersion, apiVersion)
	}
	if gotKind != kind {
		d.add("kind", "%.80q: want %s", gotKind, kind)
	}
	return f
}

func (d *decoder) machine(path string, v any) machine.Machine {
	var m machine.Machine
	d.fields(path, v, map[string]field{
		"numaNodes": func(path string, v any) {
			total := unit.Bytes(0)
			d.list(path, v, func(path string, v any) {
				if len(m.NUMANodes) <= int(machine.NUMAIDMax) {
					m.NUMANodes = append(m.NUMANodes, d.numaNode(path, v, &total))
				}
			})
			if all, _ := v.([]any); len(all) > int(machine.NUMAIDMax)+1 {
				d.add(path, "%d nodes: want at most %d", len(all), machine.NUMAIDMax+1)
			}
		},
		"memory": func(path string, v any) { m.Memory = d.bytes(path, v) },
		"hugepageSizes": func(path string, v any) {
			m.HugePages = map[unit.Bytes]int64{}
			d.list(path, v, func(path string, v any) { m.HugePages[d.bytes(path, v)] = 0 })
		},
		"offline":  func(path string, v any) { m.Offline = d.set(path, v) },
		"isolated": func(path string, v any) { m.Isolated = d.set(path, v) },
		"threadSiblings": func(path string, v any) {
			d.list(path, v, func(path string, v any) { m.Cores = append(m.Cores, d.set(path, v)) })
		},
		"sockets": func(path string, v any) { m.Sockets = byID[machine.SocketID](d, path, v, d.set) },
		"dies": func(path string, v any) {
			d.list(path, v, func(path string, v any) { m.Dies = append(m.Dies, d.set(path, v)) })
		},
		"l3":   func(path string, v any) { m.L3 = byID[machine.CacheID](d, path, v, d.set) },
		"swap": func(path string, v any) { m.Swap = d.bytes(path, v) },
		"pids": func(path string, v any) { m.PIDs = d.count(path, v, math.MaxInt64) },
		"filesystems": func(path string, v any) {
			d.fields(path, v, map[string]field{
				"nodefs":  func(path string, v any) { m.NodeFS = d.filesystem(path, v) },
				"imagefs": func(path string, v any) { m.ImageFS = d.filesystem(path, v) },
			})
		},
		"devices": func(path string, v any) {
			m.Devices = map[string]map[string][]machine.NUMAID{}
			d.list(path, v, func(path string, v any) { d.devices(path, v, m.Devices) })
		},
		"pciDevices": func(path string, v any) {
			d.list(path, v, func(path string, v any) { m.PCIDevices = append(m.PCIDevices, d.pciDevice(path, v)) })
		},
	})
	d.totalHugePages(path, &m)
	slices.SortFunc(m.PCIDevices, func(a, b machine.PCIDevice) int { return cmp.Compare(a.Address, b.Address) })
	return m
}

// totalHugePages adds up the huge pages of the nodes, by removing from m.HugePages the sizes that nodes have.
func (d *decoder) totalHugePages(path string, m *machine.Machine) {
	var total int64 // bytes
	for _, n := range m.NUMANodes {
		for size, count := range n.HugePages {
			delete(m.HugePages, size) // Complete sums up sizes that are not in the map
			if bytes := int64(size) * count; total > math.MaxInt64-bytes {
				d.add(path, "huge pages: more bytes than can be counted")
			} else {
				total += bytes
			}
		}
	}
}

// numaNode reads a NUMA node and adds its memory to the total of the nodes before it.
func (d *decoder) numaNode(path string, v any, total *unit.Bytes) machine.NUMANode {
	n := machine.NUMANode{ID: -1}
	d.fields(path, v, map[string]field{
		"id":        func(path string, v any) { n.ID = d.numaID(path, v) },
		"cpus":      func(path string, v any) { n.CPUs = d.set(path, v) },
		"memory":    func(path string, v any) { n.Memory = d.bytes(path, v) },
		"installed": func(path string, v any) { n.Installed = d.bytes(path, v) },
		"hugepages": func(path string, v any) { n.HugePages = d.pages(path, v) },
		"distances": func(path string, v any) {
			n.Distances = byID[machine.NUMAID](d, path, v,
				func(path string, v any) int { return int(d.count(path, v, math.MaxInt32)) })
		},
	})
	if n.ID < 0 {
		d.add(path, "the id is missing")
	}
	if n.Memory > math.MaxInt64-*total {
		d.add(path+".memory", "the nodes have more memory than can be counted")
		n.Memory = 0
	}
	*total += n.Memory
	return n
}

func (d *decoder) filesystem(path string, v any) machine.Filesystem {
	var fs machine.Filesystem
	d.fields(path, v, map[string]field{
		"capacity": func(path string, v any) { fs.Capacity = d.bytes(path, v) },
		"inodes":   func(path string, v any) { fs.Inodes = d.count(path, v, math.MaxInt64) },
	})
	return fs
}

// devices reads the devices of one resource into all.
func (d *decoder) devices(path string, v any, all map[string]map[string][]machine.NUMAID) {
	var name string
	ids := map[string][]machine.NUMAID{}
	d.fields(path, v, map[string]field{
		"resource": func(path string, v any) { name = d.string(path, v) },
		"ids": func(path string, v any) {
			for id, nodes := range d.entries(path, v) {
				var near []machine.NUMAID
				d.list(join(path, id), nodes, func(path string, v any) { near = append(near, d.numaID(path, v)) })
				slices.Sort(near)
				ids[id] = near
			}
		},
	})
	if name == "" {
		d.add(path, "the resource is missing")
	}
	if _, twice := all[name]; twice {
		d.add(path, "resource %.80q is listed twice", name)
	}
	all[name] = ids
}

func (d *decoder) pciDevice(path string, v any) machine.PCIDevice {
	p := machine.PCIDevice{NUMANode: -1}
	d.fields(path, v, map[string]field{
		"address":  func(path string, v any) { p.Address = d.string(path, v) },
		"class":    func(path string, v any) { p.Class = d.hex(path, v, 24) },
		"vendor":   func(path string, v any) { p.Vendor = d.hex(path, v, 16) },
		"device":   func(path string, v any) { p.Device = d.hex(path, v, 16) },
		"numaNode": func(path string, v any) { p.NUMANode = d.numaID(path, v) },
	})
	if p.Address == "" || p.NUMANode < 0 {
		d.add(path, "want an address and a numaNode")
	}
	return p
}
