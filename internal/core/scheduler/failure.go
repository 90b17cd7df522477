package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// A Failure says why a pod fits on no node: how many nodes gave each reason.
type Failure struct {
	Nodes    int // how many nodes there are
	Reasons  map[string]int
	Rejected RuleSet // the rules that rejected at least one node
	// Whole is a reason that does not depend on any node and replaces Reasons.
	Whole string
	// Preemption says why preemption was not possible or not tried; empty: nothing to say.
	Preemption string
}

func newFailure(nodes int, d *demand) *Failure {
	f := &Failure{Nodes: nodes, Reasons: map[string]int{}}
	if d.conflict {
		f.Whole = "pod affinity terms conflict"
	}
	if why := d.claimsProblem(); why != "" {
		f.Whole = why
	}
	if len(d.unsupported) > 0 {
		f.Whole = unsupportedReason(d)
	}
	return f
}

// Plugins returns upstream's names of the rules in a set, sorted, without duplicates.
func (s RuleSet) Plugins() (names []string) {
	for i := range filters {
		if f := &filters[i]; s&f.rule != 0 && !slices.Contains(names, f.plugin) {
			names = append(names, f.plugin)
		}
	}
	slices.Sort(names)
	return names
}

// add records that rule by rejected n nodes for reasons.
func (f *Failure) add(by *filter, reasons []string, n int) {
	f.Rejected |= by.rule
	for _, reason := range reasons {
		f.Reasons[reason] += n
	}
}

// String returns upstream's message: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated
// taint(s).", followed by the result of preemption.
func (f *Failure) String() string { return f.Explain(nil) }

// Explain is String with an addition for each extended resource that a device class serves: the resource may exist, but
// dynamic resource allocation is not supported. served maps resources to names of device classes.
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

// implicitClass is the prefix of the resource name under which a device class can be requested (resource.k8s.io/v1,
// ResourceDeviceClassPrefix).
const implicitClass = "deviceclass.resource.kubernetes.io/"

// servedBy adds to a reason the device class that serves the missing resource, if there is one.
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

// insufficientPrefix begins the reason of a node that does not have enough of a resource.
const insufficientPrefix = "Insufficient "

// countedReasons lists reasons with their counts, sorted as text, as upstream does.
func countedReasons(reasons map[string]int, served map[string]string) string {
	parts := make([]string, 0, len(reasons))
	for reason, n := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, servedBy(reason, served)))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
