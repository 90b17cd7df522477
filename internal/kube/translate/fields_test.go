package translate_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// translation is a translation of a pod for one consumer.
type translation func(pod *corev1.Pod) any

// translations are all of this package's translations of pods, by the observers of podfields, including those without a
// field of their own.
var (
	observed = map[string]translation{
		podfields.ObserverLife: func(pod *corev1.Pod) any {
			return []any{
				translate.PodlifeSpec(pod), translate.PodlifePast(&pod.Status), translate.PodlifeGates(pod),
				translate.PodlifeTerminal(pod), translate.DeletionGrace(pod),
			}
		},
		podfields.ObserverResources: func(pod *corev1.Pod) any {
			return []any{translate.QoSPod(pod), translate.NUMAPod(pod)}
		},
		podfields.ObserverScheduler: func(pod *corev1.Pod) any { return translate.SchedulerPod(pod) },
		podfields.ObserverSystem:    func(pod *corev1.Pod) any { return translate.AdmissionNeeds(pod) },
		podfields.ObserverLost:      func(pod *corev1.Pod) any { return translate.LifecyclePod(pod) },
	}
	others = map[string]translation{
		"EvictionPod":        func(pod *corev1.Pod) any { return translate.EvictionPod(pod) },
		"AdmissionArrival":   func(pod *corev1.Pod) any { return translate.AdmissionArrival(pod) },
		"AdmissionApplicant": func(pod *corev1.Pod) any { return translate.AdmissionApplicant(pod) },
		"ProbeSpecs": func(pod *corev1.Pod) any {
			var out []any
			for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for i := range list {
					out = append(out, translate.ProbeSpecs(&list[i]))
				}
			}
			return out
		},
	}
)

func (of translation) observe(pod *corev1.Pod) (any, error) { return of(pod), nil }

// The result of each of these translations changes with every field that the table says is read.

func TestFieldsOfLife(t *testing.T) {
	if err := sample.Unproved(podfields.ObserverLife, observed[podfields.ObserverLife].observe); err != nil {
		t.Error(err)
	}
}

func TestFieldsOfResources(t *testing.T) {
	if err := sample.Unproved(podfields.ObserverResources, observed[podfields.ObserverResources].observe); err != nil {
		t.Error(err)
	}
}

func TestFieldsOfScheduler(t *testing.T) {
	if err := sample.Unproved(podfields.ObserverScheduler, observed[podfields.ObserverScheduler].observe); err != nil {
		t.Error(err)
	}
}

func TestFieldsOfSystem(t *testing.T) {
	if err := sample.Unproved(podfields.ObserverSystem, observed[podfields.ObserverSystem].observe); err != nil {
		t.Error(err)
	}
}

func TestFieldsOfLost(t *testing.T) {
	if err := sample.Unproved(podfields.ObserverLost, observed[podfields.ObserverLost].observe); err != nil {
		t.Error(err)
	}
}

// TestFieldsWithoutEffect: no translation reads a field that the table says has no effect. With podfields'
// TestEveryFieldHasARow this means: every field of a pod has a named reader, or it has none and the table says why.
func TestFieldsWithoutEffect(t *testing.T) {
	all := maps.Clone(observed)
	maps.Copy(all, others)
	for _, row := range podfields.Rows() {
		if row.Outcome != podfields.NoEffect {
			continue
		}
		set := false
		for _, leaf := range podfields.Leaves(row.Path) {
			for _, pod := range append(sample.Pods(), idle(t)) {
				without := pod.DeepCopy()
				if !sample.Clear(without, leaf) {
					continue
				}
				set = true
				for _, name := range slices.Sorted(maps.Keys(all)) {
					if text(t, all[name](pod)) != text(t, all[name](without)) {
						t.Errorf("%s: the table says that nobody reads it, and %s does", leaf, name)
					}
				}
			}
		}
		if !set {
			t.Errorf("%s: no sample sets any field of it", row.Path)
		}
	}
}

// idle is a pod with fields that the samples do not set.
func idle(t *testing.T) *corev1.Pod {
	t.Helper()
	manifest, err := os.ReadFile("testdata/idle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := manifests.DecodePod(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func text(t *testing.T, value any) string {
	t.Helper()
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
