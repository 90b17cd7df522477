package explain

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// A Live is a cluster that watches keep current, so that questions can be asked again and again, and changes are known
// when they happen. An Asker with a Live does not read the cluster for each question. It is safe for concurrent use.
//
// It watches what questions read: nodes and pods, budgets, namespaces and reports about NUMA nodes; objects about
// volumes from when a pod with volumes waits; objects that select pods, if the configuration needs them. Of a kind that
// may not be watched, it says what that means (Unseen), and tries again.
type Live struct {
	client *kube.Client

	changed chan struct{} // has a value after a change

	mu     sync.Mutex // guards what follows
	s      *snapshot
	nodes  map[string]*LiveNode
	on     map[string]map[scheduler.PodID]*LivePod // pods by their node
	report map[string]*topology.Object
	began  map[string]bool   // kinds that are watched, or about to be
	behind map[string]bool   // kinds whose first list has not come yet
	unseen map[string]Unseen // by kind
	dirty  map[string]bool   // nodes that changed since the last Take
	moved  map[string]bool   // pods that changed since the last Take, as namespace/name
	waits  bool              // what is said about waiting pods may have changed since the last Take
	start  func(source)      // starts a watch; set by Run
	volume bool              // objects about volumes are watched
}

// LiveNode is a node as it was seen last.
type LiveNode struct {
	metav1.ObjectMeta              // name, UID and version only
	Node              *corev1.Node // without images and managed fields; not to be changed

	fact scheduler.Node
}

// LivePod is the part of a pod that is kept. Its ObjectMeta has names, UID, version, labels and times only.
type LivePod struct {
	metav1.ObjectMeta
	Node     string // empty: it waits for a node
	Phase    corev1.PodPhase
	Ready    bool
	Restarts int32 // of all its containers together
	Priority int32
	Requests []scheduler.Amount

	fact   *scheduler.Pod // until it has been passed on
	waiter *corev1.Pod    // of a pod that waits: what groups say about it
}

// Changes is what changed between two calls of Take.
type Changes struct {
	Nodes []string        // nodes that changed, came or went, sorted
	Pods  map[string]bool // pods that changed, came or went, as namespace/name
	Waits bool            // what is said about waiting pods may be different
}

// NewLive returns a Live of the cluster that a asks about, before anything was seen. a asks it from then on.
func NewLive(a *Asker) *Live {
	l := &Live{
		client:  a.Client,
		changed: make(chan struct{}, 1),
		s:       a.newSnapshot(),
		nodes:   map[string]*LiveNode{},
		on:      map[string]map[scheduler.PodID]*LivePod{},
		report:  map[string]*topology.Object{},
		began:   map[string]bool{},
		behind:  map[string]bool{},
		unseen:  map[string]Unseen{},
		dirty:   map[string]bool{},
		moved:   map[string]bool{},
	}
	a.live = l
	return l
}

// Changed has a value after a change. It is for one reader, which calls Take.
func (l *Live) Changed() <-chan struct{} { return l.changed }

// Take returns what changed since it was called last.
func (l *Live) Take() Changes {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := Changes{Nodes: slices.Sorted(maps.Keys(l.dirty)), Pods: l.moved, Waits: l.waits}
	clear(l.dirty)
	l.moved = map[string]bool{}
	l.waits = false
	return c
}

// Behind returns the kinds of objects whose first list has not come yet, sorted.
func (l *Live) Behind() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.behind))
}

// look returns the cluster as it is now, with the pods on a node; empty: on none. It must be released.
func (l *Live) look(node string) (s *snapshot, release func()) {
	l.mu.Lock()
	s = l.s
	s.unseen, s.noClaims = nil, ""
	for _, name := range slices.Sorted(maps.Keys(l.unseen)) {
		s.unseen = append(s.unseen, l.unseen[name])
	}
	for _, of := range s.storage() {
		if name := resourceText(of.kind); of.claims && (l.behind[name] || l.unseen[name].What != "") {
			s.noClaims = strings.TrimPrefix(s.noClaims+", "+name, ", ")
		}
	}
	clear(s.placedOn)
	for id, p := range l.on[node] {
		s.placedOn[node] = append(s.placedOn[node], scheduler.Pod{
			ID:        id,
			Namespace: p.Namespace,
			Name:      p.Name,
			Priority:  p.Priority,
			Requests:  p.Requests,
		})
	}
	return s, l.mu.Unlock
}
