package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// row is the index of a node in the columns.
type row = rows.Row

const noRow = rows.None

// cluster is all state of the scheduler's decisions: the state that rules read, the classes and demands of pods, and
// the results of decisions, that is pods that are assumed, waiting or nominated. One goroutine may use it.
type cluster struct {
	state
	profiles map[string]*profile
	// hardDefaults says that some profile has default spread constraints that are hard.
	hardDefaults bool
	// extenderScores is what extenders add to the score of each row. It is set only while a pod is placed whose
	// extenders have answered; otherwise it is nil.
	extenderScores map[row]int64

	// By encoded specification; see encode.go.
	classes map[string]*class
	groups  groups
	demands demands
	tables  []*demand       // the demands that have tables, oldest table first
	fits    map[string]*fit // by fitKey

	// The pods on rows: bound or assumed.
	pods map[PodID]*placedPod
	gone struct{ pods, classes int } // entries deleted from pods and classes since shrink.Map last copied each
	// atPriority is how many pods on rows have each priority.
	atPriority  map[int32]int
	placedCount uint64 // counts pods put on rows, to order them
	// decisions counts calls of choose.
	decisions uint64
	searched  int                   // the row at which the next sample of nodes begins
	assumed   int                   // how many pods on rows are assumed
	podsMost  int                   // the most pods that a row ever had
	plans     map[PodID]*VolumePlan // for the volumes of assumed pods

	// The waiting pods.
	waits waits
	// The nominated pods.
	nominations map[PodID]*nominated
	budgets     budgets
	// allowances lists rows for which the costs of preemption changed although nothing on the row did: a budget allows
	// another number of disruptions for pods there, or a pod there has started, so that evicting it costs more.
	allowances rows.ChangeLog
	// withCosts has the demands that have costs.
	withCosts map[*demand]bool
	bounds    map[string]*costBounds // by boundsKey, or by the rounded requests
	tooLow    map[string]int         // by boundsKey: on how many rows the rounded bounds were too low

	// Working space: what it has between calls is not used.
	boundOrder  boundOrder
	rejected    [2]rows.Mask
	removed     []*placedPod
	below       []*placedPod
	allowed     []*placedPod
	known       []string // reasons of failures
	inputs      []any
	overAllowed []bool
	preemptible rows.Mask
	plain       struct {
		rows        []row
		alike       []int32
		totals, raw []int64
	}
}

// placedPod is a pod on a row, with what the scheduler knows of it. Only cluster's methods change it.
type placedPod struct {
	census.Pod
	id        PodID
	name      string
	class     *class
	confirmed bool // the API shows the pod on the node; false: it is assumed
	// preempted: see Pod.Preempted.
	preempted bool
	tried     int8             // during a trial: how often it was added, less how often it was removed; else 0
	started   int64            // see Pod.Started
	order     uint64           // orders the pods of a row by when they were placed
	arrived   bool             // a report of the node's agent has included it
	berth     numa.Berth       // the CPUs and NUMA nodes that were expected when it was placed; nil: none
	assigned  *numa.Assignment // the CPUs and devices that it has on the row; nil: to be computed

	inRow int // its index in state.podsOn of the row
}

func newCluster(seed uint64, profiles ...Profile) *cluster {
	c := &cluster{
		state:       newState(seed),
		profiles:    map[string]*profile{},
		classes:     map[string]*class{},
		groups:      newGroups(),
		demands:     newDemands(),
		fits:        map[string]*fit{},
		pods:        map[PodID]*placedPod{},
		atPriority:  map[int32]int{},
		plans:       map[PodID]*VolumePlan{},
		waits:       newWaits(),
		nominations: map[PodID]*nominated{},
		budgets:     newBudgets(),
		withCosts:   map[*demand]bool{},
		bounds:      map[string]*costBounds{},
		tooLow:      map[string]int{},
	}
	c.readFacts(c.intern)
	c.Census = census.New(&c.nodes, c.intern, c.rowChanged, c.notifyCounter)
	c.storage = volumes.NewStore(c.intern, c.volumesChanged)
	c.growing = []rows.Table{
		&c.name, &c.tieHash, &c.seen, &c.unschedulable, &c.labels, &c.taints, &c.softTaints, &c.features,
		&c.agentLacks, &c.podsMax,
		&c.changes, &c.moves, &c.allowances,
		&c.nodeImages, &c.podCount, &c.ports, &c.scoreCPU, &c.scoreMemory, &c.podsOn, &c.nominated, &c.expected,
		c.storage,
	}
	for _, r := range []string{CPU, Memory, EphemeralStorage} {
		c.columns.ref(c.columns.of(r)) // never released
	}
	if len(profiles) == 0 {
		profiles = []Profile{DefaultProfile()}
	}
	for i, p := range profiles {
		compiled := compileProfile(c, p)
		c.profiles[p.Name] = compiled
		isHard := func(s SpreadConstraint) bool { return s.Hard }
		c.hardDefaults = c.hardDefaults || slices.ContainsFunc(p.DefaultSpread, isHard)
		if i == 0 {
			c.profiles[""] = compiled
		}
	}
	return c
}

// dropRowIfEmpty deletes row r if it has no node and nothing else is recorded on it.
func (c *cluster) dropRowIfEmpty(r row) {
	if c.seen[r] || c.podCount[r] > 0 || len(c.nominated[r]) > 0 || c.expected[r] != nil || !c.storage.Idle(r) {
		return
	}
	c.freeRow(r)
}

// moveRow calls change, which changes facts that decide to which domains and scopes row r belongs, and moves the pods
// of the row in the counters accordingly.
func (c *cluster) moveRow(r row, change func()) {
	c.Census.MoveRow(r, func(yield func(*census.Pod) bool) {
		for _, h := range c.podsOn[r] {
			if !yield(&h.Pod) {
				return
			}
		}
	}, change)
	c.waits.domainsMoved = true
}

// identify returns the identity of pod, with one more reference. dropIdentity drops the reference.
func (c *cluster) identify(pod *Pod) *census.Identity {
	who, fresh := c.Census.Identify(pod.Namespace, pod.Labels)
	if fresh {
		c.findBudgets(who)
	}
	return who
}

func (c *cluster) dropIdentity(who *census.Identity) {
	if !c.Census.DropIdentity(who) {
		return
	}
	c.demands.forget(c, who)
	if dataOf(who).spreading.set != nil {
		c.DropPodSet(dataOf(who).spreading.set)
	}
}

func (c *cluster) isAssumed(id PodID) bool {
	p := c.pods[id]
	return p != nil && !p.confirmed
}

// setPod puts the pod on the node. If the pod was already on a node and something about it differs now, changed is
// true, and freed is the row where it was: room may have become free there.
func (c *cluster) setPod(pod *Pod, node string, confirmed bool) (freed row, changed bool) {
	r := c.rowOf(node)
	k, who := c.compile(pod), c.identify(pod)
	p := c.pods[pod.ID]
	if p != nil && p.Row == r && p.class == k && p.Who == who && p.Deleting == pod.Deleting {
		if confirmed && !p.confirmed {
			c.assumed--
		}
		was := startOf(p)
		p.confirmed = p.confirmed || confirmed
		p.started = pod.Started
		p.preempted = pod.Preempted
		switch now := startOf(p); {
		case now < was:
			c.allowances.Add(r)
		case now > was:
			c.rowChanged(r) // evicting it costs less than the bounds without budgets say
		}
		c.dropClass(k)
		c.dropIdentity(who)
		return noRow, false
	}
	h := &placedPod{
		Pod:       census.Pod{Row: r, Deleting: pod.Deleting, Who: who, Terms: k.ownTerms},
		id:        pod.ID,
		name:      pod.Name,
		class:     k,
		confirmed: confirmed,
		preempted: pod.Preempted,
		started:   pod.Started,
		berth:     pod.Berth,
	}
	c.placedCount++
	h.order = c.placedCount
	freed = noRow
	if p != nil {
		if p.Row == r && p.class.numaKey == k.numaKey {
			h.order, h.arrived = p.order, p.arrived
			h.berth, h.assigned = p.berth, p.assigned
		}
		if p.Who != who {
			c.discharge(p, "") // other budgets select it now
		}
		freed, changed = p.Row, true
		c.drop(p)
	}
	c.count(h, 1)
	c.atPriority[k.priority]++
	if !confirmed {
		c.assumed++
	}
	h.inRow = len(c.podsOn[r])
	c.podsOn[r] = append(c.podsOn[r], h)
	c.podsMost = max(c.podsMost, len(c.podsOn[r]))
	c.countNUMA(h, 1)
	c.pods[pod.ID] = h
	if changed && freed != r {
		c.dropRowIfEmpty(freed)
	}
	return freed, changed
}

// removePod removes a pod from its row. r is noRow if there is no such pod.
func (c *cluster) removePod(id PodID) (r row, ok bool) {
	p := c.pods[id]
	if p == nil {
		return noRow, false
	}
	delete(c.pods, id)
	c.pods = shrink.Map(c.pods, &c.gone.pods)
	c.discharge(p, "")
	c.drop(p)
	c.dropRowIfEmpty(p.Row)
	return p.Row, true
}

// drop removes h from the counts and drops its references.
func (c *cluster) drop(h *placedPod) {
	c.count(h, -1)
	if !h.confirmed {
		c.assumed--
	}
	if c.atPriority[h.class.priority]--; c.atPriority[h.class.priority] == 0 {
		delete(c.atPriority, h.class.priority)
	}
	list := c.podsOn[h.Row]
	last := list[len(list)-1]
	list[h.inRow], last.inRow = last, h.inRow
	list[len(list)-1] = nil
	c.podsOn[h.Row] = list[:len(list)-1]
	c.countNUMA(h, -1)
	if len(h.class.mounts.Mounts) > 0 {
		c.storage.DropIfEmpty(h.Row)
	}
	c.dropClass(h.class)
	c.dropIdentity(h.Who)
}

// count adds (sign 1) or subtracts (sign -1) what h takes from its row, and its entries in the census.
func (c *cluster) count(h *placedPod, sign int64) {
	c.countOnRow(h.Row, h.class, sign)
	if sign > 0 {
		c.Add(&h.Pod)
	} else {
		c.Remove(&h.Pod)
	}
	c.storage.Use(&h.class.mounts, int32(sign), false)
	c.rowChanged(h.Row)
	c.notify(h, int32(sign))
}
