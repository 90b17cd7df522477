// Package lifecycle is the shell of node lifecycle and taint eviction: it brings nodes, leases and pods to core/lifecycle
// and writes what it decides: conditions of silent nodes, taints that follow from conditions, readiness of pods on
// silent nodes, and the end of pods that do not tolerate their node's taints or whose node is gone.
//
// # Model
//
// One goroutine owns the Monitor and hears facts, in order, through one channel: changes from three watches, the
// outcome of writes, and a probe of the API server every few seconds. It sleeps until the next deadline; nothing is
// scanned. Writes run beside it, at most WritesInFlight at once and as many as the API server bears: they pass a
// kube.Gate, nodes first, Events last. Of what waits its turn there are a few of each kind before the Gate and the rest
// in lanes.go.
//
// # Invariants
//
//   - Every write of a node names the resourceVersion it was decided on: a node that spoke meanwhile makes it fail, and
//     it is decided anew. Every write of a pod names its UID.
//   - Before a node is marked silent, its lease is read once more from the API, and before pods of a missing node are
//     removed, the node: a watch that lags condemns nobody.
//   - What a write answers is told to the Monitor before the write is called done, and an older version that a watch
//     brings later is dropped. So nothing is written twice because the watch was slow.
//   - What waited for its turn is decided anew when it comes: on the latest version of a node, and if a pod still has
//     to go.
//   - Nothing is judged before all three watches have delivered their first lists.
//   - Nothing is written while Options.Leads says no.
//
// It keeps nothing on disk: what a next leader must know is written in the API. It does not elect the leader
// (kube/election) and opens no port. Nodes and pods that upstream's controllers would handle differently are named in
// core/lifecycle and in oracle/README.md.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// WritesInFlightDefault bounds writes that wait for an answer. Chosen: half of the scheduler's binds, as both may work
// at once. A server that does not bear them gets fewer: core/throttle.
const WritesInFlightDefault = 32

// contactEvery is how often the API server is asked whether it is there. Chosen: half of lifecycle.Options.DeafAfter, less
// a little, so that one lost probe is not deafness.
const contactEvery = 5 * time.Second

// Options configure the controller.
type Options struct {
	Client         *kube.Client
	Events         *kube.Client // for Events, so that they do not wait behind writes; nil: Client
	Health         corelifecycle.Options
	WritesInFlight int // zero: WritesInFlightDefault
	// RespectBudgets evicts pods through the Eviction API, which refuses as long as a PodDisruptionBudget would be
	// broken. Upstream deletes them.
	RespectBudgets bool
	// Leads is asked right before every write; nil: always.
	Leads   func() bool
	Metrics *Metrics // nil: none
}

// Run controls until ctx ends. It returns an error only for options that cannot work.
func Run(ctx context.Context, o Options) error {
	if err := check(&o); err != nil {
		return fmt.Errorf("run lifecycle controller: %w", err)
	}
	writes, events, err := o.behindGate(ctx)
	if err != nil {
		return fmt.Errorf("run lifecycle controller: %w", err)
	}
	c := newController(o, remote{writes}, recorders{
		nodes: kube.NewRecorder(ctx, events, "node-controller", ""), evictions: kube.NewRecorder(ctx, events, "taint-eviction-controller", ""),
	})
	watches, err := o.Client.Gathering(kube.GatherBeats)
	if err != nil {
		return fmt.Errorf("run lifecycle controller: %w", err)
	}
	var synced []cache.InformerSynced
	for _, w := range []struct {
		kind    kube.Kind
		sel     kube.Selection
		handler cache.ResourceEventHandler
	}{
		{kube.Nodes, kube.Selection{Trim: trimNode}, c.nodeHandler()},
		{kube.Pods, kube.Selection{Trim: trimPod}, c.podHandler()},
	} {
		_, informer := watches.Informer(w.kind, w.sel, w.handler)
		synced = append(synced, informer.HasSynced)
		go informer.RunWithContext(ctx)
	}
	renewals := watches.NewRenewals(func(batch []kube.Renewal) { c.hearRenewals(ctx, batch) })
	listed := make(chan struct{})
	go renewals.Follow(ctx, func() { close(listed) })
	go func() {
		select {
		case <-listed:
		case <-ctx.Done():
		}
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			c.tell(ctx, func(unit.Instant) { c.synced = true })
		}
	}()
	go c.probe(ctx)
	c.run(ctx)
	return nil
}

// behindGate returns the clients for writes and for Events, which pass one Gate.
func (o *Options) behindGate(ctx context.Context) (writes, events *kube.Client, err error) {
	gate := kube.NewGate(kube.GateOptions{
		Component: "lifecycle",
		Options:   throttle.Options{InFlightMax: o.WritesInFlight, Tolerance: throttle.ToleranceDefault},
		Leads:     o.Leads,
	})
	if err := gate.Register(ctx, o.Metrics.Registry); err != nil {
		return nil, nil, err
	}
	if writes, err = o.Client.Through(gate); err != nil {
		return nil, nil, err
	}
	events, err = o.Events.Through(gate)
	return writes, events, err
}

func check(o *Options) error {
	if o.Client == nil {
		return errors.New("no API client")
	}
	errs := []error{o.Health.Check()}
	if o.WritesInFlight < 0 {
		errs = append(errs, fmt.Errorf("writes in flight: %d: must not be negative", o.WritesInFlight))
	}
	if o.WritesInFlight == 0 {
		o.WritesInFlight = WritesInFlightDefault
	}
	if o.Events == nil {
		o.Events = o.Client
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	return errors.Join(errs...)
}

// Check reports every problem of o at once.
func (o *Options) Check() error {
	copied := *o
	return check(&copied)
}

// trimNode drops the image list, the largest part of a node, which is not read here.
func trimNode(obj runtime.Object) {
	if n, ok := obj.(*corev1.Node); ok {
		n.Status.Images = nil
	}
}

func trimPod(obj runtime.Object) {
	if p, ok := obj.(*corev1.Pod); ok {
		translate.TrimHealthPod(p)
	}
}

// recorders write Events under the names of upstream's controllers.
type recorders struct{ nodes, evictions record.EventRecorder }

// A fact changes what the Monitor knows; it runs on the controller's goroutine.
type fact func(now unit.Instant)

// controller is the goroutine that owns the Monitor.
type controller struct {
	o   Options
	api api
	recorders
	metrics *Metrics

	facts   chan fact
	start   time.Time
	monitor *corelifecycle.Monitor
	lanes   lanes

	synced bool
	latest map[string]*corev1.Node             // newest version heard of, by watch or answer
	leases map[string]unit.Wall                // renewTime last heard of
	pods   map[corelifecycle.PodID]*corev1.Pod // bound pods, trimmed, for Events
}

// factsMax is how many facts may wait; see the scheduler's.
const factsMax = 1024

func newController(o Options, a api, r recorders) *controller {
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	c := &controller{
		o: o, api: a, recorders: r, metrics: o.Metrics, facts: make(chan fact, factsMax), start: time.Now(),
		lanes: newLanes(o.WritesInFlight), latest: map[string]*corev1.Node{}, leases: map[string]unit.Wall{}, pods: map[corelifecycle.PodID]*corev1.Pod{},
	}
	c.monitor = corelifecycle.New(c.now(), o.Health)
	return c
}

func (c *controller) now() unit.Instant { return unit.Instant(time.Since(c.start)) + 1 }

func (c *controller) tell(ctx context.Context, f fact) {
	select {
	case c.facts <- f:
	case <-ctx.Done():
	}
}

// probe tells the Monitor whether the API can be heard.
func (c *controller) probe(ctx context.Context) {
	answered := true
	for ctx.Err() == nil {
		err := c.api.ready(ctx)
		switch {
		case err != nil && answered && ctx.Err() == nil:
			slog.Warn("API server does not answer; no node is judged", "err", err)
		case err == nil && !answered:
			slog.Info("API server answers again")
		}
		answered = err == nil
		c.tell(ctx, func(now unit.Instant) { c.monitor.Contact(now, err == nil) })
		select {
		case <-time.After(contactEvery):
		case <-ctx.Done():
		}
	}
}

func (c *controller) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { c.lanes.run(ctx) })
	c.metrics.zones(func() []corelifecycle.Zone { return c.askZones(ctx) })
	defer c.metrics.zones(nil)
	slog.Info("lifecycle controller starts", "grace", c.o.Health.Grace, "startup_grace", c.o.Health.StartupGrace)
	reported := false
	for {
		c.hearAll()
		if c.synced {
			if !reported {
				reported = true
				slog.Info("lifecycle controller has its first lists", "after", time.Since(c.start).Round(time.Millisecond), "nodes", len(c.latest))
			}
			began := time.Now()
			d := c.monitor.Advance(c.now())
			c.metrics.pass.Observe(time.Since(began).Seconds())
			c.carryOut(d)
			if !d.Wake.IsZero() {
				timer.Reset(max(0, d.Wake.Sub(c.now())))
			}
		}
		select {
		case f := <-c.facts:
			f(c.now())
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// hearAll folds in every fact that is waiting, so that a node is not judged while its sign is in the queue.
func (c *controller) hearAll() {
	for {
		select {
		case f := <-c.facts:
			f(c.now())
		default:
			return
		}
	}
}

func (c *controller) carryOut(d corelifecycle.Decision) {
	for _, r := range d.Reasons {
		slog.Info("decided", "about", r.Subject, "why", r.Text)
	}
	for _, n := range d.Notices {
		if n.Pod != nil {
			ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: n.Pod.Namespace, Name: n.Pod.Name, UID: types.UID(n.Pod.ID)}
			c.evictions.Event(ref, corev1.EventTypeNormal, n.Reason, n.Message)
			continue
		}
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Node, UID: types.UID(n.UID)}
		c.nodes.Event(ref, corev1.EventTypeNormal, n.Reason, n.Message)
		slog.Info("node", "node", n.Node, "reason", n.Reason)
	}
	for _, a := range d.Actions {
		c.write(a)
	}
}

// write queues what a asks for and tells the Monitor what came of it.
func (c *controller) write(a corelifecycle.Action) {
	kind := throttle.Evict
	switch {
	case a.Pod == nil:
		kind = throttle.Mark
	case a.Do == corelifecycle.MarkNotReady:
		kind = throttle.Readiness
	}
	c.lanes[kind].put(func(ctx context.Context) {
		t, wanted := c.renew(ctx, a)
		if !wanted {
			return
		}
		err := kube.ErrNotLeading
		if c.o.Leads() {
			err = c.perform(kube.As(ctx, kind), t)
		}
		c.tell(ctx, func(now unit.Instant) { c.monitor.Done(now, t.Action, err == nil) })
	})
}

// turn is an action whose turn has come, with what was last heard of whom it is about.
type turn struct {
	corelifecycle.Action
	node    *corev1.Node
	renewed unit.Wall
	pod     *corev1.Pod
}

// renew asks the goroutine that owns the Monitor what is to be written in the place of what waited for its turn: the
// node may have changed, which would refuse a write decided on an older version, or be back.
func (c *controller) renew(ctx context.Context, a corelifecycle.Action) (turn, bool) {
	type answer struct {
		turn
		wanted bool
	}
	asked := make(chan answer, 1)
	c.tell(ctx, func(now unit.Instant) {
		renewed, wanted := c.monitor.Renew(now, a)
		t := turn{Action: renewed}
		if a.Pod != nil {
			t.pod = c.pods[a.Pod.ID]
		} else {
			t.node, t.renewed = c.latest[a.Node], c.leases[a.Node]
		}
		asked <- answer{t, wanted}
	})
	select {
	case got := <-asked:
		return got.turn, got.wanted
	case <-ctx.Done():
		return turn{}, false
	}
}

func (c *controller) perform(ctx context.Context, t turn) error {
	switch {
	case t.Pod == nil:
		return c.markNode(ctx, t.Action, t.node, t.renewed)
	case t.Do == corelifecycle.MarkNotReady:
		return c.markPod(ctx, t.Action, t.pod)
	}
	return c.endPod(ctx, t.Action, t.pod)
}

// askZones asks the goroutine that owns the Monitor.
func (c *controller) askZones(ctx context.Context) []corelifecycle.Zone {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer := make(chan []corelifecycle.Zone, 1)
	c.tell(ctx, func(unit.Instant) { answer <- c.monitor.Zones() })
	select {
	case zones := <-answer:
		return zones
	case <-ctx.Done():
		return nil
	}
}

// seeNode tells the Monitor of a node unless a newer version of it was heard of already.
func (c *controller) seeNode(now unit.Instant, node *corev1.Node) {
	if known := c.latest[node.Name]; known != nil && known.UID == node.UID && older(node.ResourceVersion, known.ResourceVersion) {
		return
	}
	c.latest[node.Name] = node
	c.monitor.NodeSeen(now, unit.WallOf(time.Now()), translate.HealthNode(node))
}

// older compares two resourceVersions of one object. They are opaque by contract and counters in every API server that
// exists (KEP-5504 makes that the contract); if they are not, nothing is older.
func older(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}
