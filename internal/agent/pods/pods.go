// Package pods runs the pods of this node: it has core/podlife decide, and carries out the decisions on a real
// container runtime.
//
// Model. Two sources, the API server and a directory of static pods, say which pods should be on the node. The runtime,
// the kernel (exits, see host/process) and timers say that something may have changed. Each of them only resyncs a pod;
// a resync carries no content. A resynced pod has one worker goroutine. It makes syncs until there is nothing to do: it
// observes, steps the pod's podlife.Life and carries out the actions. Then the goroutine ends. A pod without
// changes costs memory only.
//
// Locks. A pod has two types. Any goroutine may call the methods of its agent/podentry.Entry, which lock. Its worker
// belongs to the pod's goroutine alone: the entry hands it out (Wake) and takes it back (Rest), so nothing in it needs
// a lock. Runner.mu guards what concerns all pods. Locks are taken in this order: Runner.admission, Runner.mu, an
// entry's lock. No call that may wait is made while one of the latter two is held.
//
// A pod's progress is its phase, which its worker changes: agent/podentry draws the phases.
//
// What the runtime has of each pod is cached (agent/podview). It is read again after an action and after an exit, and a
// slow relist reads everything, in case a notification was lost. The only memory is in the labels and annotations of
// containers, which are spelled as the kubelet's, and in the status in the API. So a new agent adopts what runs and
// disturbs nothing.
//
// The package sees a pod with its allocated resources (agent/allocation). As long as the specification requests other
// resources, each sync judges the resize (judgeResizes).
//
// The files form layers. Each uses only those that come later in this list.
//
//	pods                                                        the Runner's start and its loops
//	runtime, api, static, evict, inspect                        inputs: the runtime, the sources, the rest of the agent
//	sync                                                        one sync of a worker: observe, decide, act
//	admit, hold, act, prestop, poststart, resize, publish, dead the parts of a sync
//	failure, measure                                            Events and metrics about it
//	worker                                                      what one goroutine has of a pod
//	runner, config, spec, options                               what all of these share
//
// The package does not decide when pods start, stop or restart (core/podlife), or whether they fit (core/admission).
package pods

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/oomwatch"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/runtimehandler"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
)

// New prepares a runner.
func New(o Options) (*Runner, error) {
	exits, err := process.NewExits()
	if err != nil {
		return nil, err
	}
	return newRunner(o, exits, oomwatch.KernelLog), nil
}

func newRunner(o Options, exits podview.Exits, kernelLog string) *Runner {
	r := &Runner{
		Options:  o,
		exits:    exits,
		clock:    clock.New(),
		starts:   turns.NewStarts(o.Starts),
		stops:    turns.NewPlaces(stopsAtOnce),
		removals: turns.NewPlaces(removalsAtOnce),
		pods:     map[types.UID]*podentry.Entry{},
	}
	r.report = statusreport.New(r.Client, r.Node)
	r.report.Written = func(after time.Duration) { r.Metrics.PodStatusSync.Observe(after.Seconds()) }
	r.report.Busy = func() bool { return r.starts.Busy() != nil }
	r.static = newStatic(r, nil)
	r.handlers = runtimehandler.New(r.Client)
	r.oom = oomwatch.New(r.Node, kernelLog, oomPods{r}, r.Recorder)
	r.oom.Noted = r.noteKill
	r.Metrics.Registry.MustRegister(resizeCounts{r}, podCounts{r})
	return r
}

// How many stops and removals the runtime gets at the same time. Chosen: only a burst reaches these bounds, which keep
// it from overloading the runtime.
const (
	stopsAtOnce    = 64
	removalsAtOnce = 64
)

// Run runs until ctx ends and then leaves every container as it is.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	if err := r.firstRelist(ctx); err != nil {
		return err
	}
	r.learnHandlers(ctx)
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){
		r.report.Run, r.static.Run, r.watchAPI, r.relistLoop, r.followEvents, r.oom.Run,
	} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
	r.workers.Wait()
	return nil
}

// LastRead returns when the last relist of the runtime succeeded, which proves that the main loop and the runtime work.
func (r *Runner) LastRead() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock.At(r.lastSync)
}

// Turned returns when the loop of relists turned last, whether or not the runtime answered; zero: never yet. It takes
// no lock.
func (r *Runner) Turned() time.Time {
	if at := r.turned.Load(); at != 0 {
		return r.clock.At(unit.Instant(at))
	}
	return time.Time{}
}

// turn notes that the loop of relists turns.
func (r *Runner) turn() { r.turned.Store(int64(r.clock.Now())) }

// Relisted reports whether the runtime was listed at least once: no pod is worked on before.
func (r *Runner) Relisted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.relisted
}

// Healthy returns an error if the last successful relist of the runtime is older than limit.
func (r *Runner) Healthy(limit time.Duration) error {
	if age := time.Since(r.LastRead()); age > limit {
		return fmt.Errorf("container runtime was last read %s ago, want at most %s", age.Round(time.Second), limit)
	}
	return nil
}

// oomPods implements oomwatch.Pods.
type oomPods struct{ *Runner }

var _ oomwatch.Pods = oomPods{}

// Pod returns the pod with that UID; nil: it is not here, or only the runtime knows it.
func (p oomPods) Pod(uid types.UID) *corev1.Pod {
	if e := p.entryOf(uid); e != nil {
		return e.Object()
	}
	return nil
}

// Killed returns the kernel's count of processes that were killed because memory ran out.
func (p oomPods) Killed(pod *corev1.Pod, container string) (int64, error) {
	return p.Groups.Killed(pod, container)
}
