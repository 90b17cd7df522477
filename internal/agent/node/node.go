// Package node speaks for this machine in the cluster: it registers the Node object, keeps its status and its Lease, and
// says in Events what changed.
//
// # Model
//
// A Keeper is the shell of a heartbeat.Beat, which alone decides when to speak. Each action of a Decision runs in its own
// goroutine, bounded in time, and comes back as a Fact. What is said is computed here: the machine's facts, drawn once;
// the runtime's last answer; the images; pressures from an injected source. It is written over the Node as the API server
// last showed it, so that conditions and fields of other writers stay, and sent as the difference.
//
// With an external cloud controller (Options.Cloud) addresses are that one's business: we publish what is needed until it
// speaks, hint at --node-ip in an annotation, and leave its addresses alone.
//
// One watch on our own Node tells what others did to it: deleted (we register again), said Unknown of us (we answer at
// once), cordoned it (an Event). Node returns it to the rest of the agent, so that no second watch is needed.
//
// # Invariants
//
//   - Nothing that NodeRestriction forbids to system:node:<name> is tried: taints are set at creation only, labels
//     within the allowed names only (CheckLabels).
//   - An unchanged status is not sent before its time, and a changed one is sent at once; heartbeat times are no change.
//   - With the API server away it keeps trying, spaced by the Beat's back-off, and forgets nothing.
//
// It evicts nothing, draws no load line and does not decide what a silent node means.
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

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// API is what a Keeper needs of the API server; *kube.Client is one.
type API interface {
	Get(ctx context.Context, k kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Update(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Patch(ctx context.Context, k kube.Kind, namespace, name string, t types.PatchType, body []byte, out runtime.Object, subresources ...string) error
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
}

// Runtime is what a Keeper asks the container runtime; runtimeapi.RuntimeServiceClient is one.
type Runtime interface {
	Version(ctx context.Context, in *runtimeapi.VersionRequest, opts ...grpc.CallOption) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, in *runtimeapi.StatusRequest, opts ...grpc.CallOption) (*runtimeapi.StatusResponse, error)
}

// Images lists images; runtimeapi.ImageServiceClient is one.
type Images interface {
	ListImages(ctx context.Context, in *runtimeapi.ListImagesRequest, opts ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error)
}

// Pressure says what the node is short of.
type Pressure struct {
	Memory, Disk, PID bool
}

// Plugins says how many devices the node's plugins have; *devicemanager.Keeper is one.
type Plugins interface {
	Amounts() (amounts []devicemanager.Amount, known bool)
	// Recall is told what the Node says of plugins' resources before we first write to it.
	Recall(published []devicemanager.Amount)
}

// Options are everything a Keeper needs. All fields without "optional" must be set.
type Options struct {
	Name     string // of the Node object
	API      API
	Runtime  Runtime
	Images   Images // optional: without, the status lists none
	Recorder record.EventRecorder

	Machine machine.Machine
	Line    allocatable.Line
	Rhythm  heartbeat.Config // Seed 0: drawn here

	Register    bool                      // create the Node object; else wait until somebody does
	Announce    func(ctx context.Context) // optional: tells others more of the Node, before it is made and when it is; must end soon
	Labels      map[string]string         // optional: beside the default ones; see CheckLabels
	Annotations map[string]string         // optional
	Taints      []corev1.Taint            // optional: set when the Node is created, never later
	ProviderID  string                    // optional
	MaxImages   int                       // in the status, the largest ones; negative: all

	Addresses func() ([]corev1.NodeAddress, error) // see Addresses.Find
	Cloud     *Cloud                               // optional: an external cloud controller looks after the Node
	Port      int32                                // of the agent's server

	// DeclaredFeatures are the features of Kubernetes 1.36 that a node declares and that this agent has; others do not count
	// on what is not declared. Optional.
	DeclaredFeatures []string

	Plugins  Plugins          // optional: nobody's devices are published
	Pressure func() Pressure  // optional: none
	MainLoop func() time.Time // optional: when the agent's main loop last turned
}

// What a node and an external cloud controller say to each other (k8s.io/cloud-provider/api; not worth the module).
const (
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized" // it removes it when it has looked at the node
	annotationNodeIP   = "alpha.kubernetes.io/provided-node-ip"           // --node-ip
)

// Cloud says that an external cloud controller looks after the Node (the kubelet's --cloud-provider=external).
type Cloud struct {
	NodeIPs []netip.Addr // of --node-ip, for it to prefer; none: any
}

const (
	// askMax bounds one question to the runtime. A healthy one answers in milliseconds; at this bound it counts as down.
	askMax = 5 * time.Second
	// runtimeDownAfter is how old the runtime's last answer may be before the Node says that it is down (upstream's
	// maxWaitForContainerRuntime). Shorter makes a restart of the runtime visible, longer hides a dead one.
	runtimeDownAfter = 30 * time.Second
	// mainLoopDownAfter is how long the main loop may stand still before the Node says so. Shorter condemns a node whose
	// runtime is slow under load; it must leave room for a report before the Lease is withheld (heartbeat.Config.MainLoopMax).
	mainLoopDownAfter = 2 * time.Minute
	// imagesEvery is how often images are listed (upstream caches them for as long).
	imagesEvery = 30 * time.Second
	// addressesEvery is how often the machine's addresses are looked up: with a hundred pods there are as many interfaces
	// to go through. An address that changes is published so much later.
	addressesEvery = time.Minute
)

// Keeper keeps one Node and its Lease.
type Keeper struct {
	o      Options
	origin time.Time
	facts  chan heartbeat.Fact
	now    func() time.Time

	complaints complaints

	mu       sync.Mutex   // guards everything that follows
	base     *corev1.Node // as the API server last showed it; nil before the registration
	computed *corev1.Node // base with our status; nil when it was not computed since
	runtime  runtimeAnswer
	images   []corev1.ContainerImage
	imagesAt time.Time

	addresses   []corev1.NodeAddress
	addressesAt time.Time
	lease       *coordinationv1.Lease  // as last written; nil: read it first
	cordoned    bool                   // as last told in an Event
	said        corev1.ConditionStatus // Ready, as last computed
}

// New prepares a Keeper; Run starts it.
func New(o Options) (*Keeper, error) {
	if problems := CheckLabels(o.Labels); len(problems) > 0 {
		return nil, fmt.Errorf("keep node %s: labels: %s", o.Name, problems[0])
	}
	if o.Rhythm.Seed == 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(o.Name)) // a hash takes everything
		o.Rhythm.Seed = h.Sum64() ^ rand.Uint64()
	}
	if o.MainLoop == nil {
		o.Rhythm.MainLoopMax = -1
	}
	if o.Pressure == nil {
		o.Pressure = func() Pressure { return Pressure{} }
	}
	if o.Announce == nil {
		o.Announce = func(context.Context) {}
	}
	return &Keeper{o: o, now: time.Now, origin: time.Now().Add(-time.Second), facts: make(chan heartbeat.Fact, 16)}, nil
}

// Node returns our Node as the API server last showed it, not to be written to; nil before the registration.
func (k *Keeper) Node() *corev1.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.base
}

// Changed tells that something the status speaks of changed, like a pressure: it is computed and sent at once.
func (k *Keeper) Changed() { k.tell(heartbeat.Fact{Kind: heartbeat.Stale}) }

func (k *Keeper) tell(f heartbeat.Fact) {
	select {
	case k.facts <- f:
	default:
		if f.Kind != heartbeat.Stale { // a hint that does not fit is in good company: others wait to be read
			k.facts <- f
		}
	}
}

func (k *Keeper) instant() unit.Instant { return unit.Instant(k.now().Sub(k.origin)) }

// Run speaks for the node until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.o.Recorder.Eventf(k.ref(), corev1.EventTypeNormal, "Starting", "Starting plimsoll agent %s", kubeletVersion())
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() { k.watch(ctx) })
	defer k.drain(cancel, &running)

	beat := heartbeat.New(k.o.Rhythm, k.instant())
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
		now := k.instant()
		d := beat.Step(now, seen...)
		seen = seen[:0]
		k.act(ctx, &running, beat.AttemptMax(), d)
		timer.Stop()
		if !d.Wake.IsZero() {
			timer.Reset(d.Wake.Sub(now))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case f := <-k.facts:
			seen = append(seen, f)
		}
	}
}

// drain ends what is under way, taking outcomes until nobody brings one.
func (k *Keeper) drain(cancel context.CancelFunc, running *sync.WaitGroup) {
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

// act starts what a decision says. Every action ends by telling its outcome.
func (k *Keeper) act(ctx context.Context, running *sync.WaitGroup, attemptMax time.Duration, d heartbeat.Decision) {
	if d.Withheld != "" {
		k.complaints.about("renew lease", fmt.Errorf("withheld: the %s is silent", d.Withheld), "silent", d.Silent.Round(time.Second))
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
				k.complaints.about(a.name, err, "node", k.o.Name)
			} else if err == nil {
				k.complaints.settle(a.name)
			}
			k.tell(fact)
		})
	}
}

// watch follows our Node.
func (k *Keeper) watch(ctx context.Context) {
	_, controller := k.o.API.Informer(kube.Nodes, kube.Selection{Fields: fields.OneTermEqualSelector("metadata.name", k.o.Name)},
		cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { k.shown(obj.(*corev1.Node)) },
			UpdateFunc: func(_, obj any) { k.shown(obj.(*corev1.Node)) },
			DeleteFunc: func(obj any) {
				if node, ok := obj.(*corev1.Node); ok { // else the watch missed it, and nobody knows which it was
					k.gone(node.UID)
				} else {
					k.gone("")
				}
			},
		})
	controller.RunWithContext(ctx)
}

// shown takes in the Node as the watch shows it, which may be behind the answer to our last write.
func (k *Keeper) shown(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil || node.UID == k.base.UID && !newer(node.ResourceVersion, k.base.ResourceVersion) {
		return // before the registration it is the registration that looks
	}
	theirs := readyStatus(node)
	k.base, k.computed = node, nil
	k.tellCordoned(node)
	if theirs != k.said && theirs == corev1.ConditionUnknown {
		// Somebody gave up on us while we are alive: answer now, not in ten seconds.
		slog.Warn("node was given up by another", "node", k.o.Name, "ready", theirs, "we say", k.said)
		k.tell(heartbeat.Fact{Kind: heartbeat.Stale})
	}
}

// gone takes in that the Node with this uid is not there any more; an empty uid is any.
func (k *Keeper) gone(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil || uid != "" && uid != k.base.UID {
		return
	}
	slog.Warn("node object was deleted: registering again", "node", k.o.Name)
	k.base, k.computed, k.lease = nil, nil, nil
	k.tell(heartbeat.Fact{Kind: heartbeat.NodeGone})
}

// tellCordoned says in an Event when the node was cordoned or uncordoned.
func (k *Keeper) tellCordoned(node *corev1.Node) {
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

// event records a change of the node's status in upstream's words.
func (k *Keeper) event(kind, reason string) {
	k.o.Recorder.Eventf(k.ref(), kind, reason, "Node %s status is now: %s", k.o.Name, reason)
}

// ref names our Node for Events. The uid is the name, as upstream has it, and so kubectl describe looks for it.
func (k *Keeper) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: k.o.Name, UID: types.UID(k.o.Name)}
}

// newer compares resource versions, which are numbers that grow (documented since 1.35).
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

// complaints logs a failing action when it begins to fail, when the reason changes, and once a minute, not each time.
type complaints struct {
	mu   sync.Mutex
	last map[string]complaint
}

type complaint struct {
	text string
	at   time.Time
}

// complainEvery is how often an unchanged failure is logged again.
const complainEvery = time.Minute

func (c *complaints) about(action string, err error, attrs ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	last, failing := c.last[action]
	if failing && last.text == err.Error() && now.Sub(last.at) < complainEvery {
		return
	}
	if c.last == nil {
		c.last = map[string]complaint{}
	}
	c.last[action] = complaint{err.Error(), now}
	slog.Warn(action, append(attrs, "err", err)...)
}

func (c *complaints) settle(action string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, failing := c.last[action]; failing {
		delete(c.last, action)
		slog.Info(action + ": works again")
	}
}
