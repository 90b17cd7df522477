//go:build e2e

package pods

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// plimsoll runs a verb that needs no instance, and returns its output.
func (b bench) plimsoll(args ...string) []byte {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), rig.Binary(b.t), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("plimsoll %q: %v", args, err)
	}
	return out
}

// whatif computes for this machine what the agent published, for each resource and to the byte.
func TestWhatifSaysWhatTheNodePublishes(t *testing.T) {
	b := at(t)
	machine := filepath.Join(t.TempDir(), "machine.yaml")
	if err := os.WriteFile(machine, b.plimsoll("machine", "--root-dir", b.AgentRoot()), 0o600); err != nil {
		t.Fatal(err)
	}
	var said struct{ Capacity, Allocatable corev1.ResourceList }
	if err := json.Unmarshal(b.plimsoll("whatif", "allocatable", "--machine", machine, "-o", "json"), &said); err != nil {
		t.Fatal(err)
	}
	node, err := b.API.CoreV1().Nodes().Get(t.Context(), b.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, lists := range map[string][2]corev1.ResourceList{
		"capacity": {said.Capacity, node.Status.Capacity}, "allocatable": {said.Allocatable, node.Status.Allocatable},
	} {
		if len(lists[0]) != len(lists[1]) {
			t.Errorf("%s: whatif says %v, the node %v", name, lists[0], lists[1])
		}
		for resource, want := range lists[1] {
			if got := lists[0][resource]; got.Cmp(want) != 0 {
				t.Errorf("%s of %s: whatif says %v, the node %v", name, resource, got.String(), want.String())
			}
		}
	}
}

// recommend finds the runtime, the agent and the pods of a real node, and recommends a reservation for each.
func TestRecommendReservations(t *testing.T) {
	b := at(t)
	b.create("p", lasting(workload("c", "sleep", "infinity")))
	b.ready("p")
	var said struct {
		PodsMost                     int
		MemoryPerPod                 string
		SystemReserved, KubeReserved corev1.ResourceList
		Formulas                     map[string]corev1.ResourceList
	}
	if err := json.Unmarshal(b.plimsoll("recommend", "reservations", "--for", "4s", "--every", "400ms", "-o", "json"),
		&said); err != nil {
		t.Fatal(err)
	}
	perPod := quantity(said.MemoryPerPod)
	if said.PodsMost < 1 || perPod.Value() < 1<<20 || perPod.Value() > 64<<20 {
		t.Errorf("%d pods, %s each", said.PodsMost, said.MemoryPerPod)
	}
	// containerd and the agent use some 40 MiB; the memory of 110 shims is added
	if m := said.KubeReserved.Memory().Value(); m < 40<<20 || m > 4<<30 {
		t.Errorf("kubeReserved memory %s", said.KubeReserved.Memory())
	}
	if said.SystemReserved.Memory().IsZero() || said.SystemReserved.Cpu().IsZero() || len(said.Formulas) != 4 {
		t.Errorf("systemReserved %v, formulas %v", said.SystemReserved, said.Formulas)
	}
}
