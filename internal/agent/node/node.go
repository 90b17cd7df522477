// Package node registers the Node object of this machine, keeps its status and its Lease up to date, and records Events
// about changes.
//
// # Model
//
// A Reporter is the shell of a heartbeat.Beat, which alone decides when to write. Each action of a Decision runs in its
// own goroutine, is bounded in time, and returns its outcome as a Fact. This package computes what is written: the
// machine's properties, read once at the start; the runtime's last answer; the images; the pressures, from an injected
// source. These are written over the Node as the API server last delivered it, so that conditions and fields of other
// writers stay. Only the difference is sent.
//
// With an external cloud controller (Options.Cloud) that controller owns the Node's addresses. Until it has set them,
// the agent publishes those that are needed. It passes --node-ip to the controller in an annotation, and leaves the
// controller's addresses alone.
//
// One watch on the agent's own Node shows what others did to it: the Node was deleted (it is registered again), Ready
// was set to Unknown (the status is sent at once), the node was cordoned (an Event). Node returns this Node to the rest
// of the agent, so that no second watch is needed.
//
// # Invariants
//
//   - The agent never tries what NodeRestriction forbids to system:node:<name>: taints are set only when the Node is
//     created, labels only within the allowed names (CheckLabels).
//   - An unchanged status is not sent before it is due. A changed one is sent at once; heartbeat times do not count as
//     a change.
//   - While the API server cannot be reached, the agent keeps trying, with the Beat's back-off, and loses nothing.
//
// The package evicts nothing, does not compute allocatable, and does not decide what happens to an unreachable node.
package node

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// API is the part of the API client that a Reporter uses; *kube.Client implements it.
type API interface {
	Get(ctx context.Context, k kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Update(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Patch(ctx context.Context, k kube.Kind, namespace, name string, t types.PatchType, body []byte, out runtime.Object,
		subresources ...string) error
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
}

// Runtime is the part of the CRI that a Reporter uses; runtimeapi.RuntimeServiceClient implements it.
type Runtime interface {
	Version(ctx context.Context, in *runtimeapi.VersionRequest,
		opts ...grpc.CallOption) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, in *runtimeapi.StatusRequest, opts ...grpc.CallOption) (*runtimeapi.StatusResponse, error)
}

// Images lists images; runtimeapi.ImageServiceClient implements it.
type Images interface {
	ListImages(ctx context.Context, in *runtimeapi.ListImagesRequest,
		opts ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error)
}

// Pressure tells which of the node's resources are short.
type Pressure struct {
	Memory, Disk, PID bool
}

// Plugins knows how many devices the node's plugins have; *devicemanager.Manager implements it.
type Plugins interface {
	Amounts() (amounts []devicemanager.Amount, known bool)
	// Recall receives the plugins' resources in the Node's status before the agent first writes to the Node.
	Recall(published []devicemanager.Amount)
}

// Startup measures how long a new node takes to become ready; *metrics.Startup implements it.
type Startup interface {
	Trying()
	Registered()
	Ready()
}

// unmeasured measures nothing.
type unmeasured struct{}

func (unmeasured) Trying()     {}
func (unmeasured) Registered() {}
func (unmeasured) Ready()      {}

// Options are what a Reporter needs. Fields not marked optional must be set.
type Options struct {
	Name     string // of the Node object
	API      API
	Runtime  Runtime
	Images   Images // optional: without it the status lists no images
	Recorder record.EventRecorder

	Machine   machine.Machine
	Resources allocatable.Resources
	Heartbeat heartbeat.Config // Seed 0: New draws one

	Register bool // create the Node object; otherwise wait until it is created
	// optional: publishes more about the Node, called before it is created and when it exists; must return soon
	Announce    func(ctx context.Context)
	Exists      func()            // optional: called when Node returns a Node that was created or taken over just now
	Labels      map[string]string // optional: in addition to the default ones; see CheckLabels
	Annotations map[string]string // optional
	Taints      []corev1.Taint    // optional: set when the Node is created, never later
	ProviderID  string            // optional
	MaxImages   int               // how many images the status lists, largest first; negative: all

	Addresses func() ([]corev1.NodeAddress, error) // see Addresses.Find
	Cloud     *Cloud                               // optional: an external cloud controller manages the Node
	Port      int32                                // of the agent's server

	// DeclaredFeatures are the features of Kubernetes 1.36 that a node must declare and that this agent has. Other
	// components do not use a feature that is not declared. Optional.
	DeclaredFeatures []string

	// ShuttingDown reports whether the machine is about to shut down. Then the node is not ready. Optional.
	ShuttingDown func() bool

	// UserNamespaces reports whether pods can have users of their own, as far as it is the agent's and the kernel's
	// business. Optional: they cannot.
	UserNamespaces func() bool
	// VolumesInUse returns the volumes in use for the status, given those that the status has now. It must return soon,
	// and may not call the Reporter. Optional: no volume is attached.
	VolumesInUse func(now []corev1.UniqueVolumeName) []corev1.UniqueVolumeName
	// Received is called with the Node as the API server has it. It must return soon, and may not call the Reporter or
	// write to the Node. Optional.
	Received func(*corev1.Node)

	CSIVolumes   bool // CSI drivers are registered and called
	TrustBundles bool // pods can have certificates of ClusterTrustBundles: the feature gate is on

	PodCertificates bool // the agent requests certificates for pods: the feature gate is on

	Startup  Startup          // optional: measures it
	Plugins  Plugins          // optional: without it no devices are published
	Pressure func() Pressure  // optional: none
	MainLoop func() time.Time // optional: when the agent's main loop last completed a round
}

// What an external cloud controller and a node tell each other (k8s.io/cloud-provider/api; not worth a dependency).
const (
	// the controller removes it when it has initialized the node
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	annotationNodeIP   = "alpha.kubernetes.io/provided-node-ip" // --node-ip
)

// Cloud means that an external cloud controller manages the Node (the kubelet's --cloud-provider=external).
type Cloud struct {
	NodeIPs []netip.Addr // of --node-ip, which the controller should prefer; none: any
}

const (
	// askMax bounds one call to the runtime. A healthy runtime answers in milliseconds; after this bound it counts as
	// down.
	askMax = 5 * time.Second
	// runtimeDownAfter is how old the runtime's last answer may be before the Node reports that it is down (kubelet:
	// maxWaitForContainerRuntime). A shorter time reports every restart of the runtime; a longer one hides a dead
	// runtime.
	runtimeDownAfter = 30 * time.Second
	// mainLoopDownAfter is how long the main loop may stand still before the Node reports it. A shorter time reports
	// nodes whose runtime is only slow under load. The time must leave room for a report before the Lease is withheld
	// (heartbeat.Config.MainLoopMax).
	mainLoopDownAfter = 2 * time.Minute
	// imagesEvery is how often images are listed (the kubelet caches them for as long).
	imagesEvery = 30 * time.Second
	// addressesEvery is how often the machine's addresses are looked up. With a hundred pods there are as many
	// interfaces to read. A changed address is published so much later.
	addressesEvery = time.Minute
)

// Reporter keeps one Node and its Lease up to date.
type Reporter struct {
	o     Options
	clock *clock.Clock
	facts chan heartbeat.Fact
	now   func() time.Time

	failures failurelog.Log // of the actions

	mu       sync.Mutex   // guards everything that follows
	base     *corev1.Node // as the API server last delivered it; nil before the registration
	computed *corev1.Node // base with the agent's status; nil if it has not been computed since base changed
	runtime  runtimeAnswer
	images   []corev1.ContainerImage
	imagesAt time.Time

	addresses   []corev1.NodeAddress
	addressesAt time.Time
	lease       *coordinationv1.Lease  // as last written; nil: read it first
	cordoned    bool                   // as in the last Event about it
	reported    corev1.ConditionStatus // Ready, as last computed

	turned atomic.Int64 // unit.Instant when Run's loop turned last; 0: never yet; needs no lock
}

// New prepares a Reporter; Run starts it.
func New(o Options) (*Reporter, error) {
	if problems := CheckLabels(o.Labels); len(problems) > 0 {
		return nil, fmt.Errorf("prepare node %s: labels: %s", o.Name, problems[0])
	}
	if o.Heartbeat.Seed == 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(o.Name)) // a hash takes everything
		o.Heartbeat.Seed = h.Sum64() ^ rand.Uint64()
	}
	if o.MainLoop == nil {
		o.Heartbeat.MainLoopMax = -1
	}
	if o.Pressure == nil {
		o.Pressure = func() Pressure { return Pressure{} }
	}
	if o.Startup == nil {
		o.Startup = unmeasured{}
	}
	if o.Announce == nil {
		o.Announce = func(context.Context) {}
	}
	if o.Exists == nil {
		o.Exists = func() {}
	}
	return &Reporter{o: o, now: time.Now, clock: clock.New(), facts: make(chan heartbeat.Fact, 16)}, nil
}

// Node returns the agent's own Node as the API server last delivered it; nil before the registration. The caller must
// not write to it.
func (k *Reporter) Node() *corev1.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.base
}

// Changed is called when something in the status changed, such as a pressure: the status is computed and sent at once.
func (k *Reporter) Changed() { k.notify(heartbeat.Fact{Kind: heartbeat.Stale}) }

func (k *Reporter) notify(f heartbeat.Fact) {
	select {
	case k.facts <- f:
	default:
		if f.Kind != heartbeat.Stale { // the channel is full of facts, each of which leads to another Step
			k.facts <- f
		}
	}
}

// turnMax is how long Run's loop sleeps at most, so that it can be seen to turn. Chosen: it costs one wake-up in that
// time, and a watchdog allows more.
const turnMax = time.Minute

// Turned returns when the loop of Run turned last; zero: never yet. It takes no lock.
func (k *Reporter) Turned() time.Time {
	if at := k.turned.Load(); at != 0 {
		return k.clock.At(unit.Instant(at))
	}
	return time.Time{}
}

// Run reports the Node's status and renews its Lease until ctx ends.
func (k *Reporter) Run(ctx context.Context) {
	k.o.Recorder.Eventf(k.ref(), corev1.EventTypeNormal, "Starting", "Starting plimsoll agent %s", kubeletVersion())
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() { k.watch(ctx) })
	defer k.drain(cancel, &running)

	beat := heartbeat.New(k.o.Heartbeat, k.clock.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen []heartbeat.Fact
	var turned time.Time
	for {
		if k.o.MainLoop != nil {
			if at := k.o.MainLoop(); at.After(turned) {
				turned = at
				seen = append(seen, heartbeat.Fact{Kind: heartbeat.MainLoopTurned})
			}
		}
		now := k.clock.Now()
		k.turned.Store(int64(now))
		d := beat.Step(now, seen...)
		seen = seen[:0]
		k.act(ctx, &running, beat.AttemptMax(), d)
		timer.Reset(d.Wake.Earlier(now.Add(turnMax)).Sub(now))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case f := <-k.facts:
			seen = append(seen, f)
		}
	}
}

// drain ends the running actions and discards their outcomes until all have ended.
func (k *Reporter) drain(cancel context.CancelFunc, running *sync.WaitGroup) {
	cancel()
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	for {
		select {
		case <-k.facts:
		case <-ended:
			return
		}
	}
}

// act starts the actions of a decision. Every action sends its outcome when it ends.
func (k *Reporter) act(ctx context.Context, running *sync.WaitGroup, attemptMax time.Duration, d heartbeat.Decision) {
	if d.Withheld != "" {
		k.failures.Failed("renew lease", fmt.Errorf("withheld: the %s does not answer", d.Withheld), "silent",
			d.Silent.Round(time.Second))
	}
	for _, a := range []struct {
		do   bool
		kind heartbeat.FactKind
		name string
		most time.Duration
		run  func(context.Context) (heartbeat.Fact, error)
	}{
		{d.AskRuntime, heartbeat.RuntimeAsked, "ask container runtime", askMax, k.askRuntime},
		{d.Register, heartbeat.Registered, "register node", attemptMax, k.register},
		{d.Renew, heartbeat.Renewed, "renew lease", attemptMax, k.renew},
		{d.Compute, heartbeat.Computed, "compute node status", askMax, k.compute},
		{d.Report, heartbeat.Reported, "report node status", attemptMax, k.report},
	} {
		if !a.do {
			continue
		}
		running.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, a.most)
			defer cancel()
			fact, err := a.run(bounded)
			fact.Kind, fact.OK = a.kind, err == nil
			if err != nil && ctx.Err() == nil {
				k.failures.Failed(a.name, err, "node", k.o.Name)
			} else if err == nil {
				k.failures.Succeeded(a.name)
			}
			k.notify(fact)
		})
	}
}

// watch watches the agent's own Node.
func (k *Reporter) watch(ctx context.Context) {
	_, controller := k.o.API.Informer(kube.Nodes, kube.Selection{Fields: fields.OneTermEqualSelector("metadata.name",
		k.o.Name)},
		cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { k.observed(obj.(*corev1.Node)) },
			UpdateFunc: func(_, obj any) { k.observed(obj.(*corev1.Node)) },
			DeleteFunc: func(obj any) {
				// otherwise the watch missed the deletion, and the UID is not known
				if node, ok := obj.(*corev1.Node); ok {
					k.deleted(node.UID)
				} else {
					k.deleted("")
				}
			},
		})
	controller.RunWithContext(ctx)
}

// observed receives the Node from the watch, which may be behind the answer to the last write.
func (k *Reporter) observed(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil || node.UID == k.base.UID && !newer(node.ResourceVersion, k.base.ResourceVersion) {
		return // before the registration, register reads the Node itself
	}
	theirs := readyStatus(node)
	k.base, k.computed = node, nil
	if k.o.Received != nil {
		k.o.Received(node)
	}
	k.recordCordoned(node)
	if theirs != k.reported && theirs == corev1.ConditionUnknown {
		// Another component gave up on this node while the agent is alive: answer now, not in ten seconds.
		slog.Warn("another client set the node's Ready condition", "node", k.o.Name, "ready", theirs,
			"agent reports", k.reported)
		k.notify(heartbeat.Fact{Kind: heartbeat.Stale})
	}
}

// deleted receives that the Node with this UID was deleted; an empty UID means any.
func (k *Reporter) deleted(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil || uid != "" && uid != k.base.UID {
		return
	}
	slog.Warn("node object was deleted: registering again", "node", k.o.Name)
	k.base = nil
	k.computed = nil
	k.lease = nil
	k.notify(heartbeat.Fact{Kind: heartbeat.NodeGone})
}

// recordCordoned records an Event if the node was cordoned or uncordoned.
func (k *Reporter) recordCordoned(node *corev1.Node) {
	if node.Spec.Unschedulable == k.cordoned {
		return
	}
	k.cordoned = node.Spec.Unschedulable
	reason := "NodeSchedulable"
	if k.cordoned {
		reason = "NodeNotSchedulable"
	}
	k.event(corev1.EventTypeNormal, reason)
}

// event records a change of the node's status in the kubelet's words.
func (k *Reporter) event(kind, reason string) {
	k.o.Recorder.Eventf(k.ref(), kind, reason, "Node %s status is now: %s", k.o.Name, reason)
}

// ref names the Node for Events. The UID is the name, as in the kubelet: kubectl describe looks for that.
func (k *Reporter) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: k.o.Name, UID: types.UID(k.o.Name)}
}

// newer compares resource versions, which are growing numbers (documented since 1.35).
func newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA != nil || errB != nil || x > y
}

func readyStatus(node *corev1.Node) corev1.ConditionStatus {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return node.Status.Conditions[i].Status
		}
	}
	return ""
}
