package scheduler

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

// Plugins are the names that upstream gives to the rules of a set, sorted, each once.
func (s RuleSet) Plugins() (names []string) {
	for i := range filters {
		if f := &filters[i]; s&f.rule != 0 && !slices.Contains(names, f.plugin) {
			names = append(names, f.plugin)
		}
	}
	slices.Sort(names)
	return names
}

// add notes that rule by rejected n nodes for reasons.
func (f *Failure) add(by *filter, reasons []string, n int) {
	f.Rejected |= by.rule
	for _, reason := range reasons {
		f.Reasons[reason] += n
	}
}

// String is upstream's message: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).", and
// what came of preemption after it.
func (f *Failure) String() string { return f.Explain(nil) }

// Explain is String, with a word more on each extended resource that a device class serves, by its name: it may be
// there, and nobody here hands it out.
func (f *Failure) Explain(served map[string]string) string {
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
	return head + " " + countedReasons(f.Reasons, served) + "." + tail
}

// implicitClass begins the name of the resource under which each device class can be asked for (resource.k8s.io/v1,
// ResourceDeviceClassPrefix).
const implicitClass = "deviceclass.resource.kubernetes.io/"

// servedBy adds to a reason the device class that serves the resource of which there is not enough, if one does.
func servedBy(reason string, served map[string]string) string {
	resource, is := strings.CutPrefix(reason, insufficientPrefix)
	if !is {
		return reason
	}
	class, ok := served[resource]
	if !ok {
		class, ok = strings.CutPrefix(resource, implicitClass)
	}
	if !ok {
		return reason
	}
	return fmt.Sprintf("%s (device class %q serves it: dynamic resource allocation is not supported)", reason, class)
}

// insufficientPrefix begins the reason of a node that has not enough of a resource.
const insufficientPrefix = "Insufficient "

// countedReasons lists reasons with their counts, ordered as text: upstream's order.
func countedReasons(reasons map[string]int, served map[string]string) string {
	parts := make([]string, 0, len(reasons))
	for reason, n := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, servedBy(reason, served)))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
