package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time: each text is the story of one cluster. A block is "do" and one command
// per line, and what came of them. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	node NAME [ready=True|False|Unknown|Absent] [memory|disk|pid|network=True] [cordoned] [taint=KEY:EFFECT] [age=D]   create or change
//	beat NAME [clock=D] [old=D]   it renews its lease every 10 s from now on; old: the lease is that old and not renewed
//	stop NAME                     it gives no sign any more
//	delete NAME
//	pod NAME on=NODE              a ready pod
//	after D                       time passes; prints what was done, by seconds since the start
//	api down|up, pause|resume     the API, our own process
//	calendar D                    our calendar is set by D
//	fail N                        the next N actions fail
//	restart                       a new Monitor that knows nothing
//	show NAME
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "do" {
				d.Fatalf(t, "unknown directive %q", d.Cmd)
			}
			var out strings.Builder
			for command := range strings.Lines(d.Input) {
				for _, line := range w.run(t, d, strings.Fields(command)) {
					fmt.Fprintln(&out, line)
				}
			}
			return out.String()
		})
	})
}

// world is an API server, its nodes and a Monitor, in virtual time. Actions take effect at once and are told back, as a
// watch would.
type world struct {
	monitor *Monitor
	now     unit.Instant
	began   unit.Instant
	step    time.Duration // by which our calendar was set
	nodes   map[string]*fakeNode
	pods    map[string]Pod
	apiDown bool
	paused  bool
	fail    int // next actions that fail
	out     []string
}

type fakeNode struct {
	Node
	beats   bool
	clock   time.Duration // by which the node's calendar is off
	renewed unit.Wall
	next    unit.Instant // next beat
	hasNode bool
}

const contactEvery = 5 * time.Second

func newWorld() *world {
	w := &world{now: unit.Instant(time.Hour), nodes: map[string]*fakeNode{}, pods: map[string]Pod{}}
	w.began = w.now
	w.monitor = New(w.now, Defaults())
	return w
}

// wall is our calendar: the year 2026, and what it was set by.
func (w *world) wall() unit.Wall {
	return unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) + unit.Wall(w.now.Sub(w.began)) + unit.Wall(w.step)
}

// run executes one command and returns what it prints.
func (w *world) run(t *testing.T, d *datadriven.TestData, f []string) []string {
	w.out = nil
	switch f[0] {
	case "node":
		w.setNode(f[1], f[2:])
	case "beat":
		w.beat(f[1], f[2:])
	case "stop":
		w.nodes[f[1]].beats = false
	case "delete":
		w.nodes[f[1]].hasNode, w.nodes[f[1]].beats = false, false
		w.monitor.NodeGone(w.now, f[1])
	case "pod":
		p := Pod{ID: PodID(f[1]), Namespace: "default", Name: f[1], Node: strings.TrimPrefix(f[2], "on="), Ready: true}
		w.pods[f[1]] = p
		w.monitor.PodSeen(w.now, p)
	case "after":
		w.pass(duration(f[1]))
	case "api":
		w.apiDown = f[1] == "down"
	case "pause", "resume":
		w.paused = f[0] == "pause"
	case "calendar":
		w.step += duration(f[1])
	case "fail":
		w.fail, _ = strconv.Atoi(f[1])
	case "restart":
		w.restart()
	case "show":
		return []string{w.show(f[1])}
	default:
		d.Fatalf(t, "unknown command %q", f[0])
	}
	w.advance()
	return w.out
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic("scenario: " + err.Error())
	}
	return d
}

func (w *world) setNode(name string, args []string) {
	n := w.nodes[name]
	if n == nil {
		n = &fakeNode{Node: Node{Name: name, Status: map[ConditionType]Status{Ready: True, MemoryPressure: False}}}
		w.nodes[name] = n
	}
	if !n.hasNode {
		n.hasNode, n.Created, n.UID = true, w.wall(), fmt.Sprintf("%s-%d", name, w.now)
		n.Taints = []Taint{{TaintNotReady, NoSchedule}} // as the API's admission does
	}
	n.Status = maps.Clone(n.Status)
	states := map[string]Status{"True": True, "False": False, "Unknown": Unknown, "Absent": Absent}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "ready":
			n.Status[Ready] = states[value]
		case "memory":
			n.Status[MemoryPressure] = states[value]
		case "disk":
			n.Status[DiskPressure] = states[value]
		case "pid":
			n.Status[PIDPressure] = states[value]
		case "network":
			n.Status[NetworkUnavailable] = states[value]
		case "cordoned":
			n.Cordoned = value != "no"
		case "age":
			n.Created = w.wall() - unit.Wall(duration(value))
		case "taint":
			k, e, _ := strings.Cut(value, ":")
			n.Taints = append(slices.Clone(n.Taints), Taint{k, Effect(e)})
		}
	}
	if n.Status[Ready] != Absent {
		n.Heartbeat = w.wall() + unit.Wall(n.clock)
	}
	w.monitor.NodeSeen(w.now, w.wall(), n.Node)
}

func (w *world) beat(name string, args []string) {
	n := w.nodes[name]
	n.beats, n.next = true, w.now
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "clock":
			n.clock = duration(value)
		case "old":
			n.beats = false
			n.renewed = w.wall() - unit.Wall(duration(value))
			w.monitor.LeaseSeen(w.now, w.wall(), name, n.renewed)
		}
	}
}

func (w *world) restart() {
	w.monitor = New(w.now, Defaults())
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		if n := w.nodes[name]; n.hasNode {
			w.monitor.NodeSeen(w.now, w.wall(), n.Node)
			if n.renewed != 0 {
				w.monitor.LeaseSeen(w.now, w.wall(), name, n.renewed)
			}
		}
	}
	for _, p := range w.pods {
		w.monitor.PodSeen(w.now, p)
	}
}

// pass lets d go by in steps of 50 ms, so that lateness shows in the times printed.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for contact := w.now; w.now < end; w.now = w.now.Add(50 * time.Millisecond) {
		for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
			n := w.nodes[name]
			if n.beats && n.next <= w.now && !w.apiDown {
				n.next = w.now.Add(10 * time.Second)
				n.renewed = w.wall() + unit.Wall(n.clock)
				if !w.paused {
					w.monitor.LeaseSeen(w.now, w.wall(), name, n.renewed)
				}
			}
		}
		if w.paused {
			continue
		}
		if contact <= w.now {
			contact = w.now.Add(contactEvery)
			w.monitor.Contact(w.now, !w.apiDown)
		}
		w.advance()
	}
}

func (w *world) advance() {
	if w.paused {
		return
	}
	for range 20 {
		d := w.monitor.Advance(w.now)
		for _, n := range d.Notices {
			w.printf("event %s: %s", n.Reason, n.Message)
		}
		if len(d.Actions) == 0 {
			return
		}
		for _, a := range d.Actions {
			w.carryOut(a)
		}
	}
	w.printf("not settled after 20 rounds")
}

func (w *world) printf(format string, args ...any) {
	w.out = append(w.out, fmt.Sprintf("%6.2fs ", w.now.Sub(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) carryOut(a Action) {
	text := describe(a)
	if w.fail > 0 {
		w.fail--
		w.printf("%s: failed", text)
		w.monitor.Done(w.now, a, false)
		return
	}
	w.printf("%s", text)
	if a.Pod != nil {
		p := *a.Pod
		p.Ready = false
		w.pods[p.Name] = p
		w.monitor.PodSeen(w.now, p)
		w.monitor.Done(w.now, a, true)
		return
	}
	n := w.nodes[a.Node]
	n.Status = maps.Clone(n.Status)
	for _, c := range a.Unknown {
		n.Status[c.Type] = Unknown
	}
	taints := slices.DeleteFunc(slices.Clone(n.Taints), func(t Taint) bool { return slices.Contains(a.Drop, t) })
	n.Taints = append(taints, a.Add...)
	w.monitor.NodeSeen(w.now, w.wall(), n.Node)
	w.monitor.Done(w.now, a, true)
}

func describe(a Action) string {
	if a.Pod != nil {
		return "pod " + a.Pod.Name + " not ready"
	}
	parts := []string{"node " + a.Node + ":"}
	for _, c := range a.Unknown {
		s := string(c.Type) + "=Unknown"
		if c.Never {
			s += "(never posted)"
		}
		parts = append(parts, s)
	}
	for _, t := range a.Add {
		parts = append(parts, "+"+strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	for _, t := range a.Drop {
		parts = append(parts, "-"+strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	return strings.Join(parts, " ")
}

func (w *world) show(name string) string {
	var taints []string
	for _, t := range w.nodes[name].Taints {
		taints = append(taints, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	slices.Sort(taints)
	ready := map[Status]string{Absent: "Absent", True: "True", False: "False", Unknown: "Unknown"}[w.nodes[name].Status[Ready]]
	return fmt.Sprintf("%s Ready=%s taints %v", name, ready, taints)
}
