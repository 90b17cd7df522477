package pods

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// letting is how far a pod has come that is not admitted yet.
type letting int

const (
	outside    letting = iota // it holds nothing
	consulting                // it holds nothing: device plugins are to say first what goes well together
	inside                    // it holds what it asks for; whether device plugins give it what it needs is still open
)

// entry is one pod as this node knows it. Its runtime view and Life belong to the worker; the rest is guarded by mu.
type entry struct {
	uid    types.UID
	report *statusreport.Pod // how far its status is written

	life     *podlife.Life // worker only
	view     view          // worker only
	prepared bool          // worker only: volumes were set up by this process
	handler  string        // worker only: the runtime's, of the newest sandbox
	noted    string        // worker only: what the pod was granted when its newest sandbox was made (noteOf)
	released bool          // worker only: volumes and cgroup were given back
	seen     time.Time     // worker only: when it was first looked at
	up       bool          // worker only: a sandbox of it was ready
	// unmountable is worker only: what of the pod's volumes this agent does not mount, as found when they were set up;
	// empty: nothing.
	unmountable string
	size        resize.Size // worker only: of the pod's own cgroup; unknown until it was made or read

	mu           sync.Mutex
	pod          *corev1.Pod // what it should be, with the resources it was granted; replaced, never written to. nil: only the runtime knows the pod
	desired      *corev1.Pod // pod as the API has it: with the resources it asks for
	granted      *allocation // nil: not let in yet, or static
	pending      *podlife.PendingResize
	pendingSince unit.Wall   // zero: nothing pends
	resizing     int64       // generation of the resize that is being performed; zero: none
	static       bool        // from the static directory; reported through its mirror
	mirror       *corev1.Pod // the API's image of a static pod
	gone         bool        // its object is gone: end it without asking anybody
	let          letting     // how far it has come before it is admitted
	admitted     bool
	hold         *podlife.Hold // it is not let in yet; nil: nothing is waited for
	held         string        // for what users were told last that it waits
	stop         *podlife.StopOrder
	remains      bool             // it was evicted by this process, and what it has on disks is not removed yet
	status       corev1.PodStatus // as last computed
	reported     bool             // Running was reported at least once (metrics)

	busy      bool
	again     bool
	retry     bool // something the pod may have waited for has appeared
	forgotten bool
	interrupt context.CancelFunc  // of what the worker does, where that may be interrupted
	hooks     map[string]*hookRun // of postStart that have not succeeded, by container id
	waits     map[string]func()   // for ends of containers that are being stopped: to be called when the process is gone
	timer     *time.Timer
	fallback  identity // who it is when pod is nil
	dirty     dirt     // what of the runtime's view must be re-read
	sandboxID string   // of the current sandbox; empty: none
	summary   map[string]int32
}

// identity is what the runtime's labels say of a pod whose object we do not have.
type identity struct {
	namespace, name string
	grace           time.Duration
}

// dirt marks what to re-read before the next step.
type dirt struct {
	all     bool
	changed map[string]bool // containers
	exited  map[string]bool // containers and sandboxes whose first process is gone
}

func newEntry(uid types.UID, backoffMax time.Duration) *entry {
	e := &entry{
		uid:   uid,
		life:  podlife.New(backoffMax),
		view:  newView(),
		hooks: map[string]*hookRun{},
		waits: map[string]func(){},
	}
	e.report = statusreport.NewPod(uid, e.toReport)
	return e
}

// name is namespace/name for messages. Caller does not hold mu.
func (e *entry) name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod != nil {
		return e.pod.Namespace + "/" + e.pod.Name
	}
	return e.fallback.namespace + "/" + e.fallback.name
}

// soil marks a container (or, with an empty id, everything) for re-reading.
func (e *entry) soil(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id == "" {
		e.dirty.all = true
		return
	}
	e.dirty.changed = add(e.dirty.changed, id)
}

// set gives the entry its latest object and says whether it changed in a way that a worker must look at.
func (e *entry) set(pod *corev1.Pod, now unit.Instant) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.pod
	e.desired, e.pod = pod, e.granted.in(pod)
	if e.granted.meets(pod) {
		e.pending, e.pendingSince = nil, 0 // it has what it asks for: a wish that was taken back waits no more
	}
	if !e.static { // else the status is written to the mirror
		e.report.Seen(pod)
	}
	if pod.DeletionTimestamp != nil {
		e.orderStop(now, translate.DeletionGrace(pod), podlife.StopOrder{Remove: true})
	}
	return old == nil || old.ResourceVersion != pod.ResourceVersion
}

// toReport returns the object to write the pod's status to, and its latest status. A static pod has its mirror's; before
// the mirror exists there is nothing to write to. Statuses are replaced, never changed, so they may be shared.
func (e *entry) toReport() (object *corev1.Pod, status corev1.PodStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.pod == nil, e.gone, e.forgotten:
		return nil, e.status
	case e.static:
		return e.mirror, e.status
	}
	return e.pod, e.status
}

// vanish tells the entry that its object is gone.
func (e *entry) vanish(now unit.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	e.orderStop(now, e.grace(), podlife.StopOrder{Remove: true})
}

// orderStop ends the pod within grace. A later order may shorten the time that is left, never stretch it, and may turn
// a pod that was to keep its containers into one that goes. Caller holds mu.
func (e *entry) orderStop(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	order.Deadline = now.Add(grace)
	if e.stop == nil {
		e.stop = &order
		e.interrupted()
		for id := range e.hooks {
			e.endHook(id)
		}
		return
	}
	merged := *e.stop
	merged.Remove = merged.Remove || order.Remove
	if order.Deadline < merged.Deadline {
		merged.Deadline = order.Deadline
		e.interrupted()
	}
	e.stop = &merged
}

// interrupted cancels what the worker is doing, if that may be. Caller holds mu.
func (e *entry) interrupted() {
	if e.interrupt != nil {
		e.interrupt()
	}
}

// arm has a stop order, or one that leaves less time, cancel what the worker does from here on, until disarm. It arms
// nothing and returns false where such an order has come since the worker decided what to do; known is the order that
// it knew then.
func (e *entry) arm(known *podlife.StopOrder, cancel context.CancelFunc) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil && (known == nil || e.stop.Deadline < known.Deadline) {
		return false
	}
	e.interrupt = cancel
	return true
}

func (e *entry) disarm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interrupt = nil
}

// grace is the pod's own termination grace. Caller holds mu.
func (e *entry) grace() time.Duration {
	if e.pod == nil {
		return e.fallback.grace
	}
	if e.pod.DeletionGracePeriodSeconds != nil {
		return translate.DeletionGrace(e.pod)
	}
	return translate.SpecGrace(e.pod)
}

func wallOf(t *metav1.Time) unit.Wall {
	if t == nil {
		return 0
	}
	return unit.WallOf(t.Time)
}

// holds returns the pod if it holds resources of the node: it was let in, or the runtime has something of it, and it
// has not ended.
func (e *entry) holds() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || translate.PodlifeTerminal(e.pod) != "" || e.status.Phase == corev1.PodFailed || e.status.Phase == corev1.PodSucceeded {
		return nil
	}
	if e.let == inside || e.admitted || len(e.summary) > 0 {
		return e.holding()
	}
	return nil
}

// remaining reports whether the runtime has something of the pod.
func (e *entry) remaining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.summary) > 0
}

func (e *entry) takeRetry() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	retry := e.retry
	e.retry = false
	return retry
}
