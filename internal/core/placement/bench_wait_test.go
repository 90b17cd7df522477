package placement

import (
	"fmt"
	"strconv"
	"testing"
)

// benchWaits are the reasons for which pods wait in BenchmarkPlaceBeside: what each makes of the pod with number i.
// Every pod is a kind of its own.
var benchWaits = []struct {
	reason string
	change func(p *Pod, i int)
}{
	{"nobody", nil},
	{"partners", func(p *Pod, i int) { // that never come
		partner := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"partner-" + strconv.Itoa(i)}}}}
		p.Affinity = []PodTerm{{Selector: partner, Namespaces: []string{"d"}, NamespaceSelector: LabelSelector{Nothing: true}, TopologyKey: "zone"}}
	}},
	{"zones", func(p *Pod, i int) { p.NodeSelector = []Label{{Key: "zone", Value: "none-" + strconv.Itoa(i)}} }},
	{"claims", func(p *Pod, i int) { p.Mounts = []Mount{{Claim: "none-" + strconv.Itoa(i)}} }},
	{"room", func(p *Pod, i int) { p.Requests = []Amount{{CPU, int64(65000 + i)}} }},
	{"hosts", func(p *Pod, i int) { // of which each has a pod that they must not meet
		old := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"old"}}}}
		p.AntiAffinity = []PodTerm{{Selector: old, Namespaces: []string{"d"}, NamespaceSelector: LabelSelector{Nothing: true}, TopologyKey: hostKey}}
		p.Requests = []Amount{{CPU, int64(100 + i)}}
	}},
}

// waitingPods is how many pods wait. The target of issue 16: beside so many a placement costs at most twice what it
// does without them.
const waitingPods = 1000

// BenchmarkPlaceBeside measures what a pod costs, from its being seen until it is bound and an older one leaves, while
// others wait for what does not come.
func BenchmarkPlaceBeside(b *testing.B) {
	for _, nodes := range []int{5000, 50000} {
		for _, kinds := range []int{1, 100} {
			for _, w := range benchWaits {
				b.Run(fmt.Sprintf("nodes=%d/kinds=%d/%s", nodes, kinds, w.reason), func(b *testing.B) {
					p := benchCluster(nodes)
					for i := 0; i < waitingPods && w.change != nil; i++ {
						x := benchPod("waits-" + strconv.Itoa(i))
						w.change(&x, i)
						p.PodSeen(2, x)
					}
					for {
						d, ok := p.Next(2)
						if !ok {
							break
						}
						if d.Failure == nil {
							b.Fatalf("pod %s does not wait: it is placed on %s", d.Pod.Name, d.Node)
						}
					}
					placeInTurn(b, p, kinds)
				})
			}
		}
	}
}

// placeInTurn places pods of so many kinds in turn; when there are many, the oldest goes whenever one comes.
func placeInTurn(b *testing.B, p *Placer, kinds int) {
	var placed []PodID
	made := 0
	place := func() {
		made++
		x := benchPod("p" + strconv.Itoa(made))
		x.Labels = []Label{{Key: "app", Value: "kind-" + strconv.Itoa(made%kinds)}}
		x.Requests = []Amount{{CPU, int64(100 + made%kinds)}}
		p.PodSeen(2, x)
		d, ok := p.Next(2)
		if !ok || d.Failure != nil {
			b.Fatalf("pod %s: %v", x.Name, d.Failure)
		}
		x.Node = d.Node
		p.PodSeen(2, x)
		if placed = append(placed, x.ID); len(placed) > 2*kinds {
			p.PodGone(2, placed[0])
			placed = placed[1:]
		}
	}
	for range 3 * kinds { // the first asks are not the steady state
		place()
	}
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		place()
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}
