package scheduler

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestServiceNotifies checks hard default spread constraints, which count the pods of a service. When the service
// selects other pods, a waiting pod is evaluated again.
func TestServiceNotifies(t *testing.T) {
	profile := DefaultProfile()
	profile.DefaultSpread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", Hard: true, MinDomains: 1}}
	p, now := New(Options{Profiles: []Profile{profile}}), unit.Instant(time.Hour)
	for _, zone := range []string{"a", "b"} {
		p.NodeSeen(now, Node{
			Name:          zone,
			PodsMax:       10,
			Labels:        []Label{{Key: "zone", Value: zone}},
			Unschedulable: zone == "b",
		})
	}
	service := func(app string) Group {
		selector := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{app}}}}
		return Group{Kind: KindService, Namespace: "d", Name: "web", Selector: selector}
	}
	p.GroupSeen(now, service("web"))
	p.PodSeen(now, Pod{ID: "first", Namespace: "d", Name: "first", Node: "a", Labels: []Label{{Key: "app", Value: "web"}}})
	p.PodSeen(now, Pod{ID: "second", Namespace: "d", Name: "second", Labels: []Label{{Key: "app", Value: "web"}}})
	if d, ok := p.Next(now); !ok || d.Failure == nil {
		t.Fatalf("the second pod of the service: %+v", d)
	}
	p.GroupSeen(now, service("web"))
	if d, ok := p.Next(now); ok {
		t.Fatalf("a pod is tried again although the service has not changed: %+v", d)
	}
	p.GroupSeen(now, service("other"))
	if d, ok := p.Next(now); !ok || d.Node != "a" {
		t.Fatalf("the service selects other pods now: %+v, want node a", d)
	}
}

// TestPortFreedWithoutRoom checks a profile without the resource rule: a pod waits for a port on a node that has less
// than it requests. It becomes active nevertheless when the pod with the port ends.
func TestPortFreedWithoutRoom(t *testing.T) {
	profile := DefaultProfile()
	profile.Skip = map[string]bool{"NodeResourcesFit": true}
	p := New(Options{Profiles: []Profile{profile}})
	p.NodeSeen(1, Node{Name: "n", PodsMax: 1, Allocatable: []Amount{{Resource: CPU, Value: 1000}}})
	for _, name := range []string{"first", "holder", "second"} { // more pods than PodsMax
		x := Pod{ID: PodID(name), Name: name, Namespace: "d", Requests: []Amount{{Resource: CPU, Value: 2000}}}
		if name != "first" {
			x.Ports = []HostPort{{IP: AnyIP, Protocol: "TCP", Port: 80}}
		}
		if name != "second" {
			x.Node = "n"
		}
		p.PodSeen(1, x)
	}
	if d, ok := p.Next(1); !ok || d.Failure == nil {
		t.Fatalf("the port is taken: %+v", d)
	}
	p.PodGone(2, "holder")
	if d, ok := p.Next(2 + unit.Instant(queue.BackoffMax)); !ok || d.Node != "n" {
		t.Errorf("the port is free: %+v, %v", d, ok)
	}
}

// TestAudiences checks that waiters with the same anti-affinity share an audience, however much each requests, and that
// the index is empty when the last is gone.
func TestAudiences(t *testing.T) {
	p := mixCluster(&mixture{}, 3)
	const pods = 5
	for i := range pods {
		x := benchPod("waits-" + strconv.Itoa(i))
		x.Labels, x.AntiAffinity = nil, []PodTerm{appTerm("old", hostKey)}
		x.Requests = []Amount{{Resource: CPU, Value: int64(100 + i)}}
		p.PodSeen(2, x)
		if d, _ := p.Next(2); d.Failure == nil {
			t.Fatalf("pod %d is placed, want it to wait", i)
		}
	}
	s := &p.cluster.waits
	audiences, members := 0, 0
	var counter *census.Counter
	for k, list := range s.audiences {
		counter = k
		for _, a := range list {
			audiences++
			members += len(a.members)
		}
	}
	if len(s.of) != pods || audiences != 1 || members != pods {
		t.Errorf("%d waiters, %d audiences with %d members", len(s.of), audiences, members)
	}
	for k := range 4 {
		p.PodGone(3, PodID("old-1-"+strconv.Itoa(k)))
		if d, ok := p.Next(3 + unit.Instant(queue.BackoffMax)); ok != (k == 3) || ok && d.Node != "node-1" {
			t.Fatalf("%d of four pods are gone: %v, %+v", k+1, ok, d)
		}
	}
	for i := range pods {
		p.PodGone(4, PodID("waits-"+strconv.Itoa(i)))
	}
	if left := len(listenersOf(counter).audiences); len(s.of)+len(s.audiences)+left != 0 {
		t.Errorf("%d waiters, %d audiences and %d listeners are left", len(s.of), len(s.audiences), left)
	}
}

// TestAudiencesDiffer checks that two waiters with the same anti-affinity are both notified of what concerns them,
// although it does not concern the other one, which has waited longer: that one has another anti-affinity, or may not
// preempt.
func TestAudiencesDiffer(t *testing.T) {
	const late = unit.Instant(time.Minute)
	keepsOff := func(name string, priority int32, foes ...string) Pod {
		x := Pod{ID: PodID(name), Namespace: "d", Name: name, Priority: priority}
		for _, foe := range foes {
			x.AntiAffinity = append(x.AntiAffinity, appTerm(foe, hostKey))
		}
		return x
	}
	meek := keepsOff("first", 10, "foe")
	meek.NeverPreempts = true
	for _, q := range []struct {
		name          string
		first, second Pod
		evicts        bool // the second preempts when the foe of high priority is gone
	}{
		{"it has anti-affinity to more pods", keepsOff("first", 0, "foe"), keepsOff("second", 0, "foe", "other"), false},
		{"it has higher priority", keepsOff("first", 0, "foe"), keepsOff("second", 10, "foe"), true},
		{"the other may not preempt", meek, keepsOff("second", 10, "foe"), true},
	} {
		t.Run(q.name, func(t *testing.T) {
			p := New(Options{})
			p.NodeSeen(1, Node{Name: "n", PodsMax: 10, Labels: []Label{{Key: hostKey, Value: "n"}}})
			for name, priority := range map[string]int32{"foe": 20, "foe2": 1, "other": 20} {
				app := strings.TrimSuffix(name, "2")
				p.PodSeen(1, Pod{
					ID:        PodID(name),
					Namespace: "d",
					Name:      name,
					Node:      "n",
					Priority:  priority,
					Labels:    []Label{{Key: "app", Value: app}},
				})
			}
			for _, x := range []Pod{q.first, q.second} {
				p.PodSeen(1, x)
				if d, _ := p.Next(1); d.Pod.ID != x.ID || d.Failure == nil || d.Preemption != nil {
					t.Fatalf("%+v, want %s to wait", d, x.ID)
				}
			}
			p.PodGone(2, "foe")
			d, ok := p.Next(late)
			if q.evicts != (ok && d.Pod.ID == "second" && d.Preemption != nil) {
				t.Fatalf("the foe of high priority is gone: %+v", d)
			}
			if q.evicts {
				return
			}
			p.PodGone(late, "foe2")
			if d, _ := p.Next(late); d.Pod.ID != "first" || d.Node != "n" {
				t.Fatalf("no foe is left: %+v, want the first on n", d)
			}
			p.PodGone(late, "other")
			if d, _ := p.Next(2 * late); d.Pod.ID != "second" || d.Node != "n" {
				t.Fatalf("nobody else is left: %+v, want the second on n", d)
			}
		})
	}
}

// TestEndOfFinalRejection checks a rejection that no eviction changes, which is evaluated once per row if costs are
// kept. A pod is notified when it ends, even if another pod of its demand was placed meanwhile, and although another
// rule also rejects the pod on that row.
func TestEndOfFinalRejection(t *testing.T) {
	p, now := New(Options{}), unit.Instant(time.Hour)
	node := func(name, zone string, cordoned bool) {
		p.NodeSeen(now, Node{
			Name: name, PodsMax: 10, Labels: []Label{{Key: "zone", Value: zone}}, Unschedulable: cordoned,
			Allocatable: []Amount{{CPU, 1000}},
		})
	}
	pod := func(name, on string, priority int32) Pod {
		x := Pod{ID: PodID(name), Namespace: "d", Name: name, Node: on, Priority: priority}
		x.Labels, x.Requests = []Label{{Key: "app", Value: name}}, []Amount{{CPU, 800}}
		return x
	}
	preemptor := func(name string) Pod {
		x := pod(name, "", 10)
		x.Labels, x.AntiAffinity = nil, []PodTerm{appTerm("foe", "zone")}
		return x
	}
	node("a", "1", false)
	node("b", "1", true)
	node("c", "2", true)
	p.PodSeen(now, pod("low", "a", 1))
	p.PodSeen(now, pod("foe", "b", 20))
	p.PodSeen(now, preemptor("first"))
	e := p.queue.find("first")
	p.cluster.demandOf(e.class, e.who, e.pod.Owner).costs.worth = true
	if d, _ := p.Next(now); d.Failure == nil || d.Preemption != nil {
		t.Fatalf("the zone of a has a foe: %+v", d)
	}
	node("c", "2", false)
	if d, _ := p.Next(now.Add(time.Minute)); d.Node != "c" {
		t.Fatalf("c has room now: %+v", d)
	}
	p.PodSeen(now, preemptor("second"))
	if d, _ := p.Next(now.Add(time.Minute)); d.Failure == nil || d.Preemption != nil {
		t.Fatalf("the zone of a still has a foe: %+v", d)
	}
	p.PodGone(now.Add(time.Minute), "foe")
	d, _ := p.Next(now.Add(2 * time.Minute))
	if d.Preemption == nil || d.Preemption.Node != "a" {
		t.Errorf("the foe is gone: %+v", d)
	}
}

// TestFewestGrows checks that a pod that would exceed the skew in its zone is placed there as soon as the zone with the
// fewest pods has one more, although that frees no room.
func TestFewestGrows(t *testing.T) {
	p := New(Options{})
	for _, zone := range []string{"a", "b"} {
		p.NodeSeen(1, Node{Name: zone, PodsMax: 10, Labels: []Label{{Key: "zone", Value: zone}}, Unschedulable: zone == "b"})
	}
	web := func(name, on string) Pod {
		return Pod{ID: PodID(name), Namespace: "d", Name: name, Node: on, Labels: []Label{{Key: "app", Value: "web"}}}
	}
	for name, on := range map[string]string{"a1": "a", "a2": "a", "b1": "b"} {
		p.PodSeen(1, web(name, on))
	}
	waits := web("waits", "")
	waits.Spread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", Hard: true, MinDomains: 1, Selector: appIs("web")}}
	p.PodSeen(1, waits)
	if d, _ := p.Next(1); d.Failure == nil {
		t.Fatalf("it is placed although it exceeds the skew: %+v", d)
	}
	p.PodSeen(2, web("b2", "b"))
	if d, _ := p.Next(2); d.Node != "a" {
		t.Errorf("b has as many as a: %+v", d)
	}
}

// TestLongWaitingPodsAreChecked checks that a pod that has waited for long is evaluated although no event notified it.
// If it fits, it is placed and counted (Decision.Flushed). If not, it is evaluated again later.
func TestLongWaitingPodsAreChecked(t *testing.T) {
	p, now := New(Options{}), unit.Instant(time.Hour)
	p.NodeSeen(now, Node{Name: "n", PodsMax: 10, Allocatable: []Amount{{CPU, 1000}}})
	pod := func(name, on string, cpu int64) {
		p.PodSeen(now, Pod{ID: PodID(name), Namespace: "d", Name: name, Node: on, Requests: []Amount{{CPU, cpu}}})
	}
	pod("holds", "n", 1000)
	pod("waits", "", 800)
	pod("large", "", 2000)
	for range 2 {
		if d, _ := p.Next(now); d.Failure == nil {
			t.Fatalf("%s is placed", d.Pod.ID)
		}
	}
	for _, w := range p.cluster.waits.of {
		p.cluster.waits.forget(w) // as an error would: w is not notified any more
	}
	p.PodGone(now, "holds")
	due := now.Add(flushAfter)
	if d, ok := p.Next(due - 1); ok || p.Wake() != due {
		t.Fatalf("it is checked too early: %+v, and then in %v", d, p.Wake().Sub(due))
	}
	if d, _ := p.Next(due); d.Node != "n" || !d.Flushed {
		t.Fatalf("after five minutes: %+v", d)
	}
	if d, ok := p.Next(due); ok || p.Wake() != due.Add(flushAfter) {
		t.Errorf("the other pod does not fit: %+v, and then in %v", d, p.Wake().Sub(due))
	}
}
