package scheduler

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

func (c *cluster) reserveVolume(_ context.Context, b *corescheduler.VolumeBind) error {
	return c.write("keep " + b.Volume + " for " + b.ClaimName)
}

func (c *cluster) selectNode(_ context.Context, q *corescheduler.VolumeProvision) error {
	return c.write("ask for " + q.Name + " on " + q.Node)
}

// write records a write to storage; the first noWrites of them fail.
func (c *cluster) write(what string) error {
	time.Sleep(5 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noWrites > 0 {
		c.noWrites--
		return errors.New("no")
	}
	c.writes = append(c.writes, what)
	return nil
}

func testClaim(name, version string) *corev1.PersistentVolumeClaim {
	class := "local"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-of-claim", ResourceVersion: version},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

func testVolume(name, version string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

// storage passes a class, a volume and a claim to the scheduling loop, and returns a pod with that claim.
func storage(m *loop, provisioner string) *corev1.Pod {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: provisioner, VolumeBindingMode: &wait,
	}
	m.submit(context.Background(), func(now unit.Instant) {
		m.placer.StorageClassSeen(now, translate.SchedulerStorageClass(class))
		m.placer.ClaimSeen(now, translate.SchedulerClaim(testClaim("data", "1")))
	})
	pod := testPod("p", "100m")
	source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}}}
	return pod
}

// TestVolumesBeforeTheBind: the volume is reserved for the claim. When both are bound, however long that takes, the pod
// is bound. A write that fails is repeated after the back-off.
func TestVolumesBeforeTheBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.noWrites = 1
		m, recorder, stop := start(c, 1)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		pod := storage(m, "kubernetes.io/no-provisioner")
		m.submit(context.Background(), func(now unit.Instant) {
			m.placer.VolumeSeen(now, translate.SchedulerVolume(testVolume("pv", "1")))
			m.synced = true
		})
		c.add(m, pod)
		elapse(time.Minute)
		if !slices.Equal(c.writes, []string{"keep pv for data"}) || len(c.bound) != 0 {
			t.Fatalf("writes %q, bound %v", c.writes, c.bound)
		}
		const want = "reserve persistent volume pv for claim default/data: no"
		if got := <-recorder.Events; !strings.Contains(got, "FailedScheduling") || !strings.Contains(got, want) {
			t.Errorf("event %q", got)
		}
		// Another pod does not wait for it, although only one bind may be in flight.
		c.add(m, testPod("other", "100m"))
		elapse(time.Second)
		if c.bound["uid-other"] != 1 {
			t.Error("a pod waited for another's volumes")
		}
		kept, bound := testVolume("pv", "2"), testClaim("data", "2")
		kept.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "uid-of-claim"}
		bound.Spec.VolumeName, bound.Annotations = "pv", map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		m.submit(context.Background(), func(now unit.Instant) { m.placer.VolumeSeen(now, translate.SchedulerVolume(kept)) })
		elapse(time.Minute)
		if len(c.bound) != 1 {
			t.Error("bound before the claim was")
		}
		m.submit(context.Background(), func(now unit.Instant) { m.placer.ClaimSeen(now, translate.SchedulerClaim(bound)) })
		elapse(time.Second)
		if c.bound[pod.UID] != 1 {
			t.Errorf("bound %v", c.bound)
		}
	})
}

// TestVolumesNeverCome: if no volume is provisioned in time, the pod is tried again, on another node if possible.
func TestVolumesNeverCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 1)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		pod := storage(m, "csi.example.com")
		c.add(m, pod)
		m.submit(context.Background(), synced(m))
		asked := testClaim("data", "2")
		asked.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "n"}
		time.Sleep(time.Second)
		m.submit(context.Background(), func(now unit.Instant) { m.placer.ClaimSeen(now, translate.SchedulerClaim(asked)) })
		elapse(9 * time.Minute)
		if !slices.Equal(c.writes, []string{"ask for data on n"}) || len(c.bound) != 0 || len(recorder.Events) != 0 {
			t.Fatalf("writes %q, bound %v, %d events", c.writes, c.bound, len(recorder.Events))
		}
		elapse(2 * time.Minute)
		const want = "Warning FailedScheduling binding to node n: binding volumes: context deadline exceeded"
		if got := <-recorder.Events; got != want {
			t.Errorf("event %q", got)
		}
		// The provisioner rejects the node: the pod that waited for the claim is tried again, and the annotation must
		// be written.
		m.submit(context.Background(), func(now unit.Instant) {
			m.placer.ClaimSeen(now, translate.SchedulerClaim(testClaim("data", "3")))
		})
		elapse(time.Minute)
		if got := <-recorder.Events; !strings.Contains(got, `provisioning failed for PVC "data"`) {
			t.Errorf("event %q", got)
		}
		if len(c.writes) < 2 {
			t.Errorf("writes %q", c.writes)
		}
	})
}

// TestExLeaderWritesNoVolumes: volume plans that wait are not written by a process that does not lead any more.
func TestExLeaderWritesNoVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 1)
		defer stop()
		m.o.Leads = func() bool { return false }
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		c.add(m, storage(m, "csi.example.com"))
		m.submit(context.Background(), synced(m))
		elapse(time.Minute)
		if len(c.writes) != 0 || len(c.bound) != 0 || len(recorder.Events) != 0 {
			t.Errorf("writes %q, bound %v, %d Events", c.writes, c.bound, len(recorder.Events))
		}
	})
}

// TestVictimWhoseVolumesAreWritten: the volume plan of a victim is being written, or waits for a status patch. Its bind
// is not sent, writes of the plan that were not begun are not sent, and the victim waits.
func TestVictimWhoseVolumesAreWritten(t *testing.T) {
	for _, begun := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := &hanging{patches: make(chan struct{})}
			m, recorder, stop := startHanging(t, 10, h)
			defer stop()
			if !begun { // the pod fits nowhere at first, and that is being written to its condition
				m.nodeHandler().OnAdd(testNode("small", "10m"), true)
			} else {
				m.nodeHandler().OnAdd(testNode("n", "1"), true)
			}
			low := withPriority(storage(m, "csi.example.com"), 1)
			low.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
			m.submit(context.Background(), synced(m))
			h.add(m, low)
			if !begun {
				elapse(time.Second)
				m.nodeHandler().OnAdd(testNode("n", "1"), false)
			}
			elapse(2 * time.Millisecond) // a write takes 5 ms
			high := withPriority(testPod("high", "1"), 10)
			h.add(m, high)
			elapse(time.Second)
			close(h.patches)
			elapse(time.Minute)
			if (len(h.writes) > 0) != begun || h.where(low) != "" || h.where(high) != "n" || len(h.removed) > 0 {
				t.Errorf("begun %v: writes %q, low is on %q, high on %q, removed %q", begun, h.writes, h.where(low),
					h.where(high), h.removed)
			}
			told := ""
			for len(recorder.Events) > 0 {
				told += <-recorder.Events + "\n"
			}
			if !strings.Contains(told, "(in kube-scheduler memory)") {
				t.Errorf("begun %v: Events %q", begun, told)
			}
		})
	}
}

// bodies is an API server that accepts everything, and keeps the request bodies.
type bodies []string

func (b *bodies) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	*b = append(*b, string(body))
	return answer(q, http.StatusOK, map[string]any{}), err
}

// TestVolumeWritesAreGuarded: writes to volumes and claims name the version for which they were decided, so that an
// object that has changed meanwhile is not written.
func TestVolumeWritesAreGuarded(t *testing.T) {
	var sent bodies
	client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api.example", Transport: &sent, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := remote{client}
	keep := corescheduler.VolumeBind{
		Volume:         "pv",
		Version:        "7",
		ClaimNamespace: "x",
		ClaimName:      "data",
		ClaimUID:       "uid-of-claim",
	}
	if err := r.reserveVolume(t.Context(), &keep); err != nil {
		t.Error(err)
	}
	ask := corescheduler.VolumeProvision{Namespace: "x", Name: "data", Version: "8"}
	if err := r.selectNode(t.Context(), &ask); err != nil {
		t.Error(err)
	}
	want := []string{`"resourceVersion":"7"`, `"uid":"uid-of-claim"`, `"resourceVersion":"8"`}
	for i, where := range []int{0, 0, 1} {
		if len(sent) != 2 || !strings.Contains(sent[where], want[i]) {
			t.Errorf("sent %q, want %s", sent, want[i])
		}
	}
}
