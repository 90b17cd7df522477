// Package podentry has what the agent knows of one pod and every goroutine may read and change.
//
// Model. An Entry says which pod it is and who asks for it (source.go), how far it has come and which resources it has
// (admission.go, phase.go), its end (end.go, hooks.go), what is reported of it (status.go), and what the runtime has of
// it (entry.go). It keeps the pod's Worker while there is nothing to do, and hands it to one goroutine at a time (Wake,
// Rest): so nothing in a worker needs a lock.
//
// Phases. How far a pod has come is its phase, which its worker changes. Each change is checked:
//
//	     plugins are asked             it fits               prepared
//	new -------------------> consulting --------> preparing ----------> admitted --+
//	| ^                          |                    |                            |
//	| +--------------------------+--------------------+ rejected, or it is to end  v
//	|                                                                           dropped
//	+----> rejected: there is nothing to wait for -------------------------------> ^
//
// Ways that leave phases out: new to preparing, where no plugin has to be asked; new to admitted, where an agent before
// this one started the pod; new or consulting to admitted, where its end was ordered while plugins were asked; new to
// dropped, where it was deleted before it was judged. Two more things combine with every phase but the last: that the
// pod is held (SetHold), since what keeps it from starting may come and go until something of it runs; and that it is
// to end (Evict, Vanish, Reject, EndUnclaimed), since an end may be ordered at any time, and the pod keeps what it has
// until then.
//
// Invariants. Each method locks the entry for as long as it takes, calls nothing that may wait, and nothing that locks
// anything else but the lock of the status report, which is taken after it. Pods, statuses and stop orders are
// replaced, never written to, so what a method returns may be kept. Entry.check says what holds between two syncs.
//
// The package decides nothing and does nothing to the pod: agent/pods does.
package podentry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Worker is what only the goroutine that works for a pod may use.
type Worker interface {
	// Run observes the pod, decides and acts, until there is nothing to do (Rest).
	Run(ctx context.Context)
}

// Entry is what the agent knows of one pod and every goroutine may read and change.
type Entry struct {
	uid    types.UID         // never changes
	report *statusreport.Pod // how far its status is written; has a lock of its own, taken after mu

	mu sync.Mutex // guards everything that follows

	// Which pod it is. Written by the sources (Claim, Set, Vanish), at admission (Admit) and by resizes (Rule).

	pod       *corev1.Pod // what it should be, with its allocated resources; replaced, not written to. nil: see unclaimed
	desired   *corev1.Pod // the same with the resources that it asks for, as its source has it. nil as pod is
	mirror    *corev1.Pod // the API's image of a static pod; nil: not seen, or not static
	source    source      // who asks for it
	unclaimed Identity    // who it is where no source has it (pod is nil): what the runtime's labels say

	// How far it has come (see Phase), and what it waits for. Written by the worker.

	phase Phase
	hold  *podlife.Hold // why nothing of it is started, decided in each sync; nil: nothing keeps it
	held  string        // the reason of a hold for which users had an Event last; kept when the hold is over

	// Its resources. Written at admission (Admit), by resizes (Rule), and by versions that ask for what it has (Set).

	allocated    *allocation.Allocation // what the node last judged to fit; nil: not admitted yet, or static
	pending      *podlife.PendingResize // why what it asks for is not allocated; nil: it is, or was not judged yet
	pendingSince unit.Wall              // since when, for this reason; zero: nothing is pending
	resizing     int64                  // generation of the resize that is being carried out; zero: none
	holding      holding                // asAllocated's last answer

	// Its end. Written by all who order it (mergeStop); the order is replaced, never written to.

	stop      *podlife.StopOrder     // nil: it is not to end. Once set it stays, and its deadline only comes nearer
	leftovers bool                   // it was evicted by this process, and what it has on disks is not removed yet
	interrupt context.CancelFunc     // cancels what the worker does, where a stop order may; nil: it may not
	hooks     map[string]*HookRun    // of postStart that have not succeeded, by container id
	preStops  map[string]*PreStopRun // that were begun before the container's turn to stop, by container id
	exits     map[string]func()      // called when the process of a container that is being stopped is gone, by its id

	// What is reported of it. Written by the worker (SetStatus).

	status  corev1.PodStatus // as computed last; its phase is empty before the first time. Replaced, not written to
	started bool             // status was Running once: for the metrics of starts

	// What the runtime has of it. summary and sandboxID are written by the worker (SawRuntime), dirty by all who hear
	// of a change (MarkDirty, Exited, Compare).

	summary   map[string]int32 // state of its sandboxes and containers, by id, as the worker read them last
	sandboxID string           // of the newest sandbox that is ready; empty: none
	dirty     podview.Dirt     // what the worker is to read anew

	// Its worker. A goroutine takes it (Wake) and hands it back (Rest); there is one while there is something to do.

	idle  Worker      // nil: a goroutine has it, or had it when the pod was dropped
	again bool        // something happened since that goroutine began its sync: it is to look again
	retry bool        // what failed is to be tried again at once: something it may lack has appeared
	timer *time.Timer // wakes the worker; nil: nothing does
}

// holding is a pod as it counts against the node, made from a version of it and the status that it had by then.
type holding struct {
	of *corev1.Pod // nil: none is made
	as *corev1.Pod
}

// source is who asks for a pod.
type source int

const (
	// No source has it, as far as is known: the runtime has something of it. It ends when every source has shown
	// its pods.
	sourceNone source = iota
	// The API has it.
	sourceAPI
	// It is a static pod: the directory of manifests has it, and it is reported through its mirror.
	sourceDirectory
	// The API has it no more, or a disk has something of it and nothing else is known. It ends, and nothing of it is
	// written to the API.
	sourceGone
)

// Identity is what the runtime's labels say of a pod whose object we do not have.
type Identity struct {
	Namespace, Name string
	Grace           time.Duration
}

// New returns the entry of a pod of which nothing is known yet. It has no worker until it gets one (HandBack).
func New(uid types.UID) *Entry {
	e := &Entry{
		uid:      uid,
		hooks:    map[string]*HookRun{},
		preStops: map[string]*PreStopRun{},
		exits:    map[string]func(){},
	}
	e.report = statusreport.NewPod(uid, e.toReport)
	return e
}

// UID is the pod's.
func (e *Entry) UID() types.UID { return e.uid }

// Report is how far the pod's status is written.
func (e *Entry) Report() *statusreport.Pod { return e.report }

// Name is namespace/name for messages.
func (e *Entry) Name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.key()
}

// key is namespace/name. Caller holds mu.
func (e *Entry) key() string {
	if e.pod != nil {
		return e.pod.Namespace + "/" + e.pod.Name
	}
	return e.unclaimed.Namespace + "/" + e.unclaimed.Name
}

// Object is the pod with the resources that are allocated to it; nil: only the runtime knows it.
func (e *Entry) Object() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod
}

// Snapshot is what a sync has to know of an entry, as of one moment.
type Snapshot struct {
	Pod      *corev1.Pod
	Status   corev1.PodStatus
	Phase    Phase
	Stop     *podlife.StopOrder
	Hold     *podlife.Hold
	Resizing podlife.Resizing
	Hooks    map[string]podlife.HookState // of containers whose postStart hooks have not succeeded
	PreStops map[string]bool              // containers whose preStop hooks were begun before their turn to stop
}

// Initialized reports whether the pod was reported as initialized, by this agent or one before it.
func (s Snapshot) Initialized() bool {
	c := podstatus.Condition(s.Status, corev1.PodInitialized)
	if c == nil && s.Pod != nil {
		c = podstatus.Condition(s.Pod.Status, corev1.PodInitialized)
	}
	return c != nil && c.Status == corev1.ConditionTrue
}

// Snapshot returns what a sync needs to know of the entry, as of now.
func (e *Entry) Snapshot() Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Snapshot{
		Pod:      e.pod,
		Status:   e.status,
		Phase:    e.phase,
		Stop:     e.stop,
		Hold:     e.hold,
		Resizing: podlife.Resizing{Generation: e.resizing, Pending: e.pending},
		Hooks:    map[string]podlife.HookState{},
		PreStops: map[string]bool{},
	}
	for id, h := range e.hooks {
		s.Hooks[id] = h.state
	}
	for id := range e.preStops {
		s.PreStops[id] = true
	}
	return s
}

// MarkDirty has a container (or, with an empty id, everything) read anew.
func (e *Entry) MarkDirty(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty.Change(id)
}

// TakeDirty is what the worker is to read anew; it is marked no more.
func (e *Entry) TakeDirty() podview.Dirt {
	e.mu.Lock()
	defer e.mu.Unlock()
	dirty := e.dirty
	e.dirty = podview.Dirt{}
	return dirty
}

// Compare has everything read anew where the runtime has other sandboxes and containers than the worker read last, or
// has them in other states, and reports whether anything is to be read.
func (e *Entry) Compare(states map[string]int32) (stale bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle != nil && !maps.Equal(e.summary, states) { // else its worker is just at it
		e.dirty.All = true
	}
	return e.dirty.All
}

// SawRuntime is what the worker knows of the runtime, for the rest of the agent.
func (e *Entry) SawRuntime(summary map[string]int32, sandboxID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.summary = summary
	e.sandboxID = sandboxID
}

// Has reports whether the runtime said last that a sandbox or container is of the pod.
func (e *Entry) Has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, has := e.summary[id]
	return has
}

// InRuntime reports whether the runtime has something of the pod.
func (e *Entry) InRuntime() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.summary) > 0
}

// ReadySandbox is the id of the newest sandbox that is ready; empty: none.
func (e *Entry) ReadySandbox() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sandboxID
}

// Wake hands out the worker, for a goroutine of its own. nil: there is nothing to start; if a goroutine has the worker,
// it looks again.
func (e *Entry) Wake() Worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == PhaseDropped {
		return nil
	}
	if e.idle == nil {
		e.again = true
		return nil
	}
	w := e.idle
	e.idle = nil
	return w
}

// Rest hands the worker back, unless it is to go on: because it did something, or was woken meanwhile. One that rests
// is woken by resync after a while; zero: by nothing. An entry that was dropped needs no worker any more.
func (e *Entry) Rest(w Worker, acted bool, after time.Duration, resync func()) (goOn bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == PhaseDropped {
		return false
	}
	e.check()
	if acted || e.again {
		e.again = false
		return true
	}
	e.idle = w
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if after > 0 {
		e.timer = time.AfterFunc(after, resync)
	}
	return false
}

// HandBack hands the worker back without a sync: a new one, or when the agent ends.
func (e *Entry) HandBack(w Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = w
}

// OrderRetry has the worker's next sync try again what failed.
func (e *Entry) OrderRetry() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retry = true
}

// TakeRetry reports whether OrderRetry was called since the last TakeRetry.
func (e *Entry) TakeRetry() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	retry := e.retry
	e.retry = false
	return retry
}

// Drop is the end of the entry: no worker looks at it any more.
func (e *Entry) Drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(PhaseDropped)
	if e.timer != nil {
		e.timer.Stop()
	}
}

// enter brings the entry into a phase. Caller holds mu.
func (e *Entry) enter(to Phase) {
	if to != e.phase && !slices.Contains(transitions[e.phase], to) {
		Broken(e.uid, fmt.Sprintf("it is %s, and becomes %s", e.phase, to))
	}
	e.phase = to
}

// check compares an entry whose worker is between two syncs with what holds then. Caller holds mu.
func (e *Entry) check() {
	judged := e.phase == PhaseAdmitted || e.phase == PhaseRejected
	for _, c := range [...]struct {
		what  string
		wrong bool
	}{
		{"its admission has no end", e.phase == PhaseConsulting || e.phase == PhasePreparing},
		{"it is rejected, and no order says why", e.phase == PhaseRejected && (e.stop == nil || !e.stop.Rejected)},
		{"no source has it, and yet it was judged", e.pod == nil && judged},
		{"no source has it, and yet it is held", e.pod == nil && e.hold != nil},
		{"it has an object, and nothing that it asks for", (e.pod == nil) != (e.desired == nil)},
		{"its resize is judged, and nothing is allocated", e.allocated == nil && (e.pending != nil || e.resizing != 0)},
		{"no source has its object", e.pod != nil && e.source == sourceNone},
		{"it was evicted, and is not to end", e.stop == nil && e.leftovers},
		{"Asks takes one object for two", e.desired != nil && (e.pod == e.desired) != e.allocated.Meets(e.desired)},
		{"its worker rests, and a stop order interrupts it", e.interrupt != nil},
		{"its worker rests, and awaits an exit", len(e.exits) > 0},
	} {
		if c.wrong {
			Broken(e.uid, c.what)
		}
	}
}
