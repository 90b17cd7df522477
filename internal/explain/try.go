package explain

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// A Trial is what the core says about copies of a pod that nobody created.
type Trial struct {
	Verdict
	// Placed is on which nodes the copies would be placed, one after the other, if they came now.
	Placed []TrialPlace `json:"placed,omitempty"`
	Copies int          `json:"copies"` // how many were asked about
	Fit    int          `json:"fit"`    // how many of them get a node
	Notes  []string     `json:"notes,omitempty"`
	Unseen []Unseen     `json:"unseen,omitempty"`
}

// TrialPlace is how many copies a node gets.
type TrialPlace struct {
	Node  string `json:"node"`
	Count int    `json:"count"`
}

// Try asks where copies of a pod would be placed. Nothing is created. The Verdict is about the first copy that gets no
// node, or else about the first.
func (l *Live) Try(pod *corev1.Pod, copies int) Trial {
	s, release := l.look("")
	defer release()
	fact := translate.SchedulerPod(pod)
	fact.ID, fact.Node = "", ""
	out := Trial{Copies: copies, Unseen: s.unseen}
	out.Notes = s.notes(map[scheduler.PodID]*waitingPod{"": {fact: fact}})
	if out.NotJudged = s.notJudged(&fact); out.NotJudged != "" {
		return out
	}
	first := s.world.Ask(fact)
	out.Verdict = verdictOf(&first)
	at := map[string]int{}
	for i := range copies {
		one := fact
		one.ID = scheduler.PodID(fmt.Sprintf("what if %d", i))
		node := best(s.world.Placer(), one)
		if node == "" {
			answer := s.world.Ask(one)
			out.Verdict = verdictOf(&answer)
			break
		}
		one.Node = node
		s.world.PodSeen(atRead, one)
		defer s.world.PodGone(atRead, one.ID)
		at[node]++
		out.Fit++
	}
	for _, node := range slices.Sorted(maps.Keys(at)) {
		out.Placed = append(out.Placed, TrialPlace{Node: node, Count: at[node]})
	}
	slices.SortStableFunc(out.Placed, func(a, b TrialPlace) int { return b.Count - a.Count })
	return out
}

// best returns the node with the best score for a pod, of equal ones the first by name; empty: it fits on none.
func best(p *scheduler.Placer, pod scheduler.Pod) string {
	scores := p.Scores(pod)
	if len(scores) == 0 {
		for _, v := range p.Verdicts(pod) {
			if v.Plugin == "" {
				return v.Node
			}
		}
		return ""
	}
	most := scores[0]
	for _, s := range scores[1:] {
		if s.Total > most.Total {
			most = s
		}
	}
	return most.Node
}

// TryAllocatable asks how many waiting pods a node would take, each alone, if it had other amounts allocatable.
func (l *Live) TryAllocatable(node string, amounts map[string]int64) (waiting int, takes []string) {
	s, release := l.look("")
	defer release()
	n := l.nodes[node]
	if n == nil {
		return 0, nil
	}
	changed := n.fact
	changed.Allocatable = slices.Clone(changed.Allocatable)
	for i := range changed.Allocatable {
		if value, has := amounts[changed.Allocatable[i].Resource]; has {
			changed.Allocatable[i].Value = value
		}
	}
	defer s.world.NodeSeen(atRead, n.fact)
	s.world.NodeSeen(atRead, changed)
	var facts []scheduler.Pod
	for _, p := range s.waiting {
		if s.notJudged(&p.fact) == "" {
			facts = append(facts, p.fact)
		}
	}
	_, fit := s.world.MissesOn(node, facts)
	for _, p := range fit {
		takes = append(takes, p.Namespace+"/"+p.Name)
	}
	slices.Sort(takes)
	return len(s.waiting), takes
}
