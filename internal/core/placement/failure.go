package placement

import (
	"fmt"
	"slices"
	"strings"
)

// A Failure says why a pod fits on no node, compressed to how many nodes gave each reason.
type Failure struct {
	Nodes    int // how many there are
	Reasons  map[string]int
	Rejected RuleSet // the rules that rejected at least one node
	// Whole is a reason that does not depend on any node and stands in place of Reasons.
	Whole string
	// Preemption says why making room was not possible or not tried; empty if nothing was to be said.
	Preemption string
}

func newFailure(nodes int, d *demand) *Failure {
	f := &Failure{Nodes: nodes, Reasons: map[string]int{}}
	if d.conflict {
		f.Whole = "pod affinity terms conflict"
	}
	if why := d.whole(); why != "" {
		f.Whole = why
	}
	if len(d.unsupported) > 0 {
		f.Whole = unsupportedReason(d)
	}
	return f
}

// add notes that rule by rejected n nodes for reasons.
func (f *Failure) add(by *filter, reasons []string, n int) {
	f.Rejected |= by.rule
	for _, reason := range reasons {
		f.Reasons[reason] += n
	}
}

// String is upstream's message: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).", and what
// came of preemption after it.
func (f *Failure) String() string {
	if f.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	head := fmt.Sprintf("0/%d nodes are available:", f.Nodes)
	tail := ""
	if f.Preemption != "" {
		tail = " preemption: " + f.Preemption
	}
	if f.Whole != "" {
		return head + " " + f.Whole + "." + tail
	}
	return head + " " + countedReasons(f.Reasons) + "." + tail
}

// countedReasons lists reasons with their counts, ordered as text: upstream's order.
func countedReasons(reasons map[string]int) string {
	parts := make([]string, 0, len(reasons))
	for reason, n := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
