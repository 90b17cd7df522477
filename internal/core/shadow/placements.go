package shadow

import (
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// SettleDefault is how long a pod must go on fitting, after the other scheduler said that it fits nowhere, before
	// that is a Finding. Chosen: 3 s, longer than binds wait in the client-side rate limit of upstream's scheduler (50
	// per second) in a usual burst. A shorter time reports room that binds in flight take.
	SettleDefault = 3 * time.Second
	// assumeFor is how long a pod that we placed counts on our node while the other scheduler does not place it. Then it
	// is tried again, after its back-off, as after a bind that was refused. Chosen: 15 s, longer than the longest
	// back-off (10 s) of either scheduler.
	assumeFor = 15 * time.Second
	// stuckAfter is how long a pod that both refused must fit before it is a Finding that they still do. Chosen: 15 s,
	// longer than the longest back-off of upstream's scheduler, after which it tries again.
	stuckAfter = 15 * time.Second
	// bestMax is how many names of best nodes the views of all waiting pods keep together. Chosen: 16 MiB. A view beyond
	// that keeps none; then a difference counts as Uncertain.
	bestMax = 1 << 20
)

// Options configure Placements.
type Options struct {
	Scheduler scheduler.Options
	Settle    time.Duration // zero: SettleDefault
}

// Placements compares where pods are placed. It is not safe for concurrent use.
type Placements struct {
	o       Options
	seen    *scheduler.Placer // the cluster as it is seen: nothing is assumed
	ours    *scheduler.Placer // decides
	began   bool
	waiting map[scheduler.PodID]*waiter
	nodes   map[string]scheduler.Node
	touched map[string]unit.Instant // when something about a node changed that may matter to pods
	placed  map[scheduler.PodID]string
	assumed []deadline // pods that we placed, in order of time
	settles []deadline // pods that they refused and that fit, in order of time
	stuck   []deadline // pods that both refused and that fit since, in order of time
	names   int        // in the views
}

// waiter is a pod without a node.
type waiter struct {
	pod     scheduler.Pod
	early   bool         // it waited already when we began
	decided unit.Instant // since when we have a node for it; zero: we have none
	node    string       // ours
	view    view         // when we decided
	refused unit.Instant // when they said that it fits nowhere; zero: they did not
	said    string
	found   bool // that it fits was reported
}

// view is what the cluster as it is seen says about a pod.
type view struct {
	at    unit.Instant
	fits  int
	best  int64
	nodes []string // with the best score; nil: not kept
	why   string   // if none fits
}

type deadline struct {
	id scheduler.PodID
	at unit.Instant
}

// NewPlacements returns Placements without facts.
func NewPlacements(o Options) *Placements {
	if o.Settle == 0 {
		o.Settle = SettleDefault
	}
	return &Placements{
		o:       o,
		seen:    scheduler.New(o.Scheduler),
		ours:    scheduler.New(o.Scheduler),
		waiting: map[scheduler.PodID]*waiter{},
		nodes:   map[string]scheduler.Node{},
		touched: map[string]unit.Instant{},
		placed:  map[scheduler.PodID]string{},
	}
}

// Tell passes on a fact that concerns neither pods nor nodes.
func (s *Placements) Tell(fact func(*scheduler.Placer)) {
	fact(s.seen)
	fact(s.ours)
}

// Begin says that all first lists have arrived. Pods that wait now began to wait before we watched.
func (s *Placements) Begin() { s.began = true }

// Waiting returns how many pods wait, and for how many of them we have a node.
func (s *Placements) Waiting() (all, placed int) {
	for _, w := range s.waiting {
		if w.decided != 0 {
			placed++
		}
	}
	return len(s.waiting), placed
}

// NodeSeen records a node.
func (s *Placements) NodeSeen(now unit.Instant, n scheduler.Node) {
	if before, known := s.nodes[n.Name]; !known || !alike(&before, &n) {
		s.touched[n.Name] = now
	}
	s.nodes[n.Name] = n
	s.Tell(func(p *scheduler.Placer) { p.NodeSeen(now, n) })
}

// alike reports whether no filter and, images aside, no score can tell two states of a node apart.
func alike(a, b *scheduler.Node) bool {
	return a.Unschedulable == b.Unschedulable && a.PodsMax == b.PodsMax && len(a.Images) == len(b.Images) &&
		slices.Equal(a.Labels, b.Labels) && slices.Equal(a.Taints, b.Taints) &&
		slices.Equal(a.Allocatable, b.Allocatable) && slices.Equal(a.Features, b.Features)
}

// NodeGone records that a node was deleted.
func (s *Placements) NodeGone(now unit.Instant, name string) {
	delete(s.nodes, name)
	delete(s.touched, name)
	s.Tell(func(p *scheduler.Placer) { p.NodeGone(now, name) })
}

// PodSeen records a pod. refused says that the other scheduler's condition says that it fits nowhere, said is its
// message.
func (s *Placements) PodSeen(now unit.Instant, pod scheduler.Pod, refused bool, said string) (out []Event) {
	if pod.Node != "" {
		if w := s.waiting[pod.ID]; w != nil {
			if s.began && !pod.Deleting {
				out = append(out, s.compare(now, w, pod.Node))
			}
			s.drop(pod.ID)
		}
		if s.placed[pod.ID] != pod.Node {
			s.placed[pod.ID], s.touched[pod.Node] = pod.Node, now
		}
	} else if pod.Deleting {
		s.drop(pod.ID)
	} else {
		w := s.waiting[pod.ID]
		if w == nil {
			w = &waiter{early: !s.began}
			s.waiting[pod.ID] = w
		}
		w.pod = pod
		defer func() { out = append(out, s.refusal(now, w, refused, said)...) }()
	}
	s.Tell(func(p *scheduler.Placer) { p.PodSeen(now, pod) })
	return out
}

// PodGone records that a pod was deleted or has ended.
func (s *Placements) PodGone(now unit.Instant, id scheduler.PodID) {
	s.drop(id)
	if node := s.placed[id]; node != "" {
		s.touched[node] = now
		delete(s.placed, id)
	}
	s.Tell(func(p *scheduler.Placer) { p.PodGone(now, id) })
}

func (s *Placements) drop(id scheduler.PodID) {
	if w := s.waiting[id]; w != nil {
		s.names -= len(w.view.nodes)
		delete(s.waiting, id)
	}
}

// ask asks about a pod in the cluster as it is seen.
func (s *Placements) ask(now unit.Instant, pod scheduler.Pod) view {
	totals, failure := s.seen.Totals(pod)
	if failure != nil {
		return view{at: now, why: failure.String()}
	}
	v := view{at: now, fits: len(totals)}
	for _, n := range totals {
		if v.nodes == nil || n.Total > v.best {
			v.best = n.Total
			v.nodes = v.nodes[:0]
		}
		if n.Total == v.best {
			v.nodes = append(v.nodes, n.Node)
		}
	}
	slices.Sort(v.nodes)
	return v
}

// isBest reports whether a node has the best score, as far as that is known.
func (v *view) isBest(node string) bool { return slices.Contains(v.nodes, node) }

// Advance makes the decisions that our scheduler would make now.
func (s *Placements) Advance(now unit.Instant) (out []Event, wake unit.Instant) {
	for _, o := range s.ours.VolumeOutcomes(now) {
		if o.Why != "" {
			s.ours.Bound(now, o.Decision.Pod, scheduler.BindRefused)
		}
	}
	for len(s.assumed) > 0 && s.assumed[0].at <= now {
		if w := s.waiting[s.assumed[0].id]; w != nil {
			s.ours.Bound(now, w.pod, scheduler.BindRefused)
		}
		s.assumed = s.assumed[1:]
	}
	for d, ok := s.ours.Next(now); ok; d, ok = s.ours.Next(now) {
		s.decided(now, &d)
	}
	for _, queue := range []*[]deadline{&s.settles, &s.stuck} {
		for len(*queue) > 0 && (*queue)[0].at <= now {
			if w := s.waiting[(*queue)[0].id]; w != nil {
				out = append(out, s.settled(now, w, queue == &s.stuck)...)
			}
			*queue = (*queue)[1:]
		}
	}
	wake = s.ours.Wake()
	for _, queue := range [][]deadline{s.assumed, s.settles, s.stuck} {
		if len(queue) > 0 {
			wake = wake.Earlier(queue[0].at)
		}
	}
	return out, wake
}

// decided records a decision of ours.
func (s *Placements) decided(now unit.Instant, d *scheduler.Decision) {
	w := s.waiting[d.Pod.ID]
	if d.Node != "" {
		s.assumed = append(s.assumed, deadline{d.Pod.ID, now.Add(assumeFor)})
	}
	if w == nil {
		return
	}
	s.names -= len(w.view.nodes)
	w.view = s.ask(now, w.pod)
	if s.names+len(w.view.nodes) > bestMax {
		w.view.nodes = nil
	}
	s.names += len(w.view.nodes)
	if w.node = d.Node; d.Node == "" {
		w.decided = 0
	} else if w.decided == 0 {
		w.decided = now
		if w.refused != 0 && !w.found {
			s.stuck = append(s.stuck, deadline{d.Pod.ID, now.Add(stuckAfter)})
		}
	}
}

// compare judges where they put a pod, before that counts.
func (s *Placements) compare(now unit.Instant, w *waiter, node string) Event {
	e := Event{At: now, Pod: nameOf(&w.pod), Ours: w.node, Theirs: node}
	if len(w.pod.Unsupported) > 0 {
		e.Kind, e.Why = NotJudged, needs(w)
		return e
	}
	switch {
	case w.early:
	case w.decided == 0:
		e.Late = true
	default:
		e.Lead, e.HasLead = now.Sub(w.decided), true
	}
	v := s.ask(now, w.pod)
	e.Nodes = v.fits
	untouched := w.view.at != 0 && s.touched[node] <= w.view.at
	on, known := s.seen.VerdictOn(w.pod, node)
	switch {
	case node == w.node && known && on.Plugin == "" && v.isBest(node):
		e.Kind = SameNode
	case v.isBest(node) || w.view.isBest(node):
		e.Kind = EqualNode
		if node == w.node {
			e.Kind = SameNode
		}
	case !known:
		e.Kind, e.Why = Uncertain, "the node is not known"
	case on.Plugin != "":
		e.Kind, e.Why = Rejected, on.Plugin+": "+strings.Join(on.Reasons, "; ")
		if on.Detail != "" {
			e.Why += " (" + on.Detail + ")"
		}
		// Room only grows between their decision and their bind, except by what they decided before. What else changes
		// may have changed in between.
		if on.Rule&(scheduler.RuleResources|scheduler.RulePorts) == 0 && !untouched {
			e.Kind = Uncertain
		}
	case node != w.node && untouched && w.view.fits > 0 && w.view.nodes != nil && w.view.best == v.best:
		e.Kind = LowerScore
	default:
		e.Kind = Uncertain
	}
	s.explain(&e, &v, w)
	return e
}

// explain adds the scores to e, and what makes the difference. What each plugin gives is asked for only if there is
// one.
func (s *Placements) explain(e *Event, v *view, w *waiter) {
	if v.fits < 2 {
		return
	}
	e.Best = Score{v.nodes[0], v.best}
	if v.isBest(w.node) {
		e.Best.Node = w.node
	}
	if v.isBest(e.Theirs) {
		e.Best.Node = e.Theirs
		e.Got = e.Best
		return
	}
	var of, got *scheduler.NodeScore
	scores := s.seen.Scores(w.pod)
	for i := range scores {
		switch scores[i].Node {
		case e.Best.Node:
			of = &scores[i]
		case e.Theirs:
			got = &scores[i]
		}
	}
	switch {
	case got == nil && e.Kind != Rejected: // it was feasible when they decided
		e.Best = Score{}
		return
	case of == nil || got == nil:
		return
	}
	e.Got = Score{got.Node, got.Total}
	weights := s.weights(w.pod.Profile)
	for plugin, a := range of.Plugins {
		if b := got.Plugins[plugin]; a.Normalized != b.Normalized {
			weight := weights[plugin]
			e.Differs = append(e.Differs, Difference{plugin, weight * a.Normalized, weight * b.Normalized})
		}
	}
	slices.SortFunc(e.Differs, func(a, b Difference) int { return strings.Compare(a.Plugin, b.Plugin) })
}

func (s *Placements) weights(profile string) map[string]int64 {
	for _, p := range s.o.Scheduler.Profiles {
		if p.Name == profile {
			return p.Weights
		}
	}
	if len(s.o.Scheduler.Profiles) > 0 {
		return s.o.Scheduler.Profiles[0].Weights
	}
	return scheduler.DefaultProfile().Weights
}

// refusal records what they say about a pod that waits.
func (s *Placements) refusal(now unit.Instant, w *waiter, refused bool, said string) (out []Event) {
	if !refused {
		w.refused = 0
		w.said = ""
		w.found = false
		return nil
	}
	first := w.refused == 0
	if w.said = said; !first {
		return nil
	}
	w.refused = now
	if !s.began || len(w.pod.Unsupported) > 0 {
		s.settles = append(s.settles, deadline{w.pod.ID, now.Add(s.o.Settle)})
		return nil
	}
	return s.judgeRefusal(now, w)
}

// judgeRefusal says that both refuse, or sets a time for another look.
func (s *Placements) judgeRefusal(now unit.Instant, w *waiter) []Event {
	if v := s.ask(now, w.pod); v.fits == 0 {
		return []Event{{At: now, Kind: BothRefuse, Pod: nameOf(&w.pod), Why: v.why}}
	}
	s.settles = append(s.settles, deadline{w.pod.ID, now.Add(s.o.Settle)})
	return nil
}

// settled looks again at a pod that they refused. It is a Finding only if it fits. stuck says that both refused it, and
// it has fit for stuckAfter since.
func (s *Placements) settled(now unit.Instant, w *waiter, stuck bool) []Event {
	if w.refused == 0 || w.found || stuck && w.decided.Add(stuckAfter) > now {
		return nil
	}
	e := Event{At: now, Pod: nameOf(&w.pod), Ours: w.node}
	if len(w.pod.Unsupported) > 0 {
		w.found = true
		e.Kind, e.Why = NotJudged, needs(w)
		return []Event{e}
	}
	v := s.ask(now, w.pod)
	if v.fits == 0 && stuck {
		return nil
	}
	if v.fits == 0 {
		e.Kind, e.Why = BothRefuse, v.why
		return []Event{e}
	}
	w.found = true
	e.Kind, e.Why = Fits, w.said
	e.Nodes = v.fits
	e.Best = Score{v.nodes[0], v.best}
	if v.isBest(w.node) {
		e.Best.Node = w.node
	}
	return []Event{e}
}

func needs(w *waiter) string { return "it needs " + strings.Join(w.pod.Unsupported, ", ") }

func nameOf(pod *scheduler.Pod) string { return pod.Namespace + "/" + pod.Name }
