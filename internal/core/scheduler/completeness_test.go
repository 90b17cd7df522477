package scheduler

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// A new rule, or a new fact about nodes or pods, needs changes in places other than its own file. If one of them is
// forgotten, decisions are silently wrong. These tests find such places. nodes_test.go and key_test.go have more of
// them.

// unmet are fields that random histories do not use, with the test that uses each, or the reason.
var unmet = map[string]string{
	"Pod.Node":           "set by the histories' own steps",
	"Pod.Profile":        "one profile for each history",
	"Node.OtherAgent":    "TestReportOfAnEarlierAgent",
	"Pod.Nominated":      "TestForeignNominations",
	"Pod.Deleting":       "set by the histories' own steps",
	"Pod.Preempted":      "set by the histories' own steps",
	"Pod.NeverPreempts":  "testdata/preemptors.txt",
	"Pod.Started":        "testdata/victims.txt",
	"Pod.Berth":          "numa_test.go",
	"Pod.Owner":          "wait_test.go",
	"Pod.AsksExtenders":  "extenders_preempt_test.go",
	"Pod.AsksPreemption": "extenders_preempt_test.go",
	"Pod.Unsupported":    "testdata/filters.txt",
}

// TestHistoriesMeetEveryField checks that pods and nodes in random histories differ in every field, so that histories
// find errors of masks, tables, keys, notifications and sweeps.
func TestHistoriesMeetEveryField(t *testing.T) {
	met := map[string]map[string]bool{}
	meet := func(x any) {
		v := reflect.ValueOf(x)
		for i := range v.NumField() {
			name := v.Type().Name() + "." + v.Type().Field(i).Name
			if met[name] == nil {
				met[name] = map[string]bool{}
			}
			met[name][fmt.Sprintf("%+v", v.Field(i).Interface())] = true
		}
	}
	h := newHistory(t, 1)
	h.stores = true
	for range 1000 {
		n, p := h.randomNode(), h.randomPod()
		decorateNode(h.rng, &n)
		decoratePod(h.rng, &p)
		meet(n)
		meet(p)
	}
	for name, values := range met {
		if why, left := unmet[name]; left != (len(values) == 1) {
			t.Errorf("%s had %d values in random histories, and unmet says %q: set it in decorateNode or decoratePod",
				name, len(values), why)
		}
	}
}

// TestSweepsKeepWhatIsUsed checks that marked lists every number in use; otherwise the number would be given to another
// string. One Placer sweeps after every event. It must decide as another one that never does.
func TestSweepsKeepWhatIsUsed(t *testing.T) {
	said := 0
	for _, seed := range seedsFrom(t, 300, 16) {
		h := newHistory(t, seed)
		h.names = 80
		h.stores = true
		keeps, sweeps := New(Options{Seed: seed}), New(Options{Seed: seed})
		for step := range 150 {
			h.changeOne(keeps, sweeps)
			in := sweeps.cluster.intern
			in.Most = 0
			sweeps.cluster.sweepStrings()
			for i := range 8 { // they get the numbers that the sweep has freed
				in.ID(fmt.Sprint("junk-", step, "-", i))
			}
			a, okA := keeps.Next(h.now)
			b, okB := sweeps.Next(h.now)
			if okA != okB || a.Pod.ID != b.Pod.ID || a.Node != b.Node || a.Score != b.Score ||
				fmt.Sprint(a.Failure) != fmt.Sprint(b.Failure) {
				t.Fatalf("seed %d, step %d: kept %+v, swept %+v", seed, step, a, b)
			}
			probe := h.randomPod()
			decoratePod(h.rng, &probe)
			if x, y := keeps.Verdicts(probe), sweeps.Verdicts(probe); !reflect.DeepEqual(x, y) {
				t.Fatalf("seed %d, step %d: verdicts on %+v: kept\n%v, swept\n%v", seed, step, probe, x, y)
			}
			x, y := keeps.Scores(probe), sweeps.Scores(probe)
			if !reflect.DeepEqual(x, y) {
				t.Fatalf("seed %d, step %d: scores for %+v: kept\n%v, swept\n%v", seed, step, probe, x, y)
			}
			said += len(x)
		}
	}
	if said < fewer(2000) {
		t.Errorf("only %d scores were compared", said)
	}
}

// changeOne makes one random change, which all of placers receive.
func (h *history) changeOne(placers ...*Placer) {
	tell := func(fact func(*Placer)) {
		for _, p := range placers {
			fact(p)
		}
	}
	switch h.rng.IntN(8) {
	case 0, 1, 2:
		n := h.randomNode()
		decorateNode(h.rng, &n)
		h.nodes[n.Name] = n
		tell(func(p *Placer) { p.NodeSeen(h.now, n) })
	case 3:
		if name, ok := pick(h.rng, h.nodes); ok && h.rng.IntN(3) == 0 {
			delete(h.nodes, name)
			tell(func(p *Placer) { p.NodeGone(h.now, name) })
		}
	case 4, 5:
		x := h.randomPod()
		decoratePod(h.rng, &x)
		if name, ok := pick(h.rng, h.nodes); ok && h.rng.IntN(2) == 0 {
			x.Node = name
		}
		h.pods[x.ID] = x
		tell(func(p *Placer) { p.PodSeen(h.now, x) })
	case 6:
		if id, ok := pick(h.rng, h.pods); ok {
			delete(h.pods, id)
			tell(func(p *Placer) { p.PodGone(h.now, id) })
		}
	case 7:
		g := Group{Kind: KindService, Namespace: h.one("x", "y"), Name: h.one("web", "db")}
		g.Selector.Requirements = []Requirement{{Key: "app", Op: In, Values: []string{g.Name}}}
		tell(func(p *Placer) { p.GroupSeen(h.now, g) })
	}
}

// TestHistoriesLeaveNothing checks that everything with a reference count is dropped with its pods and nodes.
func TestHistoriesLeaveNothing(t *testing.T) {
	p := New(Options{})
	var before string
	for round, steps := range []int{1000, 300, 300} { // the first round creates what is created only once
		h := newHistory(t, 900+uint64(round))
		h.stores = true
		h.names = 80
		for range steps {
			h.changeOne(p)
			p.Next(h.now)
		}
		for id := range h.pods {
			p.PodGone(h.now, id)
		}
		for name := range h.nodes {
			p.NodeGone(h.now, name)
		}
		for _, namespace := range []string{"x", "y"} {
			for _, name := range []string{"web", "db"} {
				p.GroupGone(h.now, Group{Kind: KindService, Namespace: namespace, Name: name})
			}
		}
		p.cluster.intern.Most = 0
		p.cluster.sweepStrings()
		after := sizesOf(p)
		if round > 0 && after != before {
			t.Errorf("after all are gone, the sizes are:\n%s\nwant those from before:\n%s", after, before)
		}
		before = after
	}
}

// TestSurroundingsAreComplete checks that every field of surroundings is compared, and every counter has a listener.
// Otherwise, pods with different requirements would share notifications.
func TestSurroundingsAreComplete(t *testing.T) {
	number := int32(0)
	var fresh func(typ reflect.Type) reflect.Value // a value that equals no other
	fresh = func(typ reflect.Type) reflect.Value {
		v := reflect.New(typ).Elem()
		switch typ.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(typ.Elem()))
		case reflect.Slice:
			v.Set(reflect.Append(v, fresh(typ.Elem())))
		case reflect.Struct:
			for i := range v.NumField() {
				opened(v.Field(i)).Set(fresh(v.Field(i).Type()))
			}
		case reflect.Int32:
			number++
			v.SetInt(int64(number))
		case reflect.Bool:
			v.SetBool(true)
		default:
			t.Fatalf("surroundings have a %s: add it to this test", typ)
		}
		return v
	}
	x := fresh(reflect.TypeFor[surroundings]()).Interface().(surroundings)
	if same := x; !x.equal(&same) {
		t.Fatal("surroundings are not equal to themselves")
	}
	var look func(v reflect.Value, name string)
	look = func(v reflect.Value, name string) {
		if k, is := opened(v).Interface().(*census.Counter); is {
			heard := false
			x.eachCounter(func(y *census.Counter) { heard = heard || y == k })
			if !heard {
				t.Errorf("eachCounter leaves out the counter %s", name)
			}
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				look(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
			return
		case reflect.Slice:
			look(v.Index(0), name+"[0]")
			return
		}
		other, was := copied(&x), opened(v).Interface()
		if v.Kind() == reflect.Bool {
			opened(v).SetBool(!v.Bool())
		} else {
			opened(v).Set(fresh(v.Type()))
		}
		if x.equal(&other) {
			t.Errorf("surroundings that differ in %s are equal", name)
		}
		opened(v).Set(reflect.ValueOf(was))
	}
	look(reflect.ValueOf(&x).Elem(), "surroundings")
	for i := range reflect.TypeFor[surroundings]().NumField() {
		var one surroundings
		field := reflect.ValueOf(&one).Elem().Field(i)
		opened(field).Set(fresh(field.Type()))
		// it is about affinityPods
		if name := reflect.TypeFor[surroundings]().Field(i).Name; one.empty() != (name == "affinitySelf") {
			t.Errorf("surroundings with only %s set: empty() is %v", name, one.empty())
		}
	}
}

func copied(x *surroundings) surroundings {
	y := *x
	y.hard, y.affinityPods = slices.Clone(x.hard), slices.Clone(x.affinityPods)
	y.antiAffinityPods, y.antiAffinityOfOthers = slices.Clone(x.antiAffinityPods), slices.Clone(x.antiAffinityOfOthers)
	return y
}

// opened returns v as a value that can be set although its field is not exported.
func opened(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
}

// carried are the fields of placedPod that do not depend on the pod's last version alone.
var carried = map[string]string{
	"inRow":    "its place in a list",
	"tried":    "for trials",
	"order":    "the order in which pods came",
	"arrived":  "of the node's report",
	"berth":    "what was expected when it was placed: only its bind has it",
	"assigned": "of the node's report",
}

// TestCountedPodsFollow checks that a changed pod on a node counts with its new values, whatever has changed.
func TestCountedPodsFollow(t *testing.T) {
	counted := func(versions ...Pod) map[string]string {
		c := newCluster(0)
		for i := range versions {
			c.setPod(&versions[i], "n", true)
		}
		h := c.pods[versions[0].ID]
		out := map[string]string{
			"class":    h.class.key,
			"Who":      fmt.Sprint(h.Who.Namespace, h.Who.Labels),
			"Deleting": fmt.Sprint(h.Deleting),
		}
		v := reflect.ValueOf(h).Elem()
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if _, known := carried[name]; !known && out[name] == "" && name != "Pod" {
				out[name] = fmt.Sprint(opened(v.Field(i)).Interface())
			}
		}
		return out
	}
	pod := reflect.New(reflect.TypeFor[Pod]()).Elem()
	fill(pod)
	first := pod.Interface().(Pod)
	for i := range pod.NumField() {
		if pod.Type().Field(i).Name == "ID" || pod.Type().Field(i).Name == "Name" {
			continue // they never change
		}
		vary(pod.Field(i), pod.Type().Field(i).Name, func(leaf string) {
			now := pod.Interface().(Pod)
			if after, fresh := counted(first, now), counted(now); !reflect.DeepEqual(after, fresh) {
				t.Errorf("%s changed: it counts as %q, want %q", leaf, after, fresh)
			}
		})
	}
}

// TestFitKeysTellWhatFitsRead checks that pods with equal fitKeys get equal results from the resource rules.
func TestFitKeysTellWhatFitsRead(t *testing.T) {
	read := slices.Clone(resourceFilter{}.about().reads)
	for _, s := range rowScorers {
		read = append(read, s.about().reads...)
	}
	c := newCluster(0)
	pod := reflect.New(reflect.TypeFor[Pod]()).Elem()
	fill(pod)
	key := func() string { return c.compile(pod.Addr().Interface().(*Pod)).fitKey }
	before := key()
	for _, name := range read {
		if name == "PlacedLoad" {
			continue // it is read of pods on rows, not of the pod to be placed
		}
		vary(pod.FieldByName(name), name, func(leaf string) {
			if key() == before {
				t.Errorf("pods that differ in %s, which rules about resources read, share a fit", leaf)
			}
		})
	}
}

// notStrings are the numbers in classes and demands that are not numbers of interned strings. A name that ends with a
// dot stands for all fields in it.
var notStrings = []string{
	"class.priority",
	"class.nodeTerms.others[0]", // an index in terms
	"class.preferred.terms.others[0]",
	"class.ports[0].Port",
	"class.spread[0].SpreadConstraint.",
	"class.ownTerms[0].Weight",
	"demand.surroundings.hard[0].maxSkew",
	"demand.surroundings.hard[0].minDomains",
	"demand.surroundings.hard[0].self",
	"demand.soft[0].maxSkew",
	"demand.soft[0].minDomains",
	"demand.soft[0].self",
	"demand.costs.",
}

// TestMarkersSeeEveryNumber checks that marked lists every number of a string in classes, demands and columns.
// Otherwise, the number would be given to another string when nothing else uses it. Pointers and maps are not
// followed: they have other owners, or repeat lists.
func TestMarkersSeeEveryNumber(t *testing.T) {
	c := newCluster(0)
	r := c.rowOf("n")
	next := int32(0)
	names := map[int32]string{} // the field that has each number
	var number func(v reflect.Value, name string)
	number = func(v reflect.Value, name string) {
		switch v = opened(v); v.Kind() {
		case reflect.Int32:
			next = c.intern.ID(fmt.Sprint("string ", len(names)))
			names[next] = name
			v.SetInt(int64(next))
		case reflect.Struct:
			for i := range v.NumField() {
				number(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			number(v.Index(0), name+"[0]")
		}
	}
	k := &class{}
	d := &demand{class: k, key: "d"}
	number(reflect.ValueOf(k).Elem(), "class")
	number(reflect.ValueOf(d).Elem(), "demand")
	k.demands = map[string]*demand{"d": d}
	c.classes = map[string]*class{"k": k}
	for _, of := range []reflect.Value{reflect.ValueOf(&c.state).Elem(), reflect.ValueOf(&c.nodes).Elem()} {
		for i := range of.NumField() {
			if _, is := of.Field(i).Addr().Type().MethodByName("ClearRow"); is && of.Field(i).Kind() == reflect.Slice {
				number(of.Field(i).Index(int(r)), of.Type().Field(i).Name)
			}
		}
	}
	marked := c.marked()
	for n, name := range names {
		listed := slices.ContainsFunc(notStrings, func(x string) bool {
			return x == name || strings.HasSuffix(x, ".") && strings.HasPrefix(name, x)
		})
		if marked.Has(row(n)) == listed {
			t.Errorf("%s is marked: %v, and in notStrings: %v", name, listed, listed)
		}
	}
}
