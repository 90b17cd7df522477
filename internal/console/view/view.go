// Package view says what the console shows, from facts: a line for each node (Row), who owns which CPU of a node
// (MapOf), and its memory against its thresholds (Marks, Thresholds). It draws nothing, reads nothing and knows no
// time: package console is its shell, and the page in the browser draws.
//
// # Invariants
//
//   - Amounts are in base units: millicores of cpu, bytes, counts. The page prints them.
//   - The same facts give the same value, so that a shell can compare it with what it sent last.
package view

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Row is a node in the list of all nodes. Its JSON keys are short, because there may be thousands of rows.
type Row struct {
	Name     string   `json:"n"`
	State    State    `json:"s"`
	Cordoned bool     `json:"c,omitempty"`
	Pressure []string `json:"p,omitempty"` // conditions that say that something is short, sorted
	Taints   int      `json:"t,omitempty"`
	Ours     bool     `json:"o,omitempty"` // plimsoll's agent runs it
	Lines    []Line   `json:"l"`           // cpu, memory and pods first
}

// Line is one resource of a node: its load line.
type Line struct {
	Resource    string `json:"r"`
	Capacity    int64  `json:"c"`
	Allocatable int64  `json:"a"`
	Requested   int64  `json:"q"`
}

// State is whether a node is ready.
type State string

// The states.
const (
	Ready    State = "ready"
	NotReady State = "not ready"
	Unknown  State = "unknown" // its agent is silent
)

// RowOf returns the row of a node.
func RowOf(room explain.LiveRoom) Row {
	node := room.Node
	out := Row{
		Name:     node.Name,
		State:    Unknown,
		Cordoned: node.Spec.Unschedulable,
		Taints:   len(node.Spec.Taints),
		Ours:     translate.OurAgent(node),
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			out.State = Ready
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse:
			out.State = NotReady
		case c.Type != corev1.NodeReady && c.Status == corev1.ConditionTrue:
			out.Pressure = append(out.Pressure, string(c.Type))
		}
	}
	slices.Sort(out.Pressure)
	for _, l := range room.Load {
		out.Lines = append(out.Lines, Line(l))
	}
	return out
}

// Pod is a pod on a node.
type Pod struct {
	Pod      string           `json:"pod"` // namespace/name
	Phase    string           `json:"phase"`
	Ready    bool             `json:"ready"`
	Leaving  bool             `json:"leaving,omitempty"` // its deletion was requested
	Restarts int32            `json:"restarts"`
	Priority int32            `json:"priority"`
	Requests map[string]int64 `json:"requests"`
}

// PodsOf returns the pods of a node, those that request most memory first.
func PodsOf(pods []*explain.LivePod) []Pod {
	out := []Pod{}
	for _, p := range pods {
		one := Pod{
			Pod:      p.Namespace + "/" + p.Name,
			Phase:    string(p.Phase),
			Ready:    p.Ready,
			Leaving:  p.DeletionTimestamp != nil,
			Restarts: p.Restarts,
			Priority: p.Priority,
			Requests: map[string]int64{},
		}
		for _, r := range p.Requests {
			one.Requests[r.Resource] = r.Value
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(b.Requests["memory"], a.Requests["memory"]), cmp.Compare(a.Pod, b.Pod))
	})
	return out
}
