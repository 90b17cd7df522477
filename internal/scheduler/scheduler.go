// Package scheduler is the shell around core/scheduler: it passes facts about pods and nodes to the Placer, binds the
// pods that it places, and reports in Events and conditions why a pod was or was not placed.
//
// # Model
//
// The scheduling loop is one goroutine, which owns the Placer. Watches and finished binds reach it as facts, in order,
// through one channel. Between facts it makes decisions, as long as fewer than BindsInFlight binds are in flight.
// Binds, status patches, evictions and Events run in other goroutines; a write throttle (kube.Throttle) orders them,
// Events last. So every decision uses all facts that have arrived, and a slow API server delays the binds, not the
// loop. If no bind is answered any more, for example because a webhook hangs, the loop decides ahead: it makes up to
// aheadMax decisions that are sent later. So pods that fit nowhere get their condition, and pods that may preempt do
// so.
//
// For a pod that concerns an extender (extenders.go), there are two decisions. The first finds the nodes on which the
// pod fits, or the preemptions that would make room. Then the extenders are asked in another goroutine. The second
// decision chooses among what they left. Other pods do not wait for that.
//
// # Invariants
//
//   - No pod is placed before all watches have delivered their first lists. Until then, nodes look emptier than they
//     are.
//   - Only pods that the loop chose as victims are evicted, by UID, with the condition DisruptionTarget set first, and
//     never by a process that may not lead any more (Options.Leads).
//   - After a pod's bind was sent, no status patch is sent that says why the pod was not placed.
//   - A pod is bound at most once. The API server refuses a second bind. The bind names the pod's UID, so it cannot
//     bind a later pod of that name. Whatever the answer was, the watch shows the outcome.
//   - Pods that get CPUs, memory or devices arrive at their node's agent in the order in which they were placed there
//     (line.go).
//   - It needs nothing on disk. After a restart, the scheduler lists all objects and places what is not bound. Its
//     journal (Options.Journal) is only written.
//
// It does not elect a leader; kube/election does. Two schedulers at the same time do no damage, because a pod is bound
// only once, but their decisions conflict. It opens no port.
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

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// DefaultName is the schedulerName of pods that do not set one, and the source of our Events.
const DefaultName = corev1.DefaultSchedulerName

// BindsInFlightDefault limits the binds that wait for an answer. Chosen: an API server on two cores processes about
// 1,000 binds per second, at 5 to 50 ms each, and 64 keep it busy. More would only wait in its queue; fewer would leave
// it idle.
const BindsInFlightDefault = 64

const (
	// besideBinds is how many other writes (status patches, evictions, Events) may be in flight in addition to the binds.
	// Chosen: as many Events as their share of the limit allows, and a few of the others.
	besideBinds = 8
	// tolerance is the factor by which an answer may take longer than without load before the throttle reduces the number
	// of binds in flight. Chosen: a server that processes 64 binds at once takes about 20 times as long for each
	// (computed: 80 ms at 800 per second, 4 ms alone), but no longer in total, because the binds wait in the server's
	// queue instead of the throttle's. BindsInFlight limits the effect on other clients. If the factor is larger than
	// tolerance, something is wrong with the server.
	tolerance = 30
	// hungAfter is how long all slots must be taken, without an answer to any bind, before the loop decides ahead.
	// Chosen: ten times as long as a busy server takes.
	hungAfter = time.Second
	// lastEventsMax is how long the scheduler may take to send the last Events when it is stopped. Chosen: it is within
	// the remaining time of a Lease and of a usual termination grace period; the next leader waits for it.
	lastEventsMax = 3 * time.Second
	// aheadMax is the number of pods about which the loop decides ahead. Chosen: a server that is available again
	// processes them within some seconds, so the decisions are not much older than that. Each takes about 1 KiB.
	aheadMax = 4096
)

// Options configure Run.
type Options struct {
	Client *kube.Client
	Events *kube.Client // for Events, so that they do not wait behind binds; nil: Client
	Name   string       // the schedulerName if there are no Profiles, and the source of Events; empty: DefaultName
	// Profiles place the pods with their name as schedulerName; none: the default profile with the name Name.
	Profiles                 []corescheduler.Profile
	BackoffFirst, BackoffMax time.Duration // see core/scheduler.Options
	Metrics                  *Metrics      // nil: not exposed
	Seed                     uint64        // breaks ties between nodes; see core/scheduler.Options
	BindsInFlight            int           // zero: BindsInFlightDefault
	Extenders                []schedulerconfig.Extender
	Leads                    func() bool  // called right before each write: may this process act? nil: it may
	Health                   *Health      // nil: not observed
	Journal                  *journal.Log // of the decisions; nil: none
	FactsFile                string       // gets everything that the decisions depend on; empty: it is not kept
	Version                  string       // of this program, for FactsFile
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
	writes, events, err := o.throttledClients(ctx)
	if err != nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	eventsCtx, stopEvents := context.WithCancel(context.WithoutCancel(ctx)) // the last Events are sent after ctx ended
	defer stopEvents()
	recorders := kube.NewRecorders(eventsCtx, events)
	m := newLoop(o, remote{writes}, func(profile string) record.EventRecorder { return recorders.As(profile, "") })
	if err := m.keepFacts(); err != nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	defer m.factsKept.Close()
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
	o.Metrics.count(func() (loopState, bool) { return m.count(ctx) })
	defer o.Metrics.count(nil)
	m.lookUp = func(p corescheduler.Pod) *corev1.Pod { return podIn(pods, p) }
	m.node = func(name string) *corev1.Node {
		obj, _, _ := nodes.GetByKey(name) // the store is in memory
		node, _ := obj.(*corev1.Node)
		return node
	}
	watches := append(append(m.otherWatches(o.Client), m.storageWatches(o.Client)...), podWatch, nodeWatch)
	synced := make([]cache.InformerSynced, len(watches), len(watches)+2)
	for i, w := range watches {
		synced[i] = w.HasSynced
		go w.RunWithContext(ctx)
	}
	synced = append(synced, m.followReports(ctx, o.Client), m.followClasses(ctx, o.Client))
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			m.submit(ctx, func(unit.Instant) {
				m.synced = true
				m.o.Health.synced.Store(true)
			})
		}
	}()
	m.run(ctx)
	recorders.Flush(lastEventsMax)
	return nil
}

// throttledClients returns the clients for writes and for Events. They share one throttle.
func (o *Options) throttledClients(ctx context.Context) (writes, events *kube.Client, err error) {
	writeThrottle := kube.NewThrottle(kube.ThrottleOptions{
		Component: "scheduler",
		Options:   throttle.Options{InFlightMax: o.BindsInFlight + besideBinds, Tolerance: tolerance},
		AnswerMax: answerMax,
		Leads:     o.Leads,
	})
	return writeThrottle.Clients(ctx, o.Metrics.Registry, o.Client, o.Events)
}

// podIn returns the kept part of the object of p, or nil if it is gone or has another UID.
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

// A fact changes the Placer. It runs on the goroutine of the scheduling loop.
type fact func(now unit.Instant)

// loop is the scheduling loop: the one goroutine that owns the Placer, and what it shares with others.
type loop struct {
	// Set before run, and not changed by it. Other goroutines may call the functions and use the queues.
	o                Options
	api              api
	recorder         func(profile string) record.EventRecorder
	lookUp           func(corescheduler.Pod) *corev1.Pod // returns the kept part of a pod's object; nil: it is gone
	failures         *workQueue[corescheduler.PodID, failure]
	evictions        *workQueue[corescheduler.PodID, eviction] // by preemptor
	extenderRequests *workQueue[corescheduler.PodID, extenderRequest]
	extenders        []*extender
	node             func(name string) *corev1.Node // returns the whole object, for extenders; nil: there is none
	clock            *clock.Clock

	// facts are the facts that wait for the loop. All other goroutines use this channel to reach the fields below.
	facts chan fact

	// Only the goroutine of the loop uses the fields from here on.
	placer    placer
	factsKept *journal.Facts               // nil: none are kept
	report    any                          // the object of the report that is handed to the placer
	room      []corescheduler.ResourceRoom // working space of notePlaced
	synced    bool                         // all first lists have arrived
	// binding counts binds and writes of volume plans that are in flight, wait in a line, or are in ahead.
	binding  int
	ahead    []placed     // decided ahead, to be sent when a slot is free
	answered unit.Instant // when a slot was last free, or a bind last answered
	lines    nodeBinds    // the binds to nodes where order matters
	// flights are the decisions that are being carried out and were not withdrawn.
	flights  map[corescheduler.PodID]*flight
	classes  deviceClasses
	rejected map[corescheduler.PodID]rejected // the pods that fit nowhere, with the plugins that rejected them
	// unknownBinds are the binds that were not answered, until the watch or another bind shows the outcome.
	unknownBinds map[corescheduler.PodID]placed
}

// rejected is what metrics report about a pod that fits nowhere.
type rejected struct {
	by      corescheduler.RuleSet
	profile string
}

// factsMax is how many facts may wait. Chosen: about one burst of a watch. A longer queue would only hide that the loop
// is behind; a shorter one makes watches wait sooner.
const factsMax = 1024

func newLoop(o Options, a api, recorder func(profile string) record.EventRecorder) *loop {
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	if o.Health == nil {
		o.Health = NewHealth()
	}
	return &loop{
		o:                o,
		api:              a,
		recorder:         recorder,
		lookUp:           func(corescheduler.Pod) *corev1.Pod { return nil },
		failures:         newWorkQueue[corescheduler.PodID, failure](),
		evictions:        newWorkQueue[corescheduler.PodID, eviction](),
		extenderRequests: newWorkQueue[corescheduler.PodID, extenderRequest](),
		facts:            make(chan fact, factsMax),
		clock:            clock.New(),
		placer:           corescheduler.New(o.placerOptions()),
		lines:            nodeBinds{},
		flights:          map[corescheduler.PodID]*flight{},
		rejected:         map[corescheduler.PodID]rejected{},
		unknownBinds:     map[corescheduler.PodID]placed{},
	}
}

func (o *Options) placerOptions() corescheduler.Options {
	return corescheduler.Options{
		Seed:         o.Seed,
		Profiles:     o.Profiles,
		BackoffFirst: o.BackoffFirst,
		BackoffMax:   o.BackoffMax,
	}
}

// nameFor returns the name of the profile that places a pod, for Events and conditions.
func (m *loop) nameFor(p corescheduler.Pod) string {
	if m.answersTo(p.Profile) {
		return p.Profile
	}
	return m.o.Name
}

// recorderFor returns the recorder for Events about a pod, or about other pods because of it.
func (m *loop) recorderFor(p corescheduler.Pod) record.EventRecorder { return m.recorder(m.nameFor(p)) }

// submit hands a fact to the scheduling loop. It blocks while factsMax facts wait.
func (m *loop) submit(ctx context.Context, f fact) {
	select {
	case m.facts <- f:
	case <-ctx.Done():
	}
}

func (m *loop) run(ctx context.Context) {
	go m.failures.run(ctx, failureWriters, m.writeFailure)
	go m.evictions.run(ctx, evictors, m.evictAll)
	if len(m.extenders) > 0 {
		go m.extenderRequests.run(ctx, extenderWorkers, m.askExtenders)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	slog.Info("scheduler starts", "name", m.o.Name, "binds_in_flight", m.o.BindsInFlight)
	reported := false
	for {
		m.o.Health.begins()
		m.applyFacts()
		m.bindWithVolumes(ctx)
		m.sendAhead(ctx)
		if m.synced && !reported {
			reported = true
			slog.Info("scheduler has its first lists", "after", m.clock.Now().Sub(clock.Start).Round(time.Millisecond),
				"pending", m.placer.Pending())
		}
		if m.mayPlace(m.clock.Now()) && m.placeOne(ctx) {
			continue
		}
		now := m.clock.Now()
		if wake := m.wakeAt(now); !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(now)))
		}
		m.o.Health.waits()
		select {
		case f := <-m.facts:
			m.o.Health.begins()
			f(m.clock.Now())
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// mayPlace reports whether a decision may be made now.
func (m *loop) mayPlace(now unit.Instant) bool {
	switch {
	case !m.synced:
		return false
	case m.binding < m.o.BindsInFlight:
		m.answered = now
		return true
	}
	return m.binding < m.o.BindsInFlight+aheadMax && now.Sub(m.answered) >= hungAfter
}

// wakeAt returns when the loop must run again if no fact arrives; zero: never. While no decision may be made, it does
// not matter when a pod becomes ready.
func (m *loop) wakeAt(now unit.Instant) unit.Instant {
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

// sendAhead sends decisions that were made ahead, as far as slots are free.
func (m *loop) sendAhead(ctx context.Context) {
	for len(m.ahead) > 0 && m.binding-len(m.ahead) < m.o.BindsInFlight {
		p := m.ahead[0]
		m.ahead[0], m.ahead = placed{}, m.ahead[1:]
		m.send(ctx, p)
	}
}

// count gets the loopState from the loop, between two decisions.
func (m *loop) count(ctx context.Context) (c loopState, ok bool) {
	answer := make(chan loopState, 1)
	m.submit(ctx, func(unit.Instant) {
		c := loopState{pending: m.placer.Pending(), rejected: map[rejection]int{}, binding: m.binding}
		for _, r := range m.rejected {
			for _, plugin := range r.by.Plugins() {
				c.rejected[rejection{plugin, r.profile}]++
			}
		}
		c.calls = map[string]int{callStatus: m.failures.waiting(), callBind: len(m.ahead)}
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

// applyFacts applies every waiting fact, so that the next decision uses it.
func (m *loop) applyFacts() {
	for {
		select {
		case f := <-m.facts:
			f(m.clock.Now())
		default:
			return
		}
	}
}

// placeOne makes one decision and carries it out. It returns false if no pod is ready.
func (m *loop) placeOne(ctx context.Context) bool {
	began := m.clock.Now()
	d, ok := m.placer.Next(began)
	if !ok {
		return false
	}
	if d.ExtenderNodes != nil || d.ExtenderCandidates != nil {
		m.extenderRequests.put(d.Pod.ID, extenderRequest{
			pod:        d.Pod,
			nodes:      d.ExtenderNodes,
			candidates: d.ExtenderCandidates,
			why:        d.Failure,
			began:      began,
		})
		return true
	}
	took := m.clock.Now().Sub(began)
	m.o.Metrics.decisionTime.Observe(took.Seconds())
	if d.Failure != nil {
		m.o.Metrics.attempt(resultUnschedulable, d.Pod.Profile, took)
		m.rejected[d.Pod.ID] = rejected{d.Failure.Rejected, d.Pod.Profile}
		slog.Debug("pod unschedulable", "pod", d.Pod.Namespace+"/"+d.Pod.Name,
			"attempt", d.Attempt, "reason", d.Failure, "took", took)
		why := d.Failure.Explain(m.classes.classOf)
		m.noteUnschedulable(&d, why, began, took)
		m.reportFailure(d.Pod, corev1.PodReasonUnschedulable, why, d.Nominated)
		if d.Preemption != nil || d.Failure.Preemption != "" {
			m.o.Metrics.preemptions.Inc()
		}
		if d.Preemption != nil {
			m.o.Metrics.victims.Observe(float64(len(d.Preemption.Victims)))
			slog.Info("preempting", "pod", d.Pod.Namespace+"/"+d.Pod.Name, "node", d.Preemption.Node,
				"victims", len(d.Preemption.Victims), "pdb_violations", d.Preemption.Violations)
			m.makeRoom(d)
		}
		return true
	}
	slog.Debug("pod placed", "pod", d.Pod.Namespace+"/"+d.Pod.Name, "node", d.Node,
		"feasible", d.Feasible, "score", d.Score, "attempt", d.Attempt, "took", took)
	m.notePlaced(&d, began, took)
	delete(m.rejected, d.Pod.ID)
	m.evictions.withdraw(d.Pod.ID)
	p := placed{Decision: d, began: began, after: m.failures.withdraw(d.Pod.ID), flight: m.startFlight(d.Pod.ID)}
	if m.binding++; m.binding > m.o.BindsInFlight {
		m.ahead = append(m.ahead, p)
	} else {
		m.send(ctx, p)
	}
	return true
}

const (
	// messageMax limits the message of an Event (API validation: 1,024 bytes).
	messageMax = 1024
	// conditionMax limits the message of a condition, in bytes. It is the API's limit for the conditions of most objects
	// (metav1.Condition); those of pods have no limit. Without it, a pod that requests 10,000 resources that no node has
	// would get a message of half a MiB at each attempt.
	conditionMax = 32768
)

// reportFailure reports why a pod was not placed, as an Event and in the pod's condition.
func (m *loop) reportFailure(p corescheduler.Pod, reason, message, nominated string) {
	pod := m.lookUp(p)
	if pod == nil {
		return
	}
	m.recorderFor(p).Event(pod, corev1.EventTypeWarning, "FailedScheduling", truncate(message, messageMax))
	m.failures.put(p.ID, failure{pod: pod, reason: reason, message: truncate(message, conditionMax), nominated: nominated})
}

// truncate returns s if it has at most that many bytes. Otherwise it returns the beginning of s with " ..." after it.
func truncate(s string, most int) string {
	const more = " ..."
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(more)], "") + more
}
