package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/cache"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// server stands for the API server for one node: it stores, versions, merges and serves the watch.
type server struct {
	mu      sync.Mutex
	version int
	uid     int
	node    *corev1.Node
	lease   *coordinationv1.Lease
	down    error // answer to everything
	log     []string
	patches [][]byte
	tell    chan func(cache.ResourceEventHandler)
}

func newServer() *server {
	return &server{tell: make(chan func(cache.ResourceEventHandler), 1000)}
}

var errRefused = errors.New("connection refused")

func (s *server) do(what string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		s.log = append(s.log, what+" refused")
		return s.down
	}
	s.log = append(s.log, what)
	return f()
}

func (s *server) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

func notFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

func (s *server) Get(_ context.Context, k kube.Kind, _, name string, out runtime.Object) error {
	return s.do("get "+k.Resource, func() error {
		switch out := out.(type) {
		case *corev1.Node:
			if s.node == nil {
				return notFound(k.Resource, name)
			}
			s.node.DeepCopyInto(out)
		case *coordinationv1.Lease:
			if s.lease == nil {
				return notFound(k.Resource, name)
			}
			s.lease.DeepCopyInto(out)
		}
		return nil
	})
}

func (s *server) Create(_ context.Context, k kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	return s.do("create "+k.Resource, func() error {
		switch obj := obj.(type) {
		case *corev1.Node:
			if s.node != nil {
				return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "nodes"}, obj.Name)
			}
			s.uid++
			s.node = obj.DeepCopy()
			s.node.UID = types.UID(fmt.Sprintf("uid-%d", s.uid))
			s.showLocked()
			s.node.DeepCopyInto(out.(*corev1.Node))
		case *coordinationv1.Lease:
			s.lease = obj.DeepCopy()
			s.lease.ResourceVersion = s.next()
			s.lease.DeepCopyInto(out.(*coordinationv1.Lease))
		}
		return nil
	})
}

func (s *server) Update(_ context.Context, k kube.Kind, _, name string, obj, out runtime.Object, _ ...string) error {
	return s.do("update "+k.Resource, func() error {
		lease := obj.(*coordinationv1.Lease)
		switch {
		case s.lease == nil:
			return notFound(k.Resource, name)
		case lease.ResourceVersion != s.lease.ResourceVersion:
			return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, name, errors.New("changed"))
		}
		s.lease = lease.DeepCopy()
		s.lease.ResourceVersion = s.next()
		s.lease.DeepCopyInto(out.(*coordinationv1.Lease))
		return nil
	})
}

func (s *server) Patch(_ context.Context, k kube.Kind, _, name string, _ types.PatchType, body []byte,
	out runtime.Object, sub ...string) error {
	return s.do("patch "+k.Resource, func() error {
		if s.node == nil {
			return notFound(k.Resource, name)
		}
		if len(sub) != 1 || sub[0] != "status" {
			return fmt.Errorf("patched %v, want the status", sub)
		}
		s.patches = append(s.patches, body)
		old, err := json.Marshal(s.node)
		if err != nil {
			return err
		}
		merged, err := strategicpatch.StrategicMergePatch(old, body, corev1.Node{})
		if err != nil {
			return err
		}
		node := &corev1.Node{}
		if err := json.Unmarshal(merged, node); err != nil {
			return err
		}
		s.node = node
		s.showLocked()
		s.node.DeepCopyInto(out.(*corev1.Node))
		return nil
	})
}

// showLocked gives the node a new version and sends it to the watch.
func (s *server) showLocked() {
	s.node.ResourceVersion = s.next()
	shown := s.node.DeepCopy()
	s.tell <- func(h cache.ResourceEventHandler) { h.OnUpdate(shown, shown) }
}

// edit changes the node as another client would.
func (s *server) edit(f func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.node)
	s.showLocked()
}

func (s *server) deleteNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.node
	s.node = nil
	s.tell <- func(h cache.ResourceEventHandler) { h.OnDelete(old) }
}

func (s *server) setDown(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

func (s *server) took() (log []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, s.log = s.log, nil
	return log
}

func (s *server) now() (*corev1.Node, *coordinationv1.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy(), s.lease.DeepCopy()
}

type controller struct {
	cache.Controller
	run func(ctx context.Context)
}

func (c controller) RunWithContext(ctx context.Context) { c.run(ctx) }

func (s *server) Informer(_ kube.Kind, _ kube.Selection,
	handler cache.ResourceEventHandler) (cache.Store, cache.Controller) {
	return nil, controller{run: func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case f := <-s.tell:
				f(handler)
			}
		}
	}}
}

// cri stands for the container runtime.
type cri struct {
	mu      sync.Mutex
	status  runtimeapi.StatusResponse
	err     error
	images  []*runtimeapi.Image
	asked   int
	frozen  chan struct{} // while it is not nil, no call is answered
	release string        // empty: 1.6.20
}

func (c *cri) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = make(chan struct{})
}

func (c *cri) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.frozen)
	c.frozen = nil
}

// answers waits while the runtime is frozen.
func (c *cri) answers(ctx context.Context) error {
	c.mu.Lock()
	frozen := c.frozen
	c.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newCRI() *cri {
	c := &cri{}
	c.set(true, true, nil)
	return c
}

func (c *cri) set(runtime, network bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	c.status = runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: runtime},
		{
			Type:    "NetworkReady",
			Status:  network,
			Reason:  map[bool]string{false: "NetworkPluginNotReady"}[network],
			Message: map[bool]string{false: "cni plugin not initialized"}[network],
		},
	}}}
}

func (c *cri) Status(ctx context.Context, _ *runtimeapi.StatusRequest,
	_ ...grpc.CallOption) (*runtimeapi.StatusResponse, error) {
	if err := c.answers(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return &c.status, c.err
}

func (c *cri) Version(context.Context, *runtimeapi.VersionRequest,
	...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: cmp.Or(c.release, "1.6.20")}, c.err
}

func (c *cri) ListImages(ctx context.Context, _ *runtimeapi.ListImagesRequest,
	_ ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error) {
	if err := c.answers(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: c.images}, c.err
}

// recorder keeps the reasons of events.
type recorder struct {
	mu      sync.Mutex
	reasons []string
}

func (r *recorder) Event(_ runtime.Object, _, reason, _ string) { r.add(reason) }
func (r *recorder) Eventf(_ runtime.Object, _, reason, _ string, _ ...any) {
	r.add(reason)
}
func (r *recorder) AnnotatedEventf(_ runtime.Object, _ map[string]string, _, reason, _ string, _ ...any) {
	r.add(reason)
}
func (r *recorder) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason)
}
func (r *recorder) took() (reasons []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons, r.reasons = r.reasons, nil
	return reasons
}

// options returns the options of a small node.
func options(t *testing.T, s *server, c *cri, r *recorder) Options {
	t.Helper()
	m := machine.Machine{
		CPUs: idset.Of(0, 1), Memory: 4039556 * unit.KiB, NodeFS: machine.Filesystem{Capacity: 64800356 * unit.KiB},
		Swap:      unit.GiB,
		HugePages: map[unit.Bytes]int64{2 * unit.MiB: 0},
		Identity: machine.Identity{MachineID: "m", SystemUUID: "s", BootID: "boot-1", KernelVersion: "6.1.0",
			OSImage: "Debian GNU/Linux 12 (bookworm)", Architecture: "amd64"},
	}
	resources, err := allocatable.Compute(m, allocatable.Settings{MaxPods: 110,
		EvictionHard: map[allocatable.Signal]allocatable.Threshold{
			allocatable.MemoryAvailable: {Amount: int64(100 * unit.MiB)},
		}})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Name: "n1", API: s, Runtime: c, Images: c, Recorder: r, Machine: m, Resources: resources, Register: true,
		MaxImages: 50, Port: 10250,
		Addresses: Addresses{
			Hostname: "n1", Serving: netip.MustParseAddr("127.0.0.1"),
			Lookup: func(string) ([]netip.Addr, error) { return nil, errors.New("no such host") },
			Own:    func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.7")}, nil },
			Of:     func(string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.7")}, nil },
			Routes: func() ([]string, error) { return []string{"eth0"}, nil },
		}.Find,
	}
	o.Heartbeat.Seed = 1
	return o
}

func start(t *testing.T, o Options) (*Reporter, context.CancelFunc) {
	t.Helper()
	k, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { k.Run(ctx); close(ended) }()
	return k, func() { cancel(); <-ended }
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
