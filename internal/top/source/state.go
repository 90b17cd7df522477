package source

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// State returns what is known now, with the pods that a page shows.
func (s *Source) State() *top.State {
	synced := s.isSynced()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &top.State{
		Now:      time.Now(),
		Server:   s.Client.Host(),
		Synced:   synced,
		Away:     s.away,
		Since:    s.answered,
		PodCount: len(s.pods),
		Waiting:  s.waiting,
		Blind:    s.blind,
		Measured: s.measured,
		Nodes:    s.nodeList(),
	}
	out.NodeCount = len(out.Nodes)
	for _, what := range slices.Sorted(maps.Keys(s.lacks)) {
		out.Lacks = append(out.Lacks, s.lacks[what])
	}
	switch {
	case s.looks == top.Pods:
		out.Pods = make([]*top.Pod, 0, len(s.pods))
		for _, slot := range s.sorted.inOrder(s.pods) {
			pod := &slot.kept.pod
			if len(s.podUse) > 0 {
				pod = withUse(pod, s.podUse[pod.ID])
			}
			out.Pods = append(out.Pods, pod)
		}
	case s.detail != nil:
		s.addDetail(out)
	}
	if s.detail == nil && s.looks != top.Pods {
		out.Decisions = append(s.events.sorted(), s.recorded...)
		slices.SortStableFunc(out.Decisions, byTime)
		out.Decisions = out.Decisions[max(0, len(out.Decisions)-decisionsMax):]
	}
	return out
}

// nodeList returns the nodes in the order of their names. s.mu is locked.
func (s *Source) nodeList() []*top.Node {
	if s.order == nil {
		s.order = slices.Sorted(maps.Keys(s.nodes))
	}
	list := make([]*top.Node, 0, len(s.order))
	for _, name := range s.order {
		if n := s.nodes[name]; n.kept != nil {
			list = append(list, n.asShown(s.blind))
		}
	}
	return list
}

// asShown returns the node as States have it. It is made again only after a change, because a large cluster has few
// changes between two refreshes.
func (n *node) asShown(blind bool) *top.Node {
	if n.shown != nil {
		return n.shown
	}
	one := n.kept.node
	one.Used = n.used
	if !blind {
		sum := n.requested
		one.Requested = &sum
	}
	n.shown = &one
	return n.shown
}

// withUse returns the pod with what it uses, if that is known.
func withUse(p *top.Pod, u top.Usage) *top.Pod {
	if !u.Known() {
		return p
	}
	one := *p
	one.Used = u
	return &one
}

// addDetail adds the node in view, and its pods.
func (s *Source) addDetail(out *top.State) {
	d := s.detail
	names := map[string]string{}
	for uid, slot := range s.pods {
		k := slot.kept
		if k.pod.Node != d.name {
			continue
		}
		names[uid] = k.pod.ID
		out.Pods = append(out.Pods, withUse(&k.pod, d.uses[uid]))
	}
	slices.SortFunc(out.Pods, func(a, b *top.Pod) int { return strings.Compare(a.ID, b.ID) })
	out.Detail = &top.Detail{
		Node:      d.name,
		Samples:   slices.Clone(d.samples),
		NoSamples: d.noSamples,
		NoNUMA:    d.noNUMA,
		NUMA: d.numaMap(func(uid string) string {
			if name := names[uid]; name != "" {
				return name
			}
			return "a pod that has ended"
		}),
		Decisions: d.decisions,
		NoJournal: d.noJournal,
	}
	if d.machine != nil {
		out.Detail.Policy = d.machine.policy
	}
	// A node without a journal still has Events.
	for _, e := range s.events.sorted() {
		if e.About == d.name || e.Pod && slices.ContainsFunc(out.Pods, func(p *top.Pod) bool { return p.ID == e.About }) {
			out.Detail.Decisions = append(out.Detail.Decisions[:len(out.Detail.Decisions):len(out.Detail.Decisions)], e)
		}
	}
	slices.SortStableFunc(out.Detail.Decisions, byTime)
	out.Detail.Decisions = out.Detail.Decisions[max(0, len(out.Detail.Decisions)-decisionsMax):]
}

// Story asks what became of a pod, NAMESPACE/NAME, and returns its lines.
func (s *Source) Story(ctx context.Context, pod string) []string {
	namespace, name, _ := strings.Cut(pod, "/")
	ctx, cancel := context.WithTimeout(ctx, 4*answerTime)
	defer cancel()
	answer, err := s.Asker.Pod(ctx, namespace, name, "")
	if err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimRight(string(answer.Table()), "\n"), "\n")
}
