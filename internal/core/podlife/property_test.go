package podlife

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play only the random history of this seed, and print it")
	histories = flag.Int("histories", 1500, "how many random histories to play")
)

// eachSeed runs f with many seeds. On failure it prints how to repeat one of them.
func eachSeed(t *testing.T, f func(r *rand.Rand, say func(string, ...any)) error) {
	first, n := uint64(1), *histories
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		var log strings.Builder
		err := f(rand.New(rand.NewPCG(seed, 1)), func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) })
		if err != nil || *seedFlag != 0 {
			t.Logf("%s", log.String())
		}
		if err != nil {
			t.Fatalf("seed %d: %v\nagain: go test ./internal/core/podlife -run %s -seed %d", seed, err, t.Name(), seed)
		}
	}
}

// judge watches a world and remembers the first violation.
type judge struct {
	w        *world
	seen     Observation // what the last decision was based on
	decision Decision
	counts   map[string]uint32
	terminal Phase
	err      error
}

func watch(w *world, say func(string, ...any)) *judge {
	j := &judge{w: w, counts: map[string]uint32{}}
	w.said = func(format string, args ...any) { say("%-9s "+format, append([]any{w.since()}, args...)...) }
	was := ""
	w.checked = func(d Decision, o Observation) {
		if now := d.Status.words(); now != was {
			w.said("  %s", now)
			was = now
		}
		j.judge(d, o)
	}
	w.asked = j.judgeAction
	return j
}

func (j *judge) wrong(format string, args ...any) {
	if j.err == nil {
		j.err = fmt.Errorf("at %s: "+format, append([]any{j.w.since()}, args...)...)
	}
}

// judge checks a decision against the observation it was based on.
func (j *judge) judge(d Decision, o Observation) {
	j.seen, j.decision = o, d
	s := d.Status
	anyAlive := false
	for _, c := range o.Containers {
		anyAlive = anyAlive || c.alive()
	}
	over := s.Phase == Succeeded || s.Phase == Failed
	if over && anyAlive && o.Terminal == "" {
		j.wrong("%s is reported while a process is alive", s.Phase)
	}
	if j.terminal != "" && s.Phase != j.terminal {
		j.wrong("%s after %s", s.Phase, j.terminal)
	}
	if over {
		j.terminal = s.Phase
	}
	for _, st := range s.Containers {
		if st.RestartCount < j.counts[st.Name] {
			j.wrong("restart count of %s fell from %d to %d", st.Name, j.counts[st.Name], st.RestartCount)
		}
		j.counts[st.Name] = st.RestartCount
		states := 0
		for _, set := range []bool{st.Waiting != nil, st.Running != nil, st.Ended != nil} {
			if set {
				states++
			}
		}
		if states != 1 {
			j.wrong("%s has %d states", st.Name, states)
		}
		if st.Ended != nil && st.Last != nil && st.Ended.ID != "" && st.Ended.ID == st.Last.ID {
			j.wrong("the end of %s is reported twice", st.Name)
		}
	}
	j.judgeRest(d, o, over, anyAlive)
}

// judgeRest checks that a pod without actions has a wake-up time, or has nothing left to do.
func (j *judge) judgeRest(d Decision, o Observation, over, anyAlive bool) {
	if !d.Wake.IsZero() && d.Wake <= j.w.now {
		j.wrong("wakes at %s, which has passed", d.Wake.Sub(epoch))
	}
	if len(d.Actions) > 0 || !d.Wake.IsZero() {
		return
	}
	if o.Stop != nil && (o.Stop.Remove || anyAlive) {
		j.wrong("an ending pod rests for ever")
	}
	hookRuns := func(c Container) bool { return c.State == Running && c.Hook == HookRuns }
	if o.Stop != nil || over || slices.ContainsFunc(o.Containers, hookRuns) {
		return
	}
	for i, st := range d.Status.Containers {
		if st.Running != nil && (st.Kind == Init || st.Kind == Sidecar && !st.Started) {
			return // the others wait for its exit or its probe
		}
		if s := o.Spec.Containers[i]; s.Kind != Ephemeral &&
			(st.Waiting != nil || st.Ended != nil && s.Policy == Always && st.Kind != Init) {
			j.wrong("%s waits (%s) and nothing will wake the pod", st.Name, word(st))
		}
	}
}

// judgeAction checks an action against the present world.
func (j *judge) judgeAction(a Action) {
	if a.Kind == StartContainer {
		j.judgeStart(a)
	}
	for _, b := range j.w.containers {
		s, ends := j.w.spec(b.Name), j.seen.Stop != nil || j.w.life.over != nil
		if a.Kind == BeginPreStop && a.ID == b.ID && (!s.PreStop || b.PreStop || s.Kind != Sidecar || !ends) {
			j.wrong("%s: it has none, had it, or does not end", describe(a, b.Name))
		}
	}
	if a.Kind == CreateSandbox || a.Kind == StartContainer {
		if j.terminal != "" {
			j.wrong("%s after %s", describe(a, ""), j.terminal)
		}
		if j.seen.Stop != nil {
			j.wrong("%s in an ending pod", describe(a, ""))
		}
	}
	if a.Kind == StopContainer || a.Kind == RemoveContainer || a.Kind == StopSandbox || a.Kind == RemoveSandbox {
		j.judgeEnd(a)
	}
}

func (j *judge) judgeStart(a Action) {
	place := map[string]int{}
	for i, s := range j.w.o.Spec.Containers {
		place[s.Name] = i
	}
	for _, s := range j.w.sandboxes {
		if s.ID == a.ID && s.State != SandboxReady {
			j.wrong("start %s in a sandbox that is not ready", a.Container)
		}
	}
	for _, b := range j.w.containers {
		init := j.w.spec(a.Container).Kind == Init
		switch {
		case b.Name == a.Container && b.alive():
			j.wrong("start %s twice", a.Container)
		case b.Name == a.Container && b.Attempt >= a.Attempt:
			j.wrong("start %s as attempt %d: there is attempt %d", a.Container, a.Attempt, b.Attempt)
		case j.w.spec(a.Container).Kind == Ephemeral && b.Name == a.Container && b.State != Created:
			j.wrong("start ephemeral %s a second time", a.Container)
		case j.w.spec(a.Container).Kind == Ephemeral || j.w.spec(b.Name).Kind == Ephemeral:
		case b.Attempt < j.w.o.Past[b.Name].RestartCount && !j.w.o.Past[b.Name].begun(): // of a run of the pod that is over
		case init && b.SandboxID == a.ID && place[b.Name] > place[a.Container]:
			j.wrong("start init %s after %s", a.Container, b.Name)
		case j.w.spec(b.Name).Kind == Init && b.alive() && b.SandboxID == a.ID && place[b.Name] < place[a.Container]:
			j.wrong("start %s before init %s has ended", a.Container, b.Name)
		}
	}
}

// judgeEnd checks that nothing is stopped that runs as specified.
func (j *judge) judgeEnd(a Action) {
	var newest *Sandbox
	for _, s := range j.w.sandboxes {
		if newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
	}
	mainsOver := true
	for i, st := range j.decision.Status.Containers {
		s := j.w.o.Spec.Containers[i]
		if st.Kind == Main && (st.Ended == nil || s.Policy == Always || s.Policy == OnFailure && st.Ended.ExitCode != 0) {
			mainsOver = false
		}
		if st.Kind == Init && st.Ended != nil && st.Ended.ExitCode != 0 && s.Policy == Never {
			mainsOver = true
			break
		}
	}
	if j.seen.Stop != nil || j.terminal != "" || mainsOver || j.w.life.over != nil || newest == nil ||
		newest.State != SandboxReady {
		return
	}
	if a.Kind == StopContainer && asksForAll(j.seen) {
		return
	}
	if a.ID == newest.ID {
		j.wrong("%s: it is the one in use", describe(a, a.ID))
	}
	for _, b := range j.w.containers {
		if b.ID == a.ID && b.State == Running && b.SandboxID == newest.ID && b.Hash == j.w.spec(b.Name).Hash &&
			b.Fixed == j.w.spec(b.Name).Fixed && !j.seen.Probes[b.Name].Dead && b.Hook != HookFailed && b == j.w.box(b.Name) {
			j.wrong("%s: it runs as it should", describe(a, j.w.nameOf(a.ID)))
		}
	}
}

// asksForAll reports whether the exit of any run asks for a restart of all containers.
func asksForAll(o Observation) bool {
	for _, s := range o.Spec.Containers {
		var codes []int32
		for _, c := range o.Containers {
			if c.Name == s.Name && c.State == Exited {
				codes = append(codes, c.ExitCode)
			}
		}
		if past := o.Past[s.Name]; past.Ended != nil {
			codes = append(codes, past.Ended.ExitCode)
		} else if past.Running {
			codes = append(codes, 137) // it may be lost
		}
		for _, code := range codes {
			if _, all := s.RestartsAfter(code); all {
				return true
			}
		}
	}
	return false
}

// checkFinal returns an error that says why the pod is not in its final state.
func checkFinal(w *world, d Decision) error {
	if len(d.Actions) > 0 {
		return fmt.Errorf("it still does things: %v", d.Actions)
	}
	if w.o.Stop != nil && w.o.Stop.Remove {
		if !w.finished {
			return fmt.Errorf("it was to end and has not")
		}
		return nil
	}
	switch d.Status.Phase {
	case Succeeded, Failed:
		return nil
	case Active:
	default:
		return fmt.Errorf("it is %s: %s", d.Status.Phase, d.Status.words())
	}
	if w.o.Stop != nil {
		return fmt.Errorf("it was ordered to stop and is %s", d.Status.words())
	}
	if w.o.Resizing.Generation != 0 || w.group != w.o.Spec.Size {
		return fmt.Errorf("its resize is not complete: its group has %s and should have %s", w.group, w.o.Spec.Size)
	}
	for _, b := range w.containers {
		if s := w.spec(b.Name); b.State == Running && (b.Size != s.Size || b.Fixed != s.Fixed) {
			return fmt.Errorf("%s has %s (%s) and should have %s (%s)", b.Name, b.Size, b.Fixed, s.Size, s.Fixed)
		}
	}
	for i, st := range d.Status.Containers {
		if s := w.o.Spec.Containers[i]; s.Kind != Ephemeral && st.Running == nil &&
			(st.Ended == nil || st.Kind != Init && s.Policy == Always) {
			return fmt.Errorf("%s does not run: %s", st.Name, d.Status.words())
		}
	}
	return nil
}

// TestRandomHistories disturbs random pods and checks every decision. Then it heals the world, and checks that the pods
// are in their final state within an hour (the longest waits are 5 min each).
func TestRandomHistories(t *testing.T) {
	eachSeed(t, func(r *rand.Rand, say func(string, ...any)) error {
		w := newWorld()
		randomPod(w, r)
		say("%+v %+v", w.o.Spec, w.programs)
		j := watch(w, say)
		for range r.IntN(25) {
			if err := w.runUntil(w.now.Add(time.Duration(r.IntN(40_000)) * time.Millisecond)); err != nil {
				return err
			}
			disturb(w, r, say)
			if j.err != nil {
				return j.err
			}
		}
		heal(w)
		say("%-9s ! heal", w.since())
		if err := w.runUntil(w.now.Add(time.Hour)); err != nil {
			return err
		}
		if j.err != nil {
			return j.err
		}
		if err := checkFinal(w, j.decision); err != nil && !w.finished {
			return fmt.Errorf("an hour after the last trouble: %w", err)
		}
		return adopted(w, j)
	})
}

// adopted checks that a new agent changes nothing of a pod in its final state, and reports the same.
func adopted(w *world, j *judge) error {
	if w.finished {
		return nil
	}
	d := New(0).Step(w.now, w.wall, w.observe())
	if len(d.Actions) > 0 {
		return fmt.Errorf("a new agent acts on a pod in its final state: %v", d.Actions)
	}
	// The API keeps those of ended pods.
	d.Status.Reason, d.Status.Message = j.decision.Status.Reason, j.decision.Status.Message
	if !reflect.DeepEqual(d.Status, j.decision.Status) {
		return fmt.Errorf("a new agent reports\n%+v\nwhere the old one reported\n%+v", d.Status, j.decision.Status)
	}
	return nil
}

// TestForgettingIsHarmless plays each pod twice, once with an agent that restarts at random moments, and checks that
// both end in the same way.
func TestForgettingIsHarmless(t *testing.T) {
	eachSeed(t, func(r *rand.Rand, say func(string, ...any)) error {
		shape := r.Uint64()
		var ends [2]string
		for i := range ends {
			w := newWorld()
			randomPod(w, rand.New(rand.NewPCG(shape, 2)))
			heal(w)                     // a failure that is forgotten does not count
			w.o.Spec.ActiveDeadline = 0 // without the back-off the times differ
			for k := range w.o.Spec.Containers {
				w.o.Spec.Containers[k].Rules = nil // and so do the runs that a restart of all ends
			}
			say("agent that forgets: %v\n%+v %+v", i == 1, w.o.Spec, w.programs)
			j := watch(w, say)
			for range 20 {
				if err := w.runUntil(w.now.Add(time.Duration(r.IntN(30_000)) * time.Millisecond)); err != nil {
					return err
				}
				if i == 1 {
					w.restartAgent()
				}
			}
			if err := w.runUntil(w.now.Add(time.Hour)); err != nil {
				return err
			}
			if j.err != nil {
				return j.err
			}
			for k, st := range w.status.Containers {
				if w.o.Spec.Containers[k].Kind == Main { // sidecars are stopped at other times
					ends[i] += string(w.status.Phase) + " " + st.Name + "=" + word(st) + " "
				}
			}
		}
		if ends[0] != ends[1] {
			return fmt.Errorf("remembering ends as %s, forgetting as %s", ends[0], ends[1])
		}
		return nil
	})
}
