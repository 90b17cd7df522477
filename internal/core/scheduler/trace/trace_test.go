package trace

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// questions are the methods of a Placer that change nothing on which a decision depends.
var questions = strings.Fields("Evictions Fits Hold Judge Likeness NameVictims Preempt Priorities Rejections RoomFor " +
	"RoomOn Scores Sizes Totals VerdictOn Verdicts Wake")

// TestEveryCallIsRecorded: a method of a Placer is recorded and can be applied, or it is a question.
func TestEveryCallIsRecorded(t *testing.T) {
	placer := reflect.TypeFor[*scheduler.Placer]()
	for i := range placer.NumMethod() {
		name := placer.Method(i).Name
		_, known := calls[Call(name)]
		if known = known || Call(name) == callNext; known == slices.Contains(questions, name) {
			t.Errorf("%s: want it in calls, or among the questions", name)
		}
	}
	for name := range calls {
		if _, has := placer.MethodByName(string(name)); !has {
			t.Errorf("a Placer has no method %s", name)
		}
	}
	// Each method of a Recorder hands over one Fact with its own name.
	var seen []Fact
	r := &Recorder{Placer: scheduler.New(scheduler.Options{}), Record: func(f Fact) { seen = append(seen, f) }}
	of := reflect.ValueOf(r)
	for name := range calls {
		if name == "VolumeOutcomes" { // only if a plan has ended
			continue
		}
		method := of.MethodByName(string(name))
		var args []reflect.Value
		for i := range method.Type().NumIn() {
			args = append(args, reflect.Zero(method.Type().In(i)))
		}
		seen = nil
		method.Call(args)
		if len(seen) != 1 || seen[0].Call != name || !seen[0].Known() {
			t.Errorf("%s: recorded %+v", name, seen)
		}
	}
}

// TestFactsAreData: a Fact is the same after it was written and read, also where nil and empty differ.
func TestFactsAreData(t *testing.T) {
	var got Fact
	r := &Recorder{Placer: scheduler.New(scheduler.Options{}), Record: func(f Fact) { got = f }}
	var none []scheduler.NodeTerm
	r.PodSeen(1, scheduler.Pod{ID: "p", NodeAffinity: &none})
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back Fact
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Pod.NodeAffinity == nil {
		t.Error("an affinity that no node meets became none")
	}
	if (&Fact{Call: "PodSeen"}).Known() || (&Fact{Call: "Else"}).Known() || !(&Fact{Call: callNext}).Known() {
		t.Error("Known is wrong")
	}
}
