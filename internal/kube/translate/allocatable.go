package translate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// NodeResources returns the capacity and the allocatable resources that a node publishes.
func NodeResources(r allocatable.Resources) (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	set := func(name corev1.ResourceName, has, offers resource.Quantity) {
		capacity[name], allocatable[name] = has, offers
	}
	set(corev1.ResourceCPU, CPUQuantity(r.CPU.Capacity), CPUQuantity(r.CPU.Allocatable))
	set(corev1.ResourceMemory, BytesQuantity(r.Memory.Capacity), BytesQuantity(r.Memory.Allocatable))
	if !r.StorageUncounted {
		disk := r.EphemeralStorage
		set(corev1.ResourceEphemeralStorage, BytesQuantity(disk.Capacity), BytesQuantity(disk.Allocatable))
	}
	set(corev1.ResourcePods, CountQuantity(r.Pods.Capacity), CountQuantity(r.Pods.Allocatable))
	for _, h := range r.HugePages {
		set(HugePageResource(h.Size), BytesQuantity(h.Capacity), BytesQuantity(h.Allocatable))
	}
	return capacity, allocatable
}

// BytesQuantity returns b in the format of memory and storage in Kubernetes.
func BytesQuantity(b unit.Bytes) resource.Quantity {
	return *resource.NewQuantity(int64(b), resource.BinarySI)
}

// CPUQuantity returns m in the format of CPU in Kubernetes.
func CPUQuantity(m unit.MilliCPU) resource.Quantity {
	return *resource.NewMilliQuantity(int64(m), resource.DecimalSI)
}

// CountQuantity returns n in the format of counts in Kubernetes.
func CountQuantity(n int64) resource.Quantity {
	return *resource.NewQuantity(n, resource.DecimalSI)
}
