package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	allocationstate "k8s.io/kubernetes/pkg/kubelet/allocation/state"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

const checkpoints = 1_000 // random files of each kind that either side writes and the other reads

// upstreamCheckpoint has the methods that all of upstream's checkpoints have.
type upstreamCheckpoint interface {
	MarshalCheckpoint() ([]byte, error)
	UnmarshalCheckpoint([]byte) error
	VerifyChecksum() error
}

// readUpstream makes upstream's code read a file that we wrote.
func readUpstream(t *testing.T, text []byte, into upstreamCheckpoint) {
	t.Helper()
	if err := into.UnmarshalCheckpoint(text); err != nil {
		t.Fatalf("upstream refuses our file: %v\n%s", err, text)
	}
	if err := into.VerifyChecksum(); err != nil {
		t.Fatalf("upstream refuses the checksum of our file: %v\n%s", err, text)
	}
}

// written makes upstream's code write a file, and returns the text.
func written(t *testing.T, c upstreamCheckpoint) []byte {
	t.Helper()
	text, err := c.MarshalCheckpoint()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// pods returns up to three random pods with up to two containers each.
func (r random) pods(each func(pod, container string)) {
	for p := range r.IntN(4) {
		for c := range 1 + r.IntN(2) {
			each(fmt.Sprintf("uid-%d", p), fmt.Sprintf("c%d", c))
		}
	}
}

func (r random) cpus() idset.Set {
	var s idset.Set
	for range r.IntN(5) {
		s = s.Union(idset.Of(r.IntN(64)))
	}
	return s
}

// TestCPUCheckpoint: each side reads the other's file as the same value.
func TestCPUCheckpoint(t *testing.T) {
	for n := range checkpoints {
		r := random{rand.New(rand.NewPCG(*hashSeed, uint64(n)))}
		ours := kubeletstate.CPUs{Policy: r.of("none", "static"), Shared: r.cpus(),
			Exclusive: map[string]map[string]idset.Set{}}
		r.pods(func(pod, container string) {
			if ours.Exclusive[pod] == nil {
				ours.Exclusive[pod] = map[string]idset.Set{}
			}
			ours.Exclusive[pod][container] = r.cpus()
		})
		// as upstream creates it before reading
		theirs := &cpustate.CPUManagerCheckpointV2{Entries: map[string]map[string]string{}}
		readUpstream(t, ours.Marshal(), theirs)
		if theirs.PolicyName != ours.Policy || theirs.DefaultCPUSet != ours.Shared.String() ||
			len(theirs.Entries) != len(ours.Exclusive) {
			t.Fatalf("ours %+v, upstream reads %+v", ours, theirs)
		}
		again, err := kubeletstate.ParseCPUs(written(t, theirs))
		if err != nil || !reflect.DeepEqual(again, ours) {
			t.Fatalf("%+v is %+v when upstream has written it, %v", ours, again, err)
		}
	}
}

// TestMemoryCheckpoint is TestCPUCheckpoint for memory.
func TestMemoryCheckpoint(t *testing.T) {
	for n := range checkpoints {
		r := random{rand.New(rand.NewPCG(*hashSeed, uint64(n)))}
		ours := kubeletstate.Memory{
			Policy: r.of("None", "Static"), Nodes: map[machine.NUMAID]kubeletstate.MemoryNode{},
			Assigned: map[string]map[string][]numa.Block{},
		}
		for id := range r.IntN(12) {
			ours.Nodes[machine.NUMAID(id)] = kubeletstate.MemoryNode{
				Total:    map[unit.Bytes]unit.Bytes{0: 64 << 30, 2 << 20: unit.Bytes(r.IntN(100)) << 21, 1 << 30: 0},
				Reserved: map[unit.Bytes]unit.Bytes{0: unit.Bytes(r.IntN(1 << 30))},
			}
		}
		r.pods(func(pod, container string) {
			if ours.Assigned[pod] == nil {
				ours.Assigned[pod] = map[string][]numa.Block{}
			}
			b := numa.Block{Bytes: unit.Bytes(r.IntN(1 << 40)), PageSize: []unit.Bytes{0, 2 << 20, 1 << 30}[r.IntN(3)]}
			for id := r.IntN(3); len(b.Nodes) == 0 || r.chance(2); id++ {
				b.Nodes = append(b.Nodes, machine.NUMAID(id))
			}
			ours.Assigned[pod][container] = []numa.Block{b}
		})
		theirs := &memorystate.MemoryManagerCheckpointV1{
			Entries: memorystate.ContainerMemoryAssignments{}, MachineState: memorystate.NUMANodeMap{},
		}
		readUpstream(t, ours.Marshal(), theirs)
		if len(theirs.MachineState) != len(ours.Nodes) {
			t.Fatalf("ours %+v, upstream reads %+v", ours, theirs)
		}
		again, err := kubeletstate.ParseMemory(written(t, theirs))
		if err != nil || again.Policy != ours.Policy || !reflect.DeepEqual(again.Assigned, ours.Assigned) {
			t.Fatalf("%+v is %+v when upstream has written it, %v", ours, again, err)
		}
	}
}

// TestDeviceCheckpoint is TestCPUCheckpoint for devices.
func TestDeviceCheckpoint(t *testing.T) {
	for n := range checkpoints {
		r := random{rand.New(rand.NewPCG(*hashSeed, uint64(n)))}
		var ours kubeletstate.Devices
		if r.chance(2) {
			ours.Registered = map[string][]string{"example.com/gpu": words(r.Rand, 3, "a", "b")}
		}
		r.pods(func(pod, container string) {
			ours.Given = append(ours.Given, kubeletstate.Given{
				Pod: pod, Container: container, Resource: "example.com/gpu", Needs: []byte(r.of("", "\x00\xff")),
				IDs: map[int64][]string{kubeletstate.NoNode: {"x"}, int64(r.IntN(12)): {"gpu0", "é"}},
			})
		})
		theirs := checkpoint.New(nil, nil)
		readUpstream(t, ours.Marshal(), theirs)
		again, err := kubeletstate.ParseDevices(written(t, theirs))
		if err != nil || !reflect.DeepEqual(again, ours) {
			t.Fatalf("%+v is %+v when upstream has written it, %v", ours, again, err)
		}
	}
}

// TestAllocationCheckpoint is TestCPUCheckpoint for allocated resources.
func TestAllocationCheckpoint(t *testing.T) {
	for n := range checkpoints {
		r := random{rand.New(rand.NewPCG(*hashSeed, uint64(n)))}
		ours := kubeletstate.Allocations{}
		r.pods(func(pod, container string) {
			a := ours[pod]
			if a.ContainerResources == nil {
				a.ContainerResources = map[string]corev1.ResourceRequirements{}
			}
			a.ContainerResources[container] = corev1.ResourceRequirements{Requests: r.requests()}
			if r.chance(3) {
				a.PodLevelResources = &corev1.ResourceRequirements{Limits: r.requests()}
			}
			ours[pod] = a
		})
		theirs := &allocationstate.Checkpoint{}
		readUpstream(t, ours.Marshal(), theirs)
		info, err := theirs.GetPodResourceCheckpointInfo()
		if err != nil || len(info.Entries) != len(ours) {
			t.Fatalf("upstream reads %+v, %v", info, err)
		}
		for uid, a := range ours {
			for name, want := range a.ContainerResources {
				got := info.Entries[types.UID(uid)].ContainerResources[name]
				if text, wanted := jsonText(t, got), jsonText(t, want); text != wanted {
					t.Fatalf("pod %s, container %s: upstream reads %s, want %s", uid, name, text, wanted)
				}
			}
		}
		file, err := allocationstate.NewCheckpoint(info)
		if err != nil {
			t.Fatal(err)
		}
		again, err := kubeletstate.ParseAllocations(written(t, file))
		if err != nil || jsonText(t, again) != jsonText(t, info.Entries) {
			t.Fatalf("%+v is %+v when upstream has written it, %v", ours, again, err)
		}
	}
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
