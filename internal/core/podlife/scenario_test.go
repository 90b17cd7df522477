package podlife

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time on a simulated runtime. A block is one command and its outcome.
// CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	pod [grace=30s] [deadline=D] [gates=(a,b)]   a new pod, agent and runtime; one container per line of input:
//	    init|sidecar|main|ephemeral NAME [policy=Always|OnFailure|Never] [image=I] [runs=CODE@TIME,...] [term=CODE@TIME|never]
//	    [cpu=M] [memory=B]   limits, and requests equal to them: millicores, MiB
//	    runs: how each run ends, the last entry for all later ones ("ever": it does not); term: how it reacts to SIGTERM
//	    hook=CODE@TIME|never   a postStart hook, and how it ends
//	    prestop                a preStop hook
//	    on=CODE,...|on=!CODE,...|all=CODE,...|all=!CODE,...   a rule that restarts it | all containers; !: other codes
//	run TIME [quiet]        let time pass; prints actions, and phase and container states when they change
//	status                  print what is reported
//	fail ACTION [CONTAINER] times=N [reason=R] [message=M] [leaves=created|exited|all] | heal
//	retry                   something has changed that it may have waited for
//	probe NAME [starting] [unready] [dead]       result of its probes from now on
//	probe NAME grace=D      dead, by a probe that has its own grace period
//	kill NAME code=N | lose NAME | gone NAME     its process dies | the runtime loses track of it | it is removed from outside
//	counted NAME N                               the API shows another restart count and another run
//	image NAME I            its image changes
//	stop grace=D [keep] [disruption=M] [phase=P] [reason=R] [message=M]    order the end; keep: the pod object stays
//	forget | reboot [lost]  the agent restarts | the machine reboots; lost: the runtime then has no containers
//	sandbox-dies | fragile N | pile    it is not ready any more | the next N die at once | there is a second sandbox
//	resize NAME [cpu=M] [memory=B] [restart]     other limits are allocated; restart: its resize policy requires a restart
//	uses NAME|pod memory=B                       memory in use from now on
//	pending reason=R message=M | pending         the node does not allocate a resize | there is no pending resize any more
//	meddle NAME [cpu=M] [memory=B]               its cgroup is changed from outside
//	debug NAME              an ephemeral container is added
//	wall STEP               the calendar is set
//	gate TYPE STATUS        the condition of a readiness gate is reported
//	hold message=M | hold                        the pod is held | it may start
//	refuse reason=R message=M                    the node rejects the pod before anything of it ran
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "pod" {
				w = podOf(t, d)
				return ""
			}
			return w.command(t, d)
		})
	})
}

func podOf(t *testing.T, d *datadriven.TestData) *world {
	w := newWorld()
	w.o.Spec = Spec{
		Name:           "web_default(uid-1)",
		Grace:          duration(t, d, "grace", 30*time.Second),
		ActiveDeadline: duration(t, d, "deadline", 0),
	}
	w.o.Spec.Gates = values(d, "gates")
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		words, limits := strings.Fields(line), map[string]int64{}
		s := ContainerSpec{
			Name:  words[1],
			Kind:  map[string]Kind{"init": Init, "sidecar": Sidecar, "main": Main, "ephemeral": Ephemeral}[words[0]],
			Image: "app:1",
		}
		p := program{runs: []run{{0, -1}}, term: run{143, 0}}
		for _, word := range words[2:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "policy":
				s.Policy = map[string]RestartPolicy{"Always": Always, "OnFailure": OnFailure, "Never": Never}[value]
			case "image":
				s.Image = value
			case "runs":
				p.runs = nil
				for _, r := range strings.Split(value, ",") {
					p.runs = append(p.runs, runOf(t, r))
				}
			case "term":
				p.term = runOf(t, value)
			case "prestop":
				s.PreStop = true
			case "hook":
				s.PostStart, p.hook = true, runOf(t, value)
			case "on", "all":
				s.Rules = append(s.Rules, ruleOf(t, key, value))
			case "cpu", "memory":
				limits[key] = integer(t, value)
			default:
				t.Fatalf("%s: unknown %q", d.Pos, word)
			}
		}
		s.Hash, s.Fixed = s.Image, "1"
		s.Size = sizeOf(unit.MilliCPU(limits["cpu"]), unit.Bytes(limits["memory"])*unit.MiB)
		w.o.Spec.Containers = append(w.o.Spec.Containers, s)
		w.programs[s.Name] = p
	}
	w.sizePod()
	return w
}

func integer(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ruleOf reads a restart rule: the codes that it matches, after an exclamation mark those that it does not match.
func ruleOf(t *testing.T, action, text string) ExitRule {
	codes, except := strings.CutPrefix(text, "!")
	r := ExitRule{All: action == "all", Except: except}
	for _, code := range strings.Split(codes, ",") {
		r.Codes = append(r.Codes, int32(integer(t, code)))
	}
	return r
}

// limits returns the size that a command names.
func limits(t *testing.T, d *datadriven.TestData) resize.Size {
	amount := func(key string) int64 {
		if !d.HasArg(key) {
			return 0
		}
		return number(t, d, key)
	}
	return sizeOf(unit.MilliCPU(amount("cpu")), unit.Bytes(amount("memory"))*unit.MiB)
}

func runOf(t *testing.T, text string) run {
	if text == "ever" || text == "never" {
		return run{0, -1}
	}
	code, after, _ := strings.Cut(text, "@")
	n, err := strconv.Atoi(code)
	if err != nil {
		t.Fatal(err)
	}
	d, err := time.ParseDuration(after)
	if err != nil {
		t.Fatal(err)
	}
	return run{int32(n), d}
}

func duration(t *testing.T, d *datadriven.TestData, key string, absent time.Duration) time.Duration {
	if !d.HasArg(key) {
		return absent
	}
	v, err := time.ParseDuration(text(d, key))
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	return v
}

func text(d *datadriven.TestData, key string) string { return strings.Join(values(d, key), " ") }

func values(d *datadriven.TestData, key string) []string {
	for _, arg := range d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	first := ""
	if len(d.CmdArgs) > 0 {
		first = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "run":
		return w.play(t, d, first)
	case "status":
		return w.table()
	case "fail":
		w.addFailure(t, d, first)
	case "probe":
		w.o.Probes[first] = Probes{Starting: d.HasArg("starting"), Unready: d.HasArg("unready"), Dead: d.HasArg("dead")}
		if d.HasArg("grace") {
			grace := duration(t, d, "grace", 0)
			w.o.Probes[first] = Probes{Dead: true, Grace: &grace}
		}
	case "kill":
		w.end(w.box(first), int32(number(t, d, "code")))
	case "lose":
		w.box(first).State, w.box(first).Hook = Unknown, HookOver
	case "gone":
		b := w.box(first)
		w.containers = slices.DeleteFunc(w.containers, func(c *box) bool { return c == b })
	case "counted":
		n, err := strconv.Atoi(d.CmdArgs[1].Key)
		if err != nil {
			t.Fatal(err)
		}
		w.o.Past[first] = Past{ID: "other", RestartCount: uint32(n), Running: true}
	case "stop", "refuse":
		w.order(duration(t, d, "grace", 0), StopOrder{
			Remove:     d.Cmd == "stop" && !d.HasArg("keep"),
			Phase:      phaseOf(d),
			Reason:     text(d, "reason"),
			Message:    text(d, "message"),
			Disruption: text(d, "disruption"),
			Rejected:   d.Cmd == "refuse",
		})
	default:
		w.machineCommand(t, d, first)
	}
	w.wake = w.now // something happened: the shell calls Step
	return ""
}

// addFailure makes the next actions of a kind fail.
func (w *world) addFailure(t *testing.T, d *datadriven.TestData, action string) {
	t.Helper()
	f := &failure{
		action:  strings.ReplaceAll(action, "-", " "),
		times:   int(number(t, d, "times")),
		reason:  text(d, "reason"),
		message: text(d, "message"),
		leaves:  text(d, "leaves"),
	}
	if len(d.CmdArgs) > 1 && len(d.CmdArgs[1].Vals) == 0 {
		f.container = d.CmdArgs[1].Key
	}
	w.failures = append(w.failures, f)
}

// machineCommand changes something of the runtime, the agent or the machine.
func (w *world) machineCommand(t *testing.T, d *datadriven.TestData, first string) {
	t.Helper()
	switch d.Cmd {
	case "image":
		w.spec(first).Image, w.spec(first).Hash = d.CmdArgs[1].Key, d.CmdArgs[1].Key
	case "forget":
		w.restartAgent()
	case "reboot":
		w.reboot(first == "lost")
	case "sandbox-dies":
		w.sandboxes[len(w.sandboxes)-1].State = SandboxNotReady
	case "heal":
		w.failures = nil
	case "retry":
		w.life.Retry()
	case "fragile":
		n, err := strconv.Atoi(first)
		if err != nil {
			t.Fatal(err)
		}
		w.fragile = n
	case "pile":
		w.sandboxes = append(w.sandboxes, &Sandbox{ID: "extra", Attempt: 1, State: SandboxReady})
	case "wall":
		step, err := time.ParseDuration(first)
		if err != nil {
			t.Fatal(err)
		}
		w.wall += unit.Wall(step)
	default:
		w.specCommand(t, d, first)
	}
}

// specCommand runs the commands that change the pod's specification, or how the node treats it.
func (w *world) specCommand(t *testing.T, d *datadriven.TestData, first string) {
	switch d.Cmd {
	case "resize":
		w.grant(first, limits(t, d))
		if d.HasArg("restart") {
			w.spec(first).Fixed += "'"
		}
	case "uses":
		name := strings.TrimPrefix(first, "pod")
		w.uses[name] = unit.Bytes(number(t, d, "memory")) * unit.MiB
	case "pending":
		w.o.Resizing.Pending = nil
		if d.HasArg("reason") {
			w.o.Resizing.Pending = &PendingResize{
				Reason:     text(d, "reason"),
				Message:    text(d, "message"),
				Generation: w.generation + 1,
			}
		}
	case "debug":
		w.o.Spec.Containers = append(w.o.Spec.Containers, ContainerSpec{
			Name:   first,
			Kind:   Ephemeral,
			Hash:   "1",
			Image:  "tools:1",
			Policy: Always,
		})
		w.programs[first] = program{runs: []run{{0, 5 * time.Second}}, term: run{143, 0}}
	case "meddle":
		w.box(first).Size = limits(t, d)
	case "hold":
		w.o.Hold = nil
		if d.HasArg("message") {
			w.o.Hold = &Hold{Reason: "WaitingForDevices", Message: text(d, "message"), Until: w.now.Add(5 * time.Minute)}
		}
	case "gate":
		w.o.Gates[first] = d.CmdArgs[1].Key
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
}

func phaseOf(d *datadriven.TestData) Phase {
	if d.Cmd == "refuse" {
		return Failed
	}
	return Phase(text(d, "phase"))
}

func number(t *testing.T, d *datadriven.TestData, key string) int64 {
	n, err := strconv.ParseInt(text(d, key), 10, 32)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	return n
}

// play lets time pass, and prints what happens.
func (w *world) play(t *testing.T, d *datadriven.TestData, for_ string) string {
	length, err := time.ParseDuration(for_)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	var out strings.Builder
	w.said = func(format string, args ...any) {
		fmt.Fprintf(&out, "%-9s %s\n", w.since(), fmt.Sprintf(format, args...))
	}
	was := w.status.words()
	w.checked = func(d Decision, _ Observation) {
		if now := d.Status.words(); now != was {
			w.said("  %s", now)
			was = now
		}
	}
	if err := w.runUntil(w.now.Add(length)); err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	if d.HasArg("quiet") {
		return ""
	}
	return out.String()
}
