package admission

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// taintMemoryPressure is the key of the taint that a BestEffort pod has to tolerate to come to a node short of memory.
const taintMemoryPressure = "node.kubernetes.io/memory-pressure"

// UnderPressure reports whether a node under the given conditions takes a pod in; nil means that it does. Critical pods
// always come. Memory pressure alone keeps out BestEffort pods that do not tolerate it; any other keeps out all.
func UnderPressure(pod placement.Pod, critical bool, class qos.Class, conditions []eviction.Condition) *Rejection {
	if len(conditions) == 0 || critical {
		return nil
	}
	onlyMemory := !slices.ContainsFunc(conditions, func(c eviction.Condition) bool { return c != eviction.MemoryPressure })
	if onlyMemory && (class != qos.BestEffort || toleratesMemoryPressure(pod)) {
		return nil
	}
	return &Rejection{Reason: eviction.Reason, Message: eviction.PressureMessage(conditions)}
}

func toleratesMemoryPressure(pod placement.Pod) bool {
	node := placement.Node{Name: "here", Taints: []placement.Taint{{Key: taintMemoryPressure, Effect: placement.NoSchedule}}}
	return placement.Judge(pod, node, nil, placement.RuleTaints).Plugin == ""
}
