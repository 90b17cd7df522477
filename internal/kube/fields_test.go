package kube_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
)

// TestFieldsOfResources: what decides about cgroups, classes and NUMA nodes changes with every field of which the table
// says so.
func TestFieldsOfResources(t *testing.T) {
	err := sample.Unproved(podfields.ObserverResources, func(pod *corev1.Pod) (any, error) {
		return []any{kube.QoSPod(pod), kube.NUMAPod(pod)}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfScheduler: so does what decides about nodes.
func TestFieldsOfScheduler(t *testing.T) {
	err := sample.Unproved(podfields.ObserverScheduler, func(pod *corev1.Pod) (any, error) { return kube.PlacementPod(pod), nil })
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfSystem: and what decides whether a node suits the pod at all.
func TestFieldsOfSystem(t *testing.T) {
	err := sample.Unproved(podfields.ObserverSystem, func(pod *corev1.Pod) (any, error) { return kube.SystemNeeds(pod), nil })
	if err != nil {
		t.Error(err)
	}
}
