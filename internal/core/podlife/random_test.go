package podlife

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// randomRules returns restart rules for some of the exits that are failures.
func randomRules(r *rand.Rand) []ExitRule {
	codes := [][]int32{{1}, {2}, {137}, {1, 2}, {0}, {0, 1}}
	var rules []ExitRule
	for r.IntN(5) == 0 {
		n := r.IntN(len(codes))
		rules = append(rules, ExitRule{Codes: codes[n], Except: n >= 4, All: r.IntN(2) == 0})
	}
	return rules
}

// randomPod fills a world with a pod of up to two init containers, two sidecars and three main containers.
func randomPod(w *world, r *rand.Rand) {
	w.o.Spec = Spec{Name: "p", Grace: time.Duration(r.IntN(20)) * time.Second}
	if r.IntN(8) == 0 {
		w.o.Spec.ActiveDeadline = time.Duration(1+r.IntN(120)) * time.Second
	}
	policy := RestartPolicy(r.IntN(3))
	add := func(kind Kind, name string) {
		s := ContainerSpec{Name: name, Kind: kind, Policy: policy, Hash: "1", Image: "1", Fixed: "1", Size: randomSize(r)}
		if kind == Sidecar {
			s.Policy = Always
		} else if r.IntN(6) == 0 {
			s.Policy = RestartPolicy(r.IntN(3))
		}
		if kind != Ephemeral {
			s.Rules = randomRules(r)
		}
		p := program{term: run{int32(r.IntN(2) * 143), time.Duration(r.IntN(5)-1) * time.Second}}
		for range r.IntN(4) {
			p.runs = append(p.runs, run{int32(r.IntN(2)), time.Duration(r.IntN(30)) * time.Second})
		}
		// The last run of a main container never ends or succeeds, that of an init container succeeds.
		last := run{0, -1}
		if kind == Init || kind == Main && s.Policy != Always && r.IntN(2) == 0 {
			last = run{0, time.Duration(r.IntN(5)) * time.Second}
		}
		p.runs = append(p.runs, last)
		if (kind == Main || kind == Sidecar) && r.IntN(5) == 0 {
			s.PostStart, p.hook = true, run{int32(r.IntN(8) / 7), time.Duration(r.IntN(20)) * time.Second}
		}
		s.PreStop = r.IntN(2) == 0
		w.o.Spec.Containers = append(w.o.Spec.Containers, s)
		w.programs[name] = p
	}
	for i := range r.IntN(3) {
		add([]Kind{Init, Sidecar}[r.IntN(2)], fmt.Sprintf("i%d", i))
	}
	for i := range 1 + r.IntN(3) {
		add(Main, fmt.Sprintf("m%d", i))
	}
	if r.IntN(4) == 0 {
		add(Ephemeral, "e0")
	}
	w.sizePod()
}

func randomSize(r *rand.Rand) resize.Size {
	return sizeOf(unit.MilliCPU(100*r.IntN(4)), unit.Bytes(16*r.IntN(4))*unit.MiB)
}

// disturb changes something in the world.
func disturb(w *world, r *rand.Rand, say func(string, ...any)) {
	w.wake = w.now.Add(time.Nanosecond)
	name := w.o.Spec.Containers[r.IntN(len(w.o.Spec.Containers))].Name
	b := w.box(name)
	what := r.IntN(17)
	say("%-9s ! %s %s", w.since(), []string{"kill", "lose", "probe", "image", "sandbox dies", "forget", "reboot",
		"reboot lost", "fail", "fragile", "wall", "stop", "evict", "container gone", "resize", "meddle", "use"}[what], name)
	switch what {
	case 0:
		if b != nil && b.alive() {
			w.end(b, int32(r.IntN(3)))
		}
	case 1:
		if b != nil && b.State == Running {
			b.State, b.Hook = Unknown, HookOver
		}
	case 2:
		if b != nil && b.State == Running {
			w.o.Probes[name] = Probes{Starting: r.IntN(3) == 0, Unready: r.IntN(3) == 0, Dead: r.IntN(3) == 0}
		}
	case 3:
		w.spec(name).Hash += "'"
	case 4:
		if n := len(w.sandboxes); n > 0 {
			w.sandboxes[n-1].State = SandboxNotReady
		}
	case 5:
		w.restartAgent()
	case 6, 7:
		w.reboot(what == 7)
	case 8:
		kinds := []string{"create sandbox", "stop sandbox", "remove sandbox", "start", "stop", "remove", "resize", "finish"}
		w.failures = append(w.failures, &failure{action: kinds[r.IntN(len(kinds))], times: 1 + r.IntN(3),
			reason: []string{"ErrImagePull", "RunContainerError", "CreateContainerError"}[r.IntN(3)], leaves: []string{"",
				"created", "exited"}[r.IntN(3)]})
	case 9:
		w.fragile = r.IntN(4)
	case 10:
		w.wall += unit.Wall(time.Duration(r.IntN(7200)-3600) * time.Second)
	case 11:
		if r.IntN(3) == 0 {
			w.order(time.Duration(r.IntN(30))*time.Second, StopOrder{Remove: true})
		}
	case 12:
		if r.IntN(3) == 0 {
			w.order(time.Duration(r.IntN(30))*time.Second, StopOrder{Phase: Failed, Reason: "Evicted"})
		}
	case 14:
		w.grant(name, randomSize(r))
		// The API refuses resizes of other kinds.
		if k := w.spec(name).Kind; k != Init && k != Ephemeral && r.IntN(3) == 0 {
			w.spec(name).Fixed += "'"
		}
	case 15:
		if b != nil {
			b.Size = randomSize(r)
		}
	case 16:
		w.uses[name] = unit.Bytes(r.IntN(64)) * unit.MiB
	case 13:
		if b != nil && b.State == Exited { // it is removed from outside
			for i := range w.containers {
				if w.containers[i] == b {
					w.containers = append(w.containers[:i], w.containers[i+1:]...)
					break
				}
			}
		}
	}
}

// heal ends all disturbances, so that the pod can reach its final state.
func heal(w *world) {
	w.failures, w.fragile = nil, 0
	for name, p := range w.programs {
		p.hook.code = 0
		w.programs[name] = p
	}
	clear(w.uses)
	for name := range w.o.Probes {
		w.o.Probes[name] = Probes{}
	}
	w.wake = w.now.Add(time.Nanosecond)
}
