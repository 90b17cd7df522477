// Package probe runs the probes of containers: by HTTP, TCP, gRPC or a command in the container.
//
// Model: core/probe decides when to run which probe and what the results mean. This package has one core Run for each
// running container with probes. All Runs are in one queue, ordered by when they must be stepped next, with one timer
// for the queue's head. A probe in progress has a goroutine; a container between probes has none, and a container
// without probes costs nothing. When a verdict changes, the pod's UID is passed to Options.Changed, and the pod worker
// then reads Results.
//
// A running container with probes for which Track was not called yet counts as starting and unready, so that a pod
// never appears ready without a successful probe.
//
// The texts of Events are the kubelet's. They contain no bodies of failed HTTP answers, which may hold secrets.
//
// The package stops and restarts nothing: core/podlife decides that. Hooks are in package hook.
package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Runtime runs a command in a container; *cri.Client implements it.
type Runtime interface {
	ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
		opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
}

// Options are what a Prober needs; all fields except Registry and Turned are required.
type Options struct {
	Runtime  Runtime
	Recorder record.EventRecorder
	// called when a verdict of this pod changed, from any goroutine, never from within Track
	Changed  func(types.UID)
	Turned   func(Turn)           // called when a probe changed the verdict, from any goroutine; nil: nobody asks
	Registry *prometheus.Registry // served at /metrics/probes; nil: nothing is counted
}

// Turn is a change of the verdict about a container.
type Turn struct {
	Pod       *corev1.Pod
	Container string
	Probe     string // Startup, Readiness or Liveness
	Failed    bool
	Times     int    // in a row: the threshold that was reached
	Output    string // of the last failure
}

// Container is one run of a container.
type Container struct {
	ID        string
	StartedAt time.Time
}

// Prober runs the probes of the containers on this node. It is safe for concurrent use.
type Prober struct {
	Options
	ctx   context.Context
	born  time.Time // containers that started before were started by an earlier agent
	clock *clock.Clock
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec // seconds of a probe

	mu    sync.Mutex // guards everything that follows
	pods  map[types.UID]*pod
	queue queue
	timer *time.Timer
}

// pod is a tracked pod that has probes.
type pod struct {
	pod      *corev1.Pod
	ip       string
	stopping bool
	runs     map[string]*run // by container name
}

// run is one run of a container with probes. It is guarded by Prober.mu.
type run struct {
	pod       *pod
	container *corev1.Container
	id        string
	core      *probe.Run
	ctx       context.Context
	cancel    context.CancelFunc
	wake      unit.Instant
	place     int // index in the queue
	// gone means that the run was ended: an answer that arrives later is ignored.
	gone bool
}

// New returns a Prober that runs probes until ctx ends.
func New(ctx context.Context, o Options) *Prober {
	p := &Prober{
		Options: o, ctx: ctx, born: time.Now(), clock: clock.From(time.Now, clock.LongAgo),
		pods: map[types.UID]*pod{}, queue: newQueue(),
	}
	p.total = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total",
		Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	p.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "prober_probe_duration_seconds",
		Help: "Seconds until a probe has its answer.",
	}, []string{"probe_type", "container", "pod", "namespace"})
	if o.Registry != nil {
		o.Registry.MustRegister(p.total, p.took)
	}
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timer != nil {
			p.timer.Stop()
		}
	})
	return p
}

// probed yields the containers of pod that may have probes: main containers and sidecars.
func probed(pod *corev1.Pod) func(func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			if !translate.IsSidecar(c) {
				continue
			}
			if !yield(c) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
	}
}

func hasProbes(pod *corev1.Pod) bool {
	for c := range probed(pod) {
		if translate.ProbeSpecs(c).Any() {
			return true
		}
	}
	return false
}

// Track sets which containers of the pod are running, by name, and the pod's address. Probes of new runs begin; those
// of runs that have ended stop. stopping means that the pod is being terminated: from then on no liveness failure is
// reported.
func (p *Prober) Track(of *corev1.Pod, ip string, running map[string]Container, stopping bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.pods[of.UID]
	if t == nil {
		if !hasProbes(of) {
			return
		}
		t = &pod{runs: map[string]*run{}}
		p.pods[of.UID] = t
	}
	t.pod = of
	t.ip = ip
	t.stopping = stopping
	for name, r := range t.runs {
		if c, ok := running[name]; !ok || c.ID != r.id {
			p.end(r)
			delete(t.runs, name)
		}
	}
	for c := range probed(of) {
		now, ok := running[c.Name]
		specs := translate.ProbeSpecs(c)
		if !ok || !specs.Any() {
			continue
		}
		r := t.runs[c.Name]
		if r == nil {
			r = p.begin(t, c, specs, now)
			t.runs[c.Name] = r
		}
		r.container = c
		if stopping {
			r.core.Stop()
		}
		p.step(r)
	}
}

// begin starts the probes of a run.
func (p *Prober) begin(t *pod, c *corev1.Container, specs probe.Specs, now Container) *run {
	r := &run{pod: t, container: c, id: now.ID}
	r.ctx, r.cancel = context.WithCancel(p.ctx)
	at := p.clock.Now()
	r.core = probe.NewRun(specs, at, began(at, time.Now(), now.StartedAt), p.adopted(t.pod, c.Name, now))
	return r
}

// began returns the Instant at which a container started, at least 1. now and wall are the same moment. The container
// runtime gives the start by the wall clock, so its age is reckoned by that too, as in the kubelet: the wall clock may
// have been set since the agent started. A start that is in the future now counts as now.
func began(now unit.Instant, wall, started time.Time) unit.Instant {
	return max(now.Add(-max(wall.Round(0).Sub(started), 0)), 1)
}

// adopted returns what an earlier agent reported of a run; nil if this agent started the run or nothing was reported.
func (p *Prober) adopted(of *corev1.Pod, name string, now Container) *probe.Adopted {
	if now.StartedAt.IsZero() || !now.StartedAt.Before(p.born) {
		return nil
	}
	for _, list := range [][]corev1.ContainerStatus{of.Status.InitContainerStatuses, of.Status.ContainerStatuses} {
		for i := range list {
			if s := &list[i]; s.Name == name && strings.HasSuffix(s.ContainerID, "://"+now.ID) {
				return &probe.Adopted{Started: s.Started != nil && *s.Started, Ready: s.Ready, Phase: rand.Float64()}
			}
		}
	}
	return nil
}

func (p *Prober) end(r *run) {
	r.gone = true
	r.cancel()
	p.queue.Remove(r)
}

// Untrack ends all probes of a pod.
func (p *Prober) Untrack(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.pods[uid]
	if t == nil {
		return
	}
	for _, r := range t.runs {
		p.end(r)
	}
	delete(p.pods, uid)
	if of := t.pod; of != nil {
		p.took.DeletePartialMatch(prometheus.Labels{"pod": of.Name, "namespace": of.Namespace})
	}
	p.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
}

// Results returns the verdicts on the pod's containers that have probes, by name; nil if none has probes or the pod was
// never tracked.
func (p *Prober) Results(uid types.UID) map[string]podlife.Probes {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.pods[uid]
	if t == nil {
		return nil
	}
	out := map[string]podlife.Probes{}
	for c := range probed(t.pod) {
		if r := t.runs[c.Name]; r != nil {
			v := r.core.Verdict()
			result := podlife.Probes{Starting: v.Starting, Unready: v.Unready, Dead: v.Dead}
			if v.Dead {
				result.Message = fmt.Sprintf("Container %s failed %s probe", c.Name, strings.ToLower(v.By.String()))
				result.Grace = translate.ProbeGrace(c, v.By)
			}
			out[c.Name] = result
		} else if specs := translate.ProbeSpecs(c); specs.Any() {
			out[c.Name] = podlife.Probes{Starting: specs[probe.Startup] != nil, Unready: specs[probe.Readiness] != nil}
		}
	}
	return out
}
