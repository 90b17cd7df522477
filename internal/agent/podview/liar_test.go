package podview

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// liar is a runtime whose answers about one container and one sandbox the test determines.
type liar struct {
	runtimeapi.RuntimeServiceClient
	listed    []*runtimeapi.Container
	container *runtimeapi.ContainerStatus
	sandbox   *runtimeapi.PodSandboxStatus
	asked     int // about the container
}

func (l *liar) ListPodSandbox(
	context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

func (l *liar) ListContainers(
	context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: l.listed}, nil
}

func (l *liar) ContainerStatus(
	context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption,
) (*runtimeapi.ContainerStatusResponse, error) {
	l.asked++
	return &runtimeapi.ContainerStatusResponse{Status: l.container, Info: map[string]string{"info": `{"pid":7}`}}, nil
}

func (l *liar) PodSandboxStatus(
	context.Context, *runtimeapi.PodSandboxStatusRequest, ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: l.sandbox}, nil
}

// kernel has process 7 as long as the test says so.
type kernel struct{ alive bool }

func (k *kernel) Watch(int, func() bool, func()) (func(), error) { return func() {}, nil }
func (k *kernel) Lives(pid int, id string) bool                  { return k.alive && pid == 7 && id == "c" }

// running is a runtime's status of the running container c of the pod uid-1.
func running() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{cri.LabelPodUID: "uid-1"},
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
	}
}

func liesTo(t *testing.T) (*View, *liar, *kernel) {
	t.Helper()
	l, k := &liar{container: running()}, &kernel{alive: true}
	l.listed = []*runtimeapi.Container{{Id: "c", Labels: running().Labels}}
	v := New("uid-1", func() string { return "ns/web" })
	v.From = Sources{Runtime: &cri.Client{RuntimeServiceClient: l}, OOM: noOOM{}, Exits: k}
	if err := v.Reread(t.Context(), Dirt{All: true}); err != nil || v.Containers["c"].State != podlife.Running {
		t.Fatalf("at first: %v, %+v", err, v.Containers)
	}
	return v, l, k
}

// A runtime that contradicts the kernel or itself is not believed, and the view stays as it was. It is believed again
// when the contradiction ends, whether the process ends or the runtime agrees that it runs.
func TestRuntimeThatContradictsItself(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(*liar)
		want string
	}{
		"forgets": {func(l *liar) { l.listed = nil }, "c: the runtime does not list it, yet its process 7 runs"},
		"calls it ended": {func(l *liar) { l.container.State = runtimeapi.ContainerState_CONTAINER_EXITED },
			"calls it CONTAINER_EXITED, yet its process 7 runs"},
		"goes back": {func(l *liar) { l.container.State = runtimeapi.ContainerState_CONTAINER_CREATED },
			"calls it CONTAINER_CREATED, yet its process 7 runs"},
		"another one": {func(l *liar) { l.container.Id = "d" }, `the runtime answers about "d" instead`},
		"nothing":     {func(l *liar) { l.container = nil }, `the runtime answers about "" instead`},
		"no labels":   {func(l *liar) { l.container.Labels = nil }, `of the pod with UID "", want "uid-1"`},
		"another pod's": {func(l *liar) { l.container.Labels = map[string]string{cri.LabelPodUID: "uid-2"} },
			`of the pod with UID "uid-2", want "uid-1"`},
	} {
		v, l, k := liesTo(t)
		c.lie(l)
		err := v.Reread(t.Context(), Dirt{All: true})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "ns/web") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if v.Containers["c"].State != podlife.Running {
			t.Errorf("%s: it is believed: %+v", name, v.Containers)
		}
		l.container, l.listed = running(), []*runtimeapi.Container{{Id: "c", Labels: running().Labels}}
		if err := v.Reread(t.Context(), Dirt{All: true}); err != nil {
			t.Errorf("%s: the truth: %v", name, err)
		}
		c.lie(l)
		k.alive = false
		var denied *Contradicted
		if err := v.Reread(t.Context(), Dirt{All: true}); errors.As(err, &denied) {
			t.Errorf("%s: the process is gone, and the runtime is not believed: %v", name, err)
		}
	}
}

// Entries of other pods, and duplicates, in a list are not taken for this pod's.
func TestListOfMoreThanWasAskedFor(t *testing.T) {
	v, l, _ := liesTo(t)
	other := &runtimeapi.Container{Id: "d", Labels: map[string]string{cri.LabelPodUID: "uid-2"}}
	l.listed = append(l.listed, l.listed[0], other)
	if err := v.Reread(t.Context(), Dirt{All: true}); err != nil || len(v.Containers) != 1 {
		t.Errorf("%v, %+v", err, v.Containers)
	}
}

// If the time of an end is missing, it is now, since the back-off counts from it. A sandbox keeps its addresses.
func TestWhatLacksInAnswers(t *testing.T) {
	v, l, k := liesTo(t)
	k.alive = false
	l.container.State = runtimeapi.ContainerState_CONTAINER_EXITED
	before := unit.WallOf(time.Now())
	for range 2 {
		if err := v.Reread(t.Context(), Dirt{All: true}); err != nil {
			t.Fatal(err)
		}
		if end := v.Containers["c"].FinishedAt; end < before || end > unit.WallOf(time.Now()) {
			t.Errorf("it ended at %v", end.Time())
		}
	}
	l.sandbox = &runtimeapi.PodSandboxStatus{Id: "s", Labels: running().Labels,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.9"}}
	for range 2 {
		if err := v.ReadSandbox(t.Context(), "s"); err != nil || len(v.Sandboxes["s"].IPs) != 1 {
			t.Errorf("%v, addresses %v", err, v.Sandboxes["s"].IPs)
		}
		l.sandbox.Network = nil
	}
	l.sandbox = nil
	if err := v.ReadSandbox(t.Context(), "s"); err == nil ||
		!strings.Contains(err.Error(), `read sandbox s of ns/web: the runtime answers about ""`) {
		t.Error(err)
	}
}

// noOOM explains nothing.
type noOOM struct{}

func (noOOM) Know(types.UID, podlife.Container, int)        {}
func (noOOM) Explain(c podlife.Container) podlife.Container { return c }
func (noOOM) Drop(string)                                   {}

// A container that has ended and was also stopped is read once.
func TestEndedContainerIsReadOnce(t *testing.T) {
	v, l, k := liesTo(t)
	k.alive = false
	l.container.State = runtimeapi.ContainerState_CONTAINER_EXITED
	l.asked = 0
	var dirty Dirt
	dirty.Exit("c")
	dirty.Change("c")
	if err := v.Reread(t.Context(), dirty); err != nil || v.Containers["c"].State != podlife.Exited || l.asked != 1 {
		t.Errorf("%v, asked %d times, it is %v", err, l.asked, v.Containers["c"].State)
	}
}
