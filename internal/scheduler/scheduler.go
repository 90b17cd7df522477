// Package scheduler is the scheduler's shell: it brings pods and nodes to core/scheduler, binds what it places, and
// tells the owner of a pod why it was or was not placed.
//
// # Model
//
// One goroutine owns the Placer. Watches and finished binds reach it as facts, in order, through one channel; between
// facts it asks for the next placement as long as fewer than BindsInFlight binds are on their way. Binds, status
// patches, evictions and Events run beside it, through a kube.Gate, Events last. A decision is therefore always made on
// everything heard so far, and an API server that is slow or away slows the binds, not the mind. When no bind is
// answered any more, as behind a webhook that hangs, it decides ahead (aheadMax), so that those who fit nowhere hear of
// it and those who may evict do.
//
// A pod that concerns an extender (extenders.go) is decided on twice: first where it fits, or whose eviction would make
// room, then, when the extenders have been asked beside the mind, where it goes or who does. Others do not wait for it.
//
// # Invariants
//
//   - Nothing is placed before all watches have delivered their first lists: until then a node looks emptier than
//     it is.
//   - A pod is evicted for another only as the mind decided, by its UID, and marked as disrupted first; never by a
//     process that may lead no more (Options.Leads).
//   - Nothing about why a pod was not placed is written once its bind has been sent.
//   - A pod is bound at most once: the API refuses a second bind, the bind names the pod's UID, and whatever the answer
//     was, the watch decides what is true.
//   - Pods that get CPUs, memory or devices of their own reach their node's agent in the order in which they were
//     placed there (line.go).
//   - It keeps nothing on disk. A scheduler that starts anew lists, and takes up what is not bound.
//
// It does not elect a leader (kube/election does, around it): two of them do no harm, as the API binds a pod once, but
// place against each other.
// It opens no port.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// DefaultName is the schedulerName that pods get when they name none, and the source of our events.
const DefaultName = corev1.DefaultSchedulerName

// BindsInFlightDefault bounds binds that wait for an answer. Chosen: an API server on two cores takes about 1,000 binds
// a second at 5 to 50 ms each, which 64 keep busy; more only wait in its queue, fewer leave it idle.
const BindsInFlightDefault = 64

const (
	// besideBinds is how many other writes may be in flight beside the binds: status patches, evictions, Events.
	// Chosen: the Events that their share of the limit allows, and a few of the others.
	besideBinds = 8
	// tolerance is how many times its rest value an answer may take before there are fewer binds in flight. A server
	// that answers 64 binds at once takes some 20 times as long for each (reckoned: at 800 a second 80 ms each, alone 4
	// ms), and no longer in all: that is its queue, in which pods would else wait in here. What others feel of it is
	// bounded by BindsInFlight; beyond that something is wrong with the server. Chosen.
	tolerance = 30
	// hungAfter is how long all slots may be taken and no bind be answered before the mind decides ahead. Chosen: ten
	// times what a busy server takes.
	hungAfter = time.Second
	// tellingMax is how long the Events of what was done may take when the scheduler is told to end. Chosen: within the
	// rest of a Lease and of any grace; whoever wants to lead next waits as long.
	tellingMax = 3 * time.Second
	// aheadMax is for how many pods it decides ahead then. Chosen: what a server takes in some seconds when it is back;
	// their decisions, of about 1 KiB, are as old as that.
	aheadMax = 4096
)

// Options configure a Scheduler.
type Options struct {
	Client *kube.Client
	Events *kube.Client // for Events, so that they do not wait behind binds; nil: Client
	Name   string       // schedulerName to answer to where there are no Profiles; empty: DefaultName. Source of events
	// Profiles place the pods whose schedulerName is theirs; none: the default profile, under Name.
	Profiles                 []corescheduler.Profile
	BackoffFirst, BackoffMax time.Duration // see scheduler.Options
	Metrics                  *Metrics      // nil: kept, and shown to nobody
	Seed                     uint64        // decides between nodes of equal score; see placement
	BindsInFlight            int           // zero: BindsInFlightDefault
	Extenders                []schedulerconfig.Extender
	Leads                    func() bool // asked right before each write: may this process act? nil: it may
	Health                   *Health     // nil: nobody asks
}

// Run schedules until ctx ends. It returns an error only for options that cannot work.
func Run(ctx context.Context, o Options) error {
	if o.Client == nil {
		return errors.New("run scheduler: no API client")
	}
	if o.BindsInFlight < 0 {
		return fmt.Errorf("run scheduler: binds in flight: %d: must not be negative", o.BindsInFlight)
	}
	if o.BindsInFlight == 0 {
		o.BindsInFlight = BindsInFlightDefault
	}
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Events == nil {
		o.Events = o.Client
	}
	if len(o.Profiles) == 0 {
		profile := corescheduler.DefaultProfile()
		profile.Name = o.Name
		o.Profiles = []corescheduler.Profile{profile}
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	writes, events, err := o.behindGate(ctx)
	if err != nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	telling, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	recorders := kube.NewRecorders(telling, events)
	m := newMind(o, remote{writes}, func(profile string) record.EventRecorder { return recorders.As(profile, "") })
	if m.extenders, err = newExtenders(o.Extenders); err != nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	m.o.Health.running.Store(true)

	bursts, err := o.Client.Gathering(kube.GatherBursts)
	if err != nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	pods, podWatch := bursts.Informer(kube.Pods, kube.Selection{Fields: kube.LivePods, Keep: KeepPod}, m.podHandler())
	nodes, nodeWatch := o.Client.Informer(kube.Nodes, kube.Selection{}, m.nodeHandler())
	o.Metrics.count(func() (census, bool) { return m.count(ctx) })
	defer o.Metrics.count(nil)
	m.lookUp = func(p corescheduler.Pod) *corev1.Pod { return podIn(pods, p) }
	m.node = func(name string) *corev1.Node {
		obj, _, _ := nodes.GetByKey(name) // a store in memory
		node, _ := obj.(*corev1.Node)
		return node
	}
	watches := append(append(m.lesserWatches(o.Client), m.storageWatches(o.Client)...), podWatch, nodeWatch)
	synced := make([]cache.InformerSynced, len(watches), len(watches)+2)
	for i, w := range watches {
		synced[i] = w.HasSynced
		go w.RunWithContext(ctx)
	}
	synced = append(synced, m.followReports(ctx, o.Client), m.followClasses(ctx, o.Client))
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			m.tell(ctx, func(unit.Instant) { m.synced = true; m.o.Health.synced.Store(true) })
		}
	}()
	m.run(ctx)
	recorders.Settle(tellingMax)
	return nil
}

// behindGate returns the clients for writes and for Events, which pass one Gate.
func (o *Options) behindGate(ctx context.Context) (writes, events *kube.Client, err error) {
	gate := kube.NewGate(kube.GateOptions{
		Component: "scheduler",
		Options:   throttle.Options{InFlightMax: o.BindsInFlight + besideBinds, Tolerance: tolerance},
		AnswerMax: answerMax,
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

// podIn returns what is kept of the object behind p, nil if it is gone or replaced.
func podIn(store cache.Store, p corescheduler.Pod) *corev1.Pod {
	obj, ok, err := store.GetByKey(p.Namespace + "/" + p.Name)
	if err != nil || !ok {
		return nil
	}
	pod, ok := obj.(*KeptPod)
	if !ok || corescheduler.PodID(pod.UID) != p.ID {
		return nil
	}
	return pod.object()
}

// A fact changes what the Placer knows; it runs on the mind's goroutine.
type fact func(now unit.Instant)

// mind is the goroutine that owns the Placer.
type mind struct {
	o         Options
	api       api
	recorder  func(profile string) record.EventRecorder
	lookUp    func(corescheduler.Pod) *corev1.Pod
	failures  *latest[corescheduler.PodID, failure]
	evictions *latest[corescheduler.PodID, eviction] // by preemptor
	questions *latest[corescheduler.PodID, question]
	extenders []*extender
	node      func(name string) *corev1.Node // whole, for extenders

	facts  chan fact
	clock  func() time.Time // time.Now, but for tests; its differences do not follow the wall clock
	start  time.Time
	last   unit.Instant // of now
	placer *corescheduler.Placer

	synced   bool
	binding  int          // binds, and writes of volumes before them, in flight, and those in line or held
	held     []placed     // decided ahead, to be sent when there is a slot
	answered unit.Instant // when a slot was free, or a bind answered, last
	lines    lines
	flights  map[corescheduler.PodID]*flight // that were not withdrawn
	classes  deviceClasses
	rejected map[corescheduler.PodID]rejected // of the pods that fit nowhere, by whom
	unsure   map[corescheduler.PodID]placed   // whose bind had no answer, until the watch or another bind settles it
}

// rejected is what is counted of a pod that fits nowhere.
type rejected struct {
	by      corescheduler.RuleSet
	profile string
}

// factsMax is how many facts may wait. Chosen: about one burst of a watch; a longer line only hides that the mind is
// behind, a shorter one makes watches wait for it sooner.
const factsMax = 1024

func newMind(o Options, a api, recorder func(profile string) record.EventRecorder) *mind {
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	if o.Health == nil {
		o.Health = NewHealth()
	}
	return &mind{
		o:         o,
		api:       a,
		recorder:  recorder,
		lookUp:    func(corescheduler.Pod) *corev1.Pod { return nil },
		failures:  newLatest[corescheduler.PodID, failure](),
		evictions: newLatest[corescheduler.PodID, eviction](),
		questions: newLatest[corescheduler.PodID, question](),
		facts:     make(chan fact, factsMax),
		clock:     time.Now,
		start:     time.Now(),
		placer: corescheduler.New(corescheduler.Options{
			Seed: o.Seed, Profiles: o.Profiles, BackoffFirst: o.BackoffFirst, BackoffMax: o.BackoffMax,
		}),
		lines:    lines{},
		flights:  map[corescheduler.PodID]*flight{},
		rejected: map[corescheduler.PodID]rejected{},
		unsure:   map[corescheduler.PodID]placed{},
	}
}

// nameFor is the name under which we act for a pod: that of the profile that places it.
func (m *mind) nameFor(p corescheduler.Pod) string {
	if m.answersTo(p.Profile) {
		return p.Profile
	}
	return m.o.Name
}

// recorderFor is where Events about a pod go, or about others because of it.
func (m *mind) recorderFor(p corescheduler.Pod) record.EventRecorder { return m.recorder(m.nameFor(p)) }

// now is above zero, as Instants want to be. Where the clock went back, as no monotonic one should, time goes on from
// where it was: else all that is due would wait until the clock is there again.
func (m *mind) now() unit.Instant {
	now := unit.Instant(m.clock().Sub(m.start)) + 1
	if now < m.last {
		m.start = m.start.Add(now.Sub(m.last))
		now = m.last
	}
	m.last = now
	return now
}

// tell hands a fact to the mind; it waits while too many are pending.
func (m *mind) tell(ctx context.Context, f fact) {
	select {
	case m.facts <- f:
	case <-ctx.Done():
	}
}

func (m *mind) run(ctx context.Context) {
	go m.failures.run(ctx, failureWriters, m.writeFailure)
	go m.evictions.run(ctx, evictors, m.evictAll)
	if len(m.extenders) > 0 {
		go m.questions.run(ctx, askers, m.askExtenders)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	slog.Info("scheduler starts", "name", m.o.Name, "binds_in_flight", m.o.BindsInFlight)
	reported := false
	for {
		m.o.Health.begins()
		m.hearAll()
		m.settleVolumes(ctx)
		m.sendHeld(ctx)
		if m.synced && !reported {
			reported = true
			slog.Info("scheduler has its first lists", "after", m.clock().Sub(m.start).Round(time.Millisecond),
				"pending", m.placer.Pending())
		}
		if m.mayPlace(m.now()) && m.placeOne(ctx) {
			continue
		}
		now := m.now()
		if wake := m.wakeAt(now); !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(now)))
		}
		m.o.Health.waits()
		select {
		case f := <-m.facts:
			m.o.Health.begins()
			f(m.now())
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// mayPlace reports whether a decision may be made now.
func (m *mind) mayPlace(now unit.Instant) bool {
	switch {
	case !m.synced:
		return false
	case m.binding < m.o.BindsInFlight:
		m.answered = now
		return true
	}
	return m.binding < m.o.BindsInFlight+aheadMax && now.Sub(m.answered) >= hungAfter
}

// wakeAt is when to look again if nothing happens; zero: never. While no decision may be made, what is due waits: it
// could not be taken up.
func (m *mind) wakeAt(now unit.Instant) unit.Instant {
	switch {
	case !m.synced:
		return 0
	case m.mayPlace(now):
		return m.placer.Wake()
	}
	if hung := m.answered.Add(hungAfter); hung > now {
		return hung
	}
	return now.Add(hungAfter)
}

// sendHeld sends what was decided ahead, as far as there are slots.
func (m *mind) sendHeld(ctx context.Context) {
	for len(m.held) > 0 && m.binding-len(m.held) < m.o.BindsInFlight {
		p := m.held[0]
		m.held[0], m.held = placed{}, m.held[1:]
		m.send(ctx, p)
	}
}

// count asks the mind what it holds, between two decisions.
func (m *mind) count(ctx context.Context) (c census, ok bool) {
	answer := make(chan census, 1)
	m.tell(ctx, func(unit.Instant) {
		c := census{pending: m.placer.Pending(), rejected: map[rejection]int{}, binding: m.binding}
		for _, r := range m.rejected {
			for _, plugin := range r.by.Plugins() {
				c.rejected[rejection{plugin, r.profile}]++
			}
		}
		c.calls = map[string]int{callStatus: m.failures.waiting(), callBind: len(m.held)}
		c.nodes, c.pods, c.assumed = m.placer.Sizes()
		answer <- c
	})
	select {
	case c = <-answer:
		return c, true
	case <-ctx.Done():
		return c, false
	}
}

// hearAll folds in every fact that is waiting, so that the next decision knows of it.
func (m *mind) hearAll() {
	for {
		select {
		case f := <-m.facts:
			f(m.now())
		default:
			return
		}
	}
}

// placeOne makes one decision and sets off what follows from it; false if no pod is ready.
func (m *mind) placeOne(ctx context.Context) bool {
	began := m.now()
	d, ok := m.placer.Next(began)
	if !ok {
		return false
	}
	if d.Asked != nil || d.Offers != nil {
		m.questions.put(d.Pod.ID, question{pod: d.Pod, nodes: d.Asked, offers: d.Offers, why: d.Failure, began: began})
		return true
	}
	took := m.now().Sub(began)
	m.o.Metrics.decisionTime.Observe(took.Seconds())
	if d.Failure != nil {
		m.o.Metrics.attempt(resultUnschedulable, d.Pod.Profile, took)
		m.rejected[d.Pod.ID] = rejected{d.Failure.Rejected, d.Pod.Profile}
		slog.Debug("pod fits nowhere", "pod", d.Pod.Namespace+"/"+d.Pod.Name,
			"attempt", d.Attempt, "reason", d.Failure, "took", took)
		m.unplaced(d.Pod, corev1.PodReasonUnschedulable, d.Failure.Explain(m.classes.classOf), d.Nominated)
		if d.Preemption != nil || d.Failure.Preemption != "" {
			m.o.Metrics.preemptions.Inc()
		}
		if d.Preemption != nil {
			m.o.Metrics.victims.Observe(float64(len(d.Preemption.Victims)))
			slog.Info("making room by eviction", "pod", d.Pod.Namespace+"/"+d.Pod.Name, "node", d.Preemption.Node,
				"victims", len(d.Preemption.Victims), "against_budgets", d.Preemption.Violations)
			m.makeRoom(d)
		}
		return true
	}
	slog.Debug("pod placed", "pod", d.Pod.Namespace+"/"+d.Pod.Name, "node", d.Node,
		"feasible", d.Feasible, "score", d.Score, "attempt", d.Attempt, "took", took)
	delete(m.rejected, d.Pod.ID)
	m.evictions.withdraw(d.Pod.ID)
	p := placed{Decision: d, began: began, after: m.failures.withdraw(d.Pod.ID), flight: m.launch(d.Pod.ID)}
	if m.binding++; m.binding > m.o.BindsInFlight {
		m.held = append(m.held, p)
	} else {
		m.send(ctx, p)
	}
	return true
}

// send begins to carry out a placement.
func (m *mind) send(ctx context.Context, p placed) {
	if p.Volumes != nil {
		go m.writeVolumes(ctx, p)
	} else if m.lines.enter(p) {
		go m.bind(ctx, p)
	}
}

// bind runs beside the mind; the outcome comes back as a fact.
func (m *mind) bind(ctx context.Context, p placed) {
	ctx = kube.Withdrawable(ctx, p.withdrawn)
	if !p.mayGo(ctx) {
		return
	}
	outcome, err := corescheduler.BindRefused, kube.ErrNotLeading
	switch {
	case kube.IsWithdrawn(ctx):
		outcome, err = corescheduler.BindWithdrawn, errWithdrawn
	case m.o.Leads():
		began := time.Now()
		if e := m.binder(p.Pod); e != nil {
			outcome, err = e.bind(ctx, p.Decision)
		} else {
			outcome, err = m.api.bind(ctx, p.Decision)
		}
		if outcome != corescheduler.BindWithdrawn {
			m.o.Metrics.call(callBind, began, err)
			m.o.Metrics.point("Bind", p.Pod.Profile, began, err)
		}
	}
	m.tell(ctx, func(now unit.Instant) {
		m.answered = now
		m.settle(now, p, outcome)
		m.reportBind(p.Decision, outcome, err)
		next, withdrawn := m.lines.leave(p, outcome)
		for _, n := range next {
			go m.bind(ctx, n)
		}
		for _, w := range withdrawn {
			slog.Debug("bind withdrawn: the one before it to the node failed",
				"pod", w.Pod.Namespace+"/"+w.Pod.Name, "node", w.Node)
			m.settle(now, w, corescheduler.BindRefused)
		}
	})
}

// Forgotten is what the log says of a pod that no event had woken: a bug. Tests and benchmarks look for it.
const Forgotten = "a pod had been forgotten: no event that helped it was seen, please report this"

// settle folds in the end of a bind.
func (m *mind) settle(now unit.Instant, p placed, outcome corescheduler.Outcome) {
	m.binding--
	m.landed(p)
	switch outcome {
	case corescheduler.BindDone:
		m.o.Metrics.attempt(resultScheduled, p.Pod.Profile, now.Sub(p.began))
		delete(m.unsure, p.Pod.ID)
		m.isBound(now, p)
	case corescheduler.BindWithdrawn:
		m.o.Metrics.attempt(resultUnschedulable, p.Pod.Profile, now.Sub(p.began))
		if pod := m.lookUp(p.Pod); pod != nil {
			m.recorderFor(p.by).Eventf(pod, corev1.EventTypeNormal, "Preempted",
				"Preempted by pod %v on node %v (in kube-scheduler memory).", p.by.ID, p.Node)
		}
	default:
		m.o.Metrics.attempt(resultError, p.Pod.Profile, now.Sub(p.began))
		if outcome == corescheduler.BindLost {
			m.hasNoAnswer(now, p)
		}
	}
	m.placer.Bound(now, p.Pod, outcome)
}

// isBound notes that a pod is bound as was decided, and tells its owner.
func (m *mind) isBound(now unit.Instant, p placed) {
	name := p.Pod.Namespace + "/" + p.Pod.Name
	m.o.Metrics.bound(p.Attempt, now.Sub(p.Came))
	if p.Flushed {
		m.o.Metrics.flushed.Inc()
		slog.Warn(Forgotten, "pod", name, "node", p.Node, "waited", now.Sub(p.Came))
	}
	if pod := m.lookUp(p.Pod); pod != nil {
		m.recorderFor(p.Pod).Eventf(pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s to %s", name, p.Node)
	}
}

// hasNoAnswer keeps a bind in mind that may have happened: if it has, its owner is to hear so. The watch may be faster
// than the end of the wait for an answer.
func (m *mind) hasNoAnswer(now unit.Instant, p placed) {
	switch pod := m.lookUp(p.Pod); {
	case pod == nil:
	case pod.Spec.NodeName == "":
		m.unsure[p.Pod.ID] = p
	default:
		p.Node = pod.Spec.NodeName
		m.isBound(now, p)
	}
}

// isOn settles what was not sure of a pod: the watch has it on a node. It may have been tried on several.
func (m *mind) isOn(now unit.Instant, id corescheduler.PodID, node string) {
	if p, unsure := m.unsure[id]; unsure {
		delete(m.unsure, id)
		p.Node = node
		m.isBound(now, p)
	}
}

// reportBind tells why a bind failed.
func (m *mind) reportBind(d corescheduler.Decision, outcome corescheduler.Outcome, err error) {
	name := d.Pod.Namespace + "/" + d.Pod.Name
	if outcome == corescheduler.BindDone {
		return
	}
	if errors.Is(err, kube.ErrNotLeading) || outcome == corescheduler.BindWithdrawn {
		return // this process is about to end, and its words may be wrong; or settle has told
	}
	slog.Warn("bind failed", "pod", name, "node", d.Node, "lost", outcome == corescheduler.BindLost, "err", err)
	if pod := m.lookUp(d.Pod); pod != nil && pod.Spec.NodeName == "" {
		m.unplaced(d.Pod, corev1.PodReasonSchedulerError, fmt.Sprintf("binding to node %s: %v", d.Node, err), "")
	}
}

const (
	// messageMax is how long an Event's message may be (API validation: 1,024 bytes).
	messageMax = 1024
	// conditionMax is how long a condition's message may be: as much as the API allows in conditions of most objects
	// (metav1.Condition; a pod's has no bound). A pod that asks for 10,000 resources that no node has has as many reasons,
	// half a MiB of them, which would be written whenever it is tried.
	conditionMax = 32768
)

// unplaced tells a pod's owner why it was not placed, as an Event and as the pod's condition.
func (m *mind) unplaced(p corescheduler.Pod, reason, message, nominated string) {
	pod := m.lookUp(p)
	if pod == nil {
		return
	}
	m.recorderFor(p).Event(pod, corev1.EventTypeWarning, "FailedScheduling", cut(message, messageMax))
	m.failures.put(p.ID, failure{pod, reason, cut(message, conditionMax), nominated})
}

// cut is s, or its beginning with a sign that there is more, in at most so many bytes.
func cut(s string, most int) string {
	const more = " ..."
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(more)], "") + more
}
