package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// podColumns are the columns of a table of pods; now is for ages.
func podColumns(now time.Time, withNode bool) []column[Pod] {
	out := []column[Pod]{
		{name: "name", title: "POD", least: 30, cell: func(p *Pod) Span { return Span{p.ID, Plain} }, order: less(podID)},
		{name: "state", title: "STATE", width: 18, rank: 1, cell: podState,
			order: less(func(p *Pod) string { return p.State })},
		{name: "node", title: "NODE", width: 20, rank: 4, cell: func(p *Pod) Span { return known(p.Node != "", p.Node) },
			order: less(func(p *Pod) string { return p.Node })},
		{name: "cpu", group: "CPU", title: "USED", width: 6, right: true,
			cell:  func(p *Pod) Span { return known(p.Used.Known(), cpuText(p.Used.CPU)) },
			order: more(func(p *Pod) unit.MilliCPU { return p.Used.CPU })},
		{name: "cpu-requested", group: "CPU", title: "REQ", width: 5, right: true,
			cell:  func(p *Pod) Span { return Span{cpuText(p.Requested.CPU), Plain} },
			order: more(func(p *Pod) unit.MilliCPU { return p.Requested.CPU })},
		{name: "memory", group: "MEMORY", title: "USED", width: 7, right: true,
			cell:  func(p *Pod) Span { return known(p.Used.Known(), bytesText(p.Used.Memory)) },
			order: more(func(p *Pod) unit.Bytes { return p.Used.Memory })},
		{name: "memory-requested", group: "MEMORY", title: "REQ", width: 6, right: true,
			cell:  func(p *Pod) Span { return Span{bytesText(p.Requested.Memory), Plain} },
			order: more(func(p *Pod) unit.Bytes { return p.Requested.Memory })},
		{name: "restarts", title: "RESTARTS", width: 9, rank: 3, right: true, cell: func(p *Pod) Span {
			if p.Restarts == 0 {
				return Span{"0", Dim}
			}
			return Span{fmt.Sprint(p.Restarts), Warn}
		}, order: more(func(p *Pod) int { return p.Restarts })},
		{name: "age", title: "AGE", width: 5, rank: 2, right: true,
			cell:  func(p *Pod) Span { return Span{ageText(now.Sub(p.Created)), Plain} },
			order: more(func(p *Pod) int64 { return p.Created.UnixNano() })},
	}
	if !withNode {
		out = append(out[:2], out[3:]...)
	}
	return out
}

func podState(p *Pod) Span {
	switch {
	case p.State == "Running":
		return Span{p.State, Good}
	case strings.HasSuffix(p.State, "BackOff"), strings.HasPrefix(p.State, "Err"), p.State == "OOMKilled":
		return Span{p.State, Bad}
	}
	return Span{p.State, Warn}
}

// podOrder is an order of pods: those that it was made of, and how. Large clusters have many, and each key asks for the
// order more than once.
type podOrder struct {
	first         *(*Pod) // of the State's list; nil: there is no order yet
	count         int
	filter, by    string
	reverse, node bool
	rows          []*Pod
}

// podRows returns the pods that the view shows, in order.
func (v *View) podRows(s *State, of []column[Pod]) []*Pod {
	if len(s.Pods) == 0 {
		return nil
	}
	want := podOrder{
		first:   &s.Pods[0],
		count:   len(s.Pods),
		filter:  v.Filter,
		by:      v.sortOf(Pods),
		reverse: v.Reverse,
		node:    slices.ContainsFunc(of, func(c column[Pod]) bool { return c.name == "node" }),
	}
	if o := v.ordered; o.first == want.first && o.count == want.count && o.filter == want.filter && o.by == want.by &&
		o.reverse == want.reverse && o.node == want.node {
		return o.rows
	}
	var keep func(p *Pod) bool
	if v.Filter != "" {
		keep = func(p *Pod) bool { return matches(v.Filter, p.ID, p.Node, p.State) }
	}
	want.rows = sorted(s.Pods, keep, of, want.by, want.reverse)
	v.ordered = want
	return want.rows
}

// podTable is the page of pods.
func (v *View) podTable(s *State) document {
	all := podColumns(s.Now, true)
	return tableOf(v, all, v.podRows(s, all), podID)
}

// decisionColumns are the columns of the table of decisions.
func decisionColumns(now time.Time) []column[Decision] {
	return []column[Decision]{
		{name: "age", title: "AGE", width: 5, right: true,
			cell: func(d *Decision) Span { return Span{ageText(now.Sub(d.Time)), Plain} }},
		{title: "FROM", width: 17, rank: 2, cell: func(d *Decision) Span { return Span{d.From, Plain} }},
		{title: "ABOUT", width: 34, rank: 1, cell: func(d *Decision) Span { return Span{d.About, Plain} }},
		{title: "DECISION", least: 30, cell: func(d *Decision) Span {
			if d.Bad {
				return Span{d.Text, Warn}
			}
			return Span{d.Text, Plain}
		}},
	}
}

// decisionTable is the page of decisions: the newest first.
func (v *View) decisionTable(s *State) document {
	all := decisionColumns(s.Now)
	rows := make([]*Decision, 0, len(s.Decisions))
	flex := flexMin
	for i := len(s.Decisions) - 1; i >= 0; i-- {
		d := &s.Decisions[i]
		if matches(v.Filter, d.From, d.About, d.Text) {
			rows = append(rows, d)
			flex = max(flex, columns(d.Text))
		}
	}
	shown := fit(all, v.Width, flex)
	return document{
		head:  heads(shown, "", false),
		count: len(rows),
		line:  func(i int) Line { return row(shown, rows[i]) },
		id: func(i int) string {
			return fmt.Sprintf("%d %t %s", rows[i].Time.UnixNano(), rows[i].Pod, rows[i].About)
		},
	}
}
