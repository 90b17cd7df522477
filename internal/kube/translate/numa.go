package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// NUMAPod translates a pod's requests for CPUs, memory and devices that can be assigned to its containers.
func NUMAPod(pod *corev1.Pod) numa.Pod {
	out := numa.Pod{
		UID:        string(pod.UID),
		Guaranteed: qos.ClassOf(QoSPod(pod)) == qos.Guaranteed,
		PodLevel:   pod.Spec.Resources != nil && (len(pod.Spec.Resources.Requests) > 0 || len(pod.Spec.Resources.Limits) > 0),
	}
	if text, bound := pod.Annotations[AnnotationBerth]; bound {
		out.Berth = readBerth(text, pod)
	}
	for i := range pod.Spec.InitContainers {
		out.Init = append(out.Init, numaContainer(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		out.Containers = append(out.Containers, numaContainer(&pod.Spec.Containers[i]))
	}
	return out
}

// AnnotationBerth says where on its node the scheduler expects a pod to be placed (numa.Berth). The bind sets it: the
// API server adds a Binding's annotations to the pod's.
//
//	[{"name":"main","cpus":"2-3","nodes":[0]}]
//
// One entry for each container that gets something assigned: CPUs in the kernel's list format, ids of NUMA nodes;
// either may be absent.
const AnnotationBerth = "plimsoll.dev/berth"

type wireBerth struct {
	Name  string           `json:"name"`
	CPUs  string           `json:"cpus,omitempty"`
	Nodes []machine.NUMAID `json:"nodes,omitempty"`
}

// BerthAnnotation returns the value of AnnotationBerth.
func BerthAnnotation(berth numa.Berth) string {
	wire := make([]wireBerth, 0, len(berth))
	for _, b := range berth {
		wire = append(wire, wireBerth{b.Container, b.CPUs.String(), b.Nodes})
	}
	text, err := json.Marshal(wire)
	if err != nil {
		panic(fmt.Sprintf("kube: berth: %v", err)) // impossible: strings and numbers
	}
	return string(text)
}

// berthMax bounds what is read of the annotation, in bytes, since any user may have written it. Chosen: some dozens of
// containers with CPUs scattered over a large machine.
const berthMax = 1 << 14

// readBerth returns the expected NUMA placement of the pod's containers. It returns nil for an annotation that it
// cannot read. Such a pod is still admitted, with any placement, because its owner did not write the annotation and
// cannot correct it. The result is bounded by the pod: at most one entry for each of its containers, with ids that
// machines have (idset.Max, machine.NUMAIDMax), each once.
func readBerth(text string, pod *corev1.Pod) (berth numa.Berth) {
	var wire []wireBerth
	if len(text) > berthMax || json.Unmarshal([]byte(text), &wire) != nil {
		return nil
	}
	owed := map[string]bool{} // containers of the pod; false once their entry has been read
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			owed[list[i].Name] = true
		}
	}
	for _, w := range wire {
		if !owed[w.Name] {
			continue // not a container of this pod, or a second entry
		}
		cpus, err := idset.Parse(w.CPUs)
		if err != nil || !inOrder(w.Nodes) {
			return nil
		}
		owed[w.Name] = false
		berth = append(berth, numa.ContainerBerth{Container: w.Name, CPUs: cpus, Nodes: w.Nodes})
	}
	return berth
}

// inOrder reports whether nodes are ids that a machine can have, ascending, as BerthAnnotation writes them.
func inOrder(nodes []machine.NUMAID) bool {
	last := machine.NUMAID(-1)
	for _, id := range nodes {
		if id <= last || id > machine.NUMAIDMax {
			return false
		}
		last = id
	}
	return true
}

func numaContainer(c *corev1.Container) numa.Container {
	out := numa.Container{
		Name:    c.Name,
		Sidecar: IsSidecar(c),
		CPU:     unit.MilliCPU(c.Resources.Requests.Cpu().MilliValue()),
	}
	for name, quantity := range c.Resources.Requests {
		size, huge := HugePageSize(name)
		if huge || name == corev1.ResourceMemory {
			out.Memory = append(out.Memory, numa.MemoryRequest{PageSize: size, Bytes: unit.Bytes(quantity.Value())})
		}
	}
	for name, quantity := range c.Resources.Limits {
		if strings.Contains(string(name), "/") {
			out.Devices = append(out.Devices, numa.DeviceRequest{Resource: string(name), Count: int(quantity.Value())})
		}
	}
	slices.SortFunc(out.Memory, func(a, b numa.MemoryRequest) int { return cmp.Compare(a.PageSize, b.PageSize) })
	slices.SortFunc(out.Devices, func(a, b numa.DeviceRequest) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}

// NUMAPlugins returns a machine's devices as their plugins would report them, all healthy, by resource.
func NUMAPlugins(m machine.Machine) []numa.Plugin {
	var out []numa.Plugin
	for resource, devices := range m.Devices {
		p := numa.Plugin{Resource: resource}
		for id, nodes := range devices {
			p.Devices = append(p.Devices, numa.Device{ID: id, Nodes: nodes, Healthy: true})
		}
		slices.SortFunc(p.Devices, func(a, b numa.Device) int { return cmp.Compare(a.ID, b.ID) })
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b numa.Plugin) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}
