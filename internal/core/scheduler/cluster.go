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

// cluster is what the scheduler believes: the state that rules judge by, the classes and demands that they judge, and
// what follows from decisions: pods that are assumed, wait or evict others.
type cluster struct {
	state
	profiles map[string]*profile
	// hardDefaults: some profile gives hard spread constraints to pods without any.
	hardDefaults bool
	heard        map[row]int64 // while a pod is placed about which others were asked: what they add to the score of rows; else nil

	classes map[string]*class
	groups  groups
	demands demands
	tables  []*demand       // that have tables, in the order in which they got them
	fits    map[string]*fit // by fitKey

	pods map[PodID]*held
	gone struct{ pods, classes int } // see shrink.Map
	// atPriority is how many counted pods have each priority.
	atPriority map[int32]int
	turns      uint64 // of pods, as they were placed
	decisions  uint64
	searched   int                   // the row at which the next sample begins
	assumed    int                   // counted pods that are not confirmed
	heldMost   int                   // no row has ever held more pods
	plans      map[PodID]*VolumePlan // for the volumes of assumed pods

	waits   waits
	wishes  map[PodID]*nominated
	budgets budgets
	// allowances tells of rows on which another number of pods may be disrupted, while somebody has bids or bounds, and
	// of those on which a pod has started since it was counted: evictions cost more there.
	allowances rows.ChangeLog
	// bidding are the demands that have bids.
	bidding map[*demand]bool
	bounds  map[string]*bidBounds // by boundsKey, or by what is asked for about
	misled  map[string]int        // by boundsKey, how many rows promised more than there was

	// Working space, of no meaning between calls.
	byBound  byBound
	rejected [2]rows.Mask
	lifted   []*held
	below    []*held
	allowed  []*held
	known    []string // reasons
	inputs   []any
	spent    []bool
	biddable rows.Mask
	plain    struct {
		rows        []row
		alike       []int32
		totals, raw []int64
	}
}

// held is a pod that counts on a row.
type held struct {
	census.Pod
	id        PodID
	name      string
	class     *class
	confirmed bool // the API shows it there; else assumed
	preempted bool
	tried     int8             // how often it counts more than it does, in a trial
	started   int64            // see Pod.Started
	turn      uint64           // when it was placed here, among others
	arrived   bool             // a report of the node's agent has had it
	berth     numa.Berth       // where it was expected to lie when it was placed; nil: nobody said
	lies      *numa.Assignment // what it has there; nil: to be worked out

	inRow int // place in held of the row
}

func newCluster(seed uint64, profiles ...Profile) *cluster {
	c := &cluster{
		state:      newState(seed),
		profiles:   map[string]*profile{},
		classes:    map[string]*class{},
		groups:     newGroups(),
		demands:    newDemands(),
		fits:       map[string]*fit{},
		pods:       map[PodID]*held{},
		atPriority: map[int32]int{},
		plans:      map[PodID]*VolumePlan{},
		waits:      newWaits(),
		wishes:     map[PodID]*nominated{},
		budgets:    newBudgets(),
		bidding:    map[*demand]bool{},
		bounds:     map[string]*bidBounds{},
		misled:     map[string]int{},
	}
	c.readFacts(c.intern)
	c.Census = census.New(&c.nodes, c.intern, c.touch, c.notifyCounter)
	c.storage = volumes.NewStore(c.intern, c.recount)
	c.growing = []rows.Table{
		&c.name, &c.ring, &c.seen, &c.unschedulable, &c.labels, &c.taints, &c.softTaints, &c.features, &c.agentLacks, &c.podsMax,
		&c.changes, &c.moves, &c.allowances,
		&c.pictures, &c.podsHeld, &c.ports, &c.scoreCPU, &c.scoreMemory, &c.held, &c.nominated, &c.beliefs, c.storage,
	}
	for _, r := range []string{CPU, Memory, EphemeralStorage} {
		c.columns.hold(c.columns.of(r)) // for good
	}
	if len(profiles) == 0 {
		profiles = []Profile{DefaultProfile()}
	}
	for i, p := range profiles {
		compiled := compileProfile(c, p)
		c.profiles[p.Name] = compiled
		c.hardDefaults = c.hardDefaults || slices.ContainsFunc(p.DefaultSpread, func(s SpreadConstraint) bool { return s.Hard })
		if i == 0 {
			c.profiles[""] = compiled
		}
	}
	return c
}

// release gives an empty row of an unseen node back.
func (c *cluster) release(r row) {
	if c.seen[r] || c.podsHeld[r] > 0 || len(c.nominated[r]) > 0 || c.beliefs[r] != nil || !c.storage.Idle(r) {
		return
	}
	c.giveBack(r)
}

// moveRow lets change alter what decides about the domains and scopes of row r, and keeps the counters right.
func (c *cluster) moveRow(r row, change func()) {
	c.Census.MoveRow(r, func(yield func(*census.Pod) bool) {
		for _, h := range c.held[r] {
			if !yield(&h.Pod) {
				return
			}
		}
	}, change)
	c.waits.redrawn = true
}

// identify returns the identity of pod and takes hold of it; releaseIdentity lets go.
func (c *cluster) identify(pod *Pod) *census.Identity {
	who, fresh := c.Census.Identify(pod.Namespace, pod.Labels)
	if fresh {
		c.findBudgets(who)
	}
	return who
}

func (c *cluster) releaseIdentity(who *census.Identity) {
	if !c.Census.ReleaseIdentity(who) {
		return
	}
	c.demands.forget(c, who)
	if keptWith(who).spreading.aim != nil {
		c.ReleaseAim(keptWith(who).spreading.aim)
	}
}

func (c *cluster) isAssumed(id PodID) bool {
	p := c.pods[id]
	return p != nil && !p.confirmed
}

// setPod counts the pod on the node, moving it there if it counted elsewhere or for something else. freed is the row
// that may have gained room by it, if changed.
func (c *cluster) setPod(pod *Pod, node string, confirmed bool) (freed row, changed bool) {
	r := c.rowOf(node)
	k, who := c.compile(pod), c.identify(pod)
	p := c.pods[pod.ID]
	if p != nil && p.Row == r && p.class == k && p.Who == who && p.Deleting == pod.Deleting {
		if confirmed && !p.confirmed {
			c.assumed--
		}
		was := startOf(p)
		p.confirmed, p.started, p.preempted = p.confirmed || confirmed, pod.Started, pod.Preempted
		switch now := startOf(p); {
		case now < was:
			c.allowances.Add(r)
		case now > was:
			c.touch(r) // to evict it costs less than was said before budgets were asked
		}
		c.releaseClass(k)
		c.releaseIdentity(who)
		return noRow, false
	}
	h := &held{
		Pod:       census.Pod{Row: r, Deleting: pod.Deleting, Who: who, Terms: k.holds},
		id:        pod.ID,
		name:      pod.Name,
		class:     k,
		confirmed: confirmed,
		preempted: pod.Preempted,
		started:   pod.Started,
		berth:     pod.Berth,
	}
	c.turns++
	h.turn = c.turns
	freed = noRow
	if p != nil {
		if p.Row == r && p.class.numaKey == k.numaKey {
			h.turn, h.arrived = p.turn, p.arrived
			h.berth, h.lies = p.berth, p.lies
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
	h.inRow = len(c.held[r])
	c.held[r] = append(c.held[r], h)
	c.heldMost = max(c.heldMost, len(c.held[r]))
	c.countNUMA(h, 1)
	c.pods[pod.ID] = h
	if changed && freed != r {
		c.release(freed)
	}
	return freed, changed
}

// removePod takes a pod off its row. The row is noRow if it is gone with its last pod.
func (c *cluster) removePod(id PodID) (r row, ok bool) {
	p := c.pods[id]
	if p == nil {
		return noRow, false
	}
	delete(c.pods, id)
	c.pods = shrink.Map(c.pods, &c.gone.pods)
	c.discharge(p, "")
	c.drop(p)
	c.release(p.Row)
	return p.Row, true
}

// drop ends the counting of h and lets go of what it holds.
func (c *cluster) drop(h *held) {
	c.count(h, -1)
	if !h.confirmed {
		c.assumed--
	}
	if c.atPriority[h.class.priority]--; c.atPriority[h.class.priority] == 0 {
		delete(c.atPriority, h.class.priority)
	}
	list := c.held[h.Row]
	last := list[len(list)-1]
	list[h.inRow], last.inRow = last, h.inRow
	list[len(list)-1] = nil
	c.held[h.Row] = list[:len(list)-1]
	c.countNUMA(h, -1)
	if len(h.class.wants.Mounts) > 0 {
		c.storage.Tidy(h.Row)
	}
	c.releaseClass(h.class)
	c.releaseIdentity(h.Who)
}

// count adds (sign 1) or takes away (sign -1) what h takes from its row, and counts it among its like.
func (c *cluster) count(h *held, sign int64) {
	c.countOnRow(h.Row, h.class, sign)
	if sign > 0 {
		c.Come(&h.Pod)
	} else {
		c.Leave(&h.Pod)
	}
	c.storage.Use(&h.class.wants, int32(sign), false)
	c.touch(h.Row)
	c.notify(h, int32(sign))
}
