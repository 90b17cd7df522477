package pods

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
)

// world is everything outside an agent: a runtime with its processes, an API server, volumes and cgroups. It has facts
// and trouble, and judges what the agent does. It has no rules of how pods run. It outlives agents.
type world struct {
	seed   uint64
	logDir string
	birth  time.Time

	mu      sync.Mutex // guards everything that follows
	calm    bool       // no more trouble: every call is answered at once
	trouble int        // how many of 100 calls have trouble
	liar    int        // how many of 100 answers of the runtime are wrong, of each kind
	turns   map[string]int
	life    *life // the agent that runs; calls of earlier ones have no effect
	down    bool  // no agent runs
	log     []happening
	wrong   error // the first thing that was
	flying  map[*call]bool
	faults  []fault

	sandboxes  map[string]*sandbox
	containers map[string]*box
	lastID     int
	images     map[string]bool
	starts     map[string]int // of programs, by pod, container and attempt
	watches    map[int]*watch // by pid

	evented bool                  // the runtime has an event stream
	streams map[*eventStream]bool // that are open

	statics map[types.UID]*manifest // static pods that there ever were
	files   map[string]types.UID    // of which there is a file now, by path

	api       *apiServer
	room      int // how many pods are admitted; zero: by chance
	volumes   map[types.UID]bool
	groups    map[types.UID]bool
	evicted   map[types.UID]Eviction
	forgets   map[types.UID]int       // pods evicted without a record, and by which agent: the next one may start them
	sizings   map[types.UID]*sizing   // of pods that can be resized
	hooks     map[types.UID]int       // postStart hooks of a pod that run
	kernel    map[string]resize.Size  // actual sizes of groups, by pod or container
	read      map[string]time.Time    // when the agent last read what they use
	v2        bool                    // the kernel has cgroup v2
	milli     int64                   // what the node has for pods
	orders    map[types.UID]time.Time // when the last process of a pod must have ended, by its stop order
	orderedAt map[types.UID]time.Time // when each stop was ordered first
}

// life is one agent, from its start to its crash.
type life struct {
	w      *world
	number int
	runner *Runner
	cancel context.CancelFunc
	gone   chan struct{}      // closed when it crashes: what it waits for is cut
	done   chan struct{}      // closed when nothing of it runs
	files  chan struct{}      // tells that the directory of manifests has changed
	made   map[types.UID]bool // groups that it has set; guarded by world.mu
}

// call is a call that has not returned yet.
type call struct {
	kind  string
	uid   types.UID
	begun time.Time
}

// fault is trouble that a call had. Other calls may have waited for it.
type fault struct {
	kind       string
	uid        types.UID
	begun, end time.Time
	failed     bool
}

func newWorld(seed uint64, logDir string) *world {
	w := &world{
		seed: seed, logDir: logDir, birth: time.Now(), turns: map[string]int{}, flying: map[*call]bool{},
		sandboxes: map[string]*sandbox{}, containers: map[string]*box{}, images: map[string]bool{}, starts: map[string]int{},
		watches: map[int]*watch{}, volumes: map[types.UID]bool{}, groups: map[types.UID]bool{},
		streams: map[*eventStream]bool{}, statics: map[types.UID]*manifest{}, files: map[string]types.UID{},
		forgets: map[types.UID]int{},
		evicted: map[types.UID]Eviction{}, sizings: map[types.UID]*sizing{}, hooks: map[types.UID]int{},
		kernel: map[string]resize.Size{},
		read:   map[string]time.Time{}, milli: 4000, orders: map[types.UID]time.Time{}, orderedAt: map[types.UID]time.Time{},
	}
	w.api = newAPIServer(w)
	return w
}

func (w *world) since() time.Duration { return time.Since(w.birth) }

// happening is an entry of the world's log. It is formatted only when the log is printed, since formatting is
// expensive.
type happening struct {
	at     time.Duration
	format string
	args   []any
}

func (s happening) String() string {
	return fmt.Sprintf("%-12s ", s.at.Round(time.Millisecond)) + fmt.Sprintf(s.format, s.args...)
}

// say adds an entry to the log. args are values that do not change. The caller holds mu.
func (w *world) say(format string, args ...any) {
	w.log = append(w.log, happening{w.since(), format, args})
}

// text is the log as a text.
func (w *world) text() string {
	var b strings.Builder
	for _, s := range w.log {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// judged records something wrong. The caller holds mu.
func (w *world) judged(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf("at %s: %s", w.since().Round(time.Millisecond), fmt.Sprintf(format, args...))
		w.say("WRONG: %v", w.wrong)
	}
}

// dice returns random numbers that depend on the seed and the question only, whatever else is drawn meanwhile.
func (w *world) dice(question ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, question...)
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// fate is how a call goes.
type fate struct {
	before, after time.Duration // waits around its effect; hangs: until the caller gives up
	hangs         bool
	fails         bool // the answer is an error
	lost          bool // and it has no effect
	finishes      bool // it has its effect though the caller gave up
}

// fateOf draws a call's fate. The caller holds mu.
func (w *world) fateOf(kind string, uid types.UID) fate {
	key := kind + string(uid)
	w.turns[key]++
	if w.calm {
		return fate{}
	}
	r := w.dice("fate", key, w.turns[key])
	f := fate{before: time.Duration(r.IntN(20)) * time.Millisecond, finishes: r.IntN(2) == 0}
	if r.IntN(100) >= w.trouble {
		return f
	}
	late := time.Duration(r.IntN(20_000)) * time.Millisecond
	switch r.IntN(6) {
	case 0:
		f.before = late
	case 1:
		f.after = late
	case 2:
		f.fails, f.lost = true, true
	case 3:
		f.fails = true
	case 4:
		f.hangs = true
	case 5:
		f.hangs, f.after = true, late // it hangs after it had its effect
	}
	return f
}

// outage is the error of a call that fails without saying why.
var outage = status.Error(codes.Unavailable, "the other side does not answer")

// call makes a call of an agent. effect runs with mu held.
func (l *life) call(ctx context.Context, kind string, uid types.UID, effect func() error) error {
	w := l.w
	w.mu.Lock()
	if w.life != l || w.down {
		w.mu.Unlock()
		return outage
	}
	f := w.fateOf(kind, uid)
	c := &call{kind, uid, time.Now()}
	w.flying[c] = true
	w.mu.Unlock()
	cut, err := l.meet(ctx, f, effect)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flying, c)
	if took := time.Since(c.begun); took > time.Second || f.fails || cut {
		w.faults = append(w.faults, fault{kind, uid, c.begun, time.Now(), err != nil})
		w.say("  %s %s of agent %d: took %s, %v", kind, uid, l.number, took.Round(time.Millisecond), err)
	}
	return err
}

// meet lets a call go as its fate says. cut means that the caller gave up or crashed.
func (l *life) meet(ctx context.Context, f fate, effect func() error) (cut bool, err error) {
	do := func() error {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		return effect()
	}
	if f.hangs && f.after == 0 {
		err := l.wait(ctx, -1)
		if f.finishes {
			_ = do()
		}
		return true, err
	}
	if err := l.wait(ctx, f.before); err != nil {
		if f.finishes {
			_ = do()
		}
		return true, err
	}
	if f.lost {
		return false, outage
	}
	err = do()
	if f.hangs {
		return true, l.wait(ctx, -1)
	}
	if late := l.wait(ctx, f.after); late != nil {
		return true, late
	}
	if f.fails {
		return false, outage
	}
	return false, err
}

// wait lets time pass until the caller gives up or is gone; without end if d is negative.
func (l *life) wait(ctx context.Context, d time.Duration) error {
	var over <-chan time.Time
	if d == 0 {
		return nil
	}
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-l.gone:
		return outage
	}
}

// fails reports whether a call fails that otherwise answers at once. The caller holds mu.
func (w *world) fails(kind string) bool {
	if w.calm {
		return false
	}
	w.turns[kind]++
	return w.dice("fails", kind, w.turns[kind]).IntN(300) < w.trouble
}

// alive returns the containers of a pod that have a process. The caller holds mu.
func (w *world) alive(uid types.UID) (names []string) {
	for _, b := range w.containers {
		if b.uid == uid && b.alive {
			names = append(names, fmt.Sprintf("%s#%d", b.name, b.attempt))
		}
	}
	slices.Sort(names)
	return names
}

// ordered records that the agent has learned that a pod must end. The caller holds mu.
func (w *world) ordered(uid types.UID, grace time.Duration) {
	by := time.Now().Add(grace)
	if was, ok := w.orders[uid]; !ok || by.Before(was) {
		w.orders[uid] = by
		w.say("  %s is to end within %s", uid, grace.Round(time.Millisecond))
	}
	if _, ok := w.orderedAt[uid]; !ok {
		w.orderedAt[uid] = time.Now()
	}
}

// Margins of the judges.
const (
	// stopSlack is how long a stop takes beyond its grace period without trouble: the runtime counts whole seconds, 2 s
	// follow a preStop hook, 2 s are for each sidecar, and it waits for its turn among the stops.
	stopSlack = 10 * time.Second
	// retrySlack is how long it takes until a failed call is retried, which is after a second.
	retrySlack = 2 * time.Second
)

// judgeStops finds processes that outlive their stop orders. The margin includes the trouble that calls of the runtime
// had. The caller holds mu.
func (w *world) judgeStops() {
	for uid, by := range w.orders {
		alive := w.alive(uid)
		if len(alive) == 0 || time.Now().Before(by.Add(stopSlack)) {
			continue
		}
		margin := stopSlack
		for _, f := range w.faults {
			if (f.uid == uid || f.uid == "") && !yields(f.kind) && f.end.After(w.orderedAt[uid]) {
				margin += f.end.Sub(later(f.begun, w.orderedAt[uid])) + retrySlack
			}
		}
		for c := range w.flying {
			if (c.uid == uid || c.uid == "") && !yields(c.kind) && time.Since(c.begun) > time.Second {
				margin += time.Since(later(c.begun, w.orderedAt[uid]))
			}
		}
		if over := time.Since(by); over > margin {
			w.judged(
				"%s: %s run %s after the end of their grace, with a margin of %s for trouble", uid, strings.Join(alive, ", "), over,
				margin,
			)
		}
	}
}

// yields reports whether a stop order interrupts a call, or does not wait for it.
func yields(kind string) bool {
	switch kind {
	case "set up", "pull", "give", "configure", "stop waits", "events", "update", "update sandbox":
		return true
	}
	return strings.HasPrefix(kind, "api ")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// slotsHeld finds slots that are held while the runtime does no work for them: during a hook, a pull or a grace period.
// It is called while every goroutine waits. The caller holds mu.
func (w *world) slotsHeld() string {
	stopping := 0
	working := 0
	removing := 0
	for c := range w.flying {
		switch c.kind {
		case "stop", "stop waits":
			if time.Since(c.begun) <= signalTime {
				stopping++
			}
		case "stop sandbox", "remove sandbox", "remove":
			if time.Since(c.begun) <= removalTime {
				removing++
			}
			working++
		default:
			if c.kind == "configure" || !yields(c.kind) && c.kind != "tear down" {
				working++
			}
		}
	}
	r := w.life.runner
	if got := len(r.stops); got > stopping {
		return fmt.Sprintf("%d slots of stops are held, and the runtime works on %d", got, stopping)
	}
	if got := r.starts.Taken(); got > working {
		return fmt.Sprintf("%d slots of starts are held, and the runtime works on %d calls", got, working)
	}
	if got := len(r.removals); got > removing {
		return fmt.Sprintf("%d slots of removals are held, and the runtime works on %d", got, removing)
	}
	return ""
}
