package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// twin is a Node in plain form: it remembers what it was told, and counts from scratch whenever it is asked.
type twin struct {
	offers scheduler.Node
	pods   map[scheduler.PodID]scheduler.Pod
}

func (w *twin) requested(resource string) (sum int64) {
	for _, p := range w.pods {
		sum += of(p, resource)
	}
	return sum
}

// of is how much of a resource a pod requests.
func of(p scheduler.Pod, resource string) (sum int64) {
	for _, a := range p.Requests {
		if a.Resource == resource {
			sum += a.Value
		}
	}
	return sum
}

func (w *twin) allocatable(resource string) int64 {
	for _, a := range w.offers.Allocatable {
		if a.Resource == resource {
			return a.Value
		}
	}
	return 0
}

// verdict is what upstream's rules say of the node, by the scheduler: it has the same rules for all nodes of a cluster.
func (w *twin) verdict(pod scheduler.Pod) scheduler.Verdict {
	s := scheduler.New(scheduler.Options{})
	offers := w.offers
	offers.Taints = nil // of taints, a scheduler heeds more
	for _, t := range w.offers.Taints {
		if t.Effect == scheduler.NoExecute {
			offers.Taints = append(offers.Taints, t)
		}
	}
	s.NodeSeen(1, offers)
	for _, p := range w.pods {
		p.Node = offers.Name
		s.PodSeen(1, p)
	}
	return s.Verdicts(pod)[0]
}

// resources of random nodes and pods. The last one no node has: something else counts it.
var resources = []string{"cpu", "memory", "ephemeral-storage", "example.com/card", "example.com/license"}

func randomPod(r *rand.Rand, id int) scheduler.Pod {
	p := scheduler.Pod{ID: scheduler.PodID(fmt.Sprint(id)), Name: fmt.Sprint(id), Priority: int32(r.IntN(2))}
	for _, resource := range resources {
		if r.IntN(3) == 0 {
			p.Requests = append(p.Requests, scheduler.Amount{Resource: resource, Value: int64(r.IntN(5))})
		}
	}
	if r.IntN(3) == 0 {
		p.Ports = append(p.Ports, scheduler.HostPort{
			IP:       []string{scheduler.AnyIP, "10.0.0.1", "10.0.0.2"}[r.IntN(3)],
			Protocol: []string{"TCP", "UDP"}[r.IntN(2)],
			Port:     int32(80 + r.IntN(2)),
		})
	}
	if r.IntN(6) == 0 {
		p.NodeSelector = []scheduler.Label{{Key: "disk", Value: []string{"ssd", "tape"}[r.IntN(2)]}}
	}
	if r.IntN(6) == 0 {
		names := scheduler.Requirement{
			Key:    "metadata.name",
			Op:     scheduler.In,
			Values: []string{fmt.Sprintf("n%d", r.IntN(2))},
		}
		p.NodeAffinity = &[]scheduler.NodeTerm{
			{Names: []scheduler.Requirement{names}},
			{Labels: []scheduler.Requirement{{Key: "disk", Op: scheduler.Exists}}, Broken: r.IntN(2) == 0},
		}
	}
	if r.IntN(3) == 0 {
		p.Tolerations = []scheduler.Toleration{{Key: "gone", Exists: true}}
	}
	return p
}

func randomOffer(r *rand.Rand) scheduler.Node {
	n := scheduler.Node{Name: fmt.Sprintf("n%d", r.IntN(2)), PodsMax: int64(4 + r.IntN(12))}
	for _, resource := range resources[:len(resources)-1] {
		n.Allocatable = append(n.Allocatable, scheduler.Amount{Resource: resource, Value: int64(r.IntN(20))})
	}
	if r.IntN(2) == 0 {
		n.Labels = []scheduler.Label{{Key: "disk", Value: []string{"ssd", "tape"}[r.IntN(2)]}}
	}
	for _, effect := range []scheduler.Effect{scheduler.NoSchedule, scheduler.NoExecute} {
		if r.IntN(4) == 0 {
			n.Taints = append(n.Taints, scheduler.Taint{Key: "gone", Effect: effect})
		}
	}
	return n
}

// TestNodeAgreesWithItsTwin plays random histories of a Node, and after every step compares it with a Node that was
// made anew from the same pods, with sums from scratch, and its verdict with the scheduler's about the same node.
func TestNodeAgreesWithItsTwin(t *testing.T) {
	verdicts := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		w := &twin{offers: randomOffer(r), pods: map[scheduler.PodID]scheduler.Pod{}}
		n := NewNode(w.offers)
		for step := range 60 {
			pod := randomPod(r, r.IntN(12))
			switch r.IntN(8) {
			case 0:
				w.offers = randomOffer(r)
				n.Offer(w.offers)
			case 1, 2:
				delete(w.pods, pod.ID)
				n.Remove(pod.ID)
			case 3, 4, 5:
				w.pods[pod.ID] = pod
				n.Set(pod)
			default: // as an agent does: what was admitted is on the node
				if _, there := w.pods[pod.ID]; !there && n.Check(pod) == nil {
					w.pods[pod.ID] = pod
					n.Set(pod)
				}
			}
			at := fmt.Sprintf("seed %d, step %d", seed, step)
			anew := NewNode(w.offers, slices.Collect(maps.Values(w.pods))...)
			if !reflect.DeepEqual(n, anew) {
				t.Fatalf("%s: the node is\n%+v, and made anew\n%+v", at, n, anew)
			}
			for _, resource := range resources {
				if got, want := n.Requested(resource), w.requested(resource); got != want {
					t.Fatalf("%s: %d of %s requested, want %d", at, got, resource, want)
				}
			}
			compareWithScheduler(t, at, w, n, randomPod(r, 100), verdicts)
			compareBasis(t, at, n, r)
			compareResizes(t, at, w, n, r)
		}
	}
	for _, plugin := range []string{"", "NodeAffinity", "NodePorts", "TaintToleration", "NodeResourcesFit"} {
		if verdicts[plugin] < 100 {
			t.Errorf("%d verdicts of %q are too few to compare", verdicts[plugin], plugin)
		}
	}
}

// compareBasis records what decided about a random pod, and decides again from the record alone.
func compareBasis(t *testing.T, at string, n *Node, r *rand.Rand) {
	t.Helper()
	a := Applicant{Pod: randomPod(r, 100), Class: qos.BestEffort, Critical: r.IntN(4) == 0, Started: r.IntN(4) == 0}
	var conditions []eviction.Condition
	if r.IntN(3) == 0 {
		conditions = []eviction.Condition{[]eviction.Condition{eviction.MemoryPressure, eviction.DiskPressure}[r.IntN(2)]}
		a.Pod.Tolerations = append(a.Pod.Tolerations, scheduler.Toleration{
			Key:    wellknown.TaintMemoryPressure,
			Exists: true,
			Effect: []scheduler.Effect{scheduler.NoSchedule, scheduler.NoExecute}[r.IntN(2)],
		})
	}
	b, want := PressureBasis(a, conditions), UnderPressure(a, conditions)
	if want == nil {
		n.AddTo(b, a.Pod)
		want = n.Check(a.Pod)
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	again := &Basis{}
	if err := json.Unmarshal(text, again); err != nil {
		t.Fatal(err)
	}
	if got := again.Repeat(); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: pod %+v, conditions %v: decided %+v, and again from %s: %+v", at, a, conditions, want, text, got)
	}
}

// compareWithScheduler holds a check to the scheduler's filters. They come in another order: each is asked alone, by a
// pod that asks for nothing else.
func compareWithScheduler(t *testing.T, at string, w *twin, n *Node, pod scheduler.Pod, verdicts map[string]int) {
	t.Helper()
	pod.Requests = slices.DeleteFunc(pod.Requests, func(a scheduler.Amount) bool {
		return a.Resource == "example.com/license"
	})
	affinity := scheduler.Pod{ID: pod.ID, NodeSelector: pod.NodeSelector, NodeAffinity: pod.NodeAffinity}
	affinity.Tolerations = []scheduler.Toleration{{Exists: true}}
	ports := scheduler.Pod{ID: pod.ID, Ports: pod.Ports, Tolerations: affinity.Tolerations}
	amounts := scheduler.Pod{ID: pod.ID, Requests: pod.Requests, Tolerations: affinity.Tolerations}
	taints := scheduler.Pod{ID: pod.ID, Tolerations: pod.Tolerations}
	for _, p := range []scheduler.Pod{affinity, ports, amounts, taints} {
		got, want := n.Check(p), w.verdict(p)
		full := int64(len(w.pods)) >= w.offers.PodsMax
		switch {
		case full: // of a node that is full, the scheduler names what else stands against a pod first
			if got == nil || got.Reason != "OutOfpods" || want.Plugin == "" {
				t.Fatalf("%s: %+v on a full node: %+v, the scheduler says %+v", at, p, got, want)
			}
			continue
		case want.Plugin == "":
			if got != nil {
				t.Fatalf("%s: %+v is rejected, %+v, and the scheduler would send it", at, p, got)
			}
		case want.Plugin == "NodeResourcesFit":
			if got == nil || !slices.Contains(want.Reasons, "Insufficient "+got.Reason[len("OutOf"):]) {
				t.Fatalf("%s: %+v: %+v, the scheduler says %+v", at, p, got, want)
			}
		default:
			if got == nil || got.Reason != want.Plugin {
				t.Fatalf("%s: %+v: %+v, the scheduler says %+v", at, p, got, want)
			}
		}
		verdicts[want.Plugin]++
		if got != nil && got.Room != (NewNode(w.offers).Check(p) == nil) {
			t.Fatalf("%s: %+v: %+v, want the contrary about an empty node", at, p, got)
		}
	}
}

// compareResizes holds verdicts about resizes to adding up all pods for each.
func compareResizes(t *testing.T, at string, w *twin, n *Node, r *rand.Rand) {
	t.Helper()
	var pending []Resize
	for _, id := range slices.Sorted(maps.Keys(w.pods)) {
		if r.IntN(4) > 0 {
			continue
		}
		want := randomPod(r, 0)
		want.ID, want.Name = id, string(id)
		pending = append(pending, Resize{Want: want, Has: w.pods[id], Since: unit.Wall(r.IntN(3))})
	}
	before := maps.Clone(n.requested)
	verdicts := n.Resizes(pending)
	if !maps.Equal(before, n.requested) {
		t.Fatalf("%s: verdicts have changed the node", at)
	}
	allocated := map[scheduler.PodID]scheduler.Pod{} // until they are in effect, a pod has the larger of both
	for _, i := range turns(pending) {
		ask := pending[i]
		fits := true
		for _, resource := range resources {
			sum := int64(0)
			for id, p := range w.pods {
				sum += max(of(p, resource), of(allocated[id], resource))
			}
			more := of(ask.Want, resource) - of(ask.Has, resource)
			fits = fits && (more <= 0 || sum+more <= w.allocatable(resource))
		}
		if verdicts[i].Allocated != fits {
			t.Fatalf("%s: %+v gets %+v, want allocated: %v", at, ask, verdicts[i], fits)
		}
		if fits {
			allocated[ask.Want.ID] = ask.Want
		}
	}
}

// BenchmarkCheck is one check on a node with 110 pods.
func BenchmarkCheck(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	offers := randomOffer(r)
	offers.PodsMax = 111
	n := NewNode(offers)
	for i := range 110 {
		n.Set(scheduler.Pod{ID: scheduler.PodID(fmt.Sprint(i)), Requests: []scheduler.Amount{{Resource: "cpu", Value: 0}}})
	}
	pod := scheduler.Pod{
		ID:       "x",
		Requests: []scheduler.Amount{{Resource: "cpu", Value: 0}, {Resource: "memory", Value: 0}},
	}
	b.ReportAllocs()
	for b.Loop() {
		n.Check(pod)
	}
}
