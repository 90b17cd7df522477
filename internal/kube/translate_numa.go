package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// NUMAPod translates what a pod asks of CPUs, memory and devices of its own.
func NUMAPod(pod *corev1.Pod) numa.Pod {
	out := numa.Pod{
		UID:        string(pod.UID),
		Guaranteed: qos.ClassOf(QoSPod(pod)) == qos.Guaranteed,
		PodLevel:   pod.Spec.Resources != nil && (len(pod.Spec.Resources.Requests) > 0 || len(pod.Spec.Resources.Limits) > 0),
	}
	for i := range pod.Spec.InitContainers {
		out.Init = append(out.Init, numaContainer(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		out.Containers = append(out.Containers, numaContainer(&pod.Spec.Containers[i]))
	}
	return out
}

func numaContainer(c *corev1.Container) numa.Container {
	out := numa.Container{
		Name:    c.Name,
		Sidecar: c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways,
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

// NUMAPlugins returns a machine's devices as their plugins would name them, all healthy, by resource.
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
