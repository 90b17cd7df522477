package lifecycle

import (
	"time"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// This file records decisions in the journal. Nothing here waits.

// note records what Advance decided at now. No fact may have been recorded since.
func (c *controller) note(now unit.Instant, d corelifecycle.Decision) {
	if c.o.Journal == nil {
		return
	}
	at := time.Now()
	for _, r := range d.Reasons {
		n := journal.Note{Time: at, Kind: journal.Remark, Detail: &journal.Said{Subject: r.Subject, Why: r.Text}}
		if c.latest[r.Subject] != nil {
			n.Node = r.Subject
		}
		c.o.Journal.Note(n)
	}
	for _, a := range d.Actions {
		n := journal.Note{
			Time:   at,
			Kind:   journal.OfNode,
			Node:   a.Node,
			Detail: &journal.NodeAction{Action: a, Basis: c.monitor.Basis(now, a)},
		}
		if a.Pod != nil {
			n.Kind, n.Pods = journal.OfPod, podsOf(a)
		}
		c.o.Journal.Note(n)
	}
}

func podsOf(a corelifecycle.Action) []journal.Pod {
	if a.Pod == nil {
		return nil
	}
	return []journal.Pod{{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: string(a.Pod.ID)}}
}

// noteFailed records that an action could not be carried out; err may be nil. Any goroutine may call it.
func (c *controller) noteFailed(a corelifecycle.Action, err error) {
	if err == nil || c.o.Journal == nil {
		return
	}
	what := "write conditions and taints"
	if a.Pod != nil {
		if what = "delete the pod"; a.Do == corelifecycle.MarkNotReady {
			what = "mark the pod not ready"
		}
	}
	c.o.Journal.Note(journal.Note{
		Time:   time.Now(),
		Kind:   journal.Failed,
		Node:   a.Node,
		Pods:   podsOf(a),
		Detail: &journal.Failure{What: what, Node: a.Node, Error: err.Error()},
	})
}
