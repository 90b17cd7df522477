// Package shadow compares what the core would decide with what another scheduler and another node-lifecycle controller
// do in the same cluster.
//
// # Model
//
// Placements has two Placers, which get the same facts. One is the cluster as it is seen. The other decides as our
// scheduler does: it takes waiting pods from its queue and assumes those that it places, until the watch shows where
// the other scheduler put them. So the time of our decision is that of a scheduler at work, in a burst, too. When the
// other scheduler binds a pod, the first Placer is asked, in the state just before that bind: is that node feasible,
// what is its score, and what is the best score? When the other scheduler says that a pod fits nowhere, the first
// Placer is asked at once and, if the pod fits, again after Settle.
//
// Nodes has a lifecycle.Monitor in the world as it would be if our controller acted: conditions that became Unknown and
// the taints that a node-lifecycle controller owns are those that the Monitor decided, everything else is real. So
// neither side hides from the other. Each of these (a condition, a taint, the eviction of a pod) is a switch with two
// hands on it. When one side turns it, the switch is open; when the other side follows, both did it, and the time in
// between is the lead. When the first side turns it back, it did so alone.
//
// Both answer with Events. A Finding is an Event in which the decisions differ.
//
// # Invariants
//
//   - Nothing is written. There is no bind, no taint and no eviction for which a shell could be asked.
//   - Equal scores are agreement: which of them is chosen is chance on both sides.
//   - What may be due to the order of things is no Finding. The other scheduler decided some time before its bind was
//     seen. If its node or the best score changed since our decision, the Event is Uncertain.
//   - A lead counts only for what began while we watched. It compares the moment of our decision with the moment at
//     which the watch showed what the other side wrote. That includes the write, which ours would need, too.
//
// # What it does not do
//
// It does not compare preemptions, the order of pods, and the collection of orphaned pods. It does not know extenders
// and plugins that are not upstream's: what they decide otherwise appears as a Finding.
package shadow

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Kind says what a comparison found. The values are a part of the output for programs.
type Kind string

// The kinds of Events about pods that wait, then those about nodes.
const (
	SameNode   Kind = "SameNode"   // both chose the same node
	EqualNode  Kind = "EqualNode"  // they chose another node, with the best score
	LowerScore Kind = "LowerScore" // they chose a node whose score is lower
	Rejected   Kind = "Rejected"   // they chose a node that the core rejects
	Uncertain  Kind = "Uncertain"  // they chose a node that was not the best, and it changed meanwhile
	BothRefuse Kind = "BothRefuse" // both say that it fits nowhere
	Fits       Kind = "Fits"       // they say that it fits nowhere, and the core has nodes for it
	NotJudged  Kind = "NotJudged"  // the core does not know what the pod needs

	Would      Kind = "Would"      // we would do this now
	BothDid    Kind = "BothDid"    // both did it
	OnlyOurs   Kind = "OnlyOurs"   // we would have done it and undone it, and they did nothing
	OnlyTheirs Kind = "OnlyTheirs" // they did it and undid it, and we would have done nothing
)

// Kinds returns all kinds that are counted, in the order in which a summary has them.
func Kinds() []Kind {
	return []Kind{SameNode, EqualNode, LowerScore, Rejected, Uncertain, BothRefuse, Fits, NotJudged, BothDid, OnlyOurs,
		OnlyTheirs}
}

// Finding reports whether the decisions differ.
func (k Kind) Finding() bool {
	return k == LowerScore || k == Rejected || k == Fits || k == OnlyOurs || k == OnlyTheirs
}

// An Event is the outcome of one comparison.
type Event struct {
	At      unit.Instant
	Kind    Kind
	Pod     string // namespace and name; empty: it is about a node
	Node    string // of events about nodes, and about evictions
	What    string // of these: what was done: "Ready becomes Unknown"
	Why     string // of these: what our decision depends on. Of Rejected: why. Of Fits: what they said.
	Ours    string // where we would put the pod; empty: we had not decided
	Theirs  string // where they put it
	Nodes   int    // on how many nodes it fits
	Best    Score  // the best one, if there is a choice
	Got     Score  // that of Theirs
	Differs []Difference

	// Lead is how much sooner our decision was. It is negative if theirs was sooner, which is known of nodes only.
	Lead    time.Duration
	HasLead bool
	// Late says that they had decided about a pod before we did.
	Late bool
}

// A Score is the weighted sum of the scores of a node.
type Score struct {
	Node  string
	Total int64
}

// A Difference is what one plugin gives two nodes, times its weight.
type Difference struct {
	Plugin    string
	Best, Got int64
}

// leadsMax is how many leads of a kind a Tally keeps, the latest ones. Chosen: 800 KiB, enough for percentiles.
const leadsMax = 100_000

// A Tally counts Events.
type Tally struct {
	Counts map[Kind]int
	Late   int // of the pods, how many they decided first
	pods   leads
	nodes  leads
}

// leads is the latest leads, in a ring.
type leads struct {
	all  []time.Duration
	next int
}

func (l *leads) add(d time.Duration) {
	if len(l.all) < leadsMax {
		l.all = append(l.all, d)
		return
	}
	l.all[l.next] = d
	l.next = (l.next + 1) % leadsMax
}

// NewTally returns an empty Tally.
func NewTally() *Tally { return &Tally{Counts: map[Kind]int{}} }

// Add counts an Event.
func (t *Tally) Add(e *Event) {
	if e.Kind == Would {
		return
	}
	t.Counts[e.Kind]++
	switch {
	case e.Late:
		t.Late++
	case e.HasLead && (e.Kind == BothDid):
		t.nodes.add(e.Lead)
	case e.HasLead:
		t.pods.add(e.Lead)
	}
}

// Judged returns how many placements could be judged, and how many of them agree.
func (t *Tally) Judged() (agree, all int) {
	agree = t.Counts[SameNode] + t.Counts[EqualNode] + t.Counts[BothRefuse]
	return agree, agree + t.Counts[LowerScore] + t.Counts[Rejected] + t.Counts[Fits]
}

// Spread is percentiles of leads. Of is how many there are; the others mean nothing if there are none.
type Spread struct {
	Of                      int
	Min, P50, P90, P99, Max time.Duration
}

// Pods returns the leads over their binds, Nodes those over their writes about nodes and evictions.
func (t *Tally) Pods() Spread { return t.pods.spread() }

// Nodes returns the leads over their writes about nodes, and over their evictions.
func (t *Tally) Nodes() Spread { return t.nodes.spread() }

func (l *leads) spread() Spread {
	if len(l.all) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(l.all))
	at := func(percent int) time.Duration { return sorted[(len(sorted)*percent+99)/100-1] } // nearest rank
	return Spread{Of: len(sorted), Min: sorted[0], P50: at(50), P90: at(90), P99: at(99), Max: sorted[len(sorted)-1]}
}
