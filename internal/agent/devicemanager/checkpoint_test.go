package devicemanager

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

// TestCheckpoint: what one agent writes for a kubelet, another reads as the kubelet's.
func TestCheckpoint(t *testing.T) {
	first, second := New(Options{Metrics: metrics.New("n")}), New(Options{Metrics: metrics.New("m")})
	given := []Allocation{{
		Resource: gpu, IDs: []string{"g0", "g1", "g2"},
		Nodes: map[string][]machine.NUMAID{"g0": {1}, "g1": {0, 1}},
		Needs: &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"GPU": "0"}},
	}}
	first.store("u", "c", given)
	read, err := kubeletstate.ParseDevices(first.Checkpoint().Marshal())
	if err != nil || len(read.Given) != 1 {
		t.Fatalf("%+v, %v", read, err)
	}
	if want := map[int64][]string{kubeletstate.NoNode: {"g2"}, 0: {"g1"},
		1: {"g0", "g1"}}; !reflect.DeepEqual(read.Given[0].IDs, want) {
		t.Errorf("by NUMA node: %v, want %v", read.Given[0].IDs, want)
	}
	if err := second.RecoverGiven("u", "c", read.Given); err != nil {
		t.Fatal(err)
	}
	got := second.Allocations("u", "c")
	if len(got) != 1 || !reflect.DeepEqual(got[0].IDs, given[0].IDs) || !reflect.DeepEqual(got[0].Nodes, given[0].Nodes) ||
		!proto.Equal(got[0].Needs, given[0].Needs) {
		t.Errorf("%+v, want %+v", got, given)
	}
	if err := second.RecoverGiven("u", "none", nil); err != nil || len(second.PodsWithDevices()) != 1 {
		t.Errorf("nothing was given: %v", err)
	}
	read.Given[0].Needs = []byte("\xff")
	if err := second.RecoverGiven("v", "c", read.Given); err == nil || !strings.Contains(err.Error(), "needs of "+gpu) {
		t.Errorf("needs that are not a message: %v", err)
	}
}
