package allocation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/amounts"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// podOf returns a pod with one container that requests that much CPU.
func podOf(cpu string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "c", Resources: amounts.Of("cpu="+cpu, "")},
	}}}
}

func FuzzNoted(f *testing.F) {
	for _, seed := range []string{
		NoteOf(podOf("300m")), `{"level":{},"containers":{"c":{"limits":{"memory":"1E"}}}}`, "{", "null",
	} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		pod := podOf("100m")
		a := noted(text, pod)
		if a == nil {
			return
		}
		got := a.In(pod)
		if again := noted(NoteOf(got), pod); again != nil && !again.Meets(got) {
			t.Errorf("%q: allocated %+v, and noted %+v", text, got.Spec.Containers[0].Resources, again)
		}
	})
}
