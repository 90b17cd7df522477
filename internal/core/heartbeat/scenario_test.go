package heartbeat

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. A block is a new node: what will happen to it and what to print,
// one command per line, and the outcome. CONTRIBUTING.md says how to rewrite outcomes.
//
//	node KEY=VALUE...        the configuration: lease, update, report, runtime, runtime-max, main-loop-max, seed
//	at TIME runtime ready|notready|dead [LATENCY]
//	at TIME api up|refuses|hangs|node-gone|gone-and-told [LATENCY]   told: a watch shows the deletion
//	at TIME main-loop turns|stuck
//	at TIME change           the status, which also depends on the runtime's answers, changes
//	trace FROM TO            print every action of this time
//	table EVERY UNTIL        print counts of this time
//	load EVERY FROM TO       print the number of requests to the API server in each interval of this time
//
// "fleet N" instead of "node" is N nodes that start together under the same conditions; only their load is printed.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "node" && d.Cmd != "fleet" {
				d.Fatalf(t, "unknown directive %q", d.Cmd)
			}
			got, err := play(d)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return got
		})
	})
}

// world is the environment of a node, and the shell of one Beat.
type world struct {
	now      unit.Instant
	beat     *Beat
	events   []event // pending, sorted by time
	out      strings.Builder
	trace    [2]unit.Instant
	runtime  string
	api      string
	latency  map[string]time.Duration
	turns    bool
	changes  int // number of changes of the status by command
	heard    int // 1 when the runtime's last answer was ready; part of the status
	computed int // changes+heard as last computed
	reported int // changes+heard as last reported
	exists   bool
	withheld bool
	load     *load

	every, until unit.Instant
	from         unit.Instant
	count        map[string]int
	renewed      unit.Instant
	gap          time.Duration
}

type event struct {
	at unit.Instant
	do func() []Fact
}

// load counts requests by time interval.
type load struct {
	every, from, to time.Duration
	count           map[int]map[string]int
}

func (l *load) add(after time.Duration, name string) {
	if after < l.from || after >= l.to {
		return
	}
	stretch := int((after - l.from) / l.every)
	if l.count[stretch] == nil {
		l.count[stretch] = map[string]int{}
	}
	l.count[stretch][name]++
}

func (l *load) print(out *strings.Builder) {
	fmt.Fprintf(out, "%8s %8s %7s %8s\n", "from", "register", "renews", "reports")
	for i := range int((l.to - l.from) / l.every) {
		fmt.Fprintf(out, "%8s %8d %7d %8d\n", l.from+time.Duration(i)*l.every, l.count[i]["register"], l.count[i]["renew"],
			l.count[i]["report"])
	}
}

// play plays one node, or each node of a fleet by itself, because nodes do not influence each other.
func play(d *datadriven.TestData) (string, error) {
	l := &load{count: map[int]map[string]int{}}
	nodes := 1
	if d.Cmd == "fleet" {
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &nodes); err != nil {
			return "", err
		}
		d.CmdArgs = d.CmdArgs[1:]
	}
	var printed string
	for i := range nodes {
		var err error
		if printed, err = playNode(d, uint64(i), l); err != nil {
			return "", err
		}
	}
	if l.every > 0 {
		var out strings.Builder
		l.print(&out)
		return out.String(), nil
	}
	return printed, nil
}

func playNode(d *datadriven.TestData, seed uint64, l *load) (string, error) {
	w := &world{load: l, now: unit.Instant(0).Add(time.Hour), runtime: "ready", api: "up", turns: true, exists: false,
		latency: map[string]time.Duration{"runtime": 2 * time.Millisecond,
			"api": 5 * time.Millisecond}, count: map[string]int{}}
	start := w.now
	end := start
	c := Default()
	c.Seed = seed
	if err := configure(&c, d.CmdArgs); err != nil {
		return "", err
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		switch words[0] {
		case "at":
			d, err := time.ParseDuration(words[1])
			if err != nil {
				return "", err
			}
			w.schedule(start.Add(d), w.command(words[2:]))
		case "load":
			var times [3]time.Duration
			for i := range times {
				var err error
				if times[i], err = time.ParseDuration(words[i+1]); err != nil {
					return "", err
				}
			}
			l.every, l.from, l.to = times[0], times[1], times[2]
			end = max(end, start.Add(l.to))
		case "trace", "table":
			a, err := time.ParseDuration(words[1])
			if err != nil {
				return "", err
			}
			b, err := time.ParseDuration(words[2])
			if err != nil {
				return "", err
			}
			end = max(end, start.Add(b))
			if words[0] == "trace" {
				w.trace = [2]unit.Instant{start.Add(a), start.Add(b)}
			} else {
				w.every, w.until, w.from = unit.Instant(a), start.Add(b), start
			}
		default:
			return "", fmt.Errorf("unknown command %q", words[0])
		}
	}
	w.beat = New(c, w.now)
	w.run(start, end)
	return w.out.String(), nil
}

func configure(c *Config, args []datadriven.CmdArg) error {
	for _, arg := range args {
		value := arg.Vals[0]
		if arg.Key == "seed" {
			if _, err := fmt.Sscan(value, &c.Seed); err != nil {
				return err
			}
			continue
		}
		field := map[string]*time.Duration{"lease": &c.LeaseDuration, "update": &c.UpdateEvery, "report": &c.ReportEvery,
			"runtime": &c.RuntimeEvery, "runtime-max": &c.RuntimeMax, "main-loop-max": &c.MainLoopMax}[arg.Key]
		d, err := time.ParseDuration(value)
		if err != nil || field == nil {
			return fmt.Errorf("node %s: %v", arg, err)
		}
		*field = d
	}
	return nil
}

func (w *world) command(words []string) func() []Fact {
	return func() []Fact {
		w.say("                       %s", strings.Join(words, " "))
		if len(words) > 2 {
			w.latency[words[0]], _ = time.ParseDuration(words[2])
		}
		switch words[0] {
		case "runtime":
			w.runtime = words[1]
		case "api":
			w.api = words[1]
			switch w.api {
			case "node-gone":
				w.api, w.exists = "up", false
			case "gone-and-told":
				w.api, w.exists = "up", false
				return []Fact{{Kind: NodeGone}}
			}
		case "main-loop":
			w.turns = words[1] == "turns"
		case "change":
			w.changes++
			return []Fact{{Kind: Stale}}
		}
		return nil
	}
}

func (w *world) schedule(at unit.Instant, do func() []Fact) {
	i, _ := slices.BinarySearchFunc(w.events, at, func(e event, at unit.Instant) int {
		if e.at <= at {
			return -1
		}
		return 1
	})
	w.events = slices.Insert(w.events, i, event{at, do})
}

func (w *world) run(start, end unit.Instant) {
	var facts []Fact
	next := start.Add(time.Duration(w.every))
	facts = w.happen(facts)
	for w.now <= end {
		for w.every > 0 && w.now >= next && next <= w.until {
			w.row(next, start)
			next = next.Add(time.Duration(w.every))
		}
		if w.turns {
			facts = append(facts, Fact{Kind: MainLoopTurned})
		}
		d := w.beat.Step(w.now, facts...)
		facts = nil
		w.act(d)
		wake := d.Wake
		if len(w.events) > 0 {
			wake = wake.Earlier(w.events[0].at)
		}
		if wake.IsZero() {
			fmt.Fprintf(&w.out, "%10s the node sleeps for ever\n", w.now.Sub(start))
			return
		}
		w.now = wake
		facts = w.happen(facts)
	}
}

func (w *world) happen(facts []Fact) []Fact {
	for len(w.events) > 0 && w.events[0].at <= w.now {
		e := w.events[0]
		w.events = w.events[1:]
		facts = append(facts, e.do()...)
	}
	return facts
}

func (w *world) act(d Decision) {
	if d.AskRuntime {
		w.count["ask"]++
		if w.runtime == "dead" {
			w.schedule(w.now.Add(2*time.Second), w.outcome("ask runtime", Fact{Kind: RuntimeAsked}))
		} else {
			w.schedule(w.now.Add(w.latency["runtime"]), w.outcome("ask runtime", Fact{
				Kind:  RuntimeAsked,
				OK:    true,
				Ready: w.runtime == "ready",
			}))
		}
	}
	if d.Compute {
		w.count["compute"]++
		w.computed = w.status()
		w.schedule(w.now, w.outcome("compute", Fact{Kind: Computed, OK: true, Changed: w.computed != w.reported}))
	}
	for _, a := range []struct {
		do   bool
		name string
		kind FactKind
	}{{d.Register, "register", Registered}, {d.Renew, "renew", Renewed}, {d.Report, "report", Reported}} {
		if !a.do {
			continue
		}
		w.count[a.name]++
		w.load.add(w.now.Sub(unit.Instant(0).Add(time.Hour)), a.name)
		after := w.latency["api"]
		if w.api == "hangs" {
			after = w.beat.AttemptMax()
		}
		sent := w.computed
		if a.name == "register" {
			sent = w.status()
		}
		w.schedule(w.now.Add(after), func() []Fact { return w.answer(a.name, a.kind, sent) })
	}
	if (d.Withheld != "") != w.withheld {
		w.withheld = d.Withheld != ""
		if w.withheld {
			w.say("lease withheld: %s silent for %s", d.Withheld, d.Silent.Round(time.Second))
		}
	}
}

// answer is the answer of the API server.
func (w *world) answer(name string, kind FactKind, sent int) []Fact {
	f := Fact{Kind: kind, OK: w.api == "up" && (w.exists || kind == Registered)}
	w.say("%-11s %s", name, map[bool]string{true: "ok", false: "fails"}[f.OK])
	if !f.OK {
		w.count["fail"]++
	}
	if f.OK && kind == Renewed {
		if !w.renewed.IsZero() {
			w.gap = max(w.gap, w.now.Sub(w.renewed))
		}
		w.renewed = w.now
	}
	if f.OK && kind != Renewed {
		w.reported, w.exists = sent, true
	}
	if w.api == "up" && !w.exists {
		return []Fact{f, {Kind: NodeGone}}
	}
	return []Fact{f}
}

func (w *world) status() int { return 2*w.changes + w.heard }

func (w *world) outcome(name string, f Fact) func() []Fact {
	return func() []Fact {
		result := ""
		switch {
		case f.Kind == RuntimeAsked && !f.OK:
			result, w.heard = "no answer", 0
		case f.Kind == RuntimeAsked:
			w.heard = map[bool]int{true: 1}[f.Ready]
			result = map[bool]string{true: "ready", false: "not ready"}[f.Ready]
		case f.Changed:
			result = "changed"
		default:
			result = "unchanged"
		}
		w.say("%-11s %s", name, result)
		return []Fact{f}
	}
}

func (w *world) say(format string, args ...any) {
	if w.now >= w.trace[0] && w.now <= w.trace[1] && w.trace[1] > 0 {
		fmt.Fprintf(&w.out, "%10.3fs %s\n", w.now.Sub(unit.Instant(0).Add(time.Hour)).Seconds(), fmt.Sprintf(format, args...))
	}
}

func (w *world) row(at, start unit.Instant) {
	if w.from == start {
		fmt.Fprintf(&w.out, "%8s %5s %8s %6s %8s %7s %6s %10s\n", "until", "asks", "register", "renews", "computes",
			"reports", "failed", "lease gap")
		w.from = 0
	}
	fmt.Fprintf(&w.out, "%8s %5d %8d %6d %8d %7d %6d %10s\n", at.Sub(start), w.count["ask"], w.count["register"],
		w.count["renew"],
		w.count["compute"], w.count["report"], w.count["fail"], w.gap.Round(100*time.Millisecond))
	w.count, w.gap = map[string]int{}, 0
}
