package translate_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestFieldsOfResources: what decides about cgroups, classes and NUMA nodes changes with every field of which the table
// says so.
func TestFieldsOfResources(t *testing.T) {
	err := sample.Unproved(podfields.ObserverResources, func(pod *corev1.Pod) (any, error) {
		return []any{translate.QoSPod(pod), translate.NUMAPod(pod)}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfScheduler: so does what decides about nodes.
func TestFieldsOfScheduler(t *testing.T) {
	err := sample.Unproved(podfields.ObserverScheduler, func(pod *corev1.Pod) (any, error) { return translate.PlacementPod(pod), nil })
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfSystem: and what decides whether a node suits the pod at all.
func TestFieldsOfSystem(t *testing.T) {
	err := sample.Unproved(podfields.ObserverSystem, func(pod *corev1.Pod) (any, error) { return translate.AdmissionNeeds(pod), nil })
	if err != nil {
		t.Error(err)
	}
}
