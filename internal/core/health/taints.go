package health

import "slices"

// Effect of a taint, spelled as the API spells it.
type Effect string

// The effects we set.
const (
	NoSchedule Effect = "NoSchedule"
	NoExecute  Effect = "NoExecute"
)

// Taint keys, as upstream spells them.
const (
	TaintNotReady           = "node.kubernetes.io/not-ready"
	TaintUnreachable        = "node.kubernetes.io/unreachable"
	TaintMemoryPressure     = "node.kubernetes.io/memory-pressure"
	TaintDiskPressure       = "node.kubernetes.io/disk-pressure"
	TaintPIDPressure        = "node.kubernetes.io/pid-pressure"
	TaintNetworkUnavailable = "node.kubernetes.io/network-unavailable"
	TaintUnschedulable      = "node.kubernetes.io/unschedulable"
)

// Taint is one taint; those of ours carry no value.
type Taint struct {
	Key    string
	Effect Effect
}

// taintRules says which condition in which status means which taint.
var taintRules = []struct {
	condition ConditionType
	status    Status
	taint     Taint
}{
	{Ready, False, Taint{TaintNotReady, NoSchedule}},
	{Ready, False, Taint{TaintNotReady, NoExecute}},
	{Ready, Unknown, Taint{TaintUnreachable, NoSchedule}},
	{Ready, Unknown, Taint{TaintUnreachable, NoExecute}},
	{MemoryPressure, True, Taint{TaintMemoryPressure, NoSchedule}},
	{DiskPressure, True, Taint{TaintDiskPressure, NoSchedule}},
	{PIDPressure, True, Taint{TaintPIDPressure, NoSchedule}},
	{NetworkUnavailable, True, Taint{TaintNetworkUnavailable, NoSchedule}},
}

// taintChanges compares the taints of n that are ours with those that status and the cordon demand. While Ready is
// absent, the taints that follow from it stay as they are: nobody knows yet.
func taintChanges(n Node, status map[ConditionType]Status) (add, drop []Taint) {
	judge := func(t Taint, wanted bool) {
		switch has := slices.Contains(n.Taints, t); {
		case wanted && !has:
			add = append(add, t)
		case !wanted && has:
			drop = append(drop, t)
		}
	}
	for _, r := range taintRules {
		if r.condition == Ready && status[Ready] == Absent {
			continue
		}
		judge(r.taint, status[r.condition] == r.status)
	}
	judge(Taint{TaintUnschedulable, NoSchedule}, n.Cordoned)
	return add, drop
}
