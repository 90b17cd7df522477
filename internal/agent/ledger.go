package agent

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// ledger keeps the admission.Node of this agent: what the node offers, and what the pods on it take of that. It is the
// only place where the agent translates pods for admission, and it translates each version of a pod once.
//
// A caller passes the pods that are on the node now. The ledger compares them with those of the previous call, and
// updates the admission.Node for each pod that came, changed or went. So it cannot miss a change. *Rejected:* to be
// notified of each change. What a pod takes depends on its object, its status, the runtime and the progress of its
// admission. These change in different places, and if one of them forgot to notify, the node would be overcommitted.
//
// Any goroutine may call its methods.
type ledger struct {
	resources allocatable.Resources                    // what the node offers by itself; never changes
	translate func(*corev1.Pod) candidate              // translateCandidate, or a test's
	desired   func(*corev1.Pod) (wanted scheduler.Pod) // translateDesired, or a test's

	mu   sync.Mutex // guards everything that follows
	node *admission.Node
	// offered means that node has an offer. seen and elsewhere are what it was translated from.
	seen      *corev1.Node
	elsewhere []string
	offered   bool
	// candidates are the pods that were judged since the last call of follow, each with its translation. The next call of
	// follow adds those that were admitted to node.
	candidates map[types.UID]judged
	// taken are the pods on node, each with what it takes.
	taken map[types.UID]*taken
	// wanted are the pods with pending resizes, each with what it requests.
	wanted map[types.UID]wanted
	calls  uint64 // number of calls of follow
}

// candidate is what admission reads of a pod that is to be admitted.
type candidate struct {
	admission.Applicant
	numa numa.Pod
}

// judged is a candidate and the version of the pod that it was translated from.
type judged struct {
	of *corev1.Pod
	as candidate
}

// taken is what a pod takes.
type taken struct {
	by   translate.PodResources // of the version of the pod that was translated
	as   scheduler.Pod          // ID, Requests and Ports only, since it is kept as long as the pod is on the node
	call uint64                 // the last call of follow that was passed the pod
}

// wanted is what a pod requests, and the version of the pod that it was translated from.
type wanted struct {
	of *corev1.Pod
	as scheduler.Pod
}

func newLedger(resources allocatable.Resources) *ledger {
	return &ledger{
		resources:  resources,
		translate:  translateCandidate,
		desired:    translateDesired,
		node:       admission.NewNode(scheduler.Node{}),
		candidates: map[types.UID]judged{},
		taken:      map[types.UID]*taken{},
	}
}

func translateCandidate(pod *corev1.Pod) candidate {
	return candidate{Applicant: translate.AdmissionApplicant(pod), numa: translate.NUMAPod(pod)}
}

// translateDesired leaves the status out, since what a pod has does not count for what it requests.
func translateDesired(pod *corev1.Pod) scheduler.Pod {
	asks := *pod
	asks.Status = corev1.PodStatus{}
	return translate.SchedulerPod(&asks)
}

// candidate returns the translation of a pod that is to be judged.
func (l *ledger) candidate(pod *corev1.Pod) candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.judge(pod)
}

// judge is candidate without the lock. The caller holds mu.
func (l *ledger) judge(pod *corev1.Pod) candidate {
	c := l.candidates[pod.UID]
	if c.of != pod {
		c = judged{of: pod, as: l.translate(pod)}
		l.candidates[pod.UID] = c
	}
	return c.as
}

// check judges a pod, with the other pods on the node. It adds to basis what it read.
func (l *ledger) check(
	pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node, elsewhere []string, basis *admission.Basis,
) *admission.Rejection {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.judge(pod)
	l.follow(others, node, elsewhere)
	l.candidates[pod.UID] = judged{of: pod, as: asked}
	l.node.AddTo(basis, asked.Pod)
	return l.node.Check(asked.Pod)
}

// preempt chooses the occupants that must end so that a pod fits.
func (l *ledger) preempt(
	pod *corev1.Pod, others []*corev1.Pod, occupants []admission.Occupant, node *corev1.Node, elsewhere []string,
) (admission.Preemption, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.judge(pod)
	l.follow(others, node, elsewhere)
	l.candidates[pod.UID] = judged{of: pod, as: asked}
	return l.node.Preempt(asked.Applicant, occupants)
}

// resizes returns the verdicts on requests. asked has one Resize for each request, of which the caller has filled in
// everything except Want and Has.
func (l *ledger) resizes(
	requests []allocation.Request, asked []admission.Resize, holders []*corev1.Pod, node *corev1.Node, elsewhere []string,
) []admission.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow(holders, node, elsewhere)
	pending := make(map[types.UID]wanted, len(requests))
	for i, request := range requests {
		uid := request.Desired.UID
		w := l.wanted[uid]
		if w.of != request.Desired {
			w = wanted{of: request.Desired, as: l.desired(request.Desired)}
		}
		pending[uid] = w
		asked[i].Want = w.as
		asked[i].Has = l.has(request.Allocated)
	}
	l.wanted = pending
	return l.node.Resizes(asked)
}

// has returns what a pod has. The pod may have ended, and then it is not on node. The caller holds mu.
func (l *ledger) has(pod *corev1.Pod) scheduler.Pod {
	if t := l.taken[pod.UID]; t != nil && t.by.SameAs(pod) {
		return t.as
	}
	return l.translate(pod).Pod
}

// follow updates node to the present offer, with exactly these pods on it. The caller holds mu.
func (l *ledger) follow(now []*corev1.Pod, node *corev1.Node, elsewhere []string) {
	if !l.offered || l.seen != node || !slices.Equal(l.elsewhere, elsewhere) {
		l.offered = true
		l.seen = node
		l.elsewhere = elsewhere
		l.node.Offer(translate.AdmissionNode(l.resources, node, elsewhere))
	}
	l.calls++
	for _, pod := range now {
		l.enter(pod)
	}
	clear(l.candidates) // the admitted ones are on node now
	for uid, t := range l.taken {
		if t.call != l.calls {
			l.node.Remove(t.as.ID)
			delete(l.taken, uid)
		}
	}
}

// enter adds a pod to node, or updates it. The caller holds mu.
func (l *ledger) enter(pod *corev1.Pod) {
	if t := l.taken[pod.UID]; t != nil && t.by.SameAs(pod) {
		t.call = l.calls
		return
	}
	t := &taken{by: translate.PodResourcesOf(pod), call: l.calls}
	c, known := l.candidates[pod.UID]
	if !known || !t.by.SameAs(c.of) {
		c.as = l.translate(pod)
	}
	t.as = scheduler.Pod{ID: c.as.Pod.ID, Requests: c.as.Pod.Requests, Ports: c.as.Pod.Ports}
	l.taken[pod.UID] = t
	l.node.Set(t.as)
}
