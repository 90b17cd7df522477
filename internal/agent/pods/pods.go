// Package pods runs the pods of this node: it lets core/podlife decide and does what it says against a real container
// runtime.
//
// Model. Sources (the API server, a directory of static pods) say which pods should be here; the runtime, the kernel
// (exits, see host/process) and timers say that something may have changed. Each of these only resyncs a pod, which
// carries no content. A resynced pod has one worker goroutine. Each sync of it observes, steps the pod's podlife.Life
// and performs the actions, until there is nothing to do; then the goroutine ends. An idle pod costs memory only.
//
// Who may touch what. A pod has two types. agent/podentry.Entry is what every goroutine may ask or change, by methods
// that lock; worker is what only the pod's goroutine has: its entry hands it out (Wake) and takes it back (Rest), so
// that nothing in it needs a lock. Runner.mu guards what is about all pods. Locks are taken in this order:
// Runner.admission, Runner.mu, that of an entry; and no call that may wait is made under the latter two.
//
// How far a pod has come is its phase, which its worker changes: agent/podentry draws the phases.
//
// What the runtime has is cached per pod (agent/podview) and read again where something happened: after an action,
// after an exit, and by a slow relist of everything, in case one was lost. Container labels and annotations (spelled as
// the kubelet spells them) and the status in the API are the only memory: a new agent adopts what runs and disturbs
// nothing.
//
// A pod is seen with its allocated resources (agent/allocation); what its specification asks for by now is judged in
// every sync as long as the two differ (judgeResizes).
//
// The files form layers. Each uses those that come later, never one before it.
//
//	pods                                the Runner's start and its loops
//	runtime, api, static, evict, inspect    what comes in: from the runtime, the sources, the rest of the agent
//	sync                                one round of a worker: observe, decide, act
//	admit, hold, act, prestop, poststart, resize, publish, dead    its parts
//	failure, measure                    what users and metrics show of it
//	worker                              what one goroutine has of a pod
//	runner, config, spec, options       what all of these share
//
// The package decides nothing about when pods start, stop or restart: that is core/podlife; nor whether they fit:
// core/admission.
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
	r.Metrics.Registry.MustRegister(resizeCounts{r}, podCounts{r})
	return r
}

// Bounds on concurrency that only keep a burst from exhausting the runtime (chosen).
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

// LastRead is when everything the runtime has was last read: proof that the main loop and the runtime are alive.
func (r *Runner) LastRead() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock.At(r.lastSync)
}

// Healthy reports whether the runner made progress lately: its relist answered within limit.
func (r *Runner) Healthy(limit time.Duration) error {
	if age := time.Since(r.LastRead()); age > limit {
		return fmt.Errorf("container runtime was last read %s ago, want at most %s", age.Round(time.Second), limit)
	}
	return nil
}

// oomPods is what package oomwatch asks of the runner.
type oomPods struct{ *Runner }

var _ oomwatch.Pods = oomPods{}

// Pod is the pod of that UID; nil: it is not here, or only the runtime knows it.
func (p oomPods) Pod(uid types.UID) *corev1.Pod {
	if e := p.entryOf(uid); e != nil {
		return e.Object()
	}
	return nil
}

// Killed is the kernel's own count.
func (p oomPods) Killed(pod *corev1.Pod, container string) (int64, error) {
	return p.Groups.Killed(pod, container)
}
