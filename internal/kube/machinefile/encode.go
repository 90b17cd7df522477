package machinefile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// YAML returns f in the format for people.
func (f File) YAML() []byte { return yamlOf(f.document()) }

// JSON returns f in the format for programs.
func (f File) JSON() []byte { return jsonOf(f.document()) }

// document returns f with its fields in the order of the package documentation.
func (f File) document() mapping {
	doc := mapping{{"apiVersion", apiVersion}, {"kind", kind}}
	if f.Name != "" {
		doc = append(doc, pair{"metadata", mapping{{"name", f.Name}}})
	}
	return append(doc, pair{"spec", spec(f.Machine.Complete())})
}

// spec returns the fields of a complete machine that machine.Complete could not derive from the others.
func spec(m machine.Machine) mapping {
	derived := machine.Machine{NUMANodes: slices.Clone(m.NUMANodes), NodeFS: m.NodeFS, Cores: severalThreads(m.Cores)}
	for i := range derived.NUMANodes {
		derived.NUMANodes[i].Distances = nil
	}
	bare := derived.Complete()
	withSockets := derived
	withSockets.Sockets = m.Sockets
	withSockets = withSockets.Complete()

	var nodes []any
	usual := equalDistances(bare.NUMANodes, m.NUMANodes)
	for _, n := range m.NUMANodes {
		nodes = append(nodes, numaNode(n, !usual || len(m.NUMANodes) > 1))
	}
	out := mapping{{"numaNodes", nodes}}
	out.addIf(m.Memory != bare.Memory, "memory", quantity(m.Memory))
	if len(m.HugePages) != len(bare.HugePages) {
		var sizes []any
		for _, size := range slices.Sorted(maps.Keys(m.HugePages)) {
			sizes = append(sizes, quantity(size))
		}
		out = append(out, pair{"hugepageSizes", sizes})
	}
	out.addIf(!m.Offline.IsEmpty(), "offline", m.Offline.String())
	out.addIf(!m.Isolated.IsEmpty(), "isolated", m.Isolated.String())
	out.addIf(len(derived.Cores) > 0, "threadSiblings", sets(derived.Cores))
	out.addIf(!reflect.DeepEqual(m.Sockets, bare.Sockets), "sockets", groups(m.Sockets))
	out.addIf(!reflect.DeepEqual(m.Dies, withSockets.Dies), "dies", sets(m.Dies))
	out.addIf(!reflect.DeepEqual(m.L3, withSockets.L3), "l3", groups(m.L3))
	out.addIf(m.Swap > 0, "swap", quantity(m.Swap))
	out.addIf(m.PIDs > 0, "pids", m.PIDs)
	systems := mapping{{"nodefs", filesystem(m.NodeFS)}}
	systems.addIf(m.ImageFS != m.NodeFS, "imagefs", filesystem(m.ImageFS))
	out = append(out, pair{"filesystems", systems})
	out.addIf(len(m.Devices) > 0, "devices", devices(m.Devices))
	out.addIf(len(m.PCIDevices) > 0, "pciDevices", pciDevices(m.PCIDevices))
	return out
}

func (m *mapping) addIf(yes bool, key string, value any) {
	if yes {
		*m = append(*m, pair{key, value})
	}
}

func severalThreads(cores []idset.Set) []idset.Set {
	return slices.DeleteFunc(slices.Clone(cores), func(threads idset.Set) bool { return threads.Len() < 2 })
}

func equalDistances(a, b []machine.NUMANode) bool {
	return slices.EqualFunc(a, b, func(a, b machine.NUMANode) bool { return maps.Equal(a.Distances, b.Distances) })
}

func numaNode(n machine.NUMANode, distances bool) mapping {
	out := mapping{{"id", int64(n.ID)}}
	out.addIf(!n.CPUs.IsEmpty(), "cpus", n.CPUs.String())
	out.addIf(n.Memory > 0, "memory", quantity(n.Memory))
	out.addIf(n.Installed > 0, "installed", quantity(n.Installed))
	var pages mapping
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		pages = append(pages, pair{quantity(size), n.HugePages[size]})
	}
	out.addIf(len(pages) > 0, "hugepages", pages)
	if distances {
		var to mapping
		for _, id := range slices.Sorted(maps.Keys(n.Distances)) {
			to = append(to, pair{strconv.Itoa(int(id)), int64(n.Distances[id])})
		}
		out = append(out, pair{"distances", to})
	}
	return out
}

// quantity prints an amount in Kubernetes' canonical form.
func quantity(b unit.Bytes) string { return resource.NewQuantity(int64(b), resource.BinarySI).String() }

func filesystem(fs machine.Filesystem) mapping {
	out := mapping{{"capacity", quantity(fs.Capacity)}}
	out.addIf(fs.Inodes > 0, "inodes", fs.Inodes)
	return out
}

func sets(groups []idset.Set) []any {
	var out []any
	for _, s := range groups {
		out = append(out, s.String())
	}
	return out
}

func groups[ID ~int](by map[ID]idset.Set) mapping {
	var out mapping
	for _, id := range slices.Sorted(maps.Keys(by)) {
		out = append(out, pair{strconv.Itoa(int(id)), by[id].String()})
	}
	return out
}

func devices(all map[string]map[string][]machine.NUMAID) []any {
	var out []any
	for _, name := range slices.Sorted(maps.Keys(all)) {
		ids := mapping{}
		for _, id := range slices.Sorted(maps.Keys(all[name])) {
			near := []any{}
			for _, node := range all[name][id] {
				near = append(near, int64(node))
			}
			ids = append(ids, pair{id, near})
		}
		out = append(out, mapping{{"resource", name}, {"ids", ids}})
	}
	return out
}

func pciDevices(all []machine.PCIDevice) []any {
	var out []any
	for _, d := range all {
		out = append(out, mapping{{"address", d.Address}, {"class", fmt.Sprintf("0x%06x", d.Class)},
			{"vendor", fmt.Sprintf("0x%04x", d.Vendor)}, {"device", fmt.Sprintf("0x%04x", d.Device)}, {"numaNode",
				int64(d.NUMANode)}})
	}
	return out
}
