package placement

import (
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestAgentLacks: a pod goes to no node whose agent would hold it, and is tried again when the node's agent has what it needs.
func TestAgentLacks(t *testing.T) {
	p := New(Options{})
	ours := Node{Name: "ours", PodsMax: 9, AgentLacks: []string{"user-namespaces", "resource-claims"}}
	p.NodeSeen(1, ours)
	p.NodeSeen(1, Node{Name: "theirs", PodsMax: 9})
	judge := func(pod Pod) (reason string) {
		for _, v := range p.Verdicts(pod) {
			if v.Node == "theirs" && v.Plugin != "" {
				t.Errorf("%s is kept off a node whose agent says nothing: %v", pod.ID, v)
			}
			if v.Node == "ours" && v.Plugin != "" {
				reason = v.Reasons[0]
				if !v.Final {
					t.Error("evicting pods would help")
				}
			}
		}
		return reason
	}
	needs := Pod{ID: "needs", NeedsOfAgent: []string{"image-volumes", "user-namespaces"}}
	if got, want := judge(needs), "node(s) had an agent that would hold the pod: it has no user-namespaces"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := judge(Pod{ID: "plain"}); got != "" {
		t.Errorf("a plain pod: %q", got)
	}
	if got := judge(Pod{ID: "other", NeedsOfAgent: []string{"image-volumes"}}); got != "" {
		t.Errorf("a pod that needs something else: %q", got)
	}
	p.NodeGone(2, "theirs")
	p.PodSeen(2, needs)
	if d, ok := p.Next(2); !ok || d.Node != "" {
		t.Errorf("placed: %+v, %v", d, ok)
	}
	ours.AgentLacks = nil
	later := unit.Instant(0).Add(time.Minute)
	p.NodeSeen(later, ours)
	if d, ok := p.Next(later); !ok || d.Node != "ours" {
		t.Errorf("the agent has it now, and the pod is not tried again: %+v, %v", d, ok)
	}
}
