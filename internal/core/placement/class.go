package placement

import (
	"fmt"
	"slices"
	"strings"
)

// A class is what the rules need to know of a pod, compiled: names are interned, resources are column numbers. Pods whose
// demands are equal share one class. A class is never changed.
type class struct {
	signature string

	requests    []request // non-zero only, in column order
	asked, held Load

	tolerations   []Toleration
	toleratesNode bool // tolerates a cordon
	nodeSelector  []labelID
	terms         []compiledTerm
	hasTerms      bool     // terms is a demand, even if empty
	onlyNames     []string // if not nil: no node of another name can match; sorted
	conflict      bool     // the terms contradict each other on the node's name
	preferred     []weightedTerm
	ports         []HostPort
	unsupported   []string
}

type request struct {
	column int
	value  int64
}

type labelID struct{ key, value int32 }

type compiledTerm struct {
	labels []compiledRequirement
	names  []Requirement
	never  bool
}

type compiledRequirement struct {
	key    int32
	op     Operator
	values []int32 // interned, sorted
	bound  int64
}

type weightedTerm struct {
	weight int64
	term   compiledTerm
}

// compile returns the class of pod, an existing one if there is.
func (c *cluster) compile(pod Pod) *class {
	signature := signatureOf(pod)
	if known := c.classes[signature]; known != nil {
		return known
	}
	k := &class{
		signature:   signature,
		asked:       pod.Asked,
		held:        pod.Held,
		tolerations: pod.Tolerations,
		ports:       pod.Ports,
		unsupported: pod.Unsupported,
	}
	for _, a := range pod.Requests {
		if a.Value != 0 {
			k.requests = append(k.requests, request{c.column(a.Resource), a.Value})
		}
	}
	slices.SortFunc(k.requests, func(a, b request) int { return a.column - b.column })
	k.toleratesNode = tolerated(pod.Tolerations, cordonTaint)
	for _, l := range pod.NodeSelector {
		k.nodeSelector = append(k.nodeSelector, labelID{c.intern.id(l.Key), c.intern.id(l.Value)})
	}
	if pod.NodeAffinity != nil {
		k.hasTerms = true
		for _, t := range *pod.NodeAffinity {
			k.terms = append(k.terms, c.compileTerm(t))
		}
		k.onlyNames, k.conflict = namesDemanded(*pod.NodeAffinity)
	}
	for _, w := range pod.Preferred {
		if w.Weight != 0 {
			k.preferred = append(k.preferred, weightedTerm{w.Weight, c.compileTerm(w.Term)})
		}
	}
	c.classes[signature] = k
	c.sweepClasses()
	return k
}

func (c *cluster) compileTerm(t NodeTerm) compiledTerm {
	out := compiledTerm{names: t.Names, never: t.Broken || len(t.Labels)+len(t.Names) == 0}
	for _, r := range t.Labels {
		q := compiledRequirement{key: c.intern.id(r.Key), op: r.Op, bound: r.Bound}
		for _, v := range r.Values {
			q.values = append(q.values, c.intern.id(v))
		}
		slices.Sort(q.values)
		out.labels = append(out.labels, q)
	}
	return out
}

// namesDemanded returns the node names outside of which no term can match, or nil if some term leaves the name open.
// conflict: every term demands names, and none can be met.
func namesDemanded(terms []NodeTerm) (names []string, conflict bool) {
	if len(terms) == 0 {
		return nil, false
	}
	all := map[string]bool{}
	for _, t := range terms {
		var of []string
		open := true
		for _, r := range t.Names {
			if r.Op != In {
				continue
			}
			if open {
				of, open = slices.Clone(r.Values), false
				continue
			}
			of = slices.DeleteFunc(of, func(n string) bool { return !slices.Contains(r.Values, n) })
		}
		if open {
			return nil, false
		}
		for _, n := range of {
			all[n] = true
		}
	}
	names = make([]string, 0, len(all))
	for n := range all {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, len(names) == 0
}

// signatureOf writes down, unambiguously, everything of pod that a class holds.
func signatureOf(pod Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%#v %d %d %#v %q", pod.Requests, pod.Asked, pod.Held, pod.Tolerations, pod.NodeSelector)
	if pod.NodeAffinity != nil {
		fmt.Fprintf(&b, " required %#v", *pod.NodeAffinity)
	}
	fmt.Fprintf(&b, " %#v %#v %q", pod.Preferred, pod.Ports, pod.Unsupported)
	return b.String()
}

// classesMin is how many classes are kept before unused ones are looked for. Chosen: a class is about 1 KiB, so that 1024
// of them are 1 MiB; raising it costs memory, lowering it sweeps more often.
const classesMin = 1024

// sweepClasses drops classes that no pod of the cluster uses, each time the table has doubled. Queued pods hold their
// class themselves; a class compiled again later is equal to the dropped one.
func (c *cluster) sweepClasses() {
	if len(c.classes) < c.sweepAt {
		return
	}
	used := map[*class]bool{}
	for _, p := range c.pods {
		used[p.class] = true
	}
	for s, k := range c.classes {
		if !used[k] {
			delete(c.classes, s)
		}
	}
	c.sweepAt = max(classesMin, 2*len(c.classes))
}
