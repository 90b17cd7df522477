// Package eviction is the shell of core/eviction: it checks the eviction signals when the kernel notifies or when a
// check is due, reads what the node has left and what its pods use, and carries out what the core decides, kills first.
//
// # Model
//
// A check does this: it reads the signals. If the core cannot tell from them alone that nothing is to be done, it reads
// every pod and then the signals once more. The core decides, and the decision is carried out. Three things lead to a
// check: a notification of the kernel (package epoll: memory thresholds and reclaim on cgroup v1; memory.events and
// pressure stalls on v2), the end of a kill or of a reclaim, and the periodic check. The periodic check is the latest
// moment that the core allows; it comes sooner, the nearer a threshold is. One goroutine makes all checks. It has an OS
// thread of its own, which sleeps in the kernel in between.
//
// A victim is evicted in this order. Nothing before the kill waits for the runtime, the API server or another
// goroutine:
//
//  1. The pod's stop order is noted in memory (pods.Runner.Evict): from here on this process does not start it again.
//  2. The intent is appended to the journal: from here on no later process starts it again. The wait for the disk is
//     bounded by intentWithin.
//  3. SIGKILL is sent to the pod's whole cgroup, at once or when its termination grace period is over. Several victims
//     are killed in parallel.
//  4. Only then: events, metrics, the node's conditions, the journal's full record. The pod worker finds the pod's
//     containers dead and reports Failed, Evicted.
//
// # What a crash leaves
//
// A crash before step 2 leaves nothing: no process was killed, and the next agent makes its own checks. After step 2,
// whether or not step 3 happened, the next agent finds the intent, gives the pod the same order with the same deadline
// (Recall) and kills what still runs of it. Step 3 may be repeated: a UID is never used twice, and an empty cgroup has
// no process to kill. After the pod's status has reached the API server, the phase there is final, and the intent adds
// nothing. One case remains: a disk that did not answer within intentWithin, and an agent that died within the seconds
// after. Then the container is restarted by its restart policy, and evicted again if it grows again. If the machine
// itself goes down, the intent survives if the disk has it; otherwise the pod begins anew on an empty machine. A static
// pod's UID does not change with each run, but static pods are critical and never evicted.
//
// # The agent's own memory
//
// The agent must act when memory is short, so it must not itself wait for memory:
//
//   - All pods together have a limit, which leaves to the agent and the runtime what is reserved for them
//     (core/allocatable). With memoryReservationPolicy the kernel also protects the reserved cgroups' memory from
//     reclaim (memory.min, agent.enforce).
//   - If the kernel kills nevertheless, it kills the agent and the runtime last (oom_score_adj -999,
//     agent.keepOOMScores).
//   - While a memory threshold is near, the agent locks its memory (Options.Lock, mlockall). Its code, which the kernel
//     would drop first, then need not be read again from a disk that is busy swapping. The first check that comes near
//     a threshold calls the kill function once with a cgroup that does not exist, so that its code is in memory and
//     locked too. At other times the agent stays as small as it can.
//
// Rejected alternatives: locking memory always costs 20 MB for the sake of an hour a year. GOMEMLIMIT makes a program
// slow when it is short of memory, at the time when it must be quick. A cgroup of the agent's own with memory.min needs
// the same in every cgroup above it, and those belong to other programs; an administrator who wants this names them in
// kubeReservedCgroup. Another process's memory cannot be locked, so the runtime's is not; evicting does not need the
// runtime.
//
// # Invariants
//
//   - A cgroup that cannot be read makes its pod's usage unknown. It never counts as zero, and it is never a reason to
//     kill.
//   - An evicted pod that still has a process after its deadline is killed again, each second, until it has none. So a
//     runtime that hangs, or that starts a container at that very moment, delays nothing.
//   - The way from a notification to a kill opens files of the kernel only. Its one write to a disk is bounded in time.
//
// The package decides nothing, removes no images (its Reclaims do) and does not measure pods' disk usage (its Storage
// does). On nodes where the agent makes no cgroups for pods (cgroupsPerQOS: false), it does not know what pods use, and
// evicts none.
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

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// Pods are the node's pods; *pods.Runner implements it.
type Pods interface {
	Present() []podentry.Present
	Evict(uid types.UID, v pods.Eviction) bool
	Resync(uid types.UID)
}

// Storage knows the pods' disk usage.
type Storage interface {
	// Disks returns which file systems the node has.
	Disks() eviction.Disks
	// Limited reports whether a pod has a limit of local storage.
	Limited() bool
	// Fill adds the pod's known disk usage to p. It must not wait for anything.
	Fill(pod *corev1.Pod, p *eviction.Pod)
}

// Reclaim frees resources before pods are evicted. It may take long, and returns when it is done or can free no more.
type Reclaim func(ctx context.Context, r eviction.Reclaim) error

// Options are what a Guard needs. Fields not marked optional must be set.
type Options struct {
	Node    string
	Config  eviction.Config
	Tree    *cgroup.Tree
	Proc    procfs.FS
	Memory  unit.Bytes             // the machine's
	Limit   unit.Limit[unit.Bytes] // of all pods together; unlimited: allocatableMemory.available is not observed
	NodeFS  string                 // a directory on nodefs
	ImageFS string                 // a directory on imagefs; empty: not known
	// Group is the cgroup of all pods. Of returns the cgroup of a pod, or of its container with that ID; empty if the
	// agent made none.
	Group string
	Of    func(pod *corev1.Pod, container string) string

	Pods     Pods
	Storage  Storage // optional
	Reclaims map[eviction.Step]Reclaim
	Recorder record.EventRecorder
	Journal  *journal.Journal
	Metrics  *metrics.Set
	Changed  func() // called when a condition begins or ends
	// Lock locks the agent's memory (true) or unlocks it (false). Optional.
	Lock func(bool) error
}

// Guard evicts pods of one node. The goroutine of Run alone uses the fields above mu.
type Guard struct {
	o       Options
	kernel  *epoll.Waiter
	sources func() []epoll.Source
	decider *eviction.Decider
	clock   *clock.Clock
	counts  *counts

	deadlines map[types.UID]*deadline     // of the pods that this agent evicted
	recalled  map[types.UID]pods.Eviction // the pods that earlier agents evicted; read only after New
	recallEnd time.Time                   // until then, pods of recalled are looked for
	// when the last check began
	checkedAt time.Time
	idle      bool           // the last check found nothing to do
	firstMark unit.Bytes     // usage of the pods' cgroup at which the kernel notifies first; zero: it does not
	restUntil time.Time      // no check before then unless something is to be done
	warnedAt  time.Time      // when a slow check was last logged
	lastFull  unit.Instant   // when pods were read last, or none had a limit of local storage
	lastNews  string         // the last check's news
	recording sync.WaitGroup // records and Events that are being written

	failures   failurelog.Log // of readings
	nearAt     time.Time      // when a memory threshold was near last
	lockFailed bool           // Lock has failed

	mu         sync.Mutex // guards everything that follows
	conditions []eviction.Condition
	seen       map[allocatable.Signal]eviction.Observation // what the last check read; no check changes it later
	locked     bool                                        // the agent's own memory is locked
	done       map[eviction.Step]unit.Instant
}

// deadline is when an evicted pod must have ended.
type deadline struct {
	at    time.Time // when it is killed, or killed again
	group string
}

// New prepares a Guard. It reads from the journal which pods earlier agents evicted.
func New(o Options) (*Guard, error) {
	kernel, err := epoll.New()
	if err != nil {
		return nil, err
	}
	g := &Guard{
		o: o, kernel: kernel, decider: eviction.New(o.Config), clock: clock.New(),
		recallEnd: time.Now().Add(recallFor), deadlines: map[types.UID]*deadline{}, done: map[eviction.Step]unit.Instant{},
		recalled: map[types.UID]pods.Eviction{},
	}
	g.sources = g.openSources
	g.counts = newCounts(g)
	return g, g.readIntents()
}

// Pressure returns the present conditions, sorted.
func (g *Guard) Pressure() []eviction.Condition {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.conditions)
}

const (
	// notifyRest is the least time between two checks that notifications lead to. Page cache that is being reclaimed
	// causes notifications without end, and a check costs about 0.1 ms. A longer rest makes a kill later, at most by as
	// much.
	notifyRest = 5 * time.Millisecond
	// notifyRestMax bounds the rest while the threshold is far. The core's next check assumes the fastest fall that is
	// possible, so a quarter of the time until then loses nothing.
	notifyRestMax = 100 * time.Millisecond
	// idleFactor bounds what checks cost while there is nothing to do, however near a threshold is. After a check the
	// thread rests for idleFactor times the CPU time that the check took, so that checks take at most a tenth of one
	// CPU. On a present machine a check takes less than 0.5 ms, and the rest changes nothing. On a machine that is ten
	// times slower, or with a thousand pods, checks must not themselves exhaust the node (seen in an emulated machine:
	// 60% of a CPU). A larger factor makes evictions later there, a smaller one costs more CPU.
	idleFactor = 9
	// idleRestMax bounds one such rest. A check may be expensive by chance (a file that it reads waits for a lock, or
	// Go's garbage collector uses its thread), and that must not delay the next check by seconds. Suspected, not
	// measured, as the cause in a guest of the lab where a pod took 200 MiB between two checks. A larger bound delays
	// evictions; a smaller one costs CPU where every check is expensive.
	idleRestMax = 250 * time.Millisecond
	// warnEvery is how often a slow check is logged at most.
	warnEvery = time.Minute
	// killAgain is how soon a victim that still has a process is killed again. A process that SIGKILL has not ended by
	// then waits in the kernel; a process that was started in the meantime has had a second.
	killAgain = time.Second
	// recallFor is how long after its start an agent looks for pods that agents before it evicted. Their pod workers
	// end them too, unless the runtime hangs.
	recallFor = 5 * time.Minute
	// lockFor is how long memory stays locked after no threshold is near any more. A shorter time unlocks while memory
	// is still short; a longer one keeps a few MB of code from other programs.
	lockFor = time.Minute
)

// threadName is the name of the thread that makes the checks (PR_SET_NAME(2const): 15 characters and a zero).
var threadName = []byte("eviction\x00")

// Run makes checks until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.kernel.Wake)()
	defer g.recording.Wait()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != unix.Getpid() {
		return g.watch(ctx)
	}
	// The first thread's name is the process's name, by which people know it. This goroutine stays locked to it, so
	// that another thread makes the checks.
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ended <- g.watch(ctx)
	}()
	return <-ended
}

// watch is Run on a thread of its own.
func (g *Guard) watch(ctx context.Context) error {
	// The name shows in the list of the agent's threads what checks cost.
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&threadName[0])), 0, 0, 0); err != nil {
		slog.Debug("thread not named", "err", err)
	}
	for _, s := range g.sources() {
		if err := g.kernel.Add(s); err != nil {
			slog.Warn("a notification was not set up; periodic checks remain", "err", err)
			g.firstMark = 0
		}
	}
	var why []string
	for ctx.Err() == nil {
		wake := g.checkAndRest(ctx, why)
		notified, err := g.kernel.Wait(time.Until(wake))
		if err != nil {
			return fmt.Errorf("watch the node's resources: %w", err)
		}
		why = append(why[:0], notified...)
		if rest := g.rest(wake); len(notified) > 0 && rest > 0 && ctx.Err() == nil {
			time.Sleep(rest)
		}
	}
	return nil
}

// rest returns how long to wait before a notification leads to a check.
func (g *Guard) rest(wake time.Time) time.Duration {
	pause := min(max(notifyRest, wake.Sub(g.checkedAt)/4), notifyRestMax)
	return max(pause-time.Since(g.checkedAt), time.Until(g.restUntil))
}

// checkAndRest makes a check, and delays the next one if this one was expensive.
func (g *Guard) checkAndRest(ctx context.Context, why []string) time.Time {
	before := threadTime()
	wake := g.check(ctx, why)
	g.restUntil = time.Time{}
	cost := threadTime() - before
	if cost > idleRestMax && time.Since(g.warnedAt) >= warnEvery {
		g.warnedAt = time.Now()
		slog.Warn("a check of the eviction signals took long; evictions may be late", "cpu", cost,
			"after", time.Since(g.checkedAt))
	}
	if g.idle {
		g.restUntil = time.Now().Add(min(idleFactor*cost, idleRestMax))
	}
	if wake.Before(g.restUntil) {
		return g.restUntil
	}
	return wake
}

// threadTime returns the CPU time of the calling thread. The caller is locked to its thread (clock_gettime(2)).
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// check makes one check and returns when the next one is due. why names the notifications that led to it.
func (g *Guard) check(ctx context.Context, why []string) time.Time {
	p := &check{why: why, began: time.Now()}
	g.checkedAt, p.now = p.began, g.clock.Instant(p.began)
	p.facts = g.facts(p.now)
	p.facts.Quick = g.decider.Quiet(p.now, p.facts.Signals) && !g.limitsAreDue(p.now)
	if !p.facts.Quick || len(g.deadlines) > 0 || p.began.Before(g.recallEnd) {
		p.present = g.o.Pods.Present()
	}
	if !p.facts.Quick {
		g.lastFull = p.now
		g.readPods(&p.facts, p.present)
		// A pod may die while the pods are being read. If the signals were read before it freed memory, and its usage
		// after, both would miss that memory. So the signals are read again last. What was freed in between then counts
		// twice, and that evicts no pod.
		p.now = g.clock.Instant(time.Now())
		g.observe(&p.facts, p.now)
		p.before = g.decider.State()
	}
	g.mu.Lock()
	g.seen = p.facts.Signals
	g.mu.Unlock()
	p.decision = g.decider.Step(p.now, p.facts)
	g.idle = !slices.ContainsFunc(p.decision.Met, func(m eviction.Met) bool { return m.Acts })
	g.carryOut(ctx, p)
	g.killOverdue(p.present)
	g.lockMemory(p)
	took := g.counts.full
	if p.facts.Quick {
		took = g.counts.quick
	}
	took.Observe(time.Since(p.began).Seconds())
	return g.next(g.clock.At(p.decision.Wake))
}

// lockMemory locks the agent's memory while a memory threshold is near, and for a while longer.
func (g *Guard) lockMemory(p *check) {
	if p.decision.Near {
		g.nearAt = p.began
	}
	want := !g.nearAt.IsZero() && p.began.Sub(g.nearAt) < lockFor
	if g.o.Lock == nil || g.lockFailed || want == g.MemoryLocked() {
		return
	}
	if err := g.o.Lock(want); err != nil {
		g.lockFailed = true
		slog.Warn("the agent's own memory is not locked: it may be reclaimed when memory is short, and evictions may be late",
			"err", err)
		return
	}
	g.mu.Lock()
	g.locked = want
	g.mu.Unlock()
	slog.Info("the agent's own memory", "locked", want)
	if want {
		if _, err := g.o.Tree.Kill(noGroup); err != nil {
			slog.Debug("kill function not loaded before it is needed", "err", err)
		}
	}
}

// noGroup is a cgroup that does not exist, by a name that no program uses.
const noGroup = "/plimsoll-no-such-group"

// MemoryLocked returns whether the agent's memory is locked.
func (g *Guard) MemoryLocked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.locked
}

// limitsEvery is how often limits of local storage are enforced although no signal is short (kubelet: each time it
// synchronizes, 10 s).
const limitsEvery = 10 * time.Second

func (g *Guard) limitsAreDue(now unit.Instant) bool {
	if g.o.Storage == nil || !g.o.Config.LocalStorage || now.Sub(g.lastFull) < limitsEvery {
		return false
	}
	if !g.o.Storage.Limited() { // asked as often as limits are enforced, and no pod is read for it
		g.lastFull = now
		return false
	}
	return true
}

// facts reads everything except the pods.
func (g *Guard) facts(now unit.Instant) eviction.Facts {
	f := eviction.Facts{Done: map[eviction.Step]unit.Instant{}}
	g.observe(&f, now)
	g.mu.Lock()
	maps.Copy(f.Done, g.done)
	g.mu.Unlock()
	return f
}

// next returns the earliest of when and the deadlines.
func (g *Guard) next(when time.Time) time.Time {
	for _, d := range g.deadlines {
		if d.at.Before(when) {
			when = d.at
		}
	}
	return when
}

// killOverdue kills what still runs of evicted pods whose deadline is over, and drops the pods that have ended.
func (g *Guard) killOverdue(present []podentry.Present) {
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

// thresholds returns the hard and soft thresholds of a signal in its own unit, given its capacity.
func (g *Guard) thresholds(signal allocatable.Signal, capacity int64) (values []int64) {
	for _, t := range g.o.Config.Thresholds {
		if t.Signal == signal {
			values = append(values, t.Value.Of(capacity))
		}
	}
	return values
}
