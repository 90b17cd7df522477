package allocation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
)

// TestFieldsOfAllocation: what a new agent takes as allocated.
func TestFieldsOfAllocation(t *testing.T) {
	err := sample.Unproved(podfields.ObserverAllocated, func(pod *corev1.Pod) (any, error) {
		a := reported(pod)
		return []any{a.level, a.containers}, nil
	})
	if err != nil {
		t.Error(err)
	}
}
