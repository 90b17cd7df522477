package scheduler

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestDeviceClassIsNamed: if a pod requests an extended resource that a device class serves, the failure names the
// class. It does not after the class is deleted, nor for a resource that no class serves.
func TestDeviceClassIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "4"), true)
		gpu := "example.com/gpu"
		class := &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "big-gpus"},
			Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu},
		}
		m.submit(context.Background(), func(now unit.Instant) { m.classSeen(now, class) })
		m.submit(context.Background(), synced(m))
		ask := func(name, what string) string {
			pod := testPod(name, "1")
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(what)] = resource.MustParse("1")
			c.add(m, pod)
			elapse(time.Second)
			return <-recorder.Events
		}
		const rest = " serves it: dynamic resource allocation is not supported)"
		for _, q := range []struct{ what, want string }{
			{gpu, `1 Insufficient example.com/gpu (device class "big-gpus"` + rest},
			{"deviceclass.resource.kubernetes.io/other", `(device class "other"` + rest},
			{"example.com/fpga", "1 Insufficient example.com/fpga."},
		} {
			if got := ask(strings.ReplaceAll(q.what, "/", "."), q.what); !strings.Contains(got, q.want) {
				t.Errorf("%s: %s, want %s", q.what, got, q.want)
			}
		}
		m.submit(context.Background(), func(now unit.Instant) { m.classGone(now, "big-gpus") })
		if got := ask("later", gpu); strings.Contains(got, "class") {
			t.Errorf("the class was deleted, but is named: %s", got)
		}
	})
}
