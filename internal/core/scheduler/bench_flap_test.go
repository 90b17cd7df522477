package scheduler

import (
	"fmt"
	"strconv"
	"testing"
)

// flaps are the ways in which a node changes, and changes back.
var flaps = []struct {
	name   string
	change func(n *Node)
}{
	{"ready", func(n *Node) { // as the lifecycle controller does while a node is not Ready
		n.Taints = []Taint{
			{Key: "node.kubernetes.io/not-ready", Effect: NoSchedule}, {Key: "node.kubernetes.io/not-ready", Effect: NoExecute},
		}
	}},
	{"cordon", func(n *Node) { n.Unschedulable = true }},
	{"label", func(n *Node) { n.Labels = append(n.Labels, Label{Key: "load", Value: "high"}) }},
	{"zone", func(n *Node) { n.Labels[1].Value = "elsewhere" }},
	{"allocatable", func(n *Node) { n.Allocatable = []Amount{{CPU, 32000}, n.Allocatable[1]} }},
	{"gone", nil},
}

// flapped is how many changes there are between two pods.
const flapped = 20

// BenchmarkFlap measures the cost of one change of a node, plus a twentieth of the cost of placing a pod (of 1,000
// ReplicaSets in rotation): without other pods, and with 1,000 waiting pods. The nodes change in rotation, and back.
func BenchmarkFlap(b *testing.B) {
	for _, nodes := range []int{5000, 50000} {
		for _, flap := range flaps {
			for _, w := range benchWaits {
				if w.reason != "nobody" && w.reason != "zones" && w.reason != "room" {
					continue
				}
				b.Run(fmt.Sprintf("nodes=%d/%s/%s", nodes, flap.name, w.reason), func(b *testing.B) {
					k := mixCourse("kinds")
					p := k.cluster(nodes)
					one := k.begin(b, p)
					for range staying {
						one()
					}
					waitFor(b, p, w.change)
					i := 0
					step := func() {
						n := benchNode(i / 2 % nodes)
						switch changed := i%2 == 0; {
						case changed && flap.change == nil:
							p.NodeGone(2, n.Name)
						case changed:
							flap.change(&n)
							p.NodeSeen(2, n)
						default:
							p.NodeSeen(2, n)
						}
						if i++; i%flapped == 0 {
							one()
						}
					}
					measure(b, 100*flapped, step)
				})
			}
		}
	}
}

// waitFor adds pods that wait for an event that never happens.
func waitFor(b *testing.B, p *Placer, change func(p *Pod, i int)) {
	for i := 0; i < waitingPods && change != nil; i++ {
		x := benchPod("waits-" + strconv.Itoa(i))
		x.Labels = nil
		change(&x, i)
		p.PodSeen(2, x)
	}
	for {
		d, ok := p.Next(2)
		if !ok {
			return
		}
		if d.Failure == nil {
			b.Fatalf("pod %s does not wait: it is placed on %s", d.Pod.Name, d.Node)
		}
	}
}
