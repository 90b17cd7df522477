package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestQoSPods: a pod is translated again when its resources have changed, and dropped when it is not on the node any
// more.
func TestQoSPods(t *testing.T) {
	var q qosPods
	pod := onePod("100m", "32Mi")
	first := q.of(pod)
	if first.class != qos.Guaranteed || q.of(running(pod)) != first {
		t.Errorf("class %v; the pod with another status was translated again: %v", first.class, q.of(running(pod)) != first)
	}
	larger := onePod("200m", "32Mi")
	if got := q.of(larger).Containers[0].Resources.Requests.CPU.OrZero(); got != 200 {
		t.Errorf("after a resize it requests %v, want 200m", got)
	}
	q.keep(func(uid types.UID) bool { return uid != pod.UID })
	if len(q.pods) != 0 {
		t.Errorf("%d pods are kept, want none", len(q.pods))
	}
}

func BenchmarkQoSPod(b *testing.B) {
	pod := onePod("100m", "32Mi")
	b.Run("kept", func(b *testing.B) {
		var q qosPods
		other := *pod
		other.Spec.Containers = append([]corev1.Container(nil), pod.Spec.Containers...)
		b.ReportAllocs()
		for b.Loop() {
			q.of(&other)
		}
	})
	b.Run("translated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			qos.ClassOf(translate.QoSPod(pod))
		}
	})
}
