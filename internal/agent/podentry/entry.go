// Package podentry has the part of a pod's state in the agent that every goroutine may read and change.
//
// Model. An Entry has the pod and its source (source.go), its progress and its resources (admission.go, phase.go), its
// end (end.go, hooks.go), its status (status.go), and what the runtime has of it (entry.go). It keeps the pod's Worker
// while there is nothing to do, and hands it to one goroutine at a time (Wake, Rest), so nothing in a worker needs a
// lock.
//
// Phases. A pod's progress is its phase, which its worker changes. Each change is checked:
//
//	     plugins are asked             it fits               prepared
//	new -------------------> consulting --------> preparing ----------> admitted --+
//	| ^                          |                    |                            |
//	| +--------------------------+--------------------+ rejected, or stop order    v
//	|                                                                           dropped
//	+----> rejected: there is nothing to wait for -------------------------------> ^
//
// Some phases may be skipped: from new to preparing if no plugin must be asked; from new to admitted if an earlier
// agent started the pod; from new or consulting to admitted if the pod got a stop order while plugins were asked; from
// new to dropped if it was deleted before it was judged. In every phase but the last, a pod may also be held (SetHold),
// since the reason may come and go until something of the pod runs. And it may have a stop order (Evict, Vanish,
// Reject, EndUnclaimed), since one may come at any time; the pod keeps what it has until it has ended.
//
// Invariants. Each method locks the entry while it runs, and calls nothing that may wait. It takes no other lock but
// that of the status report, after the entry's. Pods, statuses and stop orders are replaced, never written to, so a
// caller may keep what a method returns. Entry.check says what holds between two syncs.
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

// Worker is the part of a pod's state that only the pod's goroutine may use.
type Worker interface {
	// Run observes the pod, decides and acts, until there is nothing to do (Rest).
	Run(ctx context.Context)
}

// Entry is the part of a pod's state that every goroutine may read and change.
type Entry struct {
	uid    types.UID         // never changes
	report *statusreport.Pod // the writing of its status; has a lock of its own, taken after mu

	mu sync.Mutex // guards everything that follows

	// The pod. Written by the sources (Claim, Set, Vanish), at admission (Admit) and by resizes (Rule).

	pod       *corev1.Pod // with its allocated resources; replaced, not written to. nil: see unclaimed
	desired   *corev1.Pod // as its source delivered it, with the resources that it requests; nil if pod is nil
	mirror    *corev1.Pod // the mirror of a static pod; nil: not delivered, or not static
	source    source      // where the pod comes from
	unclaimed Identity    // from the runtime's labels, if no source has the pod (pod is nil)

	// Its progress, and what it waits for. Written by the worker.

	phase Phase
	hold  *podlife.Hold // why it is held, decided in each sync; nil: it is not held
	held  string        // the reason of the hold that was last recorded as an Event; kept when the hold is over

	// Its resources. Written at admission (Admit), by resizes (Rule), and by versions that request what it has (Set).

	allocated    *allocation.Allocation // what the node last judged to fit; nil: not admitted yet, or static
	pending      *podlife.PendingResize // why a resize is not allocated; nil: there is none, or it was not judged yet
	pendingSince unit.Wall              // since when it is pending for this reason; zero: nothing is pending
	resizing     int64                  // generation of the resize that is being carried out; zero: none
	holding      holding                // asAllocated's last result

	// Its end. Written whenever it is ordered (mergeStop); the order is replaced, never written to.

	stop      *podlife.StopOrder     // nil: there is none. Once set it stays, and its deadline only becomes earlier
	leftovers bool                   // this process evicted the pod, and its files are not removed yet
	released  bool                   // nothing of it runs, and what it no longer needs is taken down
	interrupt context.CancelFunc     // cancels what the worker does; nil: a stop order may not cancel it
	hooks     map[string]*HookRun    // postStart hooks that have not succeeded, by container ID
	preStops  map[string]*PreStopRun // preStop hooks begun before the container's turn to stop, by container ID
	exits     map[string]func()      // called when the process of a container that is being stopped is gone, by its ID

	// Its status. Written by the worker (SetStatus).

	status  corev1.PodStatus // the latest; its phase is empty if there is none. Replaced, not written to
	started bool             // status was Running once, for the metrics of starts

	// What the runtime has of it. The worker writes summary and sandboxID (SawRuntime); whoever learns of a change writes
	// dirty (MarkDirty, Exited, Compare).

	summary   map[string]int32 // state of its sandboxes and containers, by id, as the worker read them last
	sandboxID string           // of the newest sandbox that is ready; empty: none
	dirty     podview.Dirt     // what the worker must read again

	// Its worker. While there is something to do, a goroutine has it: it takes it (Wake) and hands it back (Rest).

	idle  Worker      // nil: a goroutine has it, or had it when the pod was dropped
	again bool        // something changed since that goroutine began its sync: it must make another one
	retry bool        // failed actions must be retried now: something that they lacked may have become available
	timer *time.Timer // wakes the worker; nil: none
}

// holding is a pod as it counts against the node's resources, and the version that it was computed from.
type holding struct {
	of *corev1.Pod // nil: not computed yet
	as *corev1.Pod
}

// source is where a pod comes from.
type source int

const (
	// No source has delivered the pod, but the runtime has something of it. If no source has it when all sources have
	// delivered their pods, it ends.
	sourceNone source = iota
	// The API has it.
	sourceAPI
	// It is a static pod: the directory of manifests has it, and it is reported through its mirror.
	sourceDirectory
	// The API no longer has it, or it only has remains on a disk. It ends, and nothing about it is written to the API.
	sourceGone
)

// Identity is what the runtime's labels say of a pod whose object the agent does not have.
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

// UID returns the pod's UID.
func (e *Entry) UID() types.UID { return e.uid }

// Report returns the handle by which the pod's status is written.
func (e *Entry) Report() *statusreport.Pod { return e.report }

// Name returns namespace/name, for messages.
func (e *Entry) Name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.key()
}

// key is Name without the lock. The caller holds mu.
func (e *Entry) key() string {
	if e.pod != nil {
		return e.pod.Namespace + "/" + e.pod.Name
	}
	return e.unclaimed.Namespace + "/" + e.unclaimed.Name
}

// Object returns the pod with its allocated resources; nil: only the runtime has it.
func (e *Entry) Object() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod
}

// Snapshot is what a sync reads of an entry, at one moment.
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

// Initialized reports whether this agent or an earlier one reported the pod as initialized.
func (s Snapshot) Initialized() bool {
	c := podstatus.Condition(s.Status, corev1.PodInitialized)
	if c == nil && s.Pod != nil {
		c = podstatus.Condition(s.Pod.Status, corev1.PodInitialized)
	}
	return c != nil && c.Status == corev1.ConditionTrue
}

// Snapshot returns what a sync reads of the entry.
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

// MarkDirty has a container read again, or everything if id is empty.
func (e *Entry) MarkDirty(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty.Change(id)
}

// TakeDirty returns what the worker must read again, and removes the marks.
func (e *Entry) TakeDirty() podview.Dirt {
	e.mu.Lock()
	defer e.mu.Unlock()
	dirty := e.dirty
	e.dirty = podview.Dirt{}
	return dirty
}

// Compare has everything read again if the runtime has other sandboxes and containers than the worker read last, or has
// them in other states. It reports whether anything must be read.
func (e *Entry) Compare(states map[string]int32) (stale bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle != nil && !maps.Equal(e.summary, states) { // if idle is nil, its worker is reading
		e.dirty.All = true
	}
	return e.dirty.All
}

// SawRuntime stores what the worker has read from the runtime, for the rest of the agent.
func (e *Entry) SawRuntime(summary map[string]int32, sandboxID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.summary = summary
	e.sandboxID = sandboxID
}

// Has reports whether a sandbox or container belongs to the pod, as the runtime said last.
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

// ReadySandbox returns the ID of the newest sandbox that is ready; empty: none is.
func (e *Entry) ReadySandbox() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sandboxID
}

// Wake hands out the worker, for which the caller starts a goroutine. It returns nil if there is nothing to start: if a
// goroutine has the worker already, that one makes another sync.
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

// Rest hands the worker back, unless it must go on, because it acted or was woken meanwhile. After the given time
// resync wakes it; zero: never. A dropped entry does not take its worker back.
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

// OrderRetry makes the worker's next sync retry failed actions.
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

// Drop ends the entry: it gets no worker any more.
func (e *Entry) Drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(PhaseDropped)
	if e.timer != nil {
		e.timer.Stop()
	}
}

// enter changes the phase. The caller holds mu.
func (e *Entry) enter(to Phase) {
	if to != e.phase && !slices.Contains(transitions[e.phase], to) {
		Broken(e.uid, fmt.Sprintf("it is %s, and becomes %s", e.phase, to))
	}
	e.phase = to
}

// check checks what must hold while the worker is between two syncs. The caller holds mu.
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
