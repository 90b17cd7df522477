package podresources

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

type known struct{}

func (known) Allocations(uid, container string) []devicemanager.Allocation {
	if uid != "u1" || container != "main" {
		return nil
	}
	return []devicemanager.Allocation{
		{Resource: "example.com/gpu", IDs: []string{"g0", "g1"}, Nodes: map[string][]machine.NUMAID{"g0": {0}, "g1": {0, 1}}},
		{Resource: "example.com/key", IDs: []string{"k"}},
	}
}

func (known) Inventory() []numa.Plugin {
	return []numa.Plugin{
		{Resource: "example.com/gpu", Devices: []numa.Device{{ID: "g0", Nodes: []machine.NUMAID{0}, Healthy: true},
			{ID: "g1", Nodes: []machine.NUMAID{0, 1}, Healthy: true}, {ID: "g2", Nodes: []machine.NUMAID{1}}}},
		{Resource: "example.com/key", Devices: []numa.Device{{ID: "k", Healthy: true}}},
	}
}

// serve runs a server on a real socket and returns a client.
func serve(t *testing.T, config numa.Config) podresourcesapi.PodResourcesListerClient {
	m := machine.Machine{CPUs: idset.Of(0, 1, 2, 3), NUMANodes: []machine.NUMANode{
		{ID: 0, CPUs: idset.Of(0, 2), Memory: unit.GiB},
		{ID: 1, CPUs: idset.Of(1, 3), Memory: 2 * unit.GiB, HugePages: map[unit.Bytes]int64{2 * unit.MiB: 4}},
	}}.Complete()
	layout, err := numa.New(m, config)
	if err != nil {
		t.Fatal(err)
	}
	always := corev1.ContainerRestartPolicyAlways
	pods := []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "own", UID: "u1"}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "once"},
				{Name: "beside", RestartPolicy: &always}}, Containers: []corev1.Container{{Name: "main"}},
		}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shared", UID: "u2"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}},
	}
	dir := filepath.Join(t.TempDir(), "pod-resources")
	s := New(Options{
		Dir: dir, Pods: func() []*corev1.Pod { return pods }, Devices: known{}, Empty: layout.NewState(), Config: config,
		Metrics: &metrics.New("n").PodResources,
		Assignments: func(uid string) (numa.Assignment, bool) {
			return numa.Assignment{Pod: "u1", Containers: []numa.Assigned{
				{Container: "once", Init: true, CPUs: idset.Of(3)},
				{Container: "main", CPUs: idset.Of(1, 3), Memory: []numa.Block{{Nodes: []machine.NUMAID{0, 1}, Bytes: unit.GiB},
					{Nodes: []machine.NUMAID{1}, PageSize: 2 * unit.MiB, Bytes: 4 * unit.MiB}}},
			}}, uid == "u1"
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if info, err := os.Stat(filepath.Join(dir, "kubelet.sock")); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("socket: %v %v", info, err)
		}
		_ = conn.Close()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return podresourcesapi.NewPodResourcesListerClient(conn)
}

// same compares an answer with JSON.
func same(t *testing.T, got, want proto.Message, text string) {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

const own = `{"name":"own","namespace":"ns","containers":[{"name":"beside"},{"name":"main",
	"devices":[
		{"resourceName":"example.com/gpu","deviceIds":["g0"],"topology":{"nodes":[{"ID":"0"}]}},
		{"resourceName":"example.com/gpu","deviceIds":["g1"],"topology":{"nodes":[{"ID":"0"}]}},
		{"resourceName":"example.com/gpu","deviceIds":["g1"],"topology":{"nodes":[{"ID":"1"}]}},
		{"resourceName":"example.com/key","deviceIds":["k"]}],
	"cpuIds":["1","3"],
	"memory":[{"memoryType":"memory","size":"1073741824","topology":{"nodes":[{"ID":"0"},{"ID":"1"}]}},{"memoryType":"hugepages-2Mi","size":"4194304","topology":{"nodes":[{"ID":"1"}]}}]}]}`

func TestAnswers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	static := numa.Config{CPU: numa.CPUConfig{Static: true, Reserved: idset.Of(0), ReservedCount: 1},
		Memory: numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}}}
	c := serve(t, static)
	list, err := c.List(ctx, &podresourcesapi.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, list, &podresourcesapi.ListPodResourcesResponse{}, `{"podResources":[`+own+
		`,{"name":"shared","namespace":"ns","containers":[{"name":"main"}]}]}`)
	one, err := c.Get(ctx, &podresourcesapi.GetPodResourcesRequest{PodNamespace: "ns", PodName: "own"})
	if err != nil {
		t.Fatal(err)
	}
	same(t, one, &podresourcesapi.GetPodResourcesResponse{}, `{"podResources":`+own+`}`)
	if _, err := c.Get(ctx, &podresourcesapi.GetPodResourcesRequest{PodNamespace: "other", PodName: "own"}); err == nil ||
		err.Error() != "rpc error: code = Unknown desc = pod own in namespace other not found" {
		t.Errorf("get of another namespace: %v", err)
	}
	all, err := c.GetAllocatableResources(ctx, &podresourcesapi.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, all, &podresourcesapi.AllocatableResourcesResponse{}, `{"devices":[
		{"resourceName":"example.com/gpu","deviceIds":["g0"],"topology":{"nodes":[{"ID":"0"}]}},
		{"resourceName":"example.com/gpu","deviceIds":["g1"],"topology":{"nodes":[{"ID":"0"}]}},
		{"resourceName":"example.com/gpu","deviceIds":["g1"],"topology":{"nodes":[{"ID":"1"}]}},
		{"resourceName":"example.com/key","deviceIds":["k"]}],
		"cpuIds":["1","2","3"],
		"memory":[{"memoryType":"memory","size":"2139095040","topology":{"nodes":[{"ID":"1"}]}},{"memoryType":"hugepages-2Mi","size":"8388608","topology":{"nodes":[{"ID":"1"}]}}]}`)
}

// TestNothingOfTheirOwn: under the policies none, no CPUs or memory are assigned, and none can be.
func TestNothingOfTheirOwn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := serve(t, numa.Config{}).GetAllocatableResources(ctx, &podresourcesapi.AllocatableResourcesRequest{})
	if err != nil || len(all.CpuIds) > 0 || len(all.Memory) > 0 || len(all.Devices) != 4 {
		t.Errorf("%v %v", all, err)
	}
}

func TestRateIsLimited(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := serve(t, numa.Config{})
	for range 10000 {
		if _, err := c.List(ctx, &podresourcesapi.ListPodResourcesRequest{}); err != nil {
			if !strings.Contains(err.Error(), "ResourceExhausted desc = rejected by rate limit") {
				t.Error(err)
			}
			return
		}
	}
	t.Error("nobody was refused")
}
