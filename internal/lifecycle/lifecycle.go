// Package lifecycle does the I/O of node lifecycle and taint eviction. It passes nodes, leases and pods to
// core/lifecycle and writes what that decides: conditions of silent nodes, taints that follow from conditions,
// readiness of pods on silent nodes, and deletions of pods that do not tolerate their node's taints or whose node is
// gone. Beside that it tells nodes which volumes of their pods are to grow (growth.go).
//
// # Model
//
// One goroutine owns the Monitor and receives facts, in order, through one channel: changes from three watches, the
// results of writes, and a probe of the API server every few seconds. It sleeps until the next deadline and does not
// scan. Writes run concurrently, at most WritesInFlight at once and no more than the API server sustains: a
// kube.Throttle throttles them, nodes first, Events last. Of the writes that wait, a few of each kind wait at the
// Throttle, the rest in its lane (lanes.go).
//
// # Invariants
//
//   - Every write of a node names the resourceVersion for which it was decided. If the node was updated meanwhile, the
//     write fails and is decided again. Every write of a pod names its UID.
//   - Before a node is marked silent, its lease is read once more from the API server. Before pods of a missing node
//     are deleted, the node is read. So a watch that lags harms no node.
//   - The Monitor gets the result of a write before the write counts as done, and an older version that a watch brings
//     later is dropped. So nothing is written twice because the watch was slow.
//   - A write that waited is decided again before it is sent: a node is written by its latest version, and a pod is
//     deleted only if it still must be.
//   - No decision is made before all three watches have delivered their first lists.
//   - Nothing is written while Options.Leads returns false.
//
// The package needs nothing on disk: everything that the next leader needs is in the API. Its journal (Options.Journal)
// is only written. It does not elect the leader
// (kube/election) and opens no port. core/lifecycle and oracle/README.md say what differs from upstream's controllers.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// WritesInFlightDefault limits the writes that wait for an answer. Chosen: half of the scheduler's binds, because both
// may work at the same time. core/throttle lowers the number for a server that cannot sustain it.
const WritesInFlightDefault = 32

// contactEvery is the interval of probes of the API server. Chosen: a little less than half of
// lifecycle.Options.ContactTimeout, so that one lost probe does not count as a broken connection.
const contactEvery = 5 * time.Second

// Options configure the controller.
type Options struct {
	Client         *kube.Client
	Events         *kube.Client          // for Events, so that they do not wait behind other writes; nil: Client
	Monitor        corelifecycle.Options // of the decisions
	WritesInFlight int                   // zero: WritesInFlightDefault
	// RespectBudgets evicts pods through the Eviction API, which refuses while that would violate a
	// PodDisruptionBudget. Upstream deletes them.
	RespectBudgets bool
	// Leads is called right before every write; nothing is written when it returns false. Nil: always true.
	Leads   func() bool
	Metrics *Metrics     // nil: new ones, which nobody reads
	Journal *journal.Log // of the decisions; nil: none
}

// Run runs the controller until ctx ends. It returns an error only for options that cannot work.
func Run(ctx context.Context, o Options) error {
	if err := check(&o); err != nil {
		return fmt.Errorf("run lifecycle controller: %w", err)
	}
	writes, events, err := o.throttledClients(ctx)
	if err != nil {
		return fmt.Errorf("run lifecycle controller: %w", err)
	}
	c := newController(o, remote{writes}, recorders{
		nodes:     kube.NewRecorder(ctx, events, "node-controller", ""),
		evictions: kube.NewRecorder(ctx, events, "taint-eviction-controller", ""),
	})
	watches, err := o.Client.Gathering(kube.GatherRenewals)
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
	_, claims := watches.Informer(kube.VolumeClaims, kube.Selection{Trim: trimClaim}, c.teller.claimHandler())
	go claims.RunWithContext(ctx)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), slices.Concat(synced, []cache.InformerSynced{claims.HasSynced})...) {
			c.teller.listed()
		}
	}()
	renewals := watches.NewRenewals(func(batch []kube.Renewal) { c.sendRenewals(ctx, batch) })
	listed := make(chan struct{})
	go renewals.Follow(ctx, func() { close(listed) })
	go func() {
		select {
		case <-listed:
		case <-ctx.Done():
		}
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			c.send(ctx, func(unit.Instant) { c.synced = true })
		}
	}()
	go c.probe(ctx)
	c.run(ctx)
	return nil
}

// throttledClients returns the clients for writes and for Events. One Throttle throttles both.
func (o *Options) throttledClients(ctx context.Context) (writes, events *kube.Client, err error) {
	writeThrottle := kube.NewThrottle(kube.ThrottleOptions{
		Component: "lifecycle",
		Options:   throttle.Options{InFlightMax: o.WritesInFlight, Tolerance: throttle.ToleranceDefault},
		Leads:     o.Leads,
	})
	return writeThrottle.Clients(ctx, o.Metrics.Registry, o.Client, o.Events)
}

func check(o *Options) error {
	if o.Client == nil {
		return errors.New("no API client")
	}
	errs := []error{o.Monitor.Check()}
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

// Check returns every problem of o at once.
func (o *Options) Check() error {
	copied := *o
	return check(&copied)
}

// trimNode removes the image list, the largest part of a node, which is not read here.
func trimNode(obj runtime.Object) {
	if n, ok := obj.(*corev1.Node); ok {
		n.Status.Images = nil
	}
}

func trimPod(obj runtime.Object) {
	if p, ok := obj.(*corev1.Pod); ok {
		translate.TrimLifecyclePod(p)
	}
}

// recorders write Events as upstream's node controller and taint eviction controller do, under their names.
type recorders struct{ nodes, evictions record.EventRecorder }

// A fact changes the Monitor's state; it runs on the controller's goroutine.
type fact func(now unit.Instant)

// controller is the goroutine that owns the Monitor, and what it shares with others.
type controller struct {
	// Set once. Other goroutines may use these.
	o   Options
	api api
	recorders
	metrics *Metrics
	start   time.Time // when it was made
	clock   *clock.Clock
	lanes   lanes
	teller  *teller

	// facts are the facts that wait for the goroutine. All others use this channel to reach the fields below.
	facts chan fact

	// Only the goroutine that owns the Monitor uses the fields from here on.
	monitor *corelifecycle.Monitor
	synced  bool                                // all first lists have arrived
	latest  map[string]*corev1.Node             // newest version, from a watch or an answer
	leases  map[string]unit.Wall                // newest renewTime
	pods    map[corelifecycle.PodID]*corev1.Pod // bound pods, trimmed, for Events
}

// factsMax is how many facts may wait. Chosen as in package scheduler: about one burst of a watch.
const factsMax = 1024

func newController(o Options, a api, r recorders) *controller {
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	c := &controller{
		o:         o,
		api:       a,
		recorders: r,
		metrics:   o.Metrics,
		start:     time.Now(),
		clock:     clock.New(),
		lanes:     newLanes(o.WritesInFlight),
		teller:    newTeller(),
		facts:     make(chan fact, factsMax),
		latest:    map[string]*corev1.Node{},
		leases:    map[string]unit.Wall{},
		pods:      map[corelifecycle.PodID]*corev1.Pod{},
	}
	c.monitor = corelifecycle.New(c.clock.Now(), o.Monitor)
	return c
}

func (c *controller) send(ctx context.Context, f fact) {
	select {
	case c.facts <- f:
	case <-ctx.Done():
	}
}

// probe reports to the Monitor whether the API server answers.
func (c *controller) probe(ctx context.Context) {
	answered := true
	for ctx.Err() == nil {
		err := c.api.ready(ctx)
		switch {
		case err != nil && answered && ctx.Err() == nil:
			slog.Warn("API server does not answer; no node is marked until it does", "err", err)
		case err == nil && !answered:
			slog.Info("API server answers again")
		}
		answered = err == nil
		c.send(ctx, func(now unit.Instant) { c.monitor.Contact(now, err == nil) })
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
	writing.Go(func() { c.tellNodes(ctx) })
	c.metrics.zones(func() []corelifecycle.Zone { return c.askZones(ctx) })
	defer c.metrics.zones(nil)
	slog.Info("lifecycle controller starts", "grace", c.o.Monitor.Grace, "startup_grace", c.o.Monitor.StartupGrace)
	reported := false
	for {
		c.receiveAll()
		if c.synced {
			if !reported {
				reported = true
				slog.Info("lifecycle controller has its first lists",
					"after", time.Since(c.start).Round(time.Millisecond), "nodes", len(c.latest))
			}
			began := time.Now()
			now := c.clock.Now()
			d := c.monitor.Advance(now)
			c.metrics.decision.Observe(time.Since(began).Seconds())
			c.note(now, d)
			c.carryOut(d)
			if !d.Wake.IsZero() {
				timer.Reset(max(0, d.Wake.Sub(c.clock.Now())))
			}
		}
		select {
		case f := <-c.facts:
			f(c.clock.Now())
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// receiveAll processes every waiting fact, so that no node is judged while its renewal is in the queue.
func (c *controller) receiveAll() {
	for {
		select {
		case f := <-c.facts:
			f(c.clock.Now())
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
			ref := &corev1.ObjectReference{
				APIVersion: "v1",
				Kind:       "Pod",
				Namespace:  n.Pod.Namespace,
				Name:       n.Pod.Name,
				UID:        types.UID(n.Pod.ID),
			}
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

// write queues the writes of a. Their result is reported to the Monitor.
func (c *controller) write(a corelifecycle.Action) {
	kind := throttle.Evict
	switch {
	case a.Pod == nil:
		kind = throttle.Mark
	case a.Do == corelifecycle.MarkNotReady:
		kind = throttle.Readiness
	}
	c.lanes[kind].put(func(ctx context.Context) {
		r, wanted := c.renew(ctx, a)
		if !wanted {
			return
		}
		err := kube.ErrNotLeading
		if c.o.Leads() {
			err = c.perform(kube.As(ctx, kind), r)
			c.noteFailed(r.Action, err)
		}
		c.send(ctx, func(now unit.Instant) { c.monitor.Done(now, r.Action, err == nil) })
	})
}

// renewedAction is an action that is about to be performed, with the newest known state of its object.
type renewedAction struct {
	corelifecycle.Action
	node    *corev1.Node // nil: it is gone, or the action is about a pod
	renewed unit.Wall    // the newest renewTime of the node; zero: none is known
	silent  unit.Instant // when the grace period of a silent node ended
	pod     *corev1.Pod  // nil: it is gone, or the action is about a node
}

// renew asks the goroutine that owns the Monitor what to write instead of an action that waited. The node may have
// changed, so that a write decided on an older version would be refused, or may have recovered.
func (c *controller) renew(ctx context.Context, a corelifecycle.Action) (renewedAction, bool) {
	type answer struct {
		renewedAction
		wanted bool
	}
	answers := make(chan answer, 1)
	c.send(ctx, func(now unit.Instant) {
		renewed, wanted := c.monitor.Renew(now, a)
		r := renewedAction{Action: renewed}
		if a.Pod != nil {
			r.pod = c.pods[a.Pod.ID]
		} else {
			r.node, r.renewed = c.latest[a.Node], c.leases[a.Node]
			r.silent = c.monitor.SilentSince(a.Node)
		}
		answers <- answer{r, wanted}
	})
	select {
	case got := <-answers:
		return got.renewedAction, got.wanted
	case <-ctx.Done():
		return renewedAction{}, false
	}
}

func (c *controller) perform(ctx context.Context, r renewedAction) error {
	switch {
	case r.Pod == nil:
		return c.markNode(ctx, r)
	case r.Do == corelifecycle.MarkNotReady:
		return c.markPod(ctx, r.Action, r.pod)
	}
	return c.endPod(ctx, r.Action, r.pod)
}

// askZones asks the goroutine that owns the Monitor for the zones.
func (c *controller) askZones(ctx context.Context) []corelifecycle.Zone {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer := make(chan []corelifecycle.Zone, 1)
	c.send(ctx, func(unit.Instant) { answer <- c.monitor.Zones() })
	select {
	case zones := <-answer:
		return zones
	case <-ctx.Done():
		return nil
	}
}

// seeNode passes a node to the Monitor unless a newer version of it is known.
func (c *controller) seeNode(now unit.Instant, node *corev1.Node) {
	known := c.latest[node.Name]
	if known != nil && known.UID == node.UID && older(node.ResourceVersion, known.ResourceVersion) {
		return
	}
	c.latest[node.Name] = node
	c.monitor.NodeSeen(now, unit.WallOf(time.Now()), translate.LifecycleNode(node))
}

// older compares two resourceVersions of one object. By contract they are opaque; in every existing API server they are
// counters (KEP-5504 makes that the contract). If they are not numbers, neither is older.
func older(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}
