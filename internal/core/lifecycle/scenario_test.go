package lifecycle

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
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestScenarios runs testdata/*.txt in virtual time. Each text is the history of one cluster. A block is "do" with one
// command per line, and the outcome. CONTRIBUTING.md says how to rewrite outcomes. NAME may be a range: a{0-9}. The
// commands:
//
//	node NAME [ready=True|False|Unknown|Absent] [memory|disk|pid|network=True] [cordoned] [age=D] [zone=Z] [excluded]
//	     [taint=KEY:EFFECT] [untaint=KEY:EFFECT] [cpu=N]       create or change
//	beat NAME [clock=D] [old=D]   it renews its lease every 10 s from now on; old: the lease is that old and not renewed
//	stop NAME                     it gives no more signs of life
//	delete NAME
//	pod NAME on=NODE [cpu=N] [daemon|static|never] [tolerate=KEY:EFFECT:SECONDS] [unready]   a ready pod, with the default
//	     tolerations of 300 s, or those of a DaemonSet's pod, of a static pod, or none; without on: it is not bound
//	after D                       time passes; prints what was done, by seconds since the start
//	api down|up, pause|resume     the API server, this process
//	calendar D                    this process's calendar is set by D
//	fail N                        the next N actions fail
//	restart                       a new Monitor without observations
//	option NAME VALUE             evictionRate, byRoom, collect, firstSightGrace, monitorPeriod, evictAttempts
//	mute, unmute                  stop printing, print again
//	show NAME, pods               a node, all pods
//	tally                         per zone: state, nodes down, nodes with a readiness NoExecute taint
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

// world is an API server, its nodes and a Monitor, in virtual time. Actions take effect at once and are shown to the
// Monitor, as by a watch.
type world struct {
	options Options
	monitor *Monitor
	now     unit.Instant
	began   unit.Instant
	step    time.Duration // by which this process's calendar was set
	nodes   map[string]*fakeNode
	pods    map[string]Pod
	apiDown bool
	paused  bool
	mute    bool
	fail    int // number of next actions that fail
	out     []string
}

type fakeNode struct {
	Node
	beats   bool
	clock   time.Duration // by which the node's calendar differs
	renewed unit.Wall
	next    unit.Instant // next renewal
	hasNode bool
}

const contactEvery = 5 * time.Second

func newWorld() *world {
	w := &world{options: Defaults(), now: unit.Instant(time.Hour), nodes: map[string]*fakeNode{}, pods: map[string]Pod{}}
	w.began = w.now
	w.monitor = New(w.now, w.options)
	return w
}

// wall is this process's calendar: the year 2026, plus step.
func (w *world) wall() unit.Wall {
	return unit.WallOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) + unit.Wall(w.now.Sub(w.began)) + unit.Wall(w.step)
}

// run executes one command, and returns what it prints.
func (w *world) run(t *testing.T, d *datadriven.TestData, f []string) []string {
	w.out = nil
	switch f[0] {
	case "node", "beat", "stop", "delete", "pod":
		for _, name := range expand(f[1]) {
			w.about(f[0], name, f[2:])
		}
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
	case "option":
		w.option(f[1], f[2])
	case "mute", "unmute":
		w.mute = f[0] == "mute"
	case "show":
		return []string{w.show(f[1])}
	case "pods":
		return w.showPods()
	case "tally":
		return w.tally()
	default:
		d.Fatalf(t, "unknown command %q", f[0])
	}
	w.advance()
	return w.out
}

// expand turns a{0-2} into a0, a1, a2.
func expand(name string) []string {
	head, rest, ranged := strings.Cut(name, "{")
	if !ranged {
		return []string{name}
	}
	first, last, _ := strings.Cut(strings.TrimSuffix(rest, "}"), "-")
	from, _ := strconv.Atoi(first)
	to, _ := strconv.Atoi(last)
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, head+strconv.Itoa(i))
	}
	return out
}

func (w *world) about(verb, name string, args []string) {
	switch verb {
	case "node":
		w.setNode(name, args)
	case "beat":
		w.beat(name, args)
	case "stop":
		w.nodes[name].beats = false
	case "delete":
		w.nodes[name].hasNode, w.nodes[name].beats = false, false
		w.monitor.NodeGone(w.now, name)
	case "pod":
		w.setPod(name, args)
	}
}

func (w *world) option(name, value string) {
	o := &w.options
	switch name {
	case "evictionRate":
		rate, _ := strconv.ParseFloat(value, 32)
		o.EvictionRate = float32(rate)
	case "byRoom":
		o.ByRoom = value == "true"
	case "collect":
		o.Collect = value == "true"
	case "monitorPeriod":
		o.MonitorPeriod = duration(value)
	case "evictAttempts":
		o.EvictAttempts, _ = strconv.Atoi(value)
	case "firstSightGrace":
		o.FirstSightGrace = duration(value)
	}
	w.restart()
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
		n.Taints = []Taint{{Key: wellknown.TaintNotReady, Effect: NoSchedule}} // as the API server's admission does
		n.Changed, n.Allocatable = w.wall(), Load{CPU: 1000 * unit.CPU, Memory: unit.TiB, Pods: 1000}
	}
	n.Status = maps.Clone(n.Status)
	states := map[string]Status{"True": True, "False": False, "Unknown": Unknown, "Absent": Absent}
	conditions := map[string]ConditionType{
		"ready":   Ready,
		"memory":  MemoryPressure,
		"disk":    DiskPressure,
		"pid":     PIDPressure,
		"network": NetworkUnavailable,
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		if c, ok := conditions[key]; ok {
			if c == Ready && n.Status[c] != states[value] {
				n.Changed = w.wall()
			}
			n.Status[c] = states[value]
		}
		switch key {
		case "cordoned":
			n.Cordoned = value != "no"
		case "age":
			n.Created = w.wall() - unit.Wall(duration(value))
		case "zone":
			n.Zone = value
		case "excluded":
			n.Excluded = true
		case "cpu":
			cpu, _ := strconv.Atoi(value)
			n.Allocatable.CPU = unit.MilliCPU(cpu) * unit.CPU
		case "taint":
			n.Taints = append(slices.Clone(n.Taints), taintOf(value))
		case "untaint":
			n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), taintOf(value).Same)
		}
	}
	if n.Status[Ready] != Absent {
		n.Heartbeat = w.wall() + unit.Wall(n.clock)
	}
	w.monitor.NodeSeen(w.now, w.wall(), n.Node)
}

// taintOf parses KEY:EFFECT; a key without a dot is one of node.kubernetes.io.
func taintOf(s string) Taint {
	key, effect, _ := strings.Cut(s, ":")
	if !strings.Contains(key, ".") {
		key = "node.kubernetes.io/" + key
	}
	return Taint{Key: key, Effect: Effect(effect)}
}

func (w *world) setPod(name string, args []string) {
	p, known := w.pods[name]
	if !known {
		bounded := func(key string) Toleration {
			return Toleration{Key: key, Exists: true, Effect: NoExecute, Bounded: true, Seconds: 300}
		}
		p = Pod{ID: PodID(name), Namespace: "default", Name: name, Ready: true, Requests: Load{Pods: 1},
			Tolerations: []Toleration{bounded(wellknown.TaintNotReady), bounded(wellknown.TaintUnreachable)}}
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "on":
			p.Node, p.Bound = value, w.wall()
		case "cpu":
			cpu, _ := strconv.Atoi(value)
			p.Requests.CPU = unit.MilliCPU(cpu) * unit.CPU
		case "unready":
			p.Ready = false
		case "never":
			p.Tolerations = nil
		case "daemon":
			p.Tolerations = []Toleration{
				{Key: wellknown.TaintNotReady, Exists: true, Effect: NoExecute},
				{Key: wellknown.TaintUnreachable, Exists: true, Effect: NoExecute},
			}
		case "static":
			p.Tolerations = []Toleration{{Exists: true, Effect: NoExecute}}
		case "tolerate":
			taint, seconds, bounded := value, "", false
			if i := strings.LastIndex(value, ":"); strings.Count(value, ":") == 2 {
				taint, seconds, bounded = value[:i], value[i+1:], true
			}
			o := taintOf(taint)
			n, _ := strconv.ParseInt(seconds, 10, 64)
			p.Tolerations = append([]Toleration{{Key: o.Key, Effect: o.Effect, Exists: true, Bounded: bounded, Seconds: n}},
				p.Tolerations...)
		}
	}
	w.pods[name] = p
	w.monitor.PodSeen(w.now, p)
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
	w.monitor = New(w.now, w.options)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		if n := w.nodes[name]; n.hasNode {
			w.monitor.NodeSeen(w.now, w.wall(), n.Node)
			if n.renewed != 0 {
				w.monitor.LeaseSeen(w.now, w.wall(), name, n.renewed)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		w.monitor.PodSeen(w.now, w.pods[name])
	}
}

// pass lets d pass in steps of 50 ms, so that delays show in the times printed.
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
		for _, r := range d.Reasons {
			w.printf("because %s: %s", r.Subject, r.Text)
		}
		for _, n := range d.Notices {
			w.printf("event %s: %s", n.Reason, n.Message)
		}
		if len(d.Actions) == 0 {
			return
		}
		for _, a := range d.Actions {
			if w.mute { // many nodes
				break
			}
			if b := w.monitor.Basis(w.now, a); b.Differs(a) != "" {
				w.printf("repeated: %s", b.Differs(a))
			}
		}
		for _, a := range d.Actions {
			w.carryOut(a)
		}
	}
	w.printf("Advance returns actions after 20 rounds")
}

func (w *world) printf(format string, args ...any) {
	if !w.mute {
		w.out = append(w.out, fmt.Sprintf("%6.2fs ", w.now.Sub(w.began).Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) carryOut(a Action) {
	text := describe(a)
	if w.fail > 0 || w.apiDown {
		w.fail = max(0, w.fail-1)
		w.printf("%s: failed", text)
		w.monitor.Done(w.now, a, false)
		return
	}
	w.printf("%s", text)
	if a.Pod != nil {
		w.carryOutPod(a)
		return
	}
	n := w.nodes[a.Node]
	n.Status = maps.Clone(n.Status)
	for _, c := range a.Unknown {
		n.Status[c.Type] = Unknown
		n.Changed = w.wall()
	}
	taints := slices.DeleteFunc(slices.Clone(n.Taints), func(t Taint) bool { return slices.ContainsFunc(a.Drop, t.Same) })
	for _, t := range a.Add {
		if t.Added == 0 {
			t.Added = w.wall()
		}
		taints = append(taints, t)
	}
	n.Taints = taints
	w.monitor.NodeSeen(w.now, w.wall(), n.Node)
	w.monitor.Done(w.now, a, true)
}

// carryOutPod performs an action on a pod. An evicted pod ends at once if its node is alive.
func (w *world) carryOutPod(a Action) {
	p := w.pods[a.Pod.Name]
	if a.Do == MarkNotReady {
		p.Ready = false
	} else {
		p.Terminating = true
	}
	if n := w.nodes[p.Node]; a.Do > Evict || a.Do == Evict && n.beats {
		delete(w.pods, p.Name)
		w.monitor.PodGone(w.now, p.ID)
		return
	}
	w.pods[p.Name] = p
	w.monitor.PodSeen(w.now, p)
	w.monitor.Done(w.now, a, true)
}

func describe(a Action) string {
	if a.Pod != nil {
		return "pod " + a.Pod.Name + " " + [...]string{"not ready", "evicted", "collected: orphan",
			"collected: out of service"}[a.Do]
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
		parts = append(parts, "+"+short(t))
	}
	for _, t := range a.Drop {
		parts = append(parts, "-"+short(t))
	}
	return strings.Join(parts, " ")
}

func short(t Taint) string {
	return strings.TrimPrefix(t.Key, "node.kubernetes.io/") + ":" + string(t.Effect)
}

func (w *world) show(name string) string {
	var taints []string
	for _, t := range w.nodes[name].Taints {
		taints = append(taints, short(t))
	}
	slices.Sort(taints)
	ready := map[Status]string{Absent: "Absent", True: "True", False: "False",
		Unknown: "Unknown"}[w.nodes[name].Status[Ready]]
	return fmt.Sprintf("%s Ready=%s taints %v", name, ready, taints)
}

func (w *world) showPods() (out []string) {
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		p := w.pods[name]
		state := "not ready"
		if p.Ready {
			state = "ready"
		}
		if p.Terminating {
			state = "terminating"
		}
		out = append(out, fmt.Sprintf("%s on %s %s", name, p.Node, state))
	}
	return out
}

func (w *world) tally() (out []string) {
	emptied := map[string]int{}
	for _, n := range w.nodes {
		if n.hasNode && n.hasReadiness() {
			emptied[n.Zone]++
		}
	}
	for _, z := range w.monitor.Zones() {
		out = append(out, fmt.Sprintf("zone %q %s: %d of %d down, %d with NoExecute", z.Key, z.State, z.Down, z.Size,
			emptied[z.Key]))
	}
	if w.monitor.Stopped() {
		out = append(out, "stopped")
	}
	return out
}
