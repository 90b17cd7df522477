package journal

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
)

// NodeAction is the Detail of OfNode and OfPod records: Basis.Repeat returns Action again.
type NodeAction struct {
	Action lifecycle.Action
	Basis  lifecycle.Basis
}

// Text implements Detail.
func (d *NodeAction) Text() string { return d.what() + ": " + d.Basis.Why(d.Action) }

func (d *NodeAction) what() string {
	a := &d.Action
	if a.Pod != nil {
		return map[lifecycle.Verb]string{
			lifecycle.MarkNotReady:        "marked not ready",
			lifecycle.Evict:               "evicted",
			lifecycle.CollectOrphan:       "deleted",
			lifecycle.CollectOutOfService: "deleted",
		}[a.Do] + " on " + a.Node
	}
	var parts []string
	for _, c := range a.Unknown {
		parts = append(parts, string(c.Type)+" becomes Unknown")
	}
	for _, t := range a.Add {
		parts = append(parts, "taint "+t.String()+" is added")
	}
	for _, t := range a.Drop {
		parts = append(parts, "taint "+t.String()+" is removed")
	}
	if len(a.Labels) > 0 {
		parts = append(parts, fmt.Sprintf("%d labels are set", len(a.Labels)))
	}
	return "node " + a.Node + ": " + strings.Join(parts, ", ")
}

// Size implements Detail.
func (d *NodeAction) Size() int {
	size := 900 // the fields, and the map of conditions
	for _, list := range [][]lifecycle.Taint{d.Action.Add, d.Action.Drop, d.Basis.Node.Taints} {
		for i := range list {
			size += 60 + len(list[i].Key) + len(list[i].Value)
		}
	}
	size += 120 * len(d.Basis.NoExecute)
	if d.Action.Pod != nil {
		size += 200 + 80*len(d.Action.Pod.Tolerations)
	}
	return size
}

// Said is the Detail of a Remark: something that was decided about a zone or a node, and why.
type Said struct {
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// Text implements Detail.
func (s *Said) Text() string { return s.Subject + ": " + s.Why }

// Size implements Detail.
func (s *Said) Size() int { return 32 + len(s.Subject) + len(s.Why) }
