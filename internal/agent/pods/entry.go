package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// entry is what the agent knows of one pod and any goroutine may ask or change: by its methods, each of which locks mu
// for as long as it takes, and calls nothing that locks anything else. What the pod's worker alone knows is in worker.
//
// The methods stand in five files: entry.go (what others ask, and who has its worker), entry_source.go (what the sources
// say), entry_admission.go (hold, admission, resources), entry_end.go (stop order, hooks, exits), entry_status.go (what
// is reported). Nothing else touches mu or a field below it (TestOnlyEntryTouchesWhatItsLockGuards).
type entry struct {
	uid    types.UID         // never changes
	report *statusreport.Pod // how far its status is written; has a lock of its own, taken after mu

	mu sync.Mutex // guards everything that follows

	// Which pod it is. Written by the sources (claim, set, vanish), at admission (admit) and by resizes (rule).

	pod       *corev1.Pod // what it should be, with its allocated resources; replaced, not written to. nil: see unclaimed
	desired   *corev1.Pod // the same with the resources that it asks for, as its source has it. nil as pod is
	mirror    *corev1.Pod // the API's image of a static pod; nil: not seen, or not static
	source    source      // who asks for it
	unclaimed identity    // who it is where no source has it (pod is nil): what the runtime's labels say

	// How far it has come (see phase), and what it waits for. Written by the worker.

	phase phase
	hold  *podlife.Hold // why nothing of it is started, decided in each sync; nil: nothing keeps it
	held  string        // the reason of a hold for which users had an Event last; kept when the hold is over

	// Its resources. Written at admission (admit), by resizes (rule), and by versions that ask for what it has (set).

	allocated    *allocation.Allocation // what the node last judged to fit; nil: not admitted yet, or static
	pending      *podlife.PendingResize // why what it asks for is not allocated; nil: it is, or was not judged yet
	pendingSince unit.Wall              // since when, for this reason; zero: nothing is pending
	resizing     int64                  // generation of the resize that is being carried out; zero: none

	// Its end. Written by all who order it (orderStop, evict, reject); the order is replaced, never written to.

	stop      *podlife.StopOrder     // nil: it is not to end. Once set it stays, and its deadline only comes nearer
	leftovers bool                   // it was evicted by this process, and what it has on disks is not removed yet
	interrupt context.CancelFunc     // cancels what the worker does, where a stop order may; nil: it may not
	hooks     map[string]*hookRun    // of postStart that have not succeeded, by container id
	preStops  map[string]*preStopRun // that were begun before the container's turn to stop, by container id
	exits     map[string]func()      // called when the process of a container that is being stopped is gone, by its id

	// What is reported of it. Written by the worker (setStatus).

	status  corev1.PodStatus // as computed last; its phase is empty before the first time. Replaced, not written to
	started bool             // status was Running once: for the metrics of starts

	// What the runtime has of it. summary and sandboxID are written by the worker (sawRuntime), dirty by all who hear
	// of a change (markDirty, exited, compare).

	summary   map[string]int32 // state of its sandboxes and containers, by id, as the worker read them last
	sandboxID string           // of the newest sandbox that is ready; empty: none
	dirty     podview.Dirt     // what the worker is to read anew

	// Its worker. A goroutine takes it (wake) and hands it back (rest); there is one while there is something to do.

	idle  *worker     // nil: a goroutine has it, or had it when the pod was dropped
	again bool        // something happened since that goroutine began its sync: it is to look again
	retry bool        // what failed is to be tried again at once: something it may lack has appeared
	timer *time.Timer // wakes the worker; nil: nothing does
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

// identity is what the runtime's labels say of a pod whose object we do not have.
type identity struct {
	namespace, name string
	grace           time.Duration
}

// name is namespace/name for messages.
func (e *entry) name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.key()
}

// key is namespace/name. Caller holds mu.
func (e *entry) key() string {
	if e.pod != nil {
		return key(e.pod)
	}
	return e.unclaimed.namespace + "/" + e.unclaimed.name
}

// object is the pod with the resources that are allocated to it; nil: only the runtime knows it.
func (e *entry) object() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod
}

func wallOf(t *metav1.Time) unit.Wall {
	if t == nil {
		return 0
	}
	return unit.WallOf(t.Time)
}

// snapshot is what a sync has to know of an entry, as of one moment.
type snapshot struct {
	pod      *corev1.Pod
	status   corev1.PodStatus
	phase    phase
	stop     *podlife.StopOrder
	hold     *podlife.Hold
	resizing podlife.Resizing
	hooks    map[string]podlife.HookState // of containers whose postStart hooks have not succeeded
	preStops map[string]bool              // containers whose preStop hooks were begun before their turn to stop
}

// initialized reports whether the pod was reported as initialized, by this agent or one before it.
func (s snapshot) initialized() bool {
	c := podstatus.Condition(s.status, corev1.PodInitialized)
	if c == nil && s.pod != nil {
		c = podstatus.Condition(s.pod.Status, corev1.PodInitialized)
	}
	return c != nil && c.Status == corev1.ConditionTrue
}

func (e *entry) snapshot() snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := snapshot{
		pod:      e.pod,
		status:   e.status,
		phase:    e.phase,
		stop:     e.stop,
		hold:     e.hold,
		resizing: podlife.Resizing{Generation: e.resizing, Pending: e.pending},
		hooks:    map[string]podlife.HookState{},
		preStops: map[string]bool{},
	}
	for id, h := range e.hooks {
		s.hooks[id] = h.state
	}
	for id := range e.preStops {
		s.preStops[id] = true
	}
	return s
}

// markDirty has a container (or, with an empty id, everything) read anew.
func (e *entry) markDirty(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty.Change(id)
}

// takeDirty is what the worker is to read anew; it is marked no more.
func (e *entry) takeDirty() podview.Dirt {
	e.mu.Lock()
	defer e.mu.Unlock()
	dirty := e.dirty
	e.dirty = podview.Dirt{}
	return dirty
}

// compare has everything read anew where the runtime has other sandboxes and containers than the worker read last, or
// has them in other states, and reports whether anything is to be read.
func (e *entry) compare(states map[string]int32) (stale bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle != nil && !maps.Equal(e.summary, states) { // else its worker is just at it
		e.dirty.All = true
	}
	return e.dirty.All
}

// sawRuntime is what the worker knows of the runtime, for the rest of the agent.
func (e *entry) sawRuntime(summary map[string]int32, sandboxID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.summary = summary
	e.sandboxID = sandboxID
}

// has reports whether the runtime said last that a sandbox or container is of the pod.
func (e *entry) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, has := e.summary[id]
	return has
}

// inRuntime reports whether the runtime has something of the pod.
func (e *entry) inRuntime() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.summary) > 0
}

// readySandbox is the id of the newest sandbox that is ready; empty: none.
func (e *entry) readySandbox() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sandboxID
}

// wake hands out the worker, for a goroutine of its own. nil: there is nothing to start; if a goroutine has the worker,
// it looks again.
func (e *entry) wake() *worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == phaseDropped {
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

// rest hands the worker back, unless it is to go on: because it did something, or was woken meanwhile. One that rests
// is woken by resync after a while; zero: by nothing. An entry that was dropped needs no worker any more.
func (e *entry) rest(w *worker, acted bool, after time.Duration, resync func()) (goOn bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == phaseDropped {
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

// handBack hands the worker back without a sync: a new one, or when the agent ends.
func (e *entry) handBack(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = w
}

// orderRetry has the worker's next sync try again what failed.
func (e *entry) orderRetry() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retry = true
}

func (e *entry) takeRetry() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	retry := e.retry
	e.retry = false
	return retry
}

// drop is the end of the entry: no worker looks at it any more.
func (e *entry) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(phaseDropped)
	if e.timer != nil {
		e.timer.Stop()
	}
}

// hookRun is a postStart hook. It is a user's code, and may take for ever: it has a goroutine of its own, while the
// pod's worker goes on and core/podlife starts nothing that comes after it.
type hookRun struct {
	start  podlife.Action     // that made the container; never changes
	cancel context.CancelFunc // never changes
	state  podlife.HookState  // guarded by entry.mu
	err    error              // of one that failed; nil once it was reported. Guarded by entry.mu
}

// enter brings the entry into a phase. Caller holds mu.
func (e *entry) enter(to phase) {
	if to != e.phase && !slices.Contains(transitions[e.phase], to) {
		broken(e.uid, fmt.Sprintf("it is %s, and becomes %s", e.phase, to))
	}
	e.phase = to
}

// check compares an entry whose worker is between two syncs with what holds then. Caller holds mu.
func (e *entry) check() {
	judged := e.phase == phaseAdmitted || e.phase == phaseRejected
	for _, c := range [...]struct {
		what  string
		wrong bool
	}{
		{"its admission has no end", e.phase == phaseConsulting || e.phase == phasePreparing},
		{"it is rejected, and no order says why", e.phase == phaseRejected && (e.stop == nil || !e.stop.Rejected)},
		{"no source has it, and yet it was judged", e.pod == nil && judged},
		{"no source has it, and yet it is held", e.pod == nil && e.hold != nil},
		{"it has an object, and nothing that it asks for", (e.pod == nil) != (e.desired == nil)},
		{"its resize is judged, and nothing is allocated", e.allocated == nil && (e.pending != nil || e.resizing != 0)},
		{"no source has its object", e.pod != nil && e.source == sourceNone},
		{"it was evicted, and is not to end", e.stop == nil && e.leftovers},
	} {
		if c.wrong {
			broken(e.uid, c.what)
		}
	}
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// preStopRun is a preStop hook that was begun before the turn of its container to stop has come.
type preStopRun struct {
	cancel context.CancelFunc // never changes
	done   chan struct{}      // closed when the hook has ended; never changes
}
