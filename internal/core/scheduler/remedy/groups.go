package remedy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// reasonsOf groups verdicts by reason. A node with two reasons counts under both.
func reasonsOf(all []scheduler.Verdict) (out []Reason) {
	at, n := map[[2]string]int{}, 0
	for i := range all {
		for _, text := range all[i].Reasons {
			if plugin := all[i].Plugin; n == len(out) || out[n].Plugin != plugin || out[n].Text != text { // unlike the last
				known := false
				if n, known = at[[2]string{plugin, text}]; !known {
					n = len(out)
					at[[2]string{plugin, text}] = n
					out = append(out, Reason{Plugin: plugin, Text: text})
				}
			}
			out[n].Nodes = append(out[n].Nodes, all[i].Node)
		}
	}
	slices.SortStableFunc(out, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Text, b.Text))
	})
	return out
}

// A Group is waiting pods with the same Answer.
type Group struct {
	Pods []scheduler.Pod // by namespace and name
	Answer
}

// Groups judges waiting pods, and returns those with the same answer together: the largest group first. Pods that no
// rule can tell apart are judged once.
func (w *World) Groups(pods []scheduler.Pod) (out []Group) {
	order := make([]*scheduler.Pod, len(pods))
	for i := range pods {
		order[i] = &pods[i]
	}
	slices.SortFunc(order, func(a, b *scheduler.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	alike, same := map[string]int{}, map[string]int{}
	var held holds
	defer held.release()
	for _, pod := range order {
		look := w.placer.Likeness(*pod) + strings.Join(pod.Gates, "\x00")
		n, known := alike[look]
		if !known {
			held.add(w.placer, *pod)
			a := w.Ask(*pod)
			key := a.key()
			if n, known = same[key]; !known {
				n, same[key] = len(out), len(out)
				out = append(out, Group{Answer: a})
			}
			alike[look] = n
		}
		out[n].Pods = append(out[n].Pods, *pod)
	}
	slices.SortStableFunc(out, func(a, b Group) int { return cmp.Compare(len(b.Pods), len(a.Pods)) })
	return out
}

// holds keeps what is computed for the first pods of some kinds, so that those like them are recognized sooner.
type holds []func()

// heldMax bounds holds, because what is kept for a pod grows with the nodes. Chosen: waiting pods are mostly of fewer
// kinds.
const heldMax = 64

func (h *holds) add(p *scheduler.Placer, pod scheduler.Pod) {
	if len(*h) < heldMax {
		*h = append(*h, p.Hold(pod))
	}
}

func (h *holds) release() {
	for _, release := range *h {
		release()
	}
}

// key returns a text that is the same for answers that say the same.
func (a *Answer) key() string {
	var b strings.Builder
	list := func(names []string) { // may have thousands
		for _, name := range names {
			b.WriteString(name)
			b.WriteByte(0)
		}
		b.WriteByte(1)
	}
	list(a.Gates)
	list(a.Feasible)
	if a.Failure != nil {
		b.WriteString(a.Failure.String())
	}
	for _, r := range a.Reasons {
		list(r.Nodes)
	}
	for i := range a.Remedies {
		fmt.Fprintf(&b, " %+v", a.Remedies[i])
	}
	return b.String()
}

// A Miss is why one node rejects some of the waiting pods.
type Miss struct {
	Plugin, Text string // as in Reason
	Pods         []scheduler.Pod
}

// MissesOn judges waiting pods for one node: why it rejects them, the most frequent reason first, and which it would
// take.
func (w *World) MissesOn(node string, pods []scheduler.Pod) (misses []Miss, takes []scheduler.Pod) {
	alike, at := map[string]scheduler.Verdict{}, map[[2]string]int{}
	var held holds
	defer held.release()
	for _, pod := range pods {
		look := w.placer.Likeness(pod)
		v, known := alike[look]
		if !known {
			held.add(w.placer, pod)
			v, _ = w.placer.VerdictOn(pod, node)
			alike[look] = v
		}
		if v.Plugin == "" {
			takes = append(takes, pod)
		}
		for _, text := range v.Reasons {
			key := [2]string{v.Plugin, text}
			n, known := at[key]
			if !known {
				n, at[key] = len(misses), len(misses)
				misses = append(misses, Miss{Plugin: v.Plugin, Text: text})
			}
			misses[n].Pods = append(misses[n].Pods, pod)
		}
	}
	slices.SortStableFunc(misses, func(a, b Miss) int {
		return cmp.Or(cmp.Compare(len(b.Pods), len(a.Pods)), cmp.Compare(a.Text, b.Text))
	})
	return misses, takes
}
