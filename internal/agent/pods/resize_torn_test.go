package pods

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// updating is a runtime that only gets updates.
type updating struct {
	runtimeapi.RuntimeServiceClient
	update func(context.Context, *runtimeapi.LinuxContainerResources) error
}

func (u updating) UpdateContainerResources(
	ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return &runtimeapi.UpdateContainerResourcesResponse{}, u.update(ctx, in.Linux)
}

// sizedRun returns a pod with one container of 300m, in a world with cgroup v2, and the steps of a resize to 500m.
func sizedRun(t *testing.T, update func(*world, context.Context, *runtimeapi.LinuxContainerResources) error) (
	*Runner, *podentry.Entry, []resize.Step,
) {
	t.Helper()
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300})
	w, e := newWorld(1, t.TempDir()), r.pods["a"]
	w.calm, w.v2 = true, true
	r.Groups = fakeGroups{&life{w: w}}
	r.Assignments = fakeAssignments{}
	r.Metrics = metrics.New("n")
	r.WorkTimeout = time.Hour
	runtime := updating{update: func(ctx context.Context, l *runtimeapi.LinuxContainerResources) error {
		return update(w, ctx, l)
	}}
	r.Runtime = &cri.Client{RuntimeServiceClient: runtime}
	_, of := r.Groups.Sizes(e.Object())
	has := of(&e.Object().Spec.Containers[0])
	w.kernel["1"] = has
	workerOf(r, e).view.Containers["1"] = podlife.Container{ID: "1", Name: "c", State: podlife.Running, Size: has}
	_, of = r.Groups.Sizes(sizedPod("a", 500, 2))
	want := of(&sizedPod("a", 500, 2).Spec.Containers[0])
	return r, e, resize.Plan(resize.Group{}, []resize.Group{{Name: "c", ID: "1", Has: has, Want: want}})
}

// An update that failed may have had its effect. If the former size is requested again then, it is written.
func TestFailedUpdateIsWrittenAgain(t *testing.T) {
	r, e, steps := sizedRun(t, func(w *world, _ context.Context, l *runtimeapi.LinuxContainerResources) error {
		w.kernel["1"] = onto(w.kernel["1"], l)
		return errors.New("the answer is lost")
	})
	before := workerOf(r, e).view.Containers["1"].Size
	if err := workerOf(r, e).resize(t.Context(), sizedPod("a", 500, 2), podlife.Action{Steps: steps}); err == nil {
		t.Fatal("the update does not fail")
	}
	back := resize.Plan(resize.Group{}, []resize.Group{{Name: "c", Has: workerOf(r, e).view.Containers["1"].Size,
		Want: before}})
	if len(back) != 1 || !back[0].Request {
		t.Errorf("the way back is %v, want the request of CPU to be written", back)
	}
}

// A stop order does not wait for a runtime that hangs in an update.
func TestStopInterruptsResize(t *testing.T) {
	begun := make(chan struct{})
	r, e, steps := sizedRun(t, func(_ *world, ctx context.Context, _ *runtimeapi.LinuxContainerResources) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		actions := []podlife.Action{{Kind: podlife.Resize, Steps: steps}}
		workerOf(r, e).perform(ctx, e.Object(), nil, actions, turns.NewStarts(1).Slot())
	}()
	<-begun
	now, _ := r.now()
	e.Evict(now, 0, podlife.StopOrder{Remove: true})
	<-over
	if ctx.Err() != nil {
		t.Error("the stop waited for the update")
	}
}

// A pod that was ending when the agent started counts with its allocated resources, not with those that it requested
// later.
func TestEndingPodKeepsItsAllocation(t *testing.T) {
	r, _ := busyNode(t, 1000, nil)
	pod := sizedPod("a", 9000, 2)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{reported("c", "cpu=300m", "cpu=300m", "")}
	e := r.newEntry("a")
	workerOf(r, e).view.Sandboxes["s"] = podlife.Sandbox{ID: "s"}
	e.Set(pod, 1)
	e.Evict(noon, 0, podlife.StopOrder{Remove: true})
	workerOf(r, e).admit(t.Context())
	if got := e.Object().Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); got != 300 {
		t.Errorf("it holds %dm, want the 300m that were allocated to it", got)
	}
}

// asking is a node on which a user resizes each pod while it is admitted.
type asking struct {
	*room
	meanwhile func()
}

func (a asking) Admit(*corev1.Pod, []*corev1.Pod) *Rejection {
	a.meanwhile()
	return nil
}

// A resize that is requested while the pod is admitted is judged as any other.
func TestResizeDuringAdmission(t *testing.T) {
	r, node := busyNode(t, 1000, nil)
	e := r.newEntry("a")
	e.Set(sizedPod("a", 300, 1), 1)
	r.Admission = asking{node, func() { e.Set(sizedPod("a", 9000, 2), 1) }}
	workerOf(r, e).admit(t.Context())
	if got := e.Object().Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); got != 300 {
		t.Errorf("it has %dm, and was admitted with 300m", got)
	}
	if _, waits := e.Asks(); !waits {
		t.Error("the resize is not judged")
	}
}
