// Package podresources serves the pod resources API v1 on a socket: which CPUs, memory and devices are assigned to the
// containers of this node. Monitoring agents and topology exporters read it.
//
// # Model
//
// Every answer is computed when it is requested, from the pods on the node, their assignments and the plugins' devices.
// The content is the kubelet's. Init containers are left out unless they are sidecars. CPUs are exclusive ones only. A
// device near several NUMA nodes is listed once for each; a device near none has no topology. Memory is listed in
// blocks. GetAllocatableResources returns what an empty node can assign: healthy devices, CPUs that are not reserved,
// memory that is not reserved; CPUs and memory only under the policies that assign them. Lists are sorted; the
// kubelet's are in the random order of a map.
//
// As in the kubelet, requests above a rate are refused, so that a client in a loop cannot keep the agent busy.
//
// There is no v1alpha1, and no dynamic resources: this agent does not support resource claims.
package podresources

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/host/socket"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Devices knows the devices; *devicemanager.Manager implements it.
type Devices interface {
	Allocations(uid, container string) []devicemanager.Allocation
	Inventory() []numa.Plugin
}

// Options are what a Server needs.
type Options struct {
	Dir         string // of the socket: <Dir>/kubelet.sock
	Pods        func() []*corev1.Pod
	Assignments func(uid string) (numa.Assignment, bool)
	Devices     Devices
	Empty       *numa.State // of the machine without pods
	Config      numa.Config
	Metrics     *metrics.PodResources
}

// Requests per second, and how many at once (kubelet: DefaultQPS and DefaultBurstTokens). Raising them lets clients
// cost more CPU.
const (
	requestsPerSecond = 100
	requestsAtOnce    = 10
)

// socketName is the socket's name, which the API prescribes.
const socketName = "kubelet.sock"

// Server implements the API.
type Server struct {
	o Options
	podresourcesapi.UnimplementedPodResourcesListerServer
}

// New prepares a Server.
func New(o Options) *Server { return &Server{o: o} }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	dir, err := socket.Open(s.o.Dir)
	if err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	defer func() { _ = dir.Close() }() // opened for reading only
	listener, err := dir.Listen(socketName)
	if err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	limit := rate.NewLimiter(requestsPerSecond, requestsAtOnce)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
		answer grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return answer(ctx, request)
	}))
	podresourcesapi.RegisterPodResourcesListerServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("serve pod resources: %s: %w", filepath.Join(s.o.Dir, socketName), err)
	}
	return ctx.Err()
}

// version is the API's version in the metrics' labels.
const version = "v1"

// List returns what is assigned to every pod.
func (s *Server) List(context.Context,
	*podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	s.o.Metrics.Requests.WithLabelValues(version).Inc()
	s.o.Metrics.List.WithLabelValues(version).Inc()
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range s.o.Pods() {
		out.PodResources = append(out.PodResources, s.of(pod))
	}
	return out, nil
}

// Get returns what is assigned to one pod.
func (s *Server) Get(_ context.Context,
	r *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	s.o.Metrics.Requests.WithLabelValues(version).Inc()
	s.o.Metrics.Get.WithLabelValues(version).Inc()
	for _, pod := range s.o.Pods() {
		if pod.Namespace == r.GetPodNamespace() && pod.Name == r.GetPodName() {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: s.of(pod)}, nil
		}
	}
	s.o.Metrics.GetWrong.WithLabelValues(version).Inc()
	// the kubelet's words
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
}

// GetAllocatableResources returns what the node can assign when it is empty.
func (s *Server) GetAllocatableResources(context.Context,
	*podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	s.o.Metrics.Requests.WithLabelValues(version).Inc()
	s.o.Metrics.GetAllocatable.WithLabelValues(version).Inc()
	out := &podresourcesapi.AllocatableResourcesResponse{}
	for _, p := range s.o.Devices.Inventory() {
		for _, d := range p.Devices {
			if d.Healthy {
				out.Devices = append(out.Devices, deviceOn(p.Resource, d.ID, d.Nodes)...)
			}
		}
	}
	for _, n := range s.o.Empty.Free() {
		if s.o.Config.CPU.Static {
			for cpu := range n.CPUs.All() {
				out.CpuIds = append(out.CpuIds, int64(cpu))
			}
		}
		for _, m := range n.Memory {
			if s.o.Config.Memory.Static && m.Bytes > 0 {
				out.Memory = append(out.Memory, memoryOn(numa.Block{Nodes: []machine.NUMAID{n.Node}, PageSize: m.PageSize,
					Bytes: m.Bytes}))
			}
		}
	}
	slices.Sort(out.CpuIds)
	return out, nil
}

// of returns what is assigned to a pod.
func (s *Server) of(pod *corev1.Pod) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	own := map[string]numa.Assigned{}
	if a, ok := s.o.Assignments(string(pod.UID)); ok {
		for _, h := range a.Containers {
			own[h.Container] = h
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; translate.IsSidecar(c) {
			out.Containers = append(out.Containers, s.container(pod, c.Name, own[c.Name]))
		}
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		out.Containers = append(out.Containers, s.container(pod, name, own[name]))
	}
	return out
}

func (s *Server) container(pod *corev1.Pod, name string, own numa.Assigned) *podresourcesapi.ContainerResources {
	out := &podresourcesapi.ContainerResources{Name: name}
	for _, h := range s.o.Devices.Allocations(string(pod.UID), name) {
		for _, id := range h.IDs {
			out.Devices = append(out.Devices, deviceOn(h.Resource, id, h.Nodes[id])...)
		}
	}
	for cpu := range own.CPUs.All() {
		out.CpuIds = append(out.CpuIds, int64(cpu))
	}
	for _, b := range own.Memory {
		out.Memory = append(out.Memory, memoryOn(b))
	}
	return out
}

// deviceOn lists a device once for each NUMA node that it is near.
func deviceOn(resource, id string, nodes []machine.NUMAID) []*podresourcesapi.ContainerDevices {
	if len(nodes) == 0 {
		return []*podresourcesapi.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}
	}
	var out []*podresourcesapi.ContainerDevices
	for _, n := range nodes {
		out = append(out, &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: []string{id},
			Topology: near(n)})
	}
	return out
}

func memoryOn(b numa.Block) *podresourcesapi.ContainerMemory {
	return &podresourcesapi.ContainerMemory{MemoryType: numa.KindName(b.PageSize), Size: uint64(b.Bytes),
		Topology: near(b.Nodes...)}
}

func near(nodes ...machine.NUMAID) *podresourcesapi.TopologyInfo {
	out := &podresourcesapi.TopologyInfo{}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, &podresourcesapi.NUMANode{ID: int64(n)})
	}
	return out
}
