package eviction

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// world is a simulated node: the usage of its pods changes with time, a killed pod frees its memory and disk after a
// while, and a Decider is called when it asked for that.
type world struct {
	t      *testing.T
	config Config
	decide *Decider
	now    unit.Instant

	memory, system, cache unit.Bytes // of the machine; used outside pods; part of all use that can be dropped
	limit                 unit.Bytes // of all pods together; 0: none
	swap                  unit.Bytes // what exists, and what pods may use
	disk, other           Disk       // nodefs: capacity, used outside pods
	images                Disk       // imagefs, with ImageDisk
	dead, unused          unit.Bytes // in dead containers and unused images
	pids                  int64
	disks                 Disks
	stale                 time.Duration // observations are so old, and are made so often; 0: at every step

	pods []*body
	done map[Step]unit.Instant
	busy map[Step]unit.Instant // when a reclaim that was asked for ends
	hang bool                  // reclaim and counts never end

	counting time.Duration // how long a count of the pods' disk usage takes

	conditions      []Condition
	held            map[Threshold]string
	checks, glances int // number of steps with and without observations of pods
	out             strings.Builder
}

// body is a pod of the world.
type body struct {
	Pod
	memory, grows unit.Bytes // grows per second
	frees         time.Duration
	seen          *Disk // use of its volume by the last count; nil: the actual use
	stuck         bool  // never ends
	unknown       bool
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, now: unit.Instant(0).Add(time.Hour), memory: 8 * unit.GiB, disk: Disk{int64(100 * unit.GiB), 1_000_000},
		images:   Disk{int64(100 * unit.GiB), 1_000_000},
		pids:     32768,
		counting: 200 * time.Millisecond,
		done:     map[Step]unit.Instant{},
		busy:     map[Step]unit.Instant{},
		held:     map[Threshold]string{}, config: Config{Transition: 5 * time.Minute},
	}
}

func (w *world) find(name string) *body {
	i := slices.IndexFunc(w.pods, func(b *body) bool { return b.Name == name })
	if i < 0 {
		w.t.Fatalf("no pod %s", name)
	}
	return w.pods[i]
}

// pass lets d pass.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, b := range slices.Clone(w.pods) {
		if b.KillAt.IsZero() || b.KillAt > w.now {
			b.memory += unit.Bytes(float64(b.grows) * d.Seconds())
		} else if !b.stuck && w.now >= b.KillAt.Add(b.frees) {
			w.pods = slices.DeleteFunc(w.pods, func(o *body) bool { return o == b })
			w.say("gone %s", b.Name)
		}
	}
	for kind, end := range w.busy {
		if w.now < end || w.hang {
			continue
		}
		w.done[kind] = w.now
		delete(w.busy, kind)
		switch kind {
		case DeadContainers:
			w.dead = 0
		case UnusedImages:
			w.unused = 0
		case PodDisks:
			for _, b := range w.pods {
				b.seen = nil
			}
		}
	}
}

// facts are what a shell would observe.
func (w *world) facts() Facts {
	f := Facts{Signals: map[allocatable.Signal]Observation{}, Disks: w.disks, Done: w.done}
	var working, cache, swapped unit.Bytes
	nodefs, imagefs := w.other, Disk{}
	threads := int64(200)
	if w.disks == OneDisk {
		nodefs.Bytes += int64(w.dead + w.unused)
	} else {
		imagefs.Bytes += int64(w.dead + w.unused)
	}
	for _, b := range w.pods {
		p := b.Pod
		if !b.unknown {
			used := *p.Used
			used.WorkingSet = b.memory
			p.Used = &used
		} else {
			p.Used = nil
		}
		if len(p.Containers) > 0 {
			p.Containers = slices.Clone(p.Containers)
			p.Containers[0].WorkingSet = b.memory
		}
		if b.seen != nil {
			p.Volumes = slices.Clone(p.Volumes)
			p.Volumes[0].Used = b.seen
		}
		working += b.memory
		cache += b.Used.Cache
		swapped += b.Used.Swap
		threads += b.Used.PIDs
		layers, _ := diskOf(allocatable.ImageFSAvailable, b.Pod, ImageDisk)
		rest, _ := diskOf(allocatable.NodeFSAvailable, b.Pod, ImageDisk)
		nodefs = Disk{nodefs.Bytes + rest.Bytes, nodefs.Inodes + rest.Inodes}
		if w.disks == ImageDisk {
			imagefs = Disk{imagefs.Bytes + layers.Bytes, imagefs.Inodes + layers.Inodes}
		} else {
			nodefs = Disk{nodefs.Bytes + layers.Bytes, nodefs.Inodes + layers.Inodes}
		}
		f.Pods = append(f.Pods, p)
	}
	at := w.now
	if w.stale > 0 {
		at -= at % unit.Instant(w.stale)
	}
	used := w.system + working
	m := NodeMemory{
		Total:      w.memory,
		WorkingSet: used,
		Available:  w.memory - used + cache + w.cache,
		SwapFree:   w.swap - swapped,
		SwapRoom:   w.swap - swapped,
	}
	f.Signals[allocatable.MemoryAvailable] = w.config.Memory.Node(m, at)
	if w.limit > 0 {
		f.Signals[allocatable.AllocatableMemory] = w.config.Memory.Pods(w.limit, working, cache, m, at)
	}
	f.Signals[allocatable.NodeFSAvailable] = Observation{w.disk.Bytes - nodefs.Bytes, w.disk.Bytes, at}
	f.Signals[allocatable.NodeFSInodesFree] = Observation{w.disk.Inodes - nodefs.Inodes, w.disk.Inodes, at}
	if w.disks != OneDisk {
		f.Signals[allocatable.ImageFSAvailable] = Observation{w.images.Bytes - imagefs.Bytes, w.images.Bytes, at}
		f.Signals[allocatable.ImageFSInodesFree] = Observation{w.images.Inodes - imagefs.Inodes, w.images.Inodes, at}
	}
	f.Signals[allocatable.PIDAvailable] = Observation{w.pids - threads, w.pids, at}
	return f
}

// check lets the Decider decide, does what it decided, and returns when it must be called again.
func (w *world) check() unit.Instant {
	w.checks++
	f := w.facts()
	if w.decide.Quiet(w.now, f.Signals) && !w.config.LocalStorage {
		f.Quick, f.Pods = true, nil
		w.checks--
		w.glances++
	}
	d := w.decide.Step(w.now, f)
	if !slices.Equal(d.Conditions, w.conditions) {
		w.conditions = d.Conditions
		w.say("conditions %v", d.Conditions)
	}
	w.tellMet(d, f.Quick)
	for _, r := range d.Reclaim {
		switch r.Step {
		case PodMemory:
			w.say("reclaim memory of %v", r.Pods)
			continue
		case PodDisks:
			w.say("count pods' disks for %s", r.Signal)
			w.busy[r.Step] = w.now.Add(w.counting)
			continue
		}
		w.say("remove %s until %s is %s", r.Step, r.Signal, printed(r.Signal, r.Until))
		w.busy[r.Step] = w.now.Add(5 * time.Second)
	}
	for _, v := range d.Victims {
		w.say("evict %s, grace %v: %s", v.Name, v.Grace, v.Message)
		w.find(v.Name).KillAt = w.now.Add(v.Grace)
	}
	return d.Wake
}

func (w *world) tellMet(d Decision, quick bool) {
	now := map[Threshold]string{}
	for _, m := range d.Met {
		text := "waits for its grace"
		if m.Acts {
			text = "acts"
		}
		if m.Held != "" {
			text += ": " + m.Held
		}
		if was, known := w.held[m.Threshold]; quick && known && m.Acts {
			text = was // the answer is only known when pods are observed
		}
		now[m.Threshold] = text
		if w.held[m.Threshold] != text {
			w.say("met %s %s < %s: %s", m.Signal, printed(m.Signal, m.Available), printed(m.Signal, m.Amount), text)
		}
	}
	for _, t := range sortedThresholds(w.held) {
		if _, still := now[t]; !still {
			w.say("not met %s %s", t.Signal, t.Text)
		}
	}
	w.held = now
}

func sortedThresholds(all map[Threshold]string) []Threshold {
	var out []Threshold
	for t := range all {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Threshold) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return out
}

// run lets d pass, and calls check when the Decider asks for it.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := w.check()
		if next <= w.now {
			w.t.Fatalf("asks for the next check at %v, which is not after now", next)
		}
		if next >= end {
			w.pass(end.Sub(w.now))
			return
		}
		w.pass(next.Sub(w.now))
	}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.out, "%-10v %s\n", w.now.Sub(unit.Instant(0).Add(time.Hour)).Round(time.Millisecond),
		fmt.Sprintf(format, args...))
}

func (w *world) told() string {
	text := w.out.String()
	if text == "" {
		text = "nothing\n"
	}
	text += fmt.Sprintf("%d checks of pods, %d of signals alone\n", w.checks, w.glances)
	w.out.Reset()
	w.checks, w.glances = 0, 0
	return text
}

// amount parses 100Mi, 5k or a plain number.
func amount(t *testing.T, text string) int64 {
	for suffix, n := range map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 1000} {
		if digits, ok := strings.CutSuffix(text, suffix); ok {
			return n * amount(t, digits)
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
