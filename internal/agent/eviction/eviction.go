// Package eviction is the shell of core/eviction: it looks when the kernel says so, reads what the node has left and what its
// pods use, and carries out what the core decides, kills first.
//
// # Model
//
// A *look* is one pass: signals are read; if they are not quiet, every pod is, too, and then the signals again; the core decides; the
// decision is carried out. What leads to a look is a *ring* of the kernel (package epoll: memory thresholds and reclaim on cgroup v1, memory.events
// and pressure stalls on v2), the end of a kill or a reclaim, or the *back-stop*: the latest moment that the core allows, which
// comes sooner as a line nears. One goroutine looks, on a thread of its own that sleeps in the kernel.
//
// A victim goes in this order, and nothing on the way to the kill waits for the runtime, the API server or another goroutine:
//
//  1. The pod's stop order is noted in memory (pods.Runner.Evict): from here on this process does not start it again.
//  2. Its *intent* is appended to the journal: from here on no later process does. A disk that does not answer within
//     intentWithin is not waited for.
//  3. SIGKILL to its whole cgroup; at once, or when its grace is over. Several victims beside each other.
//  4. Only then: events, metrics, the node's conditions, the journal's full record. The pod's worker finds it dead and
//     reports Failed, Evicted.
//
// # What a crash leaves
//
// Before 2, nothing: no process was killed, and the next agent looks for itself. After 2, whether or not 3 happened: the next
// agent finds the intent, gives the pod the same order with the same deadline when it meets it (Recall), and ends what still
// runs of it (3 may be repeated: a uid is never used twice, and an empty group has nothing to kill). After the pod's status
// reached the API server the phase is final there, and the intent says nothing new. What is left is a disk that was stuck for
// longer than intentWithin and an agent that died within the seconds after: then the container is restarted by its policy, and
// evicted again if it grows again. The machine itself going down leaves the intent if the disk has it; if not, the pod begins
// anew on an empty machine. Static pods have no uid of their own life; they are critical and never evicted.
//
// # Its own memory first
//
// Who is to act when memory is short must not wait for memory. So:
//
//   - Pods together have a limit, which leaves to the agent and the runtime what is reserved for them (core/allocatable); with
//     memoryReservationPolicy the kernel also keeps reserved groups' memory from being reclaimed (memory.min, agent.enforce).
//   - Should the kernel kill all the same, it takes agent and runtime last (oom_score_adj -999, agent.keepOOMScores).
//   - While a line of memory is near, the agent *holds* what it has in memory (Options.Hold, mlockall): its code, which the kernel
//     drops first, need not come back from a disk that is busy swapping. The first look that comes near goes through the
//     way of a kill once with a group that is not there, so that its code is among that. Else the agent stays as small as it can.
//
// Rejected: to hold always, which costs 20 MB for an hour a year. GOMEMLIMIT: it makes a program that is short of memory
// slow, when it should be quick. A group of the agent's own with memory.min: every group above it needs as much, and those
// are somebody else's; who wants it names them in kubeReservedCgroup. Another process's memory cannot be held, so the
// runtime's is not; evicting does not need the runtime.
//
// # Invariants
//
//   - A group that cannot be read makes its pod's usage unknown, never zero and never a reason to kill.
//   - A pod that was evicted and still has a process after its deadline is killed again, each second, until it has none: so a
//     runtime that hangs, or starts a container at the very moment, delays nothing.
//   - The way from a ring to a kill opens files of the kernel only. Its one write to a disk is bounded in time.
//
// It decides nothing, removes no images (its Reclaims do) and does not say what disks pods use (its Storage does). Where pods
// have no groups of ours (cgroupsPerQOS: false) it knows of no pod what it uses, and evicts none.
package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// Pods are the node's pods; *pods.Runner has them.
type Pods interface {
	Present() []pods.Present
	Evict(uid types.UID, v pods.Eviction) bool
	Kick(uid types.UID)
}

// Storage knows what pods use of disks.
type Storage interface {
	// Disks says which file systems the node has.
	Disks() eviction.Disks
	// Fill adds to p what is known of it. It must not wait for anything.
	Fill(pod *corev1.Pod, p *eviction.Pod)
}

// Reclaim frees something before pods go. It may take its time; it returns when it is done or can do no more.
type Reclaim func(ctx context.Context, r eviction.Reclaim) error

// Options are everything a Guard needs. All fields without "optional" must be set.
type Options struct {
	Node    string
	Config  eviction.Config
	Tree    *cgroup.Tree
	Proc    procfs.FS
	Memory  unit.Bytes             // of the machine
	Limit   unit.Limit[unit.Bytes] // of all pods together; unlimited: allocatableMemory.available is not observed
	NodeFS  string                 // a directory on it
	ImageFS string                 // likewise; empty: nobody knows
	// Group names the group of all pods, and Of those of a pod and of its container with that id; empty: it has none of ours.
	Group string
	Of    func(pod *corev1.Pod, container string) string

	Pods     Pods
	Storage  Storage // optional
	Reclaims map[eviction.Step]Reclaim
	Recorder record.EventRecorder
	Journal  *journal.Journal
	Metrics  *metrics.Set
	Changed  func() // told when a condition comes or goes
	// Hold has the agent's own memory stay where it is, or not any more. Optional.
	Hold func(bool) error
}

// Guard looks after one node.
type Guard struct {
	o       Options
	clock   *epoll.Clock
	alarms  func() []epoll.Source
	decider *eviction.Decider
	began   time.Time

	deadlines map[types.UID]*deadline     // of those that this node evicted
	recalled  map[types.UID]pods.Eviction // of those that agents before this one evicted; read only
	recallEnd time.Time                   // until then pods that were recalled are looked for
	looked    time.Time
	idle      bool           // the last look found nothing to do
	rings     unit.Bytes     // usage of the pods' group at which the kernel rings first; zero: it does not
	rested    time.Time      // before it there is no look while nothing is to be done
	warned    time.Time      // that a look took long
	lastFull  unit.Instant   // when pods were read last
	told      string         // news of the last look
	telling   sync.WaitGroup // what is being told

	complaints complaints
	nearAt     time.Time // a line of memory was near last
	refused    bool      // Hold has failed

	mu         sync.Mutex // guards everything that follows
	conditions []eviction.Condition
	holds      bool // its own memory
	done       map[eviction.Step]unit.Instant
}

// deadline is when a pod that was evicted must be gone.
type deadline struct {
	at    time.Time // when it is killed, or killed again
	group string
}

// New prepares a Guard; what agents before this one evicted is read from the journal.
func New(o Options) (*Guard, error) {
	clock, err := epoll.New()
	if err != nil {
		return nil, err
	}
	g := &Guard{
		o: o, clock: clock, decider: eviction.New(o.Config), began: time.Now().Add(-time.Second),
		recallEnd: time.Now().Add(recallFor), deadlines: map[types.UID]*deadline{}, done: map[eviction.Step]unit.Instant{}, recalled: map[types.UID]pods.Eviction{},
	}
	g.alarms = g.openAlarms
	return g, g.remember()
}

func (g *Guard) instant(t time.Time) unit.Instant { return unit.Instant(t.Sub(g.began)) }

// Pressure returns the conditions that hold now, sorted.
func (g *Guard) Pressure() []eviction.Condition {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.conditions)
}

const (
	// ringRest is the least time between two looks that rings lead to: page cache that is being reclaimed rings without end,
	// and a look costs about 0.1 ms. Longer is later at most by as much.
	ringRest = 5 * time.Millisecond
	// ringRestMax bounds the rest while the line is far: the core's next look counts with the fastest fall there is, so a
	// quarter of the time until then loses nothing.
	ringRestMax = 100 * time.Millisecond
	// idleFactor bounds what looking costs while there is nothing to do, however near a line is: after a look the thread rests as many
	// times as long as that look took of a CPU, so that it takes a tenth of one at most. On a machine of today a look takes below
	// 0.5 ms and nothing rests for that; on one that is ten times slower, or has a thousand pods, looking shall not be what the
	// node dies of (seen in an emulated machine: 60% of a CPU). More is late there, less costs more.
	idleFactor = 9
	// idleRestMax bounds one such rest. A look may be dear by chance (what it reads waits for somebody, the collector asks its thread for
	// help), and the next one must not be seconds off for that (supposed, not shown, of a guest of the lab where a pod took 200 MiB unseen). More is later, less costs
	// more where every look is dear.
	idleRestMax = 250 * time.Millisecond
	// killAgain is how soon a victim that still has a process is killed again. A process that SIGKILL has not ended by then
	// sits in the kernel; one that was started meanwhile has had a second.
	killAgain = time.Second
	// recallFor is how long after its start an agent looks for pods that agents before it evicted: their workers end them, too,
	// unless the runtime hangs.
	recallFor = 5 * time.Minute
	// holdFor is how long memory is held after no line is near any more. Shorter lets go in the middle of things; longer keeps a
	// few MB of code from others.
	holdFor = time.Minute
)

// threadName is what the thread that watches is called (PR_SET_NAME(2const): 15 characters and a zero).
var threadName = []byte("eviction\x00")

// Run looks after the node until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.clock.Ring)()
	defer g.telling.Wait()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != unix.Getpid() {
		return g.watch(ctx)
	}
	// The first thread's name is the process's, by which people know it. It is held here, so that another one watches.
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ended <- g.watch(ctx)
	}()
	return <-ended
}

// watch is Run, on a thread of its own.
func (g *Guard) watch(ctx context.Context) error {
	// So that whoever looks at the agent's threads sees what watching costs.
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&threadName[0])), 0, 0, 0); err != nil {
		slog.Debug("thread not named", "err", err)
	}
	for _, s := range g.alarms() {
		if err := g.clock.Add(s); err != nil {
			slog.Warn("alarm not set, the poll has to do", "err", err)
			g.rings = 0
		}
	}
	var why []string
	for ctx.Err() == nil {
		wake := g.lookCheaply(ctx, why)
		rang, err := g.clock.Wait(time.Until(wake))
		if err != nil {
			return fmt.Errorf("watch the node's resources: %w", err)
		}
		why = append(why[:0], rang...)
		if rest := g.rest(wake); len(rang) > 0 && rest > 0 && ctx.Err() == nil {
			time.Sleep(rest)
		}
	}
	return nil
}

// rest is how long to let a ring wait.
func (g *Guard) rest(wake time.Time) time.Duration {
	pause := min(max(ringRest, wake.Sub(g.looked)/4), ringRestMax)
	return max(pause-time.Since(g.looked), time.Until(g.rested))
}

// lookCheaply looks, and puts the next look off if this one was dear.
func (g *Guard) lookCheaply(ctx context.Context, why []string) time.Time {
	before := threadTime()
	wake := g.look(ctx, why)
	g.rested = time.Time{}
	cost := threadTime() - before
	if cost > idleRestMax && time.Since(g.warned) >= complainEvery {
		g.warned = time.Now()
		slog.Warn("a look at what the node has left took long: evictions may be late", "cpu", cost, "after", time.Since(g.looked))
	}
	if g.idle {
		g.rested = time.Now().Add(min(idleFactor*cost, idleRestMax))
	}
	if wake.Before(g.rested) {
		return g.rested
	}
	return wake
}

// threadTime is the CPU time of the calling thread, which does not change (clock_gettime(2)).
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// look reads, decides and acts, and returns when to look again. why names the rings that led here.
func (g *Guard) look(ctx context.Context, why []string) time.Time {
	p := &pass{why: why, began: time.Now()}
	g.looked, p.now = p.began, g.instant(p.began)
	p.facts = g.facts(p.now)
	p.facts.Quick = g.decider.Quiet(p.now, p.facts.Signals) && !g.limitsAreDue(p.now)
	if !p.facts.Quick || len(g.deadlines) > 0 || p.began.Before(g.recallEnd) {
		p.present = g.o.Pods.Present()
	}
	if !p.facts.Quick {
		g.lastFull = p.now
		g.readPods(&p.facts, p.present)
		// A pod that dies while all are being read must not be missed by both: what is left was read before it had freed anything, what
		// it holds after. So what is left is read last; what was freed in between then counts twice, and nobody goes for that.
		p.now = g.instant(time.Now())
		g.observe(&p.facts, p.now)
		p.before = g.decider.State()
	}
	p.decision = g.decider.Step(p.now, p.facts)
	g.idle = !slices.ContainsFunc(p.decision.Met, func(m eviction.Met) bool { return m.Acts })
	g.carryOut(ctx, p)
	g.meet(p.present)
	g.holdOwn(p)
	return g.next(g.began.Add(time.Duration(p.decision.Wake)))
}

// holdOwn keeps the agent's own memory from being reclaimed while a line of memory is near, and some time longer.
func (g *Guard) holdOwn(p *pass) {
	if p.decision.Near {
		g.nearAt = p.began
	}
	want := !g.nearAt.IsZero() && p.began.Sub(g.nearAt) < holdFor
	if g.o.Hold == nil || g.refused || want == g.HoldsMemory() {
		return
	}
	if err := g.o.Hold(want); err != nil {
		g.refused = true
		slog.Warn("the agent's own memory may be reclaimed when memory is short, and evictions be late. Going on", "err", err)
		return
	}
	g.mu.Lock()
	g.holds = want
	g.mu.Unlock()
	slog.Info("reclaim of the agent's own memory", "heldOff", want)
	if want {
		if _, err := g.o.Tree.Kill(noGroup); err != nil {
			slog.Debug("way of a kill not gone through", "err", err)
		}
	}
}

// noGroup is a group that is not there. Nobody makes one of this name.
const noGroup = "/plimsoll-no-such-group"

// HoldsMemory reports whether the agent's own memory is being held.
func (g *Guard) HoldsMemory() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holds
}

// limitsEvery is how often limits of local storage are enforced although no signal is short (upstream: in every pass, 10 s).
const limitsEvery = 10 * time.Second

func (g *Guard) limitsAreDue(now unit.Instant) bool {
	return g.o.Storage != nil && g.o.Config.LocalStorage && now.Sub(g.lastFull) >= limitsEvery
}

// facts reads everything but pods.
func (g *Guard) facts(now unit.Instant) eviction.Facts {
	f := eviction.Facts{Done: map[eviction.Step]unit.Instant{}}
	g.observe(&f, now)
	g.mu.Lock()
	maps.Copy(f.Done, g.done)
	g.mu.Unlock()
	return f
}

// next is the earliest of when and the deadlines.
func (g *Guard) next(when time.Time) time.Time {
	for _, d := range g.deadlines {
		if d.at.Before(when) {
			when = d.at
		}
	}
	return when
}

// meet kills what still runs of evicted pods whose time is over, and forgets those that are gone.
func (g *Guard) meet(present []pods.Present) {
	here := map[types.UID]bool{}
	for _, p := range present {
		uid := p.Pod.UID
		if p.Ended {
			continue
		}
		here[uid] = true
		if _, before := g.recalled[uid]; before && g.deadlines[uid] == nil && !p.KillAt.IsZero() {
			g.deadlines[uid] = &deadline{at: p.KillAt, group: g.o.Of(p.Pod, "")}
		}
	}
	now := time.Now()
	for uid, d := range g.deadlines {
		switch due := !now.Before(d.at); {
		case due && !here[uid]:
			delete(g.deadlines, uid)
		case due:
			d.at = now.Add(killAgain)
			g.finish(uid, d.group)
		}
	}
}

// lines returns the hard and soft thresholds on a signal in its own unit, given its capacity.
func (g *Guard) lines(signal allocatable.Signal, capacity int64) (lines []int64) {
	for _, t := range g.o.Config.Thresholds {
		if t.Signal == signal {
			lines = append(lines, t.Value.Of(capacity))
		}
	}
	return lines
}
