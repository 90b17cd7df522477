package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// occupant is written NAME:CLASS:CPU:MEMORY, and !PRIORITY, critical or ending after it.
func occupant(t *testing.T, text string) Occupant {
	t.Helper()
	words := strings.Fields(text)
	var name, class string
	var cpu, memory int64
	if _, err := fmt.Sscanf(strings.ReplaceAll(words[0], ":", " "), "%s %s %d %d", &name, &class, &cpu,
		&memory); err != nil {
		t.Fatal(err)
	}
	o := Occupant{ID: scheduler.PodID(name), Requests: pod(cpu, memory).Requests}
	o.Class = map[string]qos.Class{"B": qos.BestEffort, "U": qos.Burstable, "G": qos.Guaranteed}[class]
	for _, w := range words[1:] {
		switch w {
		case "critical":
			o.Critical = true
		case "ending":
			o.Ending = true
		default:
			if _, err := fmt.Sscanf(w, "!%d", &o.Priority); err != nil {
				t.Fatal(err)
			}
		}
	}
	return o
}

func TestPreempt(t *testing.T) {
	critical := Applicant{Pod: pod(500, 500), Critical: true}
	critical.Pod.Priority = 100
	port := critical
	port.Pod.Ports = []scheduler.HostPort{{IP: scheduler.AnyIP, Protocol: "TCP", Port: 80}}
	plain := critical
	plain.Critical = false
	for _, c := range []struct {
		name  string
		comes Applicant
		there string // separated by semicolons
		want  string // resource: victims
	}{
		{"the node has room", critical, "a:U:100:100", ""},
		{"another pod that is not critical ends nobody", plain, "a:U:900:100", ""},
		{"one that gives enough, not one that does not", critical, "a:U:100:10; b:U:800:10", "cpu: b"},
		{"the smaller one of two that give enough", critical, "a:U:500:400; b:U:500:300", "cpu: b"},
		{"with few of the lesser class rather than one of the greater", critical,
			"a:U:300:0; b:U:300:0; c:G:400:400", "cpu: a b"},
		{"no Burstable one for what BestEffort ones give", critical,
			"a:B:0:0; b:U:100:0; c:B:0:0; d:U:50:0", "pods: a"},
		{"both amounts", critical, "a:U:900:100; b:U:10:800", "cpu: a b"},
		{"a Guaranteed one where nothing else is enough", critical, "a:U:100:100; b:G:800:800", "cpu: b"},
		{"with the rest from a lesser one", critical, "a:U:350:100; b:G:300:800; c:U:350:0", "cpu: c b"},
		{"critical ones stay", critical, "a:G:900:900 critical !100; b:U:50:50", ""},
		{"unless they are less so", critical, "a:G:900:900 critical !99; b:U:50:50", "cpu: a"},
		{"what ends soon is waited for", critical, "a:U:500:500 ending; b:U:500:500", "cpu:"},
		{"and is not enough", critical, "a:U:200:500 ending; b:U:400:10; c:U:400:20", "cpu: b"},
		{"a host port comes free for nobody", port, "a:U:900:900", ""},
		{"not enough whoever ends", critical, "a:U:300:100; b:U:700:10 critical !100", ""},
	} {
		node := scheduler.Node{
			Name: "n", PodsMax: 4,
			Allocatable: []scheduler.Amount{{Resource: "cpu", Value: 1000}, {Resource: "memory", Value: 1000}},
		}
		n := NewNode(node)
		var there []Occupant
		for text := range strings.SplitSeq(c.there, "; ") {
			o := occupant(t, text)
			there = append(there, o)
			n.Set(scheduler.Pod{ID: o.ID, Requests: o.Requests, Ports: c.comes.Pod.Ports})
		}
		got := ""
		if p, ok := n.Preempt(c.comes, there); ok {
			got = p.Resource + ":"
			for _, id := range p.Victims {
				got += " " + string(id)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPreemptionMakesRoom: once the victims have ended the pod fits, no victim was needless within its class, and where
// there is no answer it would not fit next to those alone that may not end. The order of the pods changes nothing.
func TestPreemptionMakesRoom(t *testing.T) {
	answers := 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		offers := scheduler.Node{PodsMax: 8}
		for _, resource := range resources[:4] {
			offers.Allocatable = append(offers.Allocatable, scheduler.Amount{Resource: resource, Value: int64(r.IntN(20))})
		}
		n, stay := NewNode(offers), NewNode(offers)
		comes := Applicant{Pod: randomPod(r, 99), Critical: true}
		comes.Pod.Ports = nil
		comes.Pod.Priority = 1
		var there []Occupant
		for i := range r.IntN(9) {
			p := randomPod(r, i)
			n.Set(p)
			o := Occupant{ID: p.ID, Requests: p.Requests, Priority: p.Priority, Critical: r.IntN(4) == 0, Ending: r.IntN(5) == 0}
			o.Class = []qos.Class{qos.BestEffort, qos.Burstable, qos.Guaranteed}[r.IntN(3)]
			there = append(there, o)
			if o.Critical && o.Priority >= 1 && !o.Ending {
				stay.Set(p)
			}
		}
		p, ok := n.Preempt(comes, there)
		if fits := n.Check(comes.Pod) == nil; ok && fits || !ok && !fits && stay.Check(comes.Pod) == nil {
			t.Fatalf("seed %d: answer %v, fits %v", seed, ok, fits)
		}
		if !ok {
			continue
		}
		answers++
		shuffled := slices.Clone(there)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again, _ := n.Preempt(comes, shuffled); !slices.Equal(again.Victims, p.Victims) {
			t.Fatalf("seed %d: %v, and in another order %v", seed, p, again)
		}
		after := NewNode(offers)
		for _, o := range there {
			if !o.Ending && !slices.Contains(p.Victims, o.ID) {
				after.Set(scheduler.Pod{ID: o.ID, Requests: o.Requests})
			}
			if slices.Contains(p.Victims, o.ID) && (o.Ending || o.Critical && o.Priority >= 1) {
				t.Fatalf("seed %d: %s ends", seed, o.ID)
			}
		}
		if rejection := after.Check(comes.Pod); rejection != nil {
			t.Fatalf("seed %d: %v have ended, and %s", seed, p.Victims, rejection.Message)
		}
	}
	if answers < 500 {
		t.Errorf("only %d answers", answers)
	}
}
