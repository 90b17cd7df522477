package scheduler

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// benchWaits are the reasons for which pods wait in BenchmarkBeside, as changes of the i-th pod. Every pod has a class
// of its own.
var benchWaits = []struct {
	reason string
	change func(p *Pod, i int)
}{
	{"nobody", nil},
	{"partners", func(p *Pod, i int) { // no pod matches the affinity
		p.Affinity = []PodTerm{appTerm("partner-"+strconv.Itoa(i), "zone")}
	}},
	{"zones", func(p *Pod, i int) { p.NodeSelector = []Label{{Key: "zone", Value: "none-" + strconv.Itoa(i)}} }},
	{"claims", func(p *Pod, i int) { p.Mounts = []Mount{{Claim: "none-" + strconv.Itoa(i)}} }},
	{"room", func(p *Pod, i int) { p.Requests = []Amount{{CPU, int64(65000 + i)}} }},
	{"room-of-one", func(p *Pod, i int) { // their largest request, memory, is free everywhere; CPU nowhere
		p.Requests = []Amount{{CPU, int64(63700 + i%60)}, {Memory, int64(255*unit.GiB + 256*unit.MiB)}}
	}},
	{"hosts", func(p *Pod, i int) { // each host has a pod to which they have anti-affinity
		everybody := LabelSelector{Requirements: []Requirement{{Key: "app", Op: Exists}}}
		p.AntiAffinity = []PodTerm{
			{
				Selector:          everybody,
				Namespaces:        []string{"d"},
				NamespaceSelector: LabelSelector{Nothing: true},
				TopologyKey:       hostKey,
			},
		}
		p.Requests = []Amount{{CPU, int64(100 + i)}}
	}},
	{"hosts-or-room", func(p *Pod, i int) { // likewise, and many hosts have no room either
		everybody := LabelSelector{Requirements: []Requirement{{Key: "app", Op: Exists}}}
		p.AntiAffinity = []PodTerm{
			{
				Selector:          everybody,
				Namespaces:        []string{"d"},
				NamespaceSelector: LabelSelector{Nothing: true},
				TopologyKey:       hostKey,
			},
		}
		p.Requests = []Amount{{CPU, int64(63500 + i%90)}}
	}},
	{"spread", func(p *Pod, i int) { // over more zones than there are
		everybody := LabelSelector{Requirements: []Requirement{{Key: "app", Op: Exists}}}
		p.Spread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", Hard: true, Selector: everybody, MinDomains: 10}}
		p.Requests = []Amount{{CPU, int64(100 + i)}}
	}},
}

// waitingPods is how many pods wait. The target of issue 16: with so many waiting pods, a placement costs at most twice
// as much as without.
const waitingPods = 1000

// A course is a cluster, and the pods that are added to it one by one. Each is deleted when enough others have come.
type course struct {
	name    string
	cluster func(nodes int) *Placer
	// begin returns a function that adds the next pod.
	begin func(b *testing.B, p *Placer) (one func())
}

var courses = []course{
	mixCourse("identical"),
	mixCourse("kinds"),
	mixCourse("own-job"),
	crowdCourse("alike"),
	crowdCourse("looking-budgets"),
}

// staying is how many pods of a mixture there are at a time.
const staying = 300

func mixCourse(name string) course {
	var m *mixture
	for i := range mixes {
		if mixes[i].name == name {
			m = &mixes[i]
		}
	}
	begin := func(b *testing.B, p *Placer) func() {
		i, stay := 0, make([]PodID, staying)
		return func() {
			x := benchPod("p" + strconv.Itoa(i))
			m.pod(p, i, &x)
			placeBound(b, p, x)
			if old := &stay[i%staying]; *old != "" {
				p.PodGone(2, *old)
			}
			stay[i%staying] = x.ID
			i++
		}
	}
	return course{name: name, cluster: func(nodes int) *Placer { return mixCluster(m, nodes) }, begin: begin}
}

func crowdCourse(name string) course {
	var m *crowd
	for i := range crowds {
		if crowds[i].name == name {
			m = &crowds[i]
		}
	}
	begin := func(b *testing.B, p *Placer) func() {
		i, stays := 0, make([]stay, crowdStay)
		return func() {
			if m.between != nil {
				m.between(p, i)
			}
			preemptOne(b, p, m, i, stays)
			i++
		}
	}
	cluster := func(nodes int) *Placer { return crowdCluster(m, nodes) }
	return course{name: "preemptors-" + name, cluster: cluster, begin: begin}
}

// BenchmarkBeside measures a pod, from its addition until it is bound and an older one is deleted, while other pods
// wait for an event that never happens.
func BenchmarkBeside(b *testing.B) {
	for _, nodes := range []int{5000, 50000} {
		for _, k := range courses {
			for _, w := range benchWaits {
				b.Run(fmt.Sprintf("nodes=%d/%s/%s", nodes, k.name, w.reason), func(b *testing.B) {
					p := k.cluster(nodes)
					one := k.begin(b, p)
					for range staying {
						one()
					}
					waitFor(b, p, w.change)
					measure(b, 2*staying, one)
				})
			}
		}
	}
}
