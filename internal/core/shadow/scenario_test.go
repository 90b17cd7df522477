package shadow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. Each text is the history of one cluster that others run. A block
// is "do" with one command per line; the output is the Events, by seconds since the start. The commands:
//
//	node NAME [cpu=N] [cordoned] [label=K:V] [ready=True|False|Unknown] [beat] [taint=KEY:EFFECT] [untaint=KEY:EFFECT]
//	     create or change; beat: its agent reports
//	renew NAME...                 they renew their leases now
//	drop NAME                     a node is deleted
//	pod NAME [cpu=N] [prio=N] [select=K:V] [needs=TEXT] [on=NODE] [tolerate=SECONDS]   a pod is created
//	bind NAME NODE                the other scheduler binds it
//	refuse NAME TEXT              the other scheduler says that it fits nowhere
//	evict NAME                    the other controller evicts it because of a taint
//	gone NAME                     a pod is deleted
//	begin [placements]            all first lists have arrived; placements: nodes are not compared
//	after D [NAME...]             time passes; these nodes renew every 10 s
//	tally                         counts, agreement, leads
//	open                          what one side only has done
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "do" {
				d.Fatalf(t, "unknown directive %q", d.Cmd)
			}
			w.out.Reset()
			for command := range strings.Lines(d.Input) {
				w.do(t, strings.Fields(command))
			}
			return w.out.String()
		})
	})
}

// world is the API of a cluster that others run, and both comparisons.
type world struct {
	now            unit.Instant
	placements     *Placements
	nodes          *Nodes
	tally          *Tally
	began          bool
	onlyPlacements bool
	places         map[string]scheduler.Node
	lives          map[string]lifecycle.Node
	pods           map[string]scheduler.Pod
	livePods       map[string]lifecycle.Pod
	out            strings.Builder
}

const worldBegan = unit.Instant(time.Hour)

func newWorld() *world {
	return &world{
		now:        worldBegan,
		placements: NewPlacements(Options{Scheduler: scheduler.Options{Seed: 1}}),
		nodes:      NewNodes(worldBegan, lifecycle.Defaults()),
		tally:      NewTally(),
		places:     map[string]scheduler.Node{},
		lives:      map[string]lifecycle.Node{},
		pods:       map[string]scheduler.Pod{},
		livePods:   map[string]lifecycle.Pod{},
	}
}

func (w *world) wall() unit.Wall {
	return unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) + unit.Wall(w.now.Sub(worldBegan))
}

func (w *world) do(t *testing.T, words []string) {
	t.Helper()
	name, rest := "", words[1:]
	if len(rest) > 0 {
		name, rest = rest[0], rest[1:]
	}
	switch words[0] {
	case "node":
		w.node(t, name, rest)
	case "renew":
		for _, name := range words[1:] {
			w.print(w.nodes.LeaseSeen(w.now, w.wall(), name, w.wall()))
		}
	case "drop":
		w.placements.NodeGone(w.now, name)
		w.nodes.NodeGone(w.now, name)
	case "pod":
		w.pod(t, name, rest)
	case "bind":
		p := w.pods[name]
		p.Node = rest[0]
		w.seen(name, p, false, "")
	case "refuse":
		w.seen(name, w.pods[name], true, strings.Join(rest, " "))
	case "evict":
		p := w.livePods[name]
		p.Terminating = true
		w.livePods[name] = p
		w.print(w.nodes.PodSeen(w.now, p, true))
	case "gone":
		w.placements.PodGone(w.now, scheduler.PodID(name))
		w.print(w.nodes.PodGone(w.now, lifecycle.PodID(name)))
	case "begin":
		w.began, w.onlyPlacements = true, name == "placements"
		w.placements.Begin()
	case "after":
		w.pass(t, name, rest)
	case "tally":
		w.printTally()
	case "open":
		w.print(w.nodes.Open(w.now))
	default:
		t.Fatalf("unknown command %q", words[0])
	}
	w.advance()
}

// advance lets both decide. It returns when they must be asked again.
func (w *world) advance() unit.Instant {
	if !w.began {
		return 0
	}
	w.nodes.Contact(w.now, true)
	events, wake := w.placements.Advance(w.now)
	w.print(events)
	if w.onlyPlacements {
		return wake
	}
	events, also := w.nodes.Advance(w.now, w.wall())
	w.print(events)
	return wake.Earlier(also)
}

// pass lets time pass. The API server answers every 5 s.
func (w *world) pass(t *testing.T, text string, renew []string) {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	end := w.now.Add(d)
	next, contact := w.now.Add(10*time.Second), w.now.Add(5*time.Second)
	for {
		wake := w.advance().Earlier(end).Earlier(contact)
		if len(renew) > 0 {
			wake = wake.Earlier(next)
		}
		w.now = max(w.now, wake)
		if w.now >= contact {
			contact = contact.Add(5 * time.Second)
		}
		if len(renew) > 0 && w.now >= next {
			next = next.Add(10 * time.Second)
			for _, name := range renew {
				w.print(w.nodes.LeaseSeen(w.now, w.wall(), name, w.wall()))
			}
		}
		if w.now >= end {
			return
		}
	}
}

func (w *world) node(t *testing.T, name string, words []string) {
	t.Helper()
	n, known := w.places[name]
	l := w.lives[name]
	if !known {
		n = scheduler.Node{
			Name:        name,
			PodsMax:     110,
			Labels:      []scheduler.Label{{Key: "kubernetes.io/hostname", Value: name}},
			Allocatable: []scheduler.Amount{{Resource: scheduler.CPU, Value: 4000}},
		}
		l = lifecycle.Node{Name: name, UID: name, Created: w.wall() - unit.Wall(time.Hour), Heartbeat: w.wall(),
			Status: map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: lifecycle.True}}
	}
	status := map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: l.Status[lifecycle.Ready]}
	n.Labels, n.Taints, l.Taints = slices.Clone(n.Labels), slices.Clone(n.Taints), slices.Clone(l.Taints)
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		first, second, _ := strings.Cut(value, ":")
		switch key {
		case "cpu":
			n.Allocatable = []scheduler.Amount{{Resource: scheduler.CPU, Value: number(t, value)}}
		case "cordoned":
			n.Unschedulable, l.Cordoned = true, true
		case "label":
			n.Labels = append(n.Labels, scheduler.Label{Key: first, Value: second})
		case "ready":
			status[lifecycle.Ready] = map[string]lifecycle.Status{"True": lifecycle.True, "False": lifecycle.False,
				"Unknown": lifecycle.Unknown}[value]
		case "beat":
			l.Heartbeat = w.wall()
		case "taint":
			n.Taints = append(n.Taints, scheduler.Taint{Key: first, Effect: scheduler.Effect(second)})
			l.Taints = append(l.Taints, lifecycle.Taint{Key: first, Effect: lifecycle.Effect(second), Added: w.wall()})
		case "untaint":
			n.Taints = slices.DeleteFunc(n.Taints, func(t scheduler.Taint) bool {
				return t.Key == first && string(t.Effect) == second
			})
			l.Taints = slices.DeleteFunc(l.Taints, func(t lifecycle.Taint) bool {
				return t.Key == first && string(t.Effect) == second
			})
		default:
			t.Fatalf("node: unknown word %q", word)
		}
	}
	l.Status = status
	w.places[name], w.lives[name] = n, l
	w.placements.NodeSeen(w.now, n)
	w.print(w.nodes.NodeSeen(w.now, w.wall(), l))
}

func (w *world) pod(t *testing.T, name string, words []string) {
	t.Helper()
	p := scheduler.Pod{ID: scheduler.PodID(name), Namespace: "team", Name: name}
	l := lifecycle.Pod{ID: lifecycle.PodID(name), Namespace: "team", Name: name}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		first, second, _ := strings.Cut(value, ":")
		switch key {
		case "cpu":
			p.Requests = []scheduler.Amount{{Resource: scheduler.CPU, Value: number(t, value)}}
			p.IncomingLoad.CPU, p.PlacedLoad.CPU = unit.MilliCPU(number(t, value)), unit.MilliCPU(number(t, value))
		case "prio":
			p.Priority = int32(number(t, value))
		case "select":
			p.NodeSelector = append(p.NodeSelector, scheduler.Label{Key: first, Value: second})
		case "needs":
			p.Unsupported = append(p.Unsupported, value)
		case "on":
			p.Node, l.Node = value, value
		case "tolerate":
			l.Tolerations = []lifecycle.Toleration{{Exists: true, Effect: lifecycle.NoExecute, Bounded: true,
				Seconds: number(t, value)}}
		default:
			t.Fatalf("pod: unknown word %q", word)
		}
	}
	w.livePods[name] = l
	w.seen(name, p, false, "")
}

// seen shows a pod to both.
func (w *world) seen(name string, p scheduler.Pod, refused bool, said string) {
	w.pods[name] = p
	l := w.livePods[name]
	l.Node = p.Node
	w.livePods[name] = l
	w.print(w.nodes.PodSeen(w.now, l, false))
	w.print(w.placements.PodSeen(w.now, p, refused, said))
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// print prints Events, one per line, and counts them.
func (w *world) print(events []Event) {
	for i := range events {
		e := &events[i]
		w.tally.Add(e)
		mark := " "
		if e.Kind.Finding() {
			mark = "!"
		}
		fmt.Fprintf(&w.out, "%7.2fs%s%s:", w.now.Sub(worldBegan).Seconds(), mark, e.Kind)
		for _, part := range []struct{ name, value string }{
			{"node", e.Node}, {"pod", e.Pod}, {"ours", e.Ours}, {"theirs", e.Theirs}, {"what", e.What}, {"why", e.Why},
		} {
			if part.value != "" {
				fmt.Fprintf(&w.out, " %s=%s", part.name, strings.ReplaceAll(part.value, " ", "_"))
			}
		}
		if e.Nodes > 0 {
			fmt.Fprintf(&w.out, " nodes=%d", e.Nodes)
		}
		if e.Best.Node != "" {
			fmt.Fprintf(&w.out, " best=%s:%d", e.Best.Node, e.Best.Total)
		}
		if e.Got.Node != "" {
			fmt.Fprintf(&w.out, " got=%d", e.Got.Total)
		}
		for _, d := range e.Differs {
			fmt.Fprintf(&w.out, " %s:%d<%d", d.Plugin, d.Got, d.Best)
		}
		if e.Late {
			w.out.WriteString(" late")
		}
		if e.Lead != 0 || e.HasLead {
			fmt.Fprintf(&w.out, " lead=%v", e.Lead)
		}
		w.out.WriteString("\n")
	}
}

func (w *world) printTally() {
	for _, k := range Kinds() {
		if n := w.tally.Counts[k]; n > 0 {
			fmt.Fprintf(&w.out, "%s %d\n", k, n)
		}
	}
	agree, all := w.tally.Judged()
	fmt.Fprintf(&w.out, "agree %d of %d, late %d\n", agree, all, w.tally.Late)
	for i, s := range []Spread{w.tally.Pods(), w.tally.Nodes()} {
		about := []string{"pods", "nodes"}[i]
		fmt.Fprintf(&w.out, "%s: %d leads: %v %v %v %v %v\n", about, s.Of, s.Min, s.P50, s.P90, s.P99, s.Max)
	}
}
