// Package explain says why something is as it is in a cluster: why pods wait (Waiting), what became of a pod (Pod),
// what a node carries and what keeps pods off it (Node).
//
// # Model
//
// A question reads the cluster's objects once, and asks the core: core/scheduler judges, core/scheduler/remedy finds
// the smallest changes. If one of the Sources is a component that watches the cluster (Live.Handler), that is asked
// what the core says, and the objects are not read. Nothing has to be installed in the cluster, and it may have any
// scheduler: the core decides as kube-scheduler does with its defaults, or with the configuration that is given. What a
// scheduler, a kubelet or a controller said itself is in the objects' status and in Events, and is printed next to it.
// Plimsoll's own parts keep journals. That of a node's agent is read through the API server (nodes/proxy), those of the
// scheduler and the lifecycle controller from their ports or files (Sources). Status, Events and journals of a pod
// become one story: they are joined by UID, and ordered by time. Each part is told without the others, and the answer
// says which is missing.
//
// A question works with what the caller may read. Nodes and pods are necessary to judge. Of everything else that could
// not be read, the answer says what it is and what that means (Unseen).
//
// # Invariants
//
//   - Nothing is written, and no pod is placed.
//   - A change is proposed only if the core, asked with the change made, lets the pod in.
//   - Counts are exact at the time of the read. A pod whose needs the core does not know is counted, and not judged.
//
// # What it does not do
//
// It decides nothing. It does not know a scheduler's extenders and plugins that are not upstream's. An answer is as old
// as the read, unless a Live watches the cluster, as the console's does.
package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/remedy"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// An Asker answers questions about one cluster.
type Asker struct {
	Client *kube.Client
	Config *schedulerconfig.Config // how the cluster's scheduler is configured
	Newest int                     // how many of the newest journal records are wanted at most; 0: all
	// Sources are the journals of components other than the nodes' agents, which are found by their nodes.
	Sources []Source
	// Judges says that Config is the caller's own: no component that may have another one is asked what the core says.
	Judges bool

	live *Live // what is asked instead of reading the cluster; nil: nothing
}

// Unseen is something that could not be read.
type Unseen struct {
	What   string `json:"what"`   // "persistentvolumeclaims", "the journal of node n1"
	Error  string `json:"error"`  // why not
	Effect string `json:"effect"` // what that means for the answer
}

// Waiting is the answer about all waiting pods.
type Waiting struct {
	From   string  `json:"from,omitempty"` // which component said so; empty: the cluster was read
	Nodes  int     `json:"nodes"`
	Pods   int     `json:"pods"` // how many wait
	Groups []Group `json:"groups"`
	// Refused are owners whose pods the API server does not accept; a Live does not know them.
	Refused []Refused `json:"refused,omitempty"`
	Notes   []string  `json:"notes,omitempty"`
	Unseen  []Unseen  `json:"unseen,omitempty"`
}

// A Group is waiting pods with the same verdict.
type Group struct {
	Count int      `json:"count"`
	Pods  []string `json:"pods"`
	// Since is when the first of them was created.
	Since time.Time `json:"since"`
	// Unspoken is about how many of them no scheduler has said anything.
	Unspoken int `json:"unspoken,omitempty"`
	Verdict
}

// Verdict is what the core says about a waiting pod.
type Verdict struct {
	Summary   string   `json:"summary"`             // the text of upstream's Event; empty: it fits, or is not judged
	NotJudged string   `json:"notJudged,omitempty"` // why the core cannot judge it
	Gates     []string `json:"gates,omitempty"`
	// Feasible is how many nodes would take it, FeasibleNodes some of them.
	Feasible      int      `json:"feasible"`
	FeasibleNodes []string `json:"feasibleNodes,omitempty"`
	Reasons       []Reason `json:"reasons,omitempty"`
	Nearest       *Nearest `json:"nearest,omitempty"`
	Changes       []Remedy `json:"changes,omitempty"` // any one of them lets it in
}

// A Reason is why some nodes reject a pod.
type Reason struct {
	Count  int      `json:"count"`
	Plugin string   `json:"plugin"`
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"` // some of them
}

// Nearest is the nearest miss.
type Nearest struct {
	Node    string   `json:"node"`
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"`
	Detail  string   `json:"detail,omitempty"`
	Short   []Short  `json:"short,omitempty"`
}

// Short is a resource of which a node has too little left.
type Short struct {
	Resource    string `json:"resource"`
	Asked       string `json:"asked"`
	Free        string `json:"free"`
	Allocatable string `json:"allocatable"`
}

// A Remedy is changes that together let a pod in.
type Remedy struct {
	Of         remedy.Side `json:"of"`
	Node       string      `json:"node"` // which node takes the pod then
	Text       string      `json:"text"`
	Changes    []Change    `json:"changes,omitempty"`
	Feasible   int         `json:"feasible,omitempty"` // how many nodes would take it, if the pod is changed
	Victims    []string    `json:"victims,omitempty"`
	Violations int         `json:"violations,omitempty"` // victims that a disruption budget protects
}

// A Change is one thing that would be different. Amounts are quantities.
type Change struct {
	Kind  remedy.Kind `json:"kind"`
	Name  string      `json:"name,omitempty"`
	Value string      `json:"value,omitempty"`
	Taint string      `json:"taint,omitempty"`
	From  string      `json:"from,omitempty"`
	To    string      `json:"to,omitempty"`
}

// examplesMax is how many names stand for many (chosen: as many as fit on a line).
const examplesMax = 5

// Waiting asks why pods wait.
func (a *Asker) Waiting(ctx context.Context) (*Waiting, error) {
	// The API server looks through all Events meanwhile: with a thousand waiting pods that takes as long as judging them.
	var refused []Refused
	var unread error
	var reads sync.WaitGroup
	if a.live == nil {
		reads.Go(func() { refused, unread = a.refused(ctx, "") })
	}
	told, err := a.askWatcher(ctx, askedQuestion{})
	reads.Wait()
	if err != nil {
		return nil, fmt.Errorf("explain pending: %w", err)
	}
	out := told.Waiting
	out.Refused = refused
	if unread != nil {
		out.Unseen = append(out.Unseen, Unseen{What: "events", Error: unread.Error(),
			Effect: "owners whose pods are refused, by a quota for example, are not known"})
	}
	return out, nil
}

// all says what the core says about all waiting pods.
func (s *snapshot) all() *Waiting {
	return &Waiting{
		Nodes:  s.nodes + s.world.Nodes(),
		Pods:   len(s.waiting),
		Groups: s.groups(),
		Notes:  s.notes(s.waiting),
		Unseen: s.unseen,
	}
}

// groups judges the waiting pods.
func (s *snapshot) groups() []Group {
	var facts []scheduler.Pod
	aside := map[string][]scheduler.Pod{} // by why they are not judged
	for _, p := range s.waiting {
		if why := s.notJudged(&p.fact); why != "" {
			aside[why] = append(aside[why], p.fact)
			continue
		}
		facts = append(facts, p.fact)
	}
	out := []Group{}
	for _, g := range s.world.Groups(facts) {
		out = append(out, s.group(g.Pods, verdictOf(&g.Answer)))
	}
	for why, pods := range aside {
		out = append(out, s.group(pods, Verdict{NotJudged: why}))
	}
	slices.SortStableFunc(out, func(a, b Group) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(a.Pods[0], b.Pods[0])
	})
	return out
}

func (s *snapshot) group(pods []scheduler.Pod, v Verdict) Group {
	g := Group{Count: len(pods), Verdict: v}
	for _, fact := range pods {
		p := s.waiting[fact.ID]
		g.Pods = append(g.Pods, p.name())
		if created := p.pod.CreationTimestamp.Time; g.Since.IsZero() || created.Before(g.Since) {
			g.Since = created
		}
		if said := conditionOf(p.pod, corev1.PodScheduled); said == nil && len(p.fact.Gates) == 0 {
			g.Unspoken++
		}
	}
	slices.Sort(g.Pods)
	return g
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// verdictOf puts an answer of the core into words.
func verdictOf(a *remedy.Answer) Verdict {
	v := Verdict{Gates: a.Gates, Feasible: len(a.Feasible), FeasibleNodes: some(a.Feasible)}
	if a.Failure != nil {
		v.Summary = a.Failure.String()
	}
	for _, r := range a.Reasons {
		v.Reasons = append(v.Reasons, Reason{Count: len(r.Nodes), Plugin: r.Plugin, Reason: r.Text, Nodes: some(r.Nodes)})
	}
	if n := a.Nearest; n != nil {
		v.Nearest = &Nearest{Node: n.Node, Plugin: n.Plugin, Reasons: n.Reasons, Detail: n.Detail}
		for _, s := range n.Short {
			v.Nearest.Short = append(v.Nearest.Short, Short{
				Resource:    s.Resource,
				Asked:       quantity(s.Resource, s.Asked),
				Free:        quantity(s.Resource, s.Free()),
				Allocatable: quantity(s.Resource, s.Allocatable),
			})
		}
	}
	for i := range a.Remedies {
		v.Changes = append(v.Changes, remedyOf(&a.Remedies[i]))
	}
	return v
}

// some returns the first few names.
func some(names []string) []string { return names[:min(len(names), examplesMax)] }
