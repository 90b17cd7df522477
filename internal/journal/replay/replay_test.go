package replay

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/trace"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/test/cost"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// evictions records decisions of an agent under pressure, until there are enough.
func evictions(rng *rand.Rand, into func(*journal.Decision), enough int) {
	config := eviction.Config{
		Thresholds: []eviction.Threshold{
			{Signal: allocatable.MemoryAvailable, Value: allocatable.Threshold{Amount: int64(unit.GiB)}, Text: "1Gi"},
			{Signal: allocatable.NodeFSAvailable, Value: allocatable.Threshold{Amount: int64(8 * unit.GiB)}, Text: "8Gi",
				Grace: 5 * time.Second},
		},
		Transition: 30 * time.Second,
		ImagesLow:  80,
	}
	d, now := eviction.New(config), unit.Instant(time.Hour)
	for range enough {
		now = now.Add(time.Duration(rng.IntN(5000)) * time.Millisecond)
		facts := eviction.Facts{Signals: map[allocatable.Signal]eviction.Observation{
			allocatable.MemoryAvailable: {Available: rng.Int64N(int64(3 * unit.GiB)), Capacity: int64(16 * unit.GiB), At: now},
			allocatable.NodeFSAvailable: {Available: rng.Int64N(int64(20 * unit.GiB)), Capacity: int64(99 * unit.GiB), At: now},
		}}
		for i := range 1 + rng.IntN(8) {
			facts.Pods = append(facts.Pods, eviction.Pod{
				ID:            fmt.Sprintf("uid-%d", i),
				Namespace:     "default",
				Name:          fmt.Sprint("p", i),
				Priority:      int32(rng.IntN(3)),
				MemoryRequest: unit.Bytes(rng.Int64N(int64(unit.GiB))),
				Used:          &eviction.Usage{WorkingSet: unit.Bytes(rng.Int64N(int64(2 * unit.GiB)))},
			})
		}
		before := d.State()
		of := journal.Decision{Config: config, Before: before, Now: now, Facts: facts, Decided: d.Step(now, facts)}
		into(&of)
	}
}

// appendTo writes a decision as an agent does.
func appendTo(t testing.TB, j *journal.Journal, of *journal.Decision) {
	detail, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(journal.Record{Kind: journal.Eviction, Text: of.Text(), Detail: detail}); err != nil {
		t.Fatal(err)
	}
}

// nodeActions records decisions of a lifecycle controller whose nodes fall silent, come back and are tainted, until
// there are enough, half of them about nodes and half about pods.
func nodeActions(rng *rand.Rand, into func(journal.Note), enough int) {
	o, now := lifecycle.Defaults(), unit.Instant(time.Hour)
	wall := unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	m := lifecycle.New(now, o)
	nodes := map[int]*lifecycle.Node{}
	for i := range 12 {
		nodes[i] = &lifecycle.Node{
			Name:        fmt.Sprint("n", i),
			UID:         fmt.Sprint("u", i),
			Zone:        fmt.Sprint("z", i%3),
			Status:      map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: lifecycle.True},
			Allocatable: lifecycle.Load{CPU: 4000, Memory: 8 << 30, Pods: 110},
		}
		for p := range 3 {
			m.PodSeen(now, lifecycle.Pod{
				ID:          lifecycle.PodID(fmt.Sprintf("p%d-%d", i, p)),
				Namespace:   "default",
				Name:        fmt.Sprintf("p%d-%d", i, p),
				Node:        nodes[i].Name,
				Ready:       true,
				Tolerations: []lifecycle.Toleration{{Exists: true, Bounded: true, Seconds: int64(p * 20)}},
				Requests:    lifecycle.Load{CPU: 100, Pods: 1},
			})
		}
	}
	left := map[journal.Kind]int{journal.OfNode: enough / 2, journal.OfPod: enough / 2}
	for left[journal.OfNode]+left[journal.OfPod] > 0 {
		step := time.Duration(1+rng.IntN(4)) * time.Second
		now, wall = now.Add(step), wall+unit.Wall(step)
		m.Contact(now, true)
		for i := range len(nodes) {
			n := nodes[i]
			if rng.IntN(40) == 0 {
				n.Cordoned = !n.Cordoned
			}
			if (int(now/unit.Instant(time.Minute))+i)%7 > 2 { // else it is silent for some minutes
				n.Heartbeat = wall
				n.Status = map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: lifecycle.True}
			}
			m.NodeSeen(now, wall, *n)
		}
		var outcomes []lifecycle.Action
		for _, a := range m.Advance(now).Actions {
			kind := journal.OfNode
			if a.Pod != nil {
				kind = journal.OfPod
			}
			if left[kind] > 0 {
				left[kind]--
				basis := m.Basis(now, a)
				into(journal.Note{Kind: kind, Node: a.Node, Detail: &journal.NodeAction{Action: a, Basis: basis}})
			}
			outcomes = append(outcomes, a)
		}
		for _, a := range outcomes {
			ok := rng.IntN(5) > 0
			if ok && a.Pod == nil {
				n := nodes[index(a.Node)]
				write(n, a, wall)
				m.NodeSeen(now, wall, *n)
			}
			m.Done(now, a, ok)
		}
	}
}

func index(node string) (i int) {
	_, _ = fmt.Sscanf(node, "n%d", &i)
	return i
}

// write does to a node what an action says.
func write(n *lifecycle.Node, a lifecycle.Action, wall unit.Wall) {
	n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), func(t lifecycle.Taint) bool {
		return slices.ContainsFunc(a.Drop, t.Same)
	})
	for _, t := range a.Add {
		t.Added = wall
		n.Taints = append(n.Taints, t)
	}
	n.Status = maps.Clone(n.Status)
	for _, c := range a.Unknown {
		n.Status[c.Type] = lifecycle.Unknown
	}
}

// placements lets a scheduler place, preempt and refuse pods, and hands over what it was told, until there are enough
// decisions.
func placements(rng *rand.Rand, into func(trace.Fact), enough int) {
	r := &trace.Recorder{Placer: scheduler.New(scheduler.Options{Seed: 7}), Record: into}
	now := unit.Instant(time.Second)
	for i := range 20 {
		name := fmt.Sprint("n", i)
		n := scheduler.Node{
			Name: name,
			Labels: []scheduler.Label{
				{Key: "kubernetes.io/hostname", Value: name}, {Key: "zone", Value: fmt.Sprint(i % 3)}},
			Allocatable: []scheduler.Amount{
				{Resource: scheduler.CPU, Value: 4000}, {Resource: scheduler.Memory, Value: 8 << 30}},
			PodsMax: 20,
		}
		if i%5 == 0 {
			n.Taints = []scheduler.Taint{{Key: "team", Value: "blue", Effect: scheduler.NoSchedule}}
		}
		r.NodeSeen(now, n)
	}
	r.BudgetSeen(now, scheduler.Budget{Namespace: "default", Name: "b", Allowed: 1, Selector: scheduler.LabelSelector{
		Requirements: []scheduler.Requirement{{Key: "app", Op: scheduler.In, Values: []string{"a1"}}}}})
	var placed []scheduler.Pod
	for decided, number := 0, 0; decided < enough; {
		now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
		number++
		app := fmt.Sprint("a", rng.IntN(4))
		p := scheduler.Pod{
			ID:        scheduler.PodID(fmt.Sprint("u", number)),
			Namespace: "default",
			Name:      fmt.Sprint("p", number),
			Labels:    []scheduler.Label{{Key: "app", Value: app}},
			Priority:  int32(rng.IntN(3)),
			Requests: []scheduler.Amount{{Resource: scheduler.CPU, Value: int64(100 + rng.IntN(2000))},
				{Resource: scheduler.Memory, Value: rng.Int64N(3 << 30)}},
		}
		same := scheduler.LabelSelector{Requirements: []scheduler.Requirement{
			{Key: "app", Op: scheduler.In, Values: []string{app}}}}
		switch rng.IntN(6) {
		case 0:
			p.AntiAffinity = []scheduler.PodTerm{{Selector: same, Namespaces: []string{"default"},
				TopologyKey: "kubernetes.io/hostname"}}
		case 1:
			p.Spread = []scheduler.SpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", Hard: true, MinDomains: 1,
				Selector: same}}
		case 2:
			p.NodeSelector = []scheduler.Label{{Key: "zone", Value: "1"}}
		case 3:
			p.Tolerations = []scheduler.Toleration{{Key: "team", Exists: true}}
		}
		r.PodSeen(now, p)
		for len(placed) > 0 && rng.IntN(20) < 9 { // almost as many leave as come
			i := rng.IntN(len(placed))
			r.PodGone(now, placed[i].ID)
			placed = append(placed[:i], placed[i+1:]...)
		}
		for {
			d, ok := r.Next(now)
			if !ok {
				break
			}
			decided++
			if d.Node != "" {
				bound := d.Pod
				bound.Node = d.Node
				if rng.IntN(10) == 0 {
					r.Bound(now, d.Pod, scheduler.BindRefused)
					continue
				}
				r.Bound(now, d.Pod, scheduler.BindDone)
				r.PodSeen(now, bound)
				placed = append(placed, bound)
			}
			if d.Preemption != nil {
				for _, v := range d.Preemption.Victims {
					r.PodGone(now, v.ID)
				}
			}
		}
	}
}

func replayed(t *testing.T, path string) *Result {
	t.Helper()
	r, err := File(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReplay repeats a thousand decisions of each kind from what was recorded. All have the same outcome. Then one
// record is changed, and is found.
func TestReplay(t *testing.T) {
	agent, controller, facts := record(t, 1000, 2000, 3500)
	for path, least := range map[string]map[journal.Kind]int{
		agent:      {journal.Eviction: 1000},
		controller: {journal.OfNode: 1000, journal.OfPod: 1000},
		facts:      {journal.Placed: 1000, journal.Unschedulable: 1000},
	} {
		r := replayed(t, path)
		t.Logf("%s", r.Table())
		if len(r.Differ) > 0 || len(r.Skipped) > 0 || r.Damaged > 0 {
			t.Errorf("%s: %s", path, r.Table())
		}
		for kind, n := range least {
			if r.Same[kind] < n {
				t.Errorf("%s: %d of kind %s were repeated, want at least %d", path, r.Same[kind], kind, n)
			}
		}
	}
	agent, controller, facts = record(t, 50, 400, 150)
	for _, c := range []struct{ path, in, from, to string }{
		{filepath.Join(agent, "decisions"), "", `"memory.available":{"Available":`, `"memory.available":{"Available":-`},
		{filepath.Join(controller, "decisions"), `"Do":1`, `"Seconds":0`, `"Seconds":600`},
		{filepath.Join(controller, "decisions"), `"Unknown":[{`, `"Silent":true`, `"Silent":false`},
		{facts, "", `"Effect":"NoSchedule"`, `"Effect":"PreferNoSchedule"`},
		{facts, "", `"score":`, `"score":9`},
		{facts, "", `"attempt":1`, `"attempt":2`},
	} {
		changed := change(t, c.path, c.in, c.from, c.to)
		r := replayed(t, changed)
		if len(r.Differ) == 0 {
			t.Errorf("%s: %s instead of %s was not noticed: %s", c.path, c.to, c.from, r.Table())
			continue
		}
		if text := string(r.Table()); !strings.Contains(text, "BUG: record ") || !strings.Contains(text, "input: {") {
			t.Errorf("the report is not one: %s", text)
		}
	}
	if r := replayed(t, cut(t, facts, 100)); r.Facts == 0 || len(r.Skipped) == 0 {
		t.Errorf("without its beginning, a file of facts was repeated: %s", r.Table())
	}
}

// record records decisions of an agent, a lifecycle controller and a scheduler, as many as wanted of each, and returns
// the paths.
func record(t *testing.T, agents, controllers, schedulers int) (agent, controller, facts string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	agent = filepath.Join(dir, "agent")
	j, err := journal.Open(agent, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	evictions(rng, func(of *journal.Decision) { appendTo(t, j, of) }, agents)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	controller = filepath.Join(dir, "lifecycle")
	l, err := journal.NewLog("lifecycle", 64<<20, controller)
	if err != nil {
		t.Fatal(err)
	}
	nodeActions(rng, l.Note, controllers)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	facts = filepath.Join(dir, "facts")
	f, err := journal.NewFacts(facts, journal.Beginning{Options: scheduler.Options{Seed: 7}, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	placements(rng, func(of trace.Fact) { f.Note(journal.Told{Fact: of}) }, schedulers)
	f.Close()
	return agent, controller, facts
}

// TestFactsOnAFullDisk: the disk is full in the middle of a file of facts. Decisions before that are repeated, and none
// looks as if it had another outcome.
func TestFactsOnAFullDisk(t *testing.T) {
	path := filepath.Join(smallfs.Tmpfs(t, "size=512k"), "facts")
	f, err := journal.NewFacts(path, journal.Beginning{Options: scheduler.Options{Seed: 7}})
	if err != nil {
		t.Fatal(err)
	}
	placements(rand.New(rand.NewPCG(1, 2)), func(of trace.Fact) { f.Note(journal.Told{Fact: of}) }, 2500)
	f.Close()
	r := replayed(t, path)
	t.Logf("%s", r.Table())
	if len(r.Differ) > 0 || r.Damaged > 1 || r.Same[journal.Placed] < 50 || r.Facts >= 7000 {
		t.Errorf("%s", r.Table())
	}
}

// change returns a copy of a file in which the last record with in and from has to instead of from.
func change(t *testing.T, path, in, from, to string) string {
	t.Helper()
	a, err := journal.Read(path, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i := len(a.Records) - 1; i >= 0 && !found; i-- {
		detail := string(a.Records[i].Detail)
		if changed := strings.Replace(detail, from, to, 1); changed != detail && strings.Contains(detail, in) {
			a.Records[i].Detail, found = json.RawMessage(changed), true
		}
	}
	if !found {
		t.Fatalf("%s: no record has %s", path, from)
	}
	return save(t, a)
}

// cut returns a copy of a file without its first records.
func cut(t *testing.T, path string, n int) string {
	t.Helper()
	a, err := journal.Read(path, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	a.Records = a.Records[n:]
	return save(t, a)
}

func save(t *testing.T, a journal.Answer) string {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "saved")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOtherFiles: files that are no journals, and records of kinds that this program does not know, are named.
func TestOtherFiles(t *testing.T) {
	if _, err := File(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file, and a result")
	}
	a := journal.Answer{Records: []journal.Record{
		{Number: 1, Kind: "tomorrow's"}, {Number: 2, Kind: journal.Eviction, Detail: json.RawMessage(`"x"`)},
		{Number: 3, Kind: journal.Placed}, {Number: 4, Kind: journal.Fact}, {Number: 5, Kind: journal.Intent},
	}}
	r := replayed(t, save(t, a))
	if len(r.Skipped) != 5 || r.Records != 5 || len(r.Differ) > 0 {
		t.Errorf("%s", r.Table())
	}
}

// FuzzReplay: no file stops the program, and none costs more than its length allows.
func FuzzReplay(f *testing.F) {
	p := newPlace(f, rand.New(rand.NewPCG(7, 8)))
	for _, detail := range []any{p.come("a"), p.come("b"), p.come("c")} {
		text, err := json.Marshal(detail)
		if err != nil {
			f.Fatal(err)
		}
		if text, err = json.Marshal([]journal.Record{{Number: 1, Kind: journal.Admitted, Detail: text}}); err != nil {
			f.Fatal(err)
		}
		cost.Attack(f, text)
	}
	for _, kind := range []journal.Kind{journal.Eviction, journal.OfNode, journal.OfPod, journal.Began, journal.Fact,
		journal.Admitted} {
		for _, detail := range []string{`{}`, `{"call":"PodSeen","pod":{"ID":"p"}}`, `{"call":"Next"}`,
			`{"Action":{"Node":"n","Pod":{"ID":"p"}},"Basis":{"Now":5}}`, `{"options":{"Seed":1}}`,
			`{"call":"ReportSeen","name":"n","object":{"metadata":{"name":"n"}}}`} {
			text, err := json.Marshal([]journal.Record{{Number: 1, Kind: journal.Began, Detail: json.RawMessage(`{}`)},
				{Number: 2, Kind: kind, Detail: json.RawMessage(detail)}})
			if err != nil {
				f.Fatal(err)
			}
			cost.Attack(f, text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer cost.Spend(t, len(text))()
		a, err := journal.ReadAnswer(text, journal.Query{})
		if err != nil {
			return
		}
		_ = Records(a).Table()
	})
}
