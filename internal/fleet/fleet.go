// Package fleet is hollow nodes: many nodes in one process that register, renew their Leases and report their status for
// real, through the same core/heartbeat as the agent, and whose pods are pretended.
//
// They are for people who size control planes, and for our own tests. To the API server, a scheduler and controllers a
// hollow node is a node. It carries the label plimsoll.dev/hollow=true, so that a workload can choose or avoid it, and no
// taint: a fleet is there to be scheduled on. Beside real nodes, use the label.
//
// # Model
//
// One goroutine, the conductor, owns all Beats and sleeps until the first of them wants to act. Requests run beside it, at
// most RequestsInFlight at once; what came of one returns as a fact. One watch of pods and one of nodes serve all.
//
// A pod bound to a hollow node becomes Running and Ready at once, with an address of its own; a pod that is asked to go
// is gone at once. Pods run for ever: a Job on hollow nodes does not complete. Addresses come from 198.18.0.0/15, which is
// reserved for benchmarks (RFC 2544) and routed nowhere: nodes have 198.18.x.y, pods 198.19.x.y. Beyond 65,534 live pods
// addresses repeat.
//
// # Invariants
//
//   - A node that exists and is not labelled hollow is never touched: its name in our range is an error.
//   - Only pods bound to our nodes are written to, and each write names the pod's UID.
//   - Stopping the process leaves its nodes behind, as stopping an agent does. Starting it again takes them up.
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

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// LabelHollow marks a node as hollow; its value is "true".
const LabelHollow = "plimsoll.dev/hollow"

// NodesMax is how many hollow nodes one process may have: their addresses come from 198.18.0.0/16.
const NodesMax = 65000

// RequestsInFlightDefault bounds renewals, and apart from them registrations and reports, that wait for an answer. Chosen:
// 5,000 leases renewed every 10 s are 500 requests a second; at 20 ms each that keeps 10 busy, and 16 registrations at once
// are as much as an API server on two cores takes.
const RequestsInFlightDefault = 16

// Options configure a fleet.
type Options struct {
	Client   *kube.Client // for nodes, leases and the watches
	Pods     *kube.Client // for pods, so that a burst of pods does not delay a heartbeat; nil: Client
	Nodes    int
	Prefix   string // of node names; the rest is a number from 0
	Zones    int    // nodes are spread over that many zones; zero: no zone label
	Capacity Capacity
	Seed     uint64 // of the heartbeats' jitter

	RequestsInFlight int // zero: RequestsInFlightDefault
}

// Capacity is what each node has. All of it is allocatable.
type Capacity struct {
	CPU, Memory, EphemeralStorage resource.Quantity
	Pods                          int64
}

// DefaultCapacity is a middling server.
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
		bad("node-prefix", fmt.Sprintf("%q", o.Prefix), "makes no node name: "+problems[0])
	}
	if o.Zones < 0 {
		bad("zones", o.Zones, "must not be negative")
	}
	for flag, q := range map[string]resource.Quantity{"cpu": o.Capacity.CPU, "memory": o.Capacity.Memory, "ephemeral-storage": o.Capacity.EphemeralStorage} {
		if q.Sign() <= 0 {
			bad(flag, q.String(), "must be above zero")
		}
	}
	if o.Capacity.Pods < 1 {
		bad("pods", o.Capacity.Pods, "must be above zero")
	}
	if o.RequestsInFlight == 0 {
		o.RequestsInFlight = RequestsInFlightDefault
	}
	if o.Pods == nil {
		o.Pods = o.Client
	}
	return errors.Join(errs...)
}

// Check reports every problem of o at once.
func (o *Options) Check() error {
	copied := *o
	return copied.check()
}

// Run keeps the fleet alive until ctx ends. It returns an error only for options that cannot work.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("run fleet: %w", err)
	}
	f := newFleet(o, remote{o.Client}, remote{o.Pods})
	_, nodeWatch := o.Client.Informer(kube.Nodes, kube.Selection{Labels: LabelHollow + "=true", Trim: trimNode}, f.nodeHandler())
	pods, podWatch := o.Client.Informer(kube.Pods, kube.Selection{Fields: kube.LivePods}, f.actors.handler())
	f.actors.lookUp = func(key string) *corev1.Pod {
		obj, ok, err := pods.GetByKey(key)
		if err != nil || !ok {
			return nil
		}
		return obj.(*corev1.Pod)
	}
	go nodeWatch.RunWithContext(ctx)
	go podWatch.RunWithContext(ctx)
	go f.actors.run(ctx)
	f.conduct(ctx)
	return nil
}

// A fact is what happened to one node; the Beat is stepped with it on the conductor's goroutine.
type fact struct {
	node   *hollow
	seen   []heartbeat.Fact
	update func(*hollow)      // if set, runs first
	onlyIf func(*hollow) bool // if set and false, the fact is about something that has passed
}

// fleet is the conductor.
type fleet struct {
	o      Options
	api    nodeAPI
	actors *actors

	facts chan fact
	start time.Time
	// Renewals have slots of their own: behind thousands of registrations they would come too late, and nodes that are
	// alive would be called silent.
	slots, leaseSlots chan struct{}
	requests          sync.WaitGroup

	byName map[string]*hollow
	wakes  heap.Heap[*hollow] // by wake

	ready    int // nodes registered
	reported time.Time
}

const factsMax = 1024

func newFleet(o Options, nodes nodeAPI, pods podAPI) *fleet {
	f := &fleet{
		o: o, api: nodes, facts: make(chan fact, factsMax), start: time.Now(),
		slots: make(chan struct{}, o.RequestsInFlight), leaseSlots: make(chan struct{}, o.RequestsInFlight), byName: make(map[string]*hollow, o.Nodes),
		wakes: heap.New(func(a, b *hollow) int { return cmp.Compare(a.wake, b.wake) }, func(h *hollow) *int { return &h.place }),
	}
	for i := range o.Nodes {
		h := newHollow(&f.o, i, f.now())
		f.byName[h.name] = h
		h.wake = f.now()
		f.wakes.Set(h)
	}
	f.actors = newActors(pods, func(name string) string {
		if h := f.byName[name]; h != nil {
			return h.ip
		}
		return ""
	})
	return f
}

func (f *fleet) now() unit.Instant { return unit.Instant(time.Since(f.start)) + 1 }

func (f *fleet) tell(ctx context.Context, x fact) {
	select {
	case f.facts <- x:
	case <-ctx.Done():
	}
}

// conduct steps Beats when they are due and when something happened to them.
func (f *fleet) conduct(ctx context.Context) {
	slog.Info("fleet starts", "nodes", f.o.Nodes, "first", f.o.Prefix+"0", "cpu", f.o.Capacity.CPU.String(), "memory", f.o.Capacity.Memory.String(), "pods", f.o.Capacity.Pods)
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer f.requests.Wait()
	for {
		for f.wakes.Len() > 0 && f.wakes.First().wake <= f.now() {
			f.step(ctx, f.wakes.First())
		}
		if f.wakes.Len() > 0 {
			timer.Reset(max(0, f.wakes.First().wake.Sub(f.now())))
		}
		select {
		case x := <-f.facts:
			if x.onlyIf != nil && !x.onlyIf(x.node) {
				continue
			}
			if x.update != nil {
				x.update(x.node)
			}
			f.step(ctx, x.node, x.seen...)
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// step asks one Beat what to do and sets it off. Computing is done here: it is a comparison.
func (f *fleet) step(ctx context.Context, h *hollow, seen ...heartbeat.Fact) {
	for _, s := range seen {
		if s.Kind == heartbeat.Registered && s.OK {
			f.countReady(h)
		}
	}
	now := f.now()
	d := h.beat.Step(now, seen...)
	for d.Compute {
		f.act(ctx, h, d)
		d = h.beat.Step(now, heartbeat.Fact{Kind: heartbeat.Computed, OK: true, Changed: h.differs()})
	}
	f.act(ctx, h, d)
	f.setWake(h, d.Wake)
}

// act sets off the requests of a decision.
func (f *fleet) act(ctx context.Context, h *hollow, d heartbeat.Decision) {
	for _, a := range []struct {
		wanted bool
		kind   heartbeat.FactKind
		do     func(context.Context, nodeAPI) (func(*hollow), error)
	}{
		{d.Register, heartbeat.Registered, h.register},
		{d.Renew, heartbeat.Renewed, h.renewal()},
		{d.Report, heartbeat.Reported, h.reporting()},
	} {
		if a.wanted {
			f.requests.Go(func() { f.request(ctx, h, a.kind, a.do) })
		}
	}
}

func (f *fleet) request(ctx context.Context, h *hollow, kind heartbeat.FactKind, do func(context.Context, nodeAPI) (func(*hollow), error)) {
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
	if err != nil && ctx.Err() == nil {
		slog.Warn("hollow node: request failed", "node", h.name, "err", err)
	}
	f.tell(ctx, fact{h, []heartbeat.Fact{{Kind: kind, OK: err == nil}}, update, nil})
}

func (f *fleet) countReady(h *hollow) {
	if !h.counted {
		h.counted = true
		f.ready++
	}
	if f.ready == f.o.Nodes || time.Since(f.reported) > 5*time.Second {
		f.reported = time.Now()
		slog.Info("hollow nodes registered", "ready", f.ready, "of", f.o.Nodes, "after", time.Since(f.start).Round(time.Millisecond))
	}
}

// setWake puts h in its place; zero: a fact will come.
func (f *fleet) setWake(h *hollow, at unit.Instant) {
	if at.IsZero() {
		f.wakes.Remove(h)
		return
	}
	h.wake = at
	f.wakes.Set(h)
}

// nodeIP is the address of the i-th node, in 198.18.0.0/16.
func nodeIP(i int) string { return net.IPv4(198, 18, byte((i+1)>>8), byte(i+1)).String() }

// podIP is the i-th address of pods, in 198.19.0.0/16.
func podIP(i int) string { return net.IPv4(198, 19, byte((i+1)>>8), byte(i+1)).String() }
