package eviction

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// graceLeast is the shortest grace period that is not zero, as in kubelets: SIGTERM, then SIGKILL after it. A
	// shorter one gives programs no time to save anything. A longer one leaves a full disk full.
	graceLeast = time.Second
	// freesWithin is how long after its kill the memory and processes of a pod count as coming. Chosen: the kernel
	// frees several GiB a second, so memory that is not free by then is stuck. A shorter time evicts a second pod for
	// memory that is about to be freed. A longer time waits for memory that is never freed.
	freesWithin = 5 * time.Second
	// freesDiskWithin is the same for disks, where directories are removed file by file. Kubelets wait as long for the
	// cleanup of a victim (podCleanupTimeout at v1.36.3).
	freesDiskWithin = 30 * time.Second
)

// Victim is a pod to evict.
type Victim struct {
	ID, Namespace, Name string
	Grace               time.Duration // 0: SIGKILL at once
	Cause               Cause
	Message             string            // of the pod's status, Event and condition, in upstream's words
	Annotations         map[string]string // of the Event; nil: none
	// The pod gets the condition DisruptionTarget with reason TerminationByKubelet.
	Disruption bool
	// It is being terminated already: only its grace period is shortened, and its status stays as it is.
	Ending bool
	Frees  int64 // how much it frees of what Cause is about; 0: not known
}

// Cause is why a pod is evicted, as in the metric kubelet_evictions: a signal, or an exceeded limit.
type Cause string

// need is what must be freed for a met threshold.
type need struct {
	met    *Met
	wanted int64 // what is missing, minus what was coming before this step
	taken  int64 // what the victims of this step free in time
}

// readEnds finds the pods that are being terminated, and when they are killed. If only this Decider counts a pod as
// terminating, that lasts until freesDiskWithin after its kill.
func (s *step) readEnds() {
	s.ends = map[string]unit.Instant{}
	here := map[string]bool{}
	for _, p := range s.facts.Pods {
		here[p.ID] = true
		at := p.KillAt.Earlier(s.kills[p.ID])
		if p.KillAt.IsZero() && !at.IsZero() && s.now > at.Add(freesDiskWithin) {
			delete(s.kills, p.ID) // the shell did not kill it
			continue
		}
		if !at.IsZero() {
			s.ends[p.ID] = at
		}
	}
	for id := range s.kills {
		if !here[id] && !s.facts.Quick {
			delete(s.kills, id)
		}
	}
}

// hardGrace is the grace period of pods evicted for a hard threshold. It is zero for memory and process ids, because
// they can run out within less than a second.
func hardGrace(s allocatable.Signal) time.Duration {
	if r := resourceOf(s); r == Memory || r == PIDs {
		return 0
	}
	return graceLeast
}

// comesFor reports whether a pod that is killed at end frees something for t: soon enough, and not overdue.
func (s *step) comesFor(t Threshold, end unit.Instant) bool {
	within := freesWithin
	if r := resourceOf(t.Signal); r == Storage || r == Inodes {
		within = freesDiskWithin
	}
	if end.IsZero() || s.now > end.Add(within) {
		return false
	}
	return !t.IsHard() || end <= s.now.Add(hardGrace(t.Signal))
}

// coming returns how much the pods that were terminating before this step will free for t.
func (s *step) coming(t Threshold) int64 {
	var sum int64
	for _, p := range s.facts.Pods {
		if _, victim := s.chosen[p.ID]; !victim && s.comesFor(t, s.ends[p.ID]) {
			sum += s.measure(t, p).Frees
		}
	}
	return sum
}

func (s *step) measure(t Threshold, p Pod) Ranked {
	return measure(t.Signal, p, s.config.Memory, s.disks)
}

// answer decides what to do now for one met threshold.
func (s *step) answer(m *Met) {
	if !m.Acts {
		return
	}
	m.Coming = s.coming(m.Threshold)
	n := &need{met: m, wanted: m.Deficit - m.Coming}
	n.taken = s.takenFor(n)
	switch {
	case n.wanted <= 0:
		m.Held = "enough is coming"
		return
	case !m.At.IsZero() && m.At <= s.spent[m.Signal]:
		m.Held = "was decided on this observation"
		return
	case n.taken < n.wanted && s.wait(m):
		return
	}
	s.needs = append(s.needs, n)
	if n.taken < n.wanted {
		s.choose(n)
	}
	m.Taken = n.taken
}

// choose takes victims in order until n is covered. If all pods together cannot cover n, it takes one pod, and none
// while something is coming.
func (s *step) choose(n *need) {
	t := n.met.Threshold
	order := s.candidates(t)
	if s.out.Ranking == nil {
		s.out.Ranking = Rank(t.Signal, s.facts.Pods, s.config.Memory, s.disks)
	}
	all := n.taken
	for _, r := range order {
		all += r.Frees
	}
	short := all < n.wanted
	if short && n.met.Coming > 0 {
		n.met.Held = "all pods together cannot cover it: waits for what is coming"
		return
	}
	for _, r := range order {
		if n.taken >= n.wanted || short && n.taken > 0 {
			break
		}
		if r.Frees > 0 {
			s.take(r, t)
			n.taken += r.Frees
		}
	}
	switch {
	case n.taken == 0:
		n.met.Held = "no pod that may be evicted is known to free any"
	case short:
		n.met.Held = "all pods together cannot cover it: one at a time"
	}
	if n.taken > 0 {
		s.out.Starved = append(s.out.Starved, resourceOf(t.Signal))
	}
	s.spare()
}

// candidates returns the pods that may be evicted for t, in order. For a hard threshold the pods that are terminating
// with a longer grace period come first, because they end in any case.
func (s *step) candidates(t Threshold) []Ranked {
	var pods []Pod
	for _, p := range s.facts.Pods {
		end := s.ends[p.ID]
		gentle := t.IsHard() && end > s.now.Add(hardGrace(t.Signal))
		if !p.Critical && (end.IsZero() || gentle) {
			pods = append(pods, p)
		}
	}
	order := Rank(t.Signal, pods, s.config.Memory, s.disks)
	slices.SortStableFunc(order, func(a, b Ranked) int {
		return trueFirst(!s.ends[a.ID].IsZero(), !s.ends[b.ID].IsZero())
	})
	return order
}

// take makes a pod a victim, or shortens the grace period of one that is a victim already.
func (s *step) take(r Ranked, t Threshold) {
	p := s.pod(r.ID)
	grace := hardGrace(t.Signal)
	if !t.IsHard() {
		grace = s.config.SoftGraceMax
		if own, ok := p.Grace.Get(); ok {
			grace = min(grace, own)
		}
		grace = max(graceLeast, grace)
	}
	v := Victim{
		ID:         p.ID,
		Namespace:  p.Namespace,
		Name:       p.Name,
		Grace:      grace,
		Cause:      Cause(t.Signal),
		Disruption: true,
		Frees:      r.Frees,
		Ending:     !p.KillAt.IsZero(),
	}
	v.Message, v.Annotations = s.message(p, t)
	s.add(v)
}

func (s *step) add(v Victim) {
	s.ends[v.ID] = s.now.Add(v.Grace)
	if at, ok := s.chosen[v.ID]; ok {
		s.out.Victims[at].Grace = v.Grace // the message stays: it names the limit that the pod exceeded
		return
	}
	s.chosen[v.ID] = len(s.out.Victims)
	s.out.Victims = append(s.out.Victims, v)
}

func (s *step) pod(id string) Pod {
	return s.facts.Pods[slices.IndexFunc(s.facts.Pods, func(p Pod) bool { return p.ID == id })]
}

// spare removes victims, from the last to the first, if the others cover all needs so far without them.
func (s *step) spare() {
	for i := len(s.out.Victims) - 1; i >= 0; i-- {
		v := s.out.Victims[i]
		if s.limited[v.ID] || !s.canSpare(v) {
			continue
		}
		s.out.Victims = slices.Delete(s.out.Victims, i, i+1)
		s.restoreEnd(v.ID)
		s.chosen = map[string]int{}
		for j, left := range s.out.Victims {
			s.chosen[left.ID] = j
		}
		for _, n := range s.needs {
			n.taken = s.takenFor(n)
			n.met.Taken = n.taken
		}
	}
}

// restoreEnd restores when a pod that is a victim no longer ends.
func (s *step) restoreEnd(id string) {
	delete(s.ends, id)
	if at := s.pod(id).KillAt.Earlier(s.kills[id]); !at.IsZero() {
		s.ends[id] = at
	}
}

// takenFor returns how much the victims free for n.
func (s *step) takenFor(n *need) int64 {
	var sum int64
	for _, v := range s.out.Victims {
		sum += s.freesFor(v, n)
	}
	return sum
}

func (s *step) freesFor(v Victim, n *need) int64 {
	if !s.comesFor(n.met.Threshold, s.now.Add(v.Grace)) {
		return 0
	}
	return s.measure(n.met.Threshold, s.pod(v.ID)).Frees
}

// canSpare reports whether every need is covered as well without v.
func (s *step) canSpare(v Victim) bool {
	for _, n := range s.needs {
		with := s.takenFor(n)
		if without := with - s.freesFor(v, n); without < min(with, n.wanted) {
			return false
		}
	}
	return true
}
