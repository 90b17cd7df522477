package admission

import (
	"fmt"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

func pod(cpu, memory int64, more ...scheduler.Amount) scheduler.Pod {
	return scheduler.Pod{Requests: append([]scheduler.Amount{
		{Resource: "cpu", Value: cpu},
		{Resource: "memory", Value: memory},
	}, more...)}
}

// nodeWith has pods on it, which it names.
func nodeWith(offers scheduler.Node, pods []scheduler.Pod) *Node {
	n := NewNode(offers)
	for i, p := range pods {
		p.ID = scheduler.PodID(fmt.Sprint(i))
		n.Set(p)
	}
	return n
}

func TestCheck(t *testing.T) {
	node := scheduler.Node{
		PodsMax:     3,
		Allocatable: []scheduler.Amount{{Resource: "cpu", Value: 2000}, {Resource: "memory", Value: 1 << 30}},
	}
	for _, c := range []struct {
		name string
		pod  scheduler.Pod
		held []scheduler.Pod
		want string // with "room: " where others hold what it lacks
	}{
		{"an empty node carries it", pod(2000, 1<<30), nil, ""},
		{"to the last millicore", pod(100, 1), []scheduler.Pod{pod(1900, 0)}, ""},
		{"one millicore too many", pod(101, 1), []scheduler.Pod{pod(1900, 0)},
			"room: OutOfcpu: Node didn't have enough resource: cpu, requested: 101, used: 1900, capacity: 2000"},
		{"CPU is named before memory", pod(3000, 2<<30), nil,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{"memory", pod(0, 1<<30), []scheduler.Pod{pod(0, 1)},
			"room: OutOfmemory: Node didn't have enough resource: memory, requested: 1073741824, used: 1, capacity: 1073741824"},
		{"one pod too many", pod(1, 0), []scheduler.Pod{{}, {}, {}},
			"room: OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{"pods are counted first", pod(9000, 0), []scheduler.Pod{{}, {}, {}},
			"OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{"a native resource that the node does not have", pod(0, 0, scheduler.Amount{Resource: "hugepages-2Mi", Value: 1}),
			nil,
			"OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 1, used: 0, capacity: 0"},
		{
			"an extended resource that only the cluster counts",
			pod(0, 0, scheduler.Amount{Resource: "example.com/license", Value: 1}), nil, "",
		},
		{"nothing asked for is nothing refused, however full the node", pod(0, 0), []scheduler.Pod{pod(5000, 5<<30)}, ""},
	} {
		got := ""
		if r := nodeWith(node, c.held).Check(c.pod); r != nil {
			got = r.Reason + ": " + r.Message
			if r.Room {
				got = "room: " + got
			}
		}
		if got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestObjections(t *testing.T) {
	node := scheduler.Node{
		Name: "n", PodsMax: 10, Labels: []scheduler.Label{{Key: "disk", Value: "ssd"}},
		Taints: []scheduler.Taint{{Key: "full", Effect: scheduler.NoSchedule}},
	}
	tainted := node
	tainted.Taints = []scheduler.Taint{{Key: "gone", Effect: scheduler.NoExecute}}
	nameless := node
	nameless.Name = ""
	wants := func(disk string) scheduler.Pod {
		return scheduler.Pod{NodeSelector: []scheduler.Label{{Key: "disk", Value: disk}}}
	}
	port := scheduler.Pod{ID: "p", Ports: []scheduler.HostPort{{IP: scheduler.AnyIP, Protocol: "TCP", Port: 80}}}
	const affinity = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	for _, c := range []struct {
		name string
		pod  scheduler.Pod
		held []scheduler.Pod
		node scheduler.Node
		want string
	}{
		{"a label that the node has, and a taint for schedulers", wants("ssd"), nil, node, ""},
		{"a label that the node has not", wants("tape"), nil, node, affinity},
		{"labels that are not known yet", wants("tape"), nil, nameless, ""},
		{"a port that is free", port, []scheduler.Pod{{}}, node, ""},
		{"a port that is taken", port, []scheduler.Pod{port}, node,
			"NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{"a taint that drives pods away", scheduler.Pod{}, nil, tainted,
			"TaintToleration: Predicate TaintToleration failed: node(s) had untolerated taint(s)"},
	} {
		got := ""
		if r := nodeWith(c.node, c.held).Check(c.pod); r != nil {
			got = r.Reason + ": " + r.Message
		}
		if got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}
