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
}

// String is upstream's message: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."
func (f *Failure) String() string {
	if f.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	head := fmt.Sprintf("0/%d nodes are available:", f.Nodes)
	if f.Whole != "" {
		return head + " " + f.Whole + "."
	}
	parts := make([]string, 0, len(f.Reasons))
	for reason, n := range f.Reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts) // as text: upstream's order
	return head + " " + strings.Join(parts, ", ") + "."
}
