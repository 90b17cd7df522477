package scheduler

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// around runs the commands of TestScenarios about other pods and NUMA nodes. It reports whether f was such a command:
//
//	namespace NAME label=K:V,...
//	report NODE POLICY NODES CPUS    the report of a node's agent: it has NODES NUMA nodes with CPUS CPUs each; CPU 0 is
//	                  reserved; it admits the pods that it had admitted before, and all that are bound to the node
//
// A pod in such a text may also have:
//
//	namespace=NAME started=SECONDS never-preempts
//	affinity=KEY/SELECTOR[/in:NAMESPACE+...][/where:K:V]            required; where: selects namespaces by labels
//	anti-affinity=...   prefers=WEIGHT/KEY/SELECTOR...   prefers-not=...    the same
//	spread=KEY/SKEW/SELECTOR[/soft][/min:N][/ignores-affinity][/honors-taints]
//	own=N+N           the exclusive CPUs of each of its containers, which have 1Gi of memory each
//
// A SELECTOR is one or more K:V, joined by +, or "all", or "none".
func (w *world) around(f []string) (known bool) {
	switch f[0] {
	case "namespace":
		w.placer.NamespaceSeen(w.now, f[1], parseLabels(parseArguments(f[2:])["label"]))
	case "report":
		w.report(f[1], f[2], int(number(f[3])), int(number(f[4])))
	default:
		return false
	}
	return true
}

// report lets a new agent admit the pods that are bound to a node, and passes its report to the Placer.
func (w *world) report(node, policy string, nodes, cpus int) {
	of := numa.PolicyNone
	for of.String() != policy {
		of++
	}
	layout := w.layouts[fmt.Sprint(policy, nodes, cpus)]
	if layout == nil {
		layout = layoutOf(w.t, nodes, cpus, of)
		w.layouts[fmt.Sprint(policy, nodes, cpus)] = layout
	}
	state := layout.NewState()
	for _, id := range w.inOrder {
		p, here := w.pods[id]
		if !here || p.Node != node || p.NUMA == nil {
			continue
		}
		ask := *p.NUMA
		ask.UID = string(p.ID)
		offer, rejection := state.Offer(ask, nil)
		if rejection != nil {
			w.t.Fatalf("the agent of %s rejects %s: %s", node, p.Name, rejection.Message())
		}
		if err := state.Commit(offer); err != nil {
			w.t.Fatal(err)
		}
	}
	w.placer.ReportSeen(w.now, node, state)
}

// parseAround sets a field of p about other pods or NUMA nodes. It returns false if key is none of these.
func parseAround(p *Pod, key, value string) bool {
	switch key {
	case "namespace":
		p.Namespace = value
	case "started":
		p.Started = number(value) * 1e9
	case "never-preempts":
		p.NeverPreempts = true
	case "affinity":
		p.Affinity = append(p.Affinity, parseTerm(p, value))
	case "anti-affinity":
		p.AntiAffinity = append(p.AntiAffinity, parseTerm(p, value))
	case "prefers", "prefers-not":
		weight, term, _ := strings.Cut(value, "/")
		t := WeightedPodTerm{Weight: number(weight), Term: parseTerm(p, term)}
		if key == "prefers" {
			p.PreferredAffinity = append(p.PreferredAffinity, t)
		} else {
			p.PreferredAntiAffinity = append(p.PreferredAntiAffinity, t)
		}
	case "spread":
		p.Spread = append(p.Spread, parseSpread(value))
	case "own":
		var counts []int
		for n := range strings.SplitSeq(value, "+") {
			counts = append(counts, int(number(n)))
		}
		p.NUMA = pinned(counts...)
	default:
		return false
	}
	return true
}

// parseTerm reads a term of a pod whose namespace is known.
func parseTerm(p *Pod, text string) PodTerm {
	parts := strings.Split(text, "/")
	t := PodTerm{TopologyKey: parts[0], Selector: parseSelector(parts[1])}
	t.NamespaceSelector.Nothing = true
	for _, part := range parts[2:] {
		switch key, value, _ := strings.Cut(part, ":"); key {
		case "in":
			t.Namespaces = strings.Split(value, "+")
		case "where":
			t.NamespaceSelector = parseSelector(value)
		default:
			panic(fmt.Sprintf("scenario: unknown part %q of a term", part))
		}
	}
	if t.Namespaces == nil && t.NamespaceSelector.Nothing {
		t.Namespaces = []string{p.Namespace}
	}
	return t
}

func parseSpread(text string) SpreadConstraint {
	parts := strings.Split(text, "/")
	s := SpreadConstraint{
		TopologyKey: parts[0],
		MaxSkew:     int32(number(parts[1])),
		Selector:    parseSelector(parts[2]),
		Hard:        true,
		MinDomains:  1,
	}
	for _, part := range parts[3:] {
		switch key, value, _ := strings.Cut(part, ":"); key {
		case "soft":
			s.Hard = false
		case "min":
			s.MinDomains = int32(number(value))
		case "ignores-affinity":
			s.IgnoreAffinity = true
		case "honors-taints":
			s.HonorTaints = true
		default:
			panic(fmt.Sprintf("scenario: unknown part %q of a constraint", part))
		}
	}
	return s
}

func parseSelector(text string) (s selector.Selector) {
	switch text {
	case "all":
		return s
	case "none":
		s.Nothing = true
		return s
	}
	for one := range strings.SplitSeq(text, "+") {
		key, value, _ := strings.Cut(one, ":")
		s.Requirements = append(s.Requirements, Requirement{Key: key, Op: In, Values: []string{value}})
	}
	return s
}
