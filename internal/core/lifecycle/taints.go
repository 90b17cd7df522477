package lifecycle

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Effect of a taint, spelled as the API spells it.
type Effect string

// The effects that this package sets.
const (
	NoSchedule Effect = wellknown.EffectNoSchedule
	NoExecute  Effect = wellknown.EffectNoExecute
)

// Taint is one taint; those that this package sets have no value. Key and effect identify a taint.
type Taint struct {
	Key    string
	Value  string
	Effect Effect
	Added  unit.Wall // timeAdded; zero: not set
}

// String formats t as kubectl takes it, without the value.
func (t Taint) String() string { return t.Key + ":" + string(t.Effect) }

// Same reports whether t and u have the same key and effect: a node has at most one such taint.
func (t Taint) Same(u Taint) bool { return t.Key == u.Key && t.Effect == u.Effect }

// isReadiness reports whether t is one of the two NoExecute taints of a node that is down.
func (t Taint) isReadiness() bool {
	return t.Effect == NoExecute && (t.Key == wellknown.TaintNotReady || t.Key == wellknown.TaintUnreachable)
}

func (n Node) taint(t Taint) (Taint, bool) {
	if i := slices.IndexFunc(n.Taints, t.Same); i >= 0 {
		return n.Taints[i], true
	}
	return Taint{}, false
}

func (n Node) outOfService() bool {
	return slices.ContainsFunc(n.Taints, func(t Taint) bool { return t.Key == wellknown.TaintOutOfService })
}

// taintRules has the NoSchedule taint that is set at once for a status of a condition.
var taintRules = []struct {
	condition ConditionType
	status    Status
	key       string
}{
	{Ready, False, wellknown.TaintNotReady},
	{Ready, Unknown, wellknown.TaintUnreachable},
	{MemoryPressure, True, wellknown.TaintMemoryPressure},
	{DiskPressure, True, wellknown.TaintDiskPressure},
	{PIDPressure, True, wellknown.TaintPIDPressure},
	{NetworkUnavailable, True, wellknown.TaintNetworkUnavailable},
}

// readinessTaint returns the NoExecute taint of a node with this Ready status; false: it is not down.
func readinessTaint(ready Status) (Taint, bool) {
	switch ready {
	case False:
		return Taint{Key: wellknown.TaintNotReady, Effect: NoExecute}, true
	case Unknown:
		return Taint{Key: wellknown.TaintUnreachable, Effect: NoExecute}, true
	}
	return Taint{}, false
}

// taintChanges compares the taints of n that this package sets with those that status and the cordon require. granted
// says that the first NoExecute taint of a node that is down may be set, stopped that no node may have a NoExecute
// taint because it is down. While Ready is absent, the taints that depend on it stay as they are, because the state of
// the node is not known.
func taintChanges(n Node, status map[ConditionType]Status, granted, stopped bool) (add, drop []Taint) {
	require := func(t Taint, wanted bool) {
		switch has, ok := n.taint(t); {
		case wanted && !ok:
			add = append(add, t)
		case !wanted && ok:
			drop = append(drop, has)
		}
	}
	for _, r := range taintRules {
		if r.condition != Ready || status[Ready] != Absent {
			require(Taint{Key: r.key, Effect: NoSchedule}, status[r.condition] == r.status)
		}
	}
	require(Taint{Key: wellknown.TaintUnschedulable, Effect: NoSchedule}, n.Cordoned)
	if status[Ready] == Absent {
		return add, drop
	}
	right, down := readinessTaint(status[Ready])
	for _, key := range []string{wellknown.TaintNotReady, wellknown.TaintUnreachable} {
		t := Taint{Key: key, Effect: NoExecute}
		if other, has := n.otherReadiness(t); has {
			t.Added = other.Added // toleration times are not restarted
			require(t, down && !stopped && t.Same(right))
			continue
		}
		_, has := n.taint(t)
		require(t, down && !stopped && t.Same(right) && (has || granted))
	}
	return add, drop
}

// otherReadiness returns the readiness taint of n that is not t.
func (n Node) otherReadiness(t Taint) (Taint, bool) {
	for _, o := range n.Taints {
		if o.isReadiness() && !o.Same(t) {
			return o, true
		}
	}
	return Taint{}, false
}

func (n Node) hasReadiness() bool { return slices.ContainsFunc(n.Taints, Taint.isReadiness) }

// changesTaint reports whether n has one readiness taint and is about to get the other instead.
func (n *node) changesTaint() bool {
	right, down := readinessTaint(n.ready())
	has, _ := n.taint(right)
	return down && n.hasReadiness() && has.Key == ""
}

// datedTaint is a NoExecute taint, and since when the node has it.
type datedTaint struct {
	Taint
	since unit.Instant
}

// dateTaints records since when n has its NoExecute taints: since now, unless they were seen before. For taints found
// at first sight it is their timeAdded. A change between the two readiness taints keeps the time.
func (m *Monitor) dateTaints(now unit.Instant, n *node, seenBefore bool) {
	var after []datedTaint
	for _, t := range n.Taints {
		if t.Effect != NoExecute {
			continue
		}
		since := now
		continues := func(d datedTaint) bool { return d.Same(t) || d.isReadiness() && t.isReadiness() }
		if i := slices.IndexFunc(n.noExecute, continues); i >= 0 {
			since = n.noExecute[i].since
		} else if !seenBefore {
			since = m.instantOf(now, t.Added)
		}
		after = append(after, datedTaint{Taint: t, since: since})
	}
	same := func(a, b datedTaint) bool { return a.Same(b.Taint) && a.Value == b.Value }
	if !slices.EqualFunc(n.noExecute, after, same) {
		m.markPodsDirty(n)
	}
	n.noExecute = after
}

// Toleration is a toleration of a pod.
type Toleration struct {
	Key    string // empty: matches every key
	Exists bool   // matches every value
	Never  bool   // the operator is not known: matches nothing
	Value  string
	Effect Effect // empty: matches every effect
	// Bounded says that the taint is tolerated for Seconds only. Zero and less means not at all.
	Bounded bool
	Seconds int64
}

func (o Toleration) accepts(t Taint) bool {
	return !o.Never && (o.Effect == "" || o.Effect == t.Effect) && (o.Key == "" || o.Key == t.Key) &&
		(o.Exists || o.Value == t.Value)
}
