package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// priorityCritical is the least priority of system components (upstream's scheduling.SystemCriticalPriority).
	priorityCritical = 2_000_000_000

	classNodeCritical = "system-node-critical"
)

// SystemPriorities are the priority classes that every cluster has.
var SystemPriorities = map[string]int32{
	"system-cluster-critical": priorityCritical, classNodeCritical: priorityCritical + 1000,
}

// QoSPod translates a pod's CPU, memory and huge pages.
func QoSPod(pod *corev1.Pod) qos.Pod {
	p := qos.Pod{
		Containers:   make([]qos.Container, 0, len(pod.Spec.Containers)),
		Overhead:     qosAmounts(pod.Spec.Overhead),
		Recorded:     qos.Class(pod.Status.QOSClass),
		NodeCritical: isCritical(pod) && pod.Spec.PriorityClassName == classNodeCritical,
		Critical:     isCritical(pod),
	}
	for i := range pod.Spec.Containers {
		p.Containers = append(p.Containers, QoSContainer(&pod.Spec.Containers[i], false))
	}
	for i := range pod.Spec.InitContainers {
		p.Init = append(p.Init, QoSContainer(&pod.Spec.InitContainers[i], true))
	}
	if r := pod.Spec.Resources; r != nil {
		p.Level = &qos.Resources{Requests: qosAmounts(r.Requests), Limits: qosAmounts(r.Limits)}
	}
	return p
}

// QoSContainer translates one container; init says that it is in the pod's list of init containers.
func QoSContainer(c *corev1.Container, init bool) qos.Container {
	return qos.Container{
		Name:      c.Name,
		Resources: qos.Resources{Requests: qosAmounts(c.Resources.Requests), Limits: qosAmounts(c.Resources.Limits)},
		Sidecar:   init && IsSidecar(c),
	}
}

func qosAmounts(list corev1.ResourceList) qos.Amounts {
	var a qos.Amounts
	for name, quantity := range list {
		switch {
		case name == corev1.ResourceCPU:
			a.CPU = unit.Of(unit.MilliCPU(quantity.MilliValue()))
		case name == corev1.ResourceMemory:
			a.Memory = unit.Of(unit.Bytes(quantity.Value()))
		default:
			if size, ok := HugePageSize(name); ok {
				if a.HugePages == nil {
					a.HugePages = map[unit.Bytes]unit.Bytes{}
				}
				a.HugePages[size] += unit.Bytes(quantity.Value())
			}
		}
	}
	return a
}

// HugePageSize returns the page size in the name of a huge page resource (hugepages-2Mi), and false for other names.
func HugePageSize(name corev1.ResourceName) (unit.Bytes, bool) {
	size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	quantity, err := resource.ParseQuantity(size)
	if err != nil || quantity.Value() <= 0 {
		return 0, false
	}
	return unit.Bytes(quantity.Value()), true
}

// HugePageResource returns the resource name of a page size, the inverse of HugePageSize.
func HugePageResource(size unit.Bytes) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + size.String())
}

// isCritical reports whether a pod is a system component: because of its priority, or because it is static.
func isCritical(pod *corev1.Pod) bool {
	if IsStaticPod(pod) || isMirrorPod(pod) {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= priorityCritical
}
