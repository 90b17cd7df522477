// Package probe asks containers how they are: by HTTP, TCP, gRPC or a command run in them.
//
// Model. core/probe decides when to ask what and what the answers mean; this package keeps one core Run for each running
// container that has probes, all of them in one queue ordered by when they want to be stepped next, with one timer for
// the queue's head. A probe under way has a goroutine; a container between probes has none, and a container without
// probes costs nothing at all. Changes of a verdict are told by UID, and the pod's worker then reads Results.
//
// A container that runs and has probes, but of which Track has not been told yet, counts as starting and unready, so
// that nobody ever sees a pod ready that was not found so.
//
// The texts of events are upstream's. Bodies of HTTP failures are not repeated in them: they may hold secrets.
//
// It stops and restarts nothing: that is core/podlife. Hooks are package hook.
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

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Runtime runs a command in a container; *cri.Client does.
type Runtime interface {
	ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest, opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
}

// Options are what a Prober needs; all are required but the registry.
type Options struct {
	Runtime  Runtime
	Recorder record.EventRecorder
	Changed  func(types.UID)      // a verdict of this pod changed; called from any goroutine, never from within Track
	Registry *prometheus.Registry // of /metrics/probes; nil: not counted
}

// Container is one run of a container.
type Container struct {
	ID        string
	StartedAt time.Time
}

// Prober follows the probes of the containers that run on this node. It is safe for concurrent use.
type Prober struct {
	Options
	ctx    context.Context
	born   time.Time // containers older than this were started by an earlier agent
	origin time.Time // of the Instants given to the core
	total  *prometheus.CounterVec

	mu    sync.Mutex
	pods  map[types.UID]*pod
	wheel wheel
	timer *time.Timer
}

// pod is a tracked pod that has probes.
type pod struct {
	pod      *corev1.Pod
	ip       string
	stopping bool
	runs     map[string]*run // by container name
}

// run is one run of a container with probes. Guarded by Prober.mu.
type run struct {
	pod       *pod
	container *corev1.Container
	id        string
	core      *probe.Run
	ctx       context.Context
	cancel    context.CancelFunc
	wake      unit.Instant
	place     int // in the wheel
	gone      bool
}

// New returns a Prober that probes until ctx ends.
func New(ctx context.Context, o Options) *Prober {
	now := time.Now()
	p := &Prober{Options: o, ctx: ctx, born: now, origin: now.Add(-epoch), pods: map[types.UID]*pod{}, wheel: newWheel()}
	p.total = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total",
		Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	if o.Registry != nil {
		o.Registry.MustRegister(p.total)
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

// epoch lies before the start of any container, so that Instants of containers that are older than the agent are
// positive. Chosen.
const epoch = 20 * 365 * 24 * time.Hour

func (p *Prober) now() unit.Instant { return p.instant(time.Now()) }

func (p *Prober) instant(t time.Time) unit.Instant { return max(unit.Instant(t.Sub(p.origin)), 1) }

// probed yields the containers of pod that may have probes: mains and sidecars.
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

// Track tells which containers of the pod run now, by name, and at which address. Probes of new runs begin, those of
// runs that are not there any more end. stopping says that the pod is being stopped on purpose: nothing in it is found
// dead from then on.
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
	t.pod, t.ip, t.stopping = of, ip, stopping
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

// begin starts to follow a run.
func (p *Prober) begin(t *pod, c *corev1.Container, specs probe.Specs, now Container) *run {
	r := &run{pod: t, container: c, id: now.ID}
	r.ctx, r.cancel = context.WithCancel(p.ctx)
	r.core = probe.NewRun(specs, p.now(), p.instant(now.StartedAt), p.adopted(t.pod, c.Name, now))
	return r
}

// adopted returns what an earlier agent reported of a run, nil if this run is our own or nothing was reported.
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
	p.wheel.Remove(r)
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
	p.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
}

// Results returns what is known of the pod's containers that have probes, by name; nil if none has any or the pod was
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
