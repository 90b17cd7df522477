package probe

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// queue is the queue of runs by the time of their next step, earliest first.
type queue struct{ heap.Heap[*run] }

func newQueue() queue {
	return queue{heap.New(func(a, b *run) int { return cmp.Compare(a.wake, b.wake) },
		func(r *run) *int { return &r.place })}
}

// set puts r into the queue at wake; zero takes it out.
func (w *queue) set(r *run, wake unit.Instant) {
	if wake.IsZero() {
		w.Remove(r)
		return
	}
	r.wake = wake
	w.Set(r)
}

// step applies answers to a run, begins the probes that are due, and updates the run's place in the queue. It returns
// whether the verdict changed. The caller holds p.mu.
func (p *Prober) step(r *run, answers ...probe.Answer) (changed bool) {
	d := r.core.Step(p.clock.Now(), answers...)
	for _, b := range d.Begin {
		q := question{run: r, begin: b, pod: r.pod.pod, container: r.container, id: r.id, ip: r.pod.ip,
			timeout: r.core.Timeout(b.Kind)}
		go p.ask(r.ctx, q)
	}
	p.queue.set(r, d.Wake)
	p.arm()
	return d.Changed
}

// arm sets the timer to the head of the queue. The caller holds p.mu.
func (p *Prober) arm() {
	if p.queue.Len() == 0 || p.ctx.Err() != nil {
		return // a timer that expires now finds no run due
	}
	wait := max(p.queue.First().wake.Sub(p.clock.Now()), 0)
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, p.stepDue)
		return
	}
	p.timer.Reset(wait)
}

// stepDue steps every run that is due.
func (p *Prober) stepDue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	for now := p.clock.Now(); p.queue.Len() > 0 && p.queue.First().wake <= now; {
		p.step(p.queue.First()) // without answers the verdict cannot change
	}
	p.arm()
}

// question is one probe in progress, with the pod's fields as they were when it began.
type question struct {
	run       *run
	begin     probe.Begin
	pod       *corev1.Pod
	container *corev1.Container
	id, ip    string
	timeout   time.Duration
}

// spec returns the probe's specification.
func (q *question) spec() *corev1.Probe {
	switch q.begin.Kind {
	case probe.Startup:
		return q.container.StartupProbe
	case probe.Readiness:
		return q.container.ReadinessProbe
	}
	return q.container.LivenessProbe
}

// answer is the result of a probe. err means that nothing is known about the container.
type answer struct {
	outcome probe.Outcome
	output  string // of a failure or a warning, for the Event
	warning bool   // a success that is worth an Event
	err     error
}

// triesMax is how often a probe without an answer is tried before its outcome is Unknown (kubelet: 3).
const triesMax = 3

// ask runs one probe and applies its answer.
func (p *Prober) ask(ctx context.Context, q question) {
	var a answer
	begun := time.Now()
	for range triesMax {
		if a = p.try(ctx, &q); a.err == nil || ctx.Err() != nil {
			break
		}
	}
	if a.err != nil {
		a.outcome = probe.Unknown
	}
	if ctx.Err() == nil {
		p.took.WithLabelValues(q.begin.Kind.String(), q.container.Name, q.pod.Name,
			q.pod.Namespace).Observe(time.Since(begun).Seconds())
		p.record(&q, a)
	}
	p.mu.Lock()
	changed := !q.run.gone && p.step(q.run, probe.Answer{Kind: q.begin.Kind, Outcome: a.outcome})
	p.mu.Unlock()
	if changed {
		p.turned(&q, a)
		p.Changed(q.pod.UID)
	}
}

// turned tells Options.Turned that an answer changed the verdict.
func (p *Prober) turned(q *question, a answer) {
	if p.Turned == nil {
		return
	}
	spec := q.spec()
	t := Turn{
		Pod:       q.pod,
		Container: q.container.Name,
		Probe:     q.begin.Kind.String(),
		Failed:    a.outcome == probe.Failure,
		Times:     int(max(spec.SuccessThreshold, 1)),
	}
	if t.Failed {
		t.Times = int(cmp.Or(spec.FailureThreshold, probe.FailuresDefault))
		t.Output = strings.ToValidUTF8(a.output, "\uFFFD")
	}
	p.Turned(t)
}

// record counts a probe and records its Event, in the kubelet's words.
func (p *Prober) record(q *question, a answer) {
	kind := q.begin.Kind.String()
	result := "successful"
	switch {
	case a.err != nil:
		p.event(q, "Unhealthy", kind+" probe errored and resulted in unknown state: "+a.err.Error())
		return // the kubelet does not count this result
	case a.outcome == probe.Failure:
		result = "failed"
		if !q.begin.Early {
			p.event(q, "Unhealthy", kind+" probe failed: "+a.output)
		}
	case a.warning:
		p.event(q, "ProbeWarning", kind+" probe warning: "+a.output)
	}
	p.total.WithLabelValues(kind, result, q.container.Name, q.pod.Name, q.pod.Namespace, string(q.pod.UID)).Inc()
}

func (p *Prober) event(q *question, reason, message string) {
	ref := translate.ContainerReference(q.pod, q.container.Name)
	p.Recorder.Event(ref, corev1.EventTypeWarning, reason, strings.ToValidUTF8(message, "\uFFFD"))
}

// try runs the probe once.
func (p *Prober) try(ctx context.Context, q *question) answer {
	spec := q.spec()
	switch {
	case spec.Exec != nil:
		command, err := staticCommand(spec.Exec.Command, q.container.Env)
		if err != nil {
			return answer{err: err}
		}
		return askExec(ctx, p.Runtime, q.id, command, q.timeout)
	case spec.HTTPGet != nil:
		return askHTTP(ctx, spec.HTTPGet, q.container, q.ip, q.timeout)
	case spec.TCPSocket != nil:
		return askTCP(ctx, spec.TCPSocket, q.container, q.ip, q.timeout)
	case spec.GRPC != nil:
		return askGRPC(ctx, spec.GRPC, q.ip, q.timeout)
	}
	return answer{err: errors.New("missing probe handler for " + q.pod.Namespace + "/" + q.pod.Name + ":" +
		q.container.Name)}
}
