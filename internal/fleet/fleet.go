// Package fleet runs hollow nodes: many nodes in one process that register, renew their Leases and report their status
// through the same core/heartbeat as the agent, and run no containers.
//
// They are for people who size control planes, and for our own tests. For the API server, schedulers and controllers a
// hollow node is an ordinary node. It has the label plimsoll.dev/hollow=true, so that a workload can choose or avoid
// it, and no taint: the purpose of a fleet is that pods are scheduled on it. In a cluster with real nodes, use the
// label.
//
// # Model
//
// One goroutine, the conductor, owns all Beats and sleeps until the first of them is due. Requests run concurrently, at
// most RequestsInFlight at once; their results return as facts. One watch of pods and one of nodes serve all hollow
// nodes.
//
// A pod bound to a hollow node becomes Running and Ready at once, with its own address; a pod that is deleted ends at
// once. Pods never complete by themselves: a Job on hollow nodes does not complete. Addresses are from 198.18.0.0/15,
// which is reserved for benchmarks (RFC 2544) and not routed: nodes have 198.18.x.y, pods 198.19.x.y. With more than
// 65,534 live pods addresses repeat.
//
// # Invariants
//
//   - A node that exists and is not labelled hollow is never modified: its name in our range is an error.
//   - Only pods bound to our nodes are written, and each write names the pod's UID.
//   - The nodes remain when the process ends, as when an agent ends. The next process continues with them.
//
// # Faults
//
// Nodes can be made to fail while the fleet runs, in the language of core/fault: by a script that begins when all nodes
// are registered (Options.Script), or over HTTP on a unix socket (Options.Control). The Beat of a silent node is not
// stepped, and the facts about the node are kept for its return. Requests of a node that is cut off are not sent and
// end with a time-out; those of a slow node wait before they take a slot. Pods on a node that is silent, cut off or not
// ready do not change.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// LabelHollow marks a node as hollow; its value is "true".
const LabelHollow = "plimsoll.dev/hollow"

// NodesMax is how many hollow nodes one process may have: their addresses come from 198.18.0.0/16.
const NodesMax = 65000

// RequestsInFlightDefault bounds the renewals that are in flight and, separately, the registrations and reports.
// Chosen: 5,000 leases that are renewed every 10 s are 500 requests per second; if each takes 20 ms, 10 are in flight.
// An API server on two cores can process about 16 registrations at once.
const RequestsInFlightDefault = 16

// Options configure a fleet.
type Options struct {
	Client   *kube.Client // for nodes, leases and the watches
	Pods     *kube.Client // for pods, so that a burst of pods does not delay heartbeats; nil: Client
	Nodes    int          // how many hollow nodes
	Prefix   string       // of node names; a number from 0 follows
	Zones    int          // over how many zones nodes are spread; zero: no zone label
	Capacity Capacity     // of each node
	Seed     uint64       // of the jitter of heartbeats, and of the choice of faulty nodes

	LeaseDuration time.Duration // nodeLeaseDurationSeconds of each node; zero: the agent's default
	ReportEvery   time.Duration // nodeStatusReportFrequency of each node; zero: the agent's default

	RequestsInFlight int // zero: RequestsInFlightDefault

	Script  []fault.Order // executed from the moment when all nodes are registered
	Control string        // path of the control socket; empty: none
}

// Capacity is the capacity of each node. All of it is allocatable.
type Capacity struct {
	CPU, Memory, EphemeralStorage resource.Quantity
	Pods                          int64
}

// DefaultCapacity returns the capacity of a medium-sized server.
func DefaultCapacity() Capacity {
	return Capacity{
		CPU: resource.MustParse("32"), Memory: resource.MustParse("128Gi"), EphemeralStorage: resource.MustParse("500Gi"),
		Pods: 110, // upstream's maxPods
	}
}

func (o *Options) check() error {
	var errs []error
	bad := func(flag string, value any, why string) {
		errs = append(errs, fmt.Errorf("--%s: %v: %s", flag, value, why))
	}
	if o.Client == nil {
		errs = append(errs, errors.New("no API client"))
	}
	if o.Nodes < 1 || o.Nodes > NodesMax {
		bad("nodes", o.Nodes, fmt.Sprintf("must be 1 to %d", NodesMax))
	}
	if problems := validation.IsDNS1123Subdomain(o.Prefix + "0"); len(problems) > 0 {
		bad("node-prefix", fmt.Sprintf("%q", o.Prefix), "is not a prefix of node names: "+problems[0])
	}
	if o.Zones < 0 {
		bad("zones", o.Zones, "must not be negative")
	}
	for flag, q := range map[string]resource.Quantity{"cpu": o.Capacity.CPU, "memory": o.Capacity.Memory,
		"ephemeral-storage": o.Capacity.EphemeralStorage} {
		if q.Sign() <= 0 {
			bad(flag, q.String(), "must be above zero")
		}
	}
	if o.Capacity.Pods < 1 {
		bad("pods", o.Capacity.Pods, "must be above zero")
	}
	if o.LeaseDuration < 0 || o.LeaseDuration%time.Second != 0 {
		bad("lease-duration", o.LeaseDuration, "must be whole seconds")
	}
	if o.ReportEvery < 0 {
		bad("status-report-frequency", o.ReportEvery, "must not be negative")
	}
	if o.RequestsInFlight == 0 {
		o.RequestsInFlight = RequestsInFlightDefault
	}
	if o.Pods == nil {
		o.Pods = o.Client
	}
	return errors.Join(errs...)
}

// Check returns every problem of o at once.
func (o *Options) Check() error {
	copied := *o
	return copied.check()
}

// Run runs the fleet until ctx ends. It returns an error only for options that cannot work.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("run fleet: %w", err)
	}
	f := newFleet(o, remote{o.Client}, remote{o.Pods})
	if _, err := f.pick(o.Script...); err != nil {
		return fmt.Errorf("run fleet: read --faults: %w", err)
	}
	if o.Control != "" {
		stop, err := f.serveControl(ctx, o.Control)
		if err != nil {
			return fmt.Errorf("run fleet: %w", err)
		}
		defer stop()
	}
	_, nodeWatch := o.Client.Informer(kube.Nodes, kube.Selection{Labels: LabelHollow + "=true", Trim: trimNode},
		f.nodeHandler())
	pods, podWatch := o.Client.Informer(kube.Pods, kube.Selection{Fields: kube.LivePods}, f.actors.handler())
	f.actors.lookUp = func(key string) *corev1.Pod {
		obj, ok, err := pods.GetByKey(key)
		if err != nil || !ok {
			return nil
		}
		return obj.(*corev1.Pod)
	}
	f.actors.all = pods.List
	go nodeWatch.RunWithContext(ctx)
	go podWatch.RunWithContext(ctx)
	go f.actors.run(ctx)
	f.conduct(ctx)
	return nil
}

// A fact is something that happened to one node. The conductor's goroutine steps the node's Beat with it.
type fact struct {
	node   *hollow
	seen   []heartbeat.Fact   // what happened; the Beat gets it
	update func(*hollow)      // if set, it runs first
	onlyIf func(*hollow) bool // if set and it returns false, the fact is outdated and dropped

	took time.Duration // duration of a request
	err  error         // error of a request
}

// fleet is the state of the conductor's goroutine. Other goroutines use only o, api, actors, facts, orders and the
// slots.
type fleet struct {
	o      Options
	api    nodeAPI
	actors *actors

	facts  chan fact     // from requests and watches
	orders chan func()   // from the control socket
	script []fault.Order // orders that are still to be executed
	start  time.Time     // when the fleet began
	clock  *clock.Clock
	// Renewals have slots of their own. Behind thousands of registrations they would be late, and controllers would mark
	// running nodes as silent.
	slots, leaseSlots chan struct{}
	requests          sync.WaitGroup // requests in flight

	nodes  []*hollow // in the order of their numbers
	byName map[string]*hollow
	wakes  heap.Heap[*hollow] // ordered by wake

	ready          int             // how many nodes are registered
	reported       time.Time       // when that number was last logged
	scriptFrom     unit.Instant    // when all nodes were first registered; zero: not yet
	returned       map[string]bool // nodes whose fault ended and whose pods were not resumed yet
	tally          tally           // of requests, for Status
	failuresLogged time.Time       // when failed requests were last logged
	failures       int             // how many requests have failed since then
}

// factsMax is how many facts may wait for the conductor before their senders block. Chosen.
const factsMax = 1024

func newFleet(o Options, nodes nodeAPI, pods podAPI) *fleet {
	f := &fleet{
		o: o, api: nodes, facts: make(chan fact,
			factsMax), orders: make(chan func()), script: o.Script, start: time.Now(), clock: clock.New(),
		slots: make(chan struct{}, o.RequestsInFlight), leaseSlots: make(chan struct{},
			o.RequestsInFlight), byName: make(map[string]*hollow, o.Nodes), returned: map[string]bool{},
		wakes: heap.New(func(a, b *hollow) int { return cmp.Compare(a.wake, b.wake) },
			func(h *hollow) *int { return &h.place }),
	}
	for i := range o.Nodes {
		h := newHollow(&f.o, i, f.clock.Now())
		f.nodes = append(f.nodes, h)
		f.byName[h.name] = h
		h.wake = f.clock.Now()
		f.wakes.Set(h)
	}
	f.actors = newActors(pods, func(name string) (string, fault.Effect) {
		if h := f.byName[name]; h != nil {
			return h.ip, *h.effect.Load()
		}
		return "", fault.Effect{}
	})
	return f
}

func (f *fleet) send(ctx context.Context, x fact) {
	select {
	case f.facts <- x:
	case <-ctx.Done():
	}
}

// conduct is the conductor's loop. It steps Beats when they are due, and when something has happened to their nodes.
func (f *fleet) conduct(ctx context.Context) {
	slog.Info("fleet starts", "nodes", f.o.Nodes, "first", f.o.Prefix+"0", "cpu", f.o.Capacity.CPU.String(),
		"memory", f.o.Capacity.Memory.String(), "pods", f.o.Capacity.Pods)
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer f.requests.Wait()
	for {
		wake := f.followScript(ctx)
		for f.wakes.Len() > 0 && f.wakes.First().wake <= f.clock.Now() {
			f.step(ctx, f.wakes.First())
		}
		f.resumePods()
		if f.wakes.Len() > 0 {
			wake = wake.Earlier(f.wakes.First().wake)
		}
		if !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(f.clock.Now())))
		}
		select {
		case x := <-f.facts:
			f.applyFact(ctx, x)
		case do := <-f.orders:
			do()
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

func (f *fleet) applyFact(ctx context.Context, x fact) {
	if x.onlyIf != nil && !x.onlyIf(x.node) {
		return
	}
	if x.update != nil {
		x.update(x.node)
	}
	if x.err != nil && ctx.Err() == nil {
		f.logFailure(x)
	}
	for _, s := range x.seen {
		f.tally.add(s, x.took)
		if s.Kind == heartbeat.Registered && s.OK {
			f.countReady(x.node)
		}
	}
	f.step(ctx, x.node, x.seen...)
}

// step steps one Beat and starts the requests that it decides. The status is computed here, since that is only a
// comparison. The Beat of a silent node is not stepped; facts about the node are kept until it returns.
func (f *fleet) step(ctx context.Context, h *hollow, seen ...heartbeat.Fact) {
	now := f.clock.Now()
	seen = f.applyFault(now, h, seen)
	if h.effect.Load().Silent {
		h.keep(seen)
		f.setWake(h, 0)
		return
	}
	d := h.beat.Step(now, seen...)
	for d.Compute {
		f.act(ctx, h, d)
		d = h.beat.Step(now, heartbeat.Fact{Kind: heartbeat.Computed, OK: true, Changed: h.differs()})
	}
	f.act(ctx, h, d)
	f.setWake(h, d.Wake)
}

// act starts the requests of a decision.
func (f *fleet) act(ctx context.Context, h *hollow, d heartbeat.Decision) {
	for _, a := range []struct {
		wanted bool
		kind   heartbeat.FactKind
		do     func() work
	}{
		{d.Register, heartbeat.Registered, func() work { return h.register }},
		{d.Renew, heartbeat.Renewed, h.renewal},
		{d.Report, heartbeat.Reported, h.reporting},
	} {
		if a.wanted {
			do, effect := a.do(), *h.effect.Load()
			f.requests.Go(func() { f.request(ctx, h, a.kind, do, effect) })
		}
	}
}

// work is one request of a node; it returns the update of the node's state.
type work func(context.Context, nodeAPI) (func(*hollow), error)

// request makes one request and reports its result.
func (f *fleet) request(ctx context.Context, h *hollow, kind heartbeat.FactKind, do work, effect fault.Effect) {
	if effect.Cut || effect.Delay >= h.attemptMax {
		pause(ctx, h.attemptMax)
		f.send(ctx, fact{node: h, seen: []heartbeat.Fact{{Kind: kind}}})
		return
	}
	began := time.Now()
	pause(ctx, effect.Delay)
	slots := f.slots
	if kind == heartbeat.Renewed {
		slots = f.leaseSlots
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	attempt, cancel := context.WithTimeout(ctx, h.attemptMax)
	update, err := do(attempt, f.api)
	cancel()
	<-slots
	f.send(ctx, fact{node: h, seen: []heartbeat.Fact{{Kind: kind, OK: err == nil}}, update: update,
		took: time.Since(began), err: err})
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// failuresEvery is how often failed requests are logged. Chosen: without an API server, requests of thousands of nodes
// fail a thousand times per second.
const failuresEvery = 5 * time.Second

func (f *fleet) logFailure(x fact) {
	f.failures++
	if time.Since(f.failuresLogged) < failuresEvery {
		return
	}
	slog.Warn("hollow nodes: requests failed", "failed", f.failures, "node", x.node.name, "err", x.err)
	f.failuresLogged, f.failures = time.Now(), 0
}

func (f *fleet) countReady(h *hollow) {
	if !h.counted {
		h.counted = true
		f.ready++
	}
	if f.ready == f.o.Nodes && f.scriptFrom.IsZero() {
		f.scriptFrom = f.clock.Now()
	}
	if f.ready == f.o.Nodes || time.Since(f.reported) > 5*time.Second {
		f.reported = time.Now()
		slog.Info("hollow nodes registered", "ready", f.ready, "of", f.o.Nodes,
			"after", time.Since(f.start).Round(time.Millisecond))
	}
}

// setWake schedules h for at, or for the next change of its fault if that is earlier. Zero: it is not due until there
// is a fact.
func (f *fleet) setWake(h *hollow, at unit.Instant) {
	at = at.Earlier(h.changes)
	if at.IsZero() {
		f.wakes.Remove(h)
		return
	}
	h.wake = at
	f.wakes.Set(h)
}

// nodeIP returns the address of the i-th node, in 198.18.0.0/16.
func nodeIP(i int) string { return net.IPv4(198, 18, byte((i+1)>>8), byte(i+1)).String() }

// podIP returns the i-th address of pods, in 198.19.0.0/16.
func podIP(i int) string { return net.IPv4(198, 19, byte((i+1)>>8), byte(i+1)).String() }
