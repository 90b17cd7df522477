package explain

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
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

// probeTime is how long it takes until a kind that may not be watched is tried again. Chosen: rights change rarely.
const probeTime = time.Minute

// Run watches until ctx ends. Without the right to watch nodes and pods it returns an error at once.
func (l *Live) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, k := range []kube.Kind{kube.Nodes, kube.Pods} {
		if err := l.mayWatch(ctx, k); err != nil {
			return fmt.Errorf("watch %s: %w", resourceText(k), withRole(err))
		}
	}
	l.mu.Lock()
	l.start = func(of source) {
		name := resourceText(of.kind)
		if l.began[name] {
			return
		}
		l.began[name], l.behind[name] = true, true
		all.Go(func() { l.follow(ctx, of) })
	}
	l.behind[resourceText(kube.Nodes)], l.behind[resourceText(kube.Pods)] = true, true
	for _, of := range l.s.others(func(string, *topology.Node) {}) {
		l.start(l.marking(of))
	}
	if slices.ContainsFunc(l.s.a.Config.Profiles, hasHardDefaults) {
		for _, of := range l.s.groupsOfPods() {
			l.start(l.marking(of))
		}
	}
	l.mu.Unlock()
	all.Go(func() { l.watchNodes(ctx) })
	all.Go(func() { l.watchPods(ctx) })
	<-ctx.Done()
	return nil
}

// mayWatch asks whether objects of a kind may be listed. A server that does not answer is no objection: the watch waits
// for it.
func (l *Live) mayWatch(ctx context.Context, k kube.Kind) error {
	err := l.client.List(ctx, k, "", metav1.ListOptions{Limit: 1}, k.NewList())
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return nil
	}
	return err
}

// follow watches a kind of objects, as soon as it may.
func (l *Live) follow(ctx context.Context, of source) {
	name := resourceText(of.kind)
	for {
		err := l.mayWatch(ctx, of.kind)
		l.update(func() {
			delete(l.unseen, name)
			if err != nil && !(of.may && apierrors.IsNotFound(err)) {
				l.unseen[name] = Unseen{What: name, Error: err.Error(), Effect: of.effect}
			}
			if err != nil {
				delete(l.behind, name)
			}
			l.waits = true
		})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeTime):
		}
	}
	see := func(obj any) { l.update(func() { of.see(obj.(runtime.Object)) }) }
	_, controller := l.client.Informer(of.kind, kube.Selection{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, after any) { see(after) },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[metav1.Object](obj); ok {
				l.update(func() { of.gone(o.GetNamespace(), o.GetName()) })
			}
		},
	})
	l.runUntilSynced(ctx, name, controller)
}

// runUntilSynced runs a watch until ctx ends, and notes when its first list is complete.
func (l *Live) runUntilSynced(ctx context.Context, name string, controller cache.Controller) {
	var note sync.WaitGroup
	note.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			l.update(func() { delete(l.behind, name) })
		}
	})
	controller.RunWithContext(ctx)
	note.Wait()
}

// marking returns of with handlers that note what changed.
func (l *Live) marking(of source) source {
	see, gone := of.see, of.gone
	reports := of.kind.Resource == kube.Topologies.Resource
	of.see = func(o runtime.Object) {
		see(o)
		if l.waits = true; reports {
			name := o.(*topology.Object).Name
			l.report[name], l.dirty[name] = o.(*topology.Object), true
		}
	}
	of.gone = func(namespace, name string) {
		gone(namespace, name)
		if l.waits = true; reports {
			delete(l.report, name)
			l.dirty[name] = true
		}
	}
	return of
}

// update changes the state, and tells if there is something to Take, or another kind of objects was listed.
func (l *Live) update(change func()) {
	l.mu.Lock()
	behind := len(l.behind)
	change()
	news := len(l.dirty)+len(l.moved) > 0 || l.waits || len(l.behind) != behind
	l.mu.Unlock()
	if !news {
		return
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *Live) watchNodes(ctx context.Context) {
	see := func(obj any) {
		n := keepNode(obj).(*LiveNode)
		l.update(func() { l.nodeSeen(n) })
	}
	_, controller := l.client.Informer(kube.Nodes, kube.Selection{Keep: keepNode}, cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, after any) { see(after) },
		DeleteFunc: func(obj any) {
			if n, ok := kube.Deleted[*LiveNode](obj); ok {
				l.update(func() { l.nodeGone(n.Name) })
			}
		},
	})
	l.runUntilSynced(ctx, resourceText(kube.Nodes), controller)
}

// keepNode converts the object of a node before it is stored.
func keepNode(obj any) any {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj
	}
	n := &LiveNode{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Node:       node,
		fact:       translate.SchedulerNode(node),
	}
	node.ManagedFields, node.Status.Images = nil, nil
	return n
}

func (l *Live) nodeSeen(n *LiveNode) {
	before := l.nodes[n.Name]
	l.nodes[n.Name] = n
	if before == nil || !reflect.DeepEqual(before.fact, n.fact) {
		l.s.world.NodeSeen(atRead, n.fact)
		l.waits = true
	}
	if before == nil || !sameToReaders(before.Node, n.Node) {
		l.dirty[n.Name] = true
	}
}

// sameToReaders reports whether two versions of a node differ only in what nobody reads: the times of heartbeats.
func sameToReaders(a, b *corev1.Node) bool {
	if !reflect.DeepEqual(a.Spec, b.Spec) || !reflect.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) ||
		!reflect.DeepEqual(a.Status.Capacity, b.Status.Capacity) || a.Status.NodeInfo != b.Status.NodeInfo ||
		!maps.Equal(a.Labels, b.Labels) {
		return false
	}
	return slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, func(x, y corev1.NodeCondition) bool {
		x.LastHeartbeatTime, y.LastHeartbeatTime = metav1.Time{}, metav1.Time{}
		return x == y
	})
}

func (l *Live) nodeGone(name string) {
	delete(l.nodes, name)
	l.s.world.NodeGone(atRead, name)
	l.dirty[name], l.waits = true, true
}

func (l *Live) watchPods(ctx context.Context) {
	see := func(obj any) {
		p := keepPod(obj).(*LivePod)
		l.update(func() { l.livePodSeen(p) })
	}
	gone := func(p *LivePod) { l.update(func() { l.livePodGone(p) }) }
	sel := kube.Selection{Fields: kube.LivePods, Keep: keepPod}
	_, controller := l.client.Informer(kube.Pods, sel, cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(before, after any) {
			if old, ok := before.(*LivePod); ok && old.UID != after.(metav1.Object).GetUID() {
				gone(old) // deleted and created again while the watch was broken
			}
			see(after)
		},
		DeleteFunc: func(obj any) {
			if p, ok := kube.Deleted[*LivePod](obj); ok {
				gone(p)
			}
		},
	})
	l.runUntilSynced(ctx, resourceText(kube.Pods), controller)
}

// keepPod converts the object of a pod before it is stored.
func keepPod(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	fact := translate.SchedulerPod(pod)
	p := &LivePod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Labels: pod.Labels,
		},
		Node:     pod.Spec.NodeName,
		Phase:    pod.Status.Phase,
		Priority: fact.Priority,
		Requests: fact.Requests,
		fact:     &fact,
	}
	if c := conditionOf(pod, corev1.PodReady); c != nil {
		p.Ready = c.Status == corev1.ConditionTrue
	}
	for i := range pod.Status.ContainerStatuses {
		p.Restarts += pod.Status.ContainerStatuses[i].RestartCount
	}
	if p.Node == "" {
		p.waiter = &corev1.Pod{ObjectMeta: p.ObjectMeta, Status: corev1.PodStatus{Conditions: pod.Status.Conditions}}
	}
	return p
}

func (l *Live) livePodSeen(p *LivePod) {
	if p.fact == nil {
		return // it was passed on already
	}
	fact := *p.fact
	p.fact = nil
	l.moved[p.Namespace+"/"+p.Name] = true
	id := fact.ID
	switch {
	case fact.Node != "":
		if l.s.waiting[id] != nil {
			delete(l.s.waiting, id)
			l.waits = true
		}
		if l.on[fact.Node] == nil {
			l.on[fact.Node] = map[scheduler.PodID]*LivePod{}
		}
		if before := l.on[fact.Node][id]; before == nil || !slices.Equal(before.Requests, p.Requests) ||
			!maps.Equal(before.Labels, p.Labels) || before.DeletionTimestamp.IsZero() != p.DeletionTimestamp.IsZero() {
			l.s.world.PodSeen(atRead, fact)
			l.waits = true
		}
		l.on[fact.Node][id] = p
		l.dirty[fact.Node] = true
	case fact.Deleting:
		l.livePodGone(p)
	default:
		if fact.Nominated != "" {
			l.s.world.PodSeen(atRead, fact)
		} else if before := l.s.waiting[id]; before != nil && before.fact.Nominated != "" {
			l.s.world.PodGone(atRead, id)
		}
		l.s.waiting[id] = &waitingPod{pod: p.waiter, fact: fact}
		if l.waits = true; len(fact.Mounts) > 0 && !l.volume && l.start != nil {
			l.volume = true
			for _, of := range l.s.storage() {
				l.start(l.marking(of))
			}
		}
	}
}

func (l *Live) livePodGone(p *LivePod) {
	id := scheduler.PodID(p.UID)
	l.moved[p.Namespace+"/"+p.Name] = true
	delete(l.s.waiting, id)
	l.s.world.PodGone(atRead, id)
	if p.Node != "" {
		if delete(l.on[p.Node], id); len(l.on[p.Node]) == 0 {
			delete(l.on, p.Node)
		}
		l.dirty[p.Node] = true
	}
	l.waits = true
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

// A LiveRoom is a node with what it has for pods.
type LiveRoom struct {
	Node *corev1.Node // not to be changed
	Load []LiveLoad   // cpu, memory and pods first, then the others by name
}

// LiveLoad is a Load in base units.
type LiveLoad struct {
	Resource                         string
	Capacity, Allocatable, Requested int64
}

// Room returns a node, with what its pods request. known is false if there is no such node.
func (l *Live) Room(name string) (out LiveRoom, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return LiveRoom{}, false
	}
	room, known := l.s.world.Placer().RoomOn(name)
	if !known {
		return LiveRoom{}, false
	}
	out.Node = n.Node
	capacity, podsMax := capacityOf(n.Node)
	add := func(resource string, allocatable, requested int64) {
		out.Load = append(out.Load, LiveLoad{
			Resource:    resource,
			Capacity:    capacity[resource],
			Allocatable: allocatable,
			Requested:   requested,
		})
	}
	for _, first := range []string{scheduler.CPU, scheduler.Memory} {
		for _, r := range room.Resources {
			if r.Resource == first {
				add(r.Resource, r.Allocatable, r.Requested)
			}
		}
	}
	capacity[scheduler.Pods] = podsMax
	add(scheduler.Pods, room.PodsMax, room.Pods)
	for _, r := range room.Resources {
		if r.Resource != scheduler.CPU && r.Resource != scheduler.Memory {
			add(r.Resource, r.Allocatable, r.Requested)
		}
	}
	return out, true
}

// capacityOf returns a node's capacity in base units.
func capacityOf(node *corev1.Node) (capacity map[string]int64, podsMax int64) {
	full := *node
	full.Status.Allocatable = node.Status.Capacity
	of := translate.SchedulerNode(&full)
	capacity = map[string]int64{}
	for _, c := range of.Allocatable {
		capacity[c.Resource] = c.Value
	}
	return capacity, of.PodsMax
}

// PodsOn returns the pods on a node, by namespace and name.
func (l *Live) PodsOn(node string) []*LivePod {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Collect(maps.Values(l.on[node]))
	slices.SortFunc(out, func(a, b *LivePod) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// Report returns what a node's agent published about its NUMA nodes; nil: nothing. It is not to be changed.
func (l *Live) Report(node string) *topology.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report[node]
}

// look returns the cluster as it is now, with the pods on the nodes in keep. It must be released.
func (l *Live) look(keep []string) (s *snapshot, release func()) {
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
	for _, node := range keep {
		for id, p := range l.on[node] {
			s.placedOn[node] = append(s.placedOn[node], scheduler.Pod{
				ID:        id,
				Namespace: p.Namespace,
				Name:      p.Name,
				Priority:  p.Priority,
				Requests:  p.Requests,
			})
		}
	}
	return s, l.mu.Unlock
}

// A Trial is what the core says about copies of a pod that nobody created.
type Trial struct {
	Verdict
	// Placed is on which nodes the copies would be placed, one after the other, if they came now.
	Placed []TrialPlace `json:"placed,omitempty"`
	Copies int          `json:"copies"` // how many were asked about
	Fit    int          `json:"fit"`    // how many of them get a node
	Notes  []string     `json:"notes,omitempty"`
	Unseen []Unseen     `json:"unseen,omitempty"`
}

// TrialPlace is how many copies a node gets.
type TrialPlace struct {
	Node  string `json:"node"`
	Count int    `json:"count"`
}

// Try asks where copies of a pod would be placed. Nothing is created. The Verdict is about the first copy that gets no
// node, or else about the first.
func (l *Live) Try(pod *corev1.Pod, copies int) Trial {
	s, release := l.look(nil)
	defer release()
	fact := translate.SchedulerPod(pod)
	fact.ID, fact.Node = "", ""
	out := Trial{Copies: copies, Unseen: s.unseen}
	out.Notes = s.notes(map[scheduler.PodID]*waitingPod{"": {fact: fact}})
	if out.NotJudged = s.notJudged(&fact); out.NotJudged != "" {
		return out
	}
	first := s.world.Ask(fact)
	out.Verdict = verdictOf(&first)
	at := map[string]int{}
	for i := range copies {
		one := fact
		one.ID = scheduler.PodID(fmt.Sprintf("what if %d", i))
		node := best(s.world.Placer(), one)
		if node == "" {
			answer := s.world.Ask(one)
			out.Verdict = verdictOf(&answer)
			break
		}
		one.Node = node
		s.world.PodSeen(atRead, one)
		defer s.world.PodGone(atRead, one.ID)
		at[node]++
		out.Fit++
	}
	for _, node := range slices.Sorted(maps.Keys(at)) {
		out.Placed = append(out.Placed, TrialPlace{Node: node, Count: at[node]})
	}
	slices.SortStableFunc(out.Placed, func(a, b TrialPlace) int { return b.Count - a.Count })
	return out
}

// best returns the node with the best score for a pod, of equal ones the first by name; empty: it fits on none.
func best(p *scheduler.Placer, pod scheduler.Pod) string {
	scores := p.Scores(pod)
	if len(scores) == 0 {
		for _, v := range p.Verdicts(pod) {
			if v.Plugin == "" {
				return v.Node
			}
		}
		return ""
	}
	most := scores[0]
	for _, s := range scores[1:] {
		if s.Total > most.Total {
			most = s
		}
	}
	return most.Node
}

// TryAllocatable asks how many waiting pods a node would take, each alone, if it had other amounts allocatable.
func (l *Live) TryAllocatable(node string, amounts map[string]int64) (waiting int, takes []string) {
	s, release := l.look(nil)
	defer release()
	n := l.nodes[node]
	if n == nil {
		return 0, nil
	}
	changed := n.fact
	changed.Allocatable = slices.Clone(changed.Allocatable)
	for i := range changed.Allocatable {
		if value, has := amounts[changed.Allocatable[i].Resource]; has {
			changed.Allocatable[i].Value = value
		}
	}
	defer s.world.NodeSeen(atRead, n.fact)
	s.world.NodeSeen(atRead, changed)
	var facts []scheduler.Pod
	for _, p := range s.waiting {
		if s.notJudged(&p.fact) == "" {
			facts = append(facts, p.fact)
		}
	}
	_, fit := s.world.MissesOn(node, facts)
	for _, p := range fit {
		takes = append(takes, p.Namespace+"/"+p.Name)
	}
	slices.Sort(takes)
	return len(s.waiting), takes
}
