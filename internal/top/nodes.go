package top

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// barWidth is the width of a load line in a table, in characters (chosen: each is a twelfth, and two fit beside the
// numbers in 120).
const barWidth = 12

// nodeColumns are the columns of the table of nodes.
var nodeColumns = []column[Node]{
	{name: "name", title: "NODE", cell: func(n *Node) Span { return Span{n.Name, Plain} },
		order: less(func(n *Node) string { return n.Name })},
	{name: "state", title: "STATE", width: 14, cell: nodeState,
		order: less(func(n *Node) string { return nodeState(n).Text })},
	{name: "pods", title: "PODS", width: 8, rank: 3, right: true, cell: func(n *Node) Span {
		return Span{podsText(n), Plain}
	}, order: more(func(n *Node) int64 { return n.requested().Pods })},
	{name: "cpu", group: "CPU", title: "USED", width: 6, right: true,
		cell:  func(n *Node) Span { return known(n.Used.Known(), cpuText(n.Used.CPU)) },
		order: more(func(n *Node) unit.MilliCPU { return n.Used.CPU })},
	{name: "cpu-requested", group: "CPU", title: "REQ", width: 5, right: true,
		cell:  func(n *Node) Span { return known(n.Requested != nil, cpuText(n.requested().CPU)) },
		order: more(func(n *Node) unit.MilliCPU { return n.requested().CPU })},
	{name: "cpu-reserved", group: "CPU", title: "RSVD", width: 5, rank: 5, right: true,
		cell: func(n *Node) Span { return Span{cpuText(n.Reserved().CPU), Plain} }},
	{name: "cpu-capacity", group: "CPU", title: "CAP", width: 5, rank: 2, right: true,
		cell:  func(n *Node) Span { return Span{cpuText(n.Capacity.CPU), Plain} },
		order: more(func(n *Node) unit.MilliCPU { return n.Capacity.CPU })},
	{name: "cpu-line", group: "CPU", title: "LOAD LINE", width: barWidth, rank: 6, cell: func(n *Node) Span {
		return Span{n.bar(int64(n.Capacity.CPU), int64(n.Reserved().CPU), int64(n.requested().CPU), int64(n.Used.CPU),
			barWidth), Dim}
	}},
	{name: "memory", group: "MEMORY", title: "USED", width: 7, right: true,
		cell:  func(n *Node) Span { return known(n.Used.Known(), bytesText(n.Used.Memory)) },
		order: more(func(n *Node) unit.Bytes { return n.Used.Memory })},
	{name: "memory-requested", group: "MEMORY", title: "REQ", width: 6, right: true,
		cell:  func(n *Node) Span { return known(n.Requested != nil, bytesText(n.requested().Memory)) },
		order: more(func(n *Node) unit.Bytes { return n.requested().Memory })},
	{name: "memory-reserved", group: "MEMORY", title: "RSVD", width: 6, rank: 5, right: true,
		cell: func(n *Node) Span { return Span{bytesText(n.Reserved().Memory), Plain} }},
	{name: "memory-capacity", group: "MEMORY", title: "CAP", width: 6, rank: 2, right: true,
		cell:  func(n *Node) Span { return Span{bytesText(n.Capacity.Memory), Plain} },
		order: more(func(n *Node) unit.Bytes { return n.Capacity.Memory })},
	{name: "memory-line", group: "MEMORY", title: "LOAD LINE", width: barWidth, rank: 6, cell: func(n *Node) Span {
		return Span{n.bar(int64(n.Capacity.Memory), int64(n.Reserved().Memory), int64(n.requested().Memory),
			int64(n.Used.Memory), barWidth), Dim}
	}},
	{name: "pressure", title: "PRESSURE", width: 11, rank: 4, cell: pressureOf,
		order: more(func(n *Node) int { return len(n.Pressure) })},
	{name: "agent", title: "AGENT", width: 8, rank: 7, cell: func(n *Node) Span {
		if n.Ours {
			return Span{"plimsoll", Plain}
		}
		return Span{"other", Dim}
	}},
}

// requested is what the pods request; zero if that is not known.
func (n *Node) requested() Amounts {
	if n.Requested == nil {
		return Amounts{}
	}
	return *n.Requested
}

// bar is a load line. What is free is not known without the requests.
func (n *Node) bar(capacity, reserved, requested, used int64, width int) string {
	line := loadLine(capacity, reserved, requested, used, width)
	if n.Requested == nil {
		return strings.ReplaceAll(line, "·", unknown)
	}
	return line
}

func podsText(n *Node) string {
	if n.Requested == nil {
		return fmt.Sprintf("%s/%d", unknown, n.Allocatable.Pods)
	}
	return fmt.Sprintf("%d/%d", n.Requested.Pods, n.Allocatable.Pods)
}

// known returns text, or the sign for what is not known.
func known(is bool, text string) Span {
	if !is {
		return Span{unknown, Dim}
	}
	return Span{text, Plain}
}

func nodeState(n *Node) Span {
	switch {
	case n.State != "Ready":
		return Span{n.State, Bad}
	case n.Cordoned:
		return Span{"Ready,cordoned", Warn}
	case len(n.Taints) > 0:
		return Span{"Ready,tainted", Plain}
	}
	return Span{n.State, Good}
}

func pressureOf(n *Node) Span {
	if len(n.Pressure) == 0 {
		return Span{"-", Dim}
	}
	return Span{strings.Join(n.Pressure, ","), Bad}
}

func nodeName(n *Node) string { return n.Name }

// nodeTable is the page of nodes.
func (v *View) nodeTable(s *State) document {
	var keep func(*Node) bool
	if v.Filter != "" {
		keep = func(n *Node) bool {
			return matches(v.Filter, n.Name, nodeState(n).Text, n.Kubelet, strings.Join(n.Pressure, " "))
		}
	}
	rows := sorted(s.Nodes, keep, nodeColumns, v.sortOf(Nodes), v.Reverse)
	return tableOf(v, nodeColumns, rows, nodeName)
}

// tableOf is a table as a document.
func tableOf[T any](v *View, all []column[T], rows []*T, id func(*T) string) document {
	flex := flexMin
	for _, r := range rows {
		if name := id(r); len(name) > flex && flex < flexMax { // a character has as many bytes as columns, or more
			flex = max(flex, columns(name))
		}
	}
	shown := fit(all, v.Width, min(flex, flexMax))
	return document{
		head:  heads(shown, v.sortOf(v.Page), v.Reverse),
		count: len(rows),
		line:  func(i int) Line { return row(shown, rows[i]) },
		id:    func(i int) string { return id(rows[i]) },
	}
}
