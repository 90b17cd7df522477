package kubeletstate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
)

// Allocations are resources of pods, by UID: those with which the node judged them to fit, or those that their cgroups
// were set to.
type Allocations map[string]Allocation

// Allocation is the resources of one pod.
type Allocation struct {
	ContainerResources map[string]corev1.ResourceRequirements // init containers too
	PodLevelResources  *corev1.ResourceRequirements           // nil: its specification has none
}

type allocationsFile struct {
	Data     string   `json:"data"` // JSON of allocationsData
	Checksum checksum `json:"checksum"`
}

type allocationsData struct {
	Entries Allocations `json:"entries,omitempty"`
}

// ParseAllocations reads the file allocated_pods_state or actuated_pods_state.
func ParseAllocations(text []byte) (Allocations, error) {
	var f allocationsFile
	if err := decode(text, &f); err != nil {
		return nil, err
	}
	if err := verify(f.Checksum, f.Data, nil); err != nil {
		return nil, err
	}
	var data allocationsData
	if err := decode([]byte(f.Data), &data); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return data.Entries, nil
}

// Marshal returns the file allocated_pods_state or actuated_pods_state.
func (a Allocations) Marshal() []byte {
	f := allocationsFile{Data: string(encode(allocationsData{a}))}
	f.Checksum = checksum(kubelethash.Sum(f.Data, nil))
	return encode(f)
}
