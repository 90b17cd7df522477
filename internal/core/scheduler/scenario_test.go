package scheduler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios runs testdata/*.txt in virtual time. Each text is a history of one Placer. A block is "do" and one
// command per line, followed by the results. CONTRIBUTING.md says how to rewrite results. The commands:
//
//	node NAME [cpu=MILLI] [memory=N] [pods=N] [RESOURCE=N] [label=K:V,...] [taint=K:V:EFFECT,...] [cordoned]
//	    [image=NAME:N] [features=F,...] [lacks=CODE,...]
//	node-gone NAME
//	pod NAME [cpu=..] [memory=..] [RESOURCE=N] [prio=N] [profile=gentle] [gate=G] [on=NODE] [select=K:V]
//	    [port=[IP:]N/PROTO] [tolerate=K] [names=a+b] [needs=TEXT] [deleting] [preempted] [nominated=NODE]
//	    [label=K:V,...]
//	    [image=NAME] [features=F,...] [of-agent=CODE,...] [prefer=K:V]
//	budget NAME select=K:V allowed=N
//	gone NAME
//	next [N]          place up to N pods (default: all that are ready)
//	bound NAME done|refused|lost|withdrawn
//	eviction-failed NAME  the eviction of a victim of NAME failed
//	after DURATION
//	pending
//	why NAME
//
// The commands about volumes are in scenario_storage_test.go, those about other pods and NUMA nodes in
// scenario_around_test.go. The block "cluster" begins another history with a new Placer. In needs=TEXT, an underscore
// stands for a space.
//
// Every filter must reject a node in some text, and every scorer must give different scores to nodes in some text.
func TestScenarios(t *testing.T) {
	shown := &coverage{scorers: map[string]int{}}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t, shown)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "cluster":
				w = newWorld(t, shown)
				return ""
			case "do":
			default:
				d.Fatalf(t, "unknown directive %q", d.Cmd)
			}
			w.t = t
			var out strings.Builder
			for command := range strings.Lines(d.Input) {
				for _, line := range w.run(t, d, strings.Fields(command)) {
					fmt.Fprintln(&out, line)
				}
			}
			return out.String()
		})
	})
	for i := range filters {
		if f := &filters[i]; shown.rejected&f.rule == 0 {
			t.Errorf("%s (filter %d) rejects a node in no text of testdata: add one", f.plugin, i)
		}
	}
	for _, s := range allScorers(nil) {
		if shown.scorers[s.plugin] == 0 {
			t.Errorf("%s gives different scores to nodes in no text of testdata: add one", s.plugin)
		}
	}
}

// coverage is which rules the texts have shown at work.
type coverage struct {
	rejected RuleSet        // filters that rejected a node
	scorers  map[string]int // how often each scorer gave different scores to nodes, by plugin
}

// see records which rules matter for a pod that is to be placed.
func (v *coverage) see(c *cluster, pod *Pod) {
	c.ask(pod, func(d *demand) {
		if plain := c.choosePlain(d, pod.ID); plain.failure != nil {
			v.rejected |= plain.failure.Rejected
		} else {
			c.countScorers(d, v.scorers)
		}
	})
}

// world drives a Placer with virtual time.
type world struct {
	t       *testing.T
	placer  *Placer
	now     unit.Instant
	pods    map[string]Pod
	inOrder []string // names of pods, in the order in which they were first seen
	shown   *coverage

	version int                     // of the storage object that was written last
	layouts map[string]*numa.Layout // of nodes with reports, by their parameters
}

func newWorld(t *testing.T, shown *coverage) *world {
	gentle := DefaultProfile() // a profile whose pods do not preempt
	gentle.Name, gentle.NoPreemption = "gentle", true
	return &world{
		t:       t,
		placer:  New(Options{Seed: 1, Profiles: []Profile{DefaultProfile(), gentle}}),
		now:     unit.Instant(time.Hour),
		pods:    map[string]Pod{},
		layouts: map[string]*numa.Layout{},
		shown:   shown,
	}
}

// run executes one command and returns what it prints.
func (w *world) run(t *testing.T, d *datadriven.TestData, f []string) []string {
	args := f[1:]
	if lines, known := w.storage(f); known {
		return lines
	}
	if w.around(f) {
		return nil
	}
	switch f[0] {
	case "node":
		w.placer.NodeSeen(w.now, parseNode(args))
	case "node-gone":
		w.placer.NodeGone(w.now, args[0])
	case "pod":
		pod := parsePod(args)
		if _, known := w.pods[pod.Name]; !known {
			w.inOrder = append(w.inOrder, pod.Name)
		}
		w.pods[pod.Name] = pod
		w.placer.PodSeen(w.now, pod)
		if pod.Node == "" {
			w.shown.see(w.placer.cluster, &pod)
		}
	case "budget":
		parsed := parseArguments(args[1:])
		key, value, _ := strings.Cut(parsed["select"], ":")
		b := Budget{Namespace: "default", Name: args[0], Allowed: int32(number(parsed["allowed"]))}
		b.Selector.Requirements = []Requirement{{Key: key, Op: In, Values: []string{value}}}
		w.placer.BudgetSeen(w.now, b)
	case "gone":
		w.placer.PodGone(w.now, PodID(args[0]))
		delete(w.pods, args[0])
	case "next":
		return w.next(args)
	case "bound":
		outcome := map[string]Outcome{"done": BindDone, "refused": BindRefused, "lost": BindLost,
			"withdrawn": BindWithdrawn}[args[1]]
		w.placer.Bound(w.now, w.pods[args[0]], outcome)
	case "eviction-failed":
		w.placer.EvictionFailed(w.now, PodID(args[0]))
	case "after":
		passed, err := time.ParseDuration(args[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.now = w.now.Add(passed)
	case "pending":
		n := w.placer.Pending()
		return []string{fmt.Sprintf("active %d, backoff %d, unschedulable %d, gated %d", n["active"], n["backoff"],
			n["unschedulable"], n["gated"])}
	case "why":
		var lines []string
		for _, v := range w.placer.Verdicts(w.pods[args[0]]) {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %s", v.Node, v.Plugin, strings.Join(v.Reasons, "; "))))
		}
		return lines
	default:
		d.Fatalf(t, "unknown command %q", f[0])
	}
	return nil
}

func (w *world) next(args []string) []string {
	limit := 1 << 20
	if len(args) > 0 {
		limit, _ = strconv.Atoi(args[0])
	}
	var lines []string
	for range limit {
		d, ok := w.placer.Next(w.now)
		if !ok {
			if wake := w.placer.Wake(); !wake.IsZero() && !w.placer.checksAt(wake) {
				lines = append(lines, fmt.Sprintf("(wake in %v)", wake.Sub(w.now)))
			}
			break
		}
		if d.Flushed {
			lines = append(lines, d.Pod.Name+" had been forgotten")
		}
		if d.Failure != nil {
			w.shown.rejected |= d.Failure.Rejected
			lines = append(lines, fmt.Sprintf("%s: %s%s", d.Pod.Name, d.Failure, evicted(d.Preemption)))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s -> %s (of %d, score %d%s)", d.Pod.Name, d.Node, d.Feasible, d.Score,
			planned(d.Volumes)))
	}
	if len(lines) == 0 {
		return []string{"(nothing)"}
	}
	return lines
}

// evicted prints a preemption.
func evicted(p *Preemption) string {
	if p == nil {
		return ""
	}
	var names []string
	for _, v := range p.Victims {
		if v.Assumed {
			v.Name += " (assumed)"
		}
		names = append(names, v.Name)
	}
	return fmt.Sprintf(" Evicts %s from %s, against budgets %d.", strings.Join(names, "+"), p.Node, p.Violations)
}

// checksAt reports whether Next must be called at that instant only for the check of long-waiting pods.
func (p *Placer) checksAt(wake unit.Instant) bool {
	checking := &p.cluster.waits.checking
	return checking.Len() > 0 && checking.First().checks == wake
}

func parseNode(args []string) Node {
	n := Node{Name: args[0], PodsMax: 110}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "cordoned":
			n.Unschedulable = true
		case "pods":
			n.PodsMax = number(value)
		case "label":
			n.Labels = parseLabels(value)
		case "taint":
			for s := range strings.SplitSeq(value, ",") {
				p := strings.Split(s, ":")
				n.Taints = append(n.Taints, Taint{Key: p[0], Value: p[1], Effect: Effect(p[2])})
			}
		case "image":
			name, size, _ := strings.Cut(value, ":")
			n.Images = append(n.Images, Image{Names: []string{name}, Size: number(size)})
		case "features":
			n.Features = strings.Split(value, ",")
		case "lacks":
			n.AgentLacks = strings.Split(value, ",")
		default:
			n.Allocatable = append(n.Allocatable, Amount{key, number(value)})
		}
	}
	return n
}

func parsePod(args []string) Pod {
	p := Pod{ID: PodID(args[0]), Name: args[0], Namespace: "default", IncomingLoad: Load{100, 200 * unit.MiB}}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		if parseMount(&p, key, value) || parseAround(&p, key, value) {
			continue
		}
		switch key {
		case "prio":
			p.Priority = int32(number(value))
		case "profile":
			p.Profile = value
		case "gate":
			p.Gates = []string{value}
		case "on":
			p.Node = value
		case "label":
			p.Labels = parseLabels(value)
		case "deleting":
			p.Deleting = true
		case "preempted":
			p.Preempted = true
		case "nominated":
			p.Nominated = value
		case "needs":
			p.Unsupported = []string{strings.ReplaceAll(value, "_", " ")}
		case "select":
			p.NodeSelector = parseLabels(value)
		case "tolerate":
			p.Tolerations = append(p.Tolerations, Toleration{Key: value, Exists: true})
		case "names":
			p.NodeAffinity = &[]NodeTerm{}
			for n := range strings.SplitSeq(value, "+") {
				*p.NodeAffinity = append(*p.NodeAffinity,
					NodeTerm{Names: []Requirement{{Key: "metadata.name", Op: In, Values: []string{n}}}})
			}
		case "port":
			p.Ports = append(p.Ports, parsePort(value))
		case "image":
			p.Images, p.Containers = append(p.Images, value), p.Containers+1
		case "features":
			p.Features = strings.Split(value, ",")
		case "of-agent":
			p.NeedsOfAgent = strings.Split(value, ",")
		case "prefer":
			k, v, _ := strings.Cut(value, ":")
			term := NodeTerm{Labels: []Requirement{{Key: k, Op: In, Values: []string{v}}}}
			p.Preferred = append(p.Preferred, WeightedTerm{Weight: 1, Term: term})
		default:
			p.Requests = append(p.Requests, Amount{key, number(value)})
			switch key {
			case CPU:
				p.IncomingLoad.CPU = unit.MilliCPU(number(value))
			case Memory:
				p.IncomingLoad.Memory = unit.Bytes(number(value))
			}
		}
	}
	p.PlacedLoad = p.IncomingLoad
	return p
}

func parsePort(s string) HostPort {
	p := HostPort{IP: AnyIP, Protocol: "TCP"}
	if s, p2, ok := strings.Cut(s, "/"); ok {
		p.Protocol = p2
		p.Port = int32(number(s[strings.LastIndex(s, ":")+1:]))
	} else {
		p.Port = int32(number(s[strings.LastIndex(s, ":")+1:]))
	}
	if i := strings.LastIndex(s, ":"); i > 0 {
		p.IP = s[:i]
	}
	return p
}

func parseLabels(s string) []Label {
	var out []Label
	for kv := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(kv, ":")
		out = append(out, Label{Key: k, Value: v})
	}
	return out
}

// number parses 12, 5Mi, 3Gi.
func number(s string) int64 {
	scale := int64(1)
	for _, u := range []struct {
		suffix string
		scale  unit.Bytes
	}{{"Mi", unit.MiB}, {"Gi", unit.GiB}} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, scale = rest, int64(u.scale)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("scenario: %q is not a number", s))
	}
	return n * scale
}

func sortedIDs(in map[PodID]*entry) []PodID {
	var ids []PodID
	for id := range in {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
