package pods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// graveyard is a runtime of sandboxes that do not run.
type graveyard struct {
	runtimeapi.RuntimeServiceClient
	sandboxes []*runtimeapi.PodSandbox
	stuck     string // the sandbox that cannot be removed
	removed   []string
}

func (g *graveyard) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest,
	...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: g.sandboxes}, nil
}

func (g *graveyard) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest,
	_ ...grpc.CallOption) (*runtimeapi.RemovePodSandboxResponse, error) {
	if r.PodSandboxId == g.stuck {
		return nil, errors.New("device or resource busy")
	}
	g.removed = append(g.removed, r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// TestRemoveDead: only pods whose end was reported to the API lose their containers and logs, the oldest first, until
// there is enough space.
func TestRemoveDead(t *testing.T) {
	r := testRunner()
	r.LogDir = t.TempDir()
	g := &graveyard{}
	r.Runtime = &cri.Client{RuntimeServiceClient: g}
	r.pods = map[types.UID]*podentry.Entry{}
	bury := func(name string, created int64, phase corev1.PodPhase) {
		pod := testPod()
		pod.Name = name
		pod.UID = types.UID(name)
		pod.Status.Phase = phase
		e := r.newEntry(pod.UID)
		e.Wake() // takes the worker, so that none starts
		e.Set(pod, noon)
		r.pods[pod.UID] = e
		g.sandboxes = append(g.sandboxes, &runtimeapi.PodSandbox{Id: "s-" + name, CreatedAt: created,
			Metadata: &runtimeapi.PodSandboxMetadata{Uid: name}})
		if err := os.MkdirAll(filepath.Join(r.LogDir, "ns_"+name+"_"+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bury("second", 2, corev1.PodFailed)
	bury("first", 1, corev1.PodSucceeded)
	bury("restarts", 0, corev1.PodRunning)
	bury("third", 3, corev1.PodSucceeded)
	g.sandboxes = append(g.sandboxes, &runtimeapi.PodSandbox{Id: "s-strange",
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: "strange"}})

	if err := r.RemoveDead(t.Context(), func() bool { return len(g.removed) >= 2 }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"s-first", "s-second"}; !slices.Equal(g.removed, want) {
		t.Errorf("removed %v, want %v", g.removed, want)
	}
	left, err := filepath.Glob(filepath.Join(r.LogDir, "*"))
	if err != nil || len(left) != 2 || strings.Contains(strings.Join(left, " "), "first") {
		t.Errorf("logs left: %v, %v", left, err)
	}

	g.removed, g.stuck = nil, "s-second"
	err = r.RemoveDead(t.Context(), func() bool { return false })
	if err == nil || !slices.Equal(g.removed, []string{"s-first", "s-third"}) {
		t.Errorf("one that is stuck keeps the others: removed %v, %v", g.removed, err)
	}
}
