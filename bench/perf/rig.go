package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/bench/bare"
	"github.com/plimsoll-dev/plimsoll/bench/events"
	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// rig is the control plane of one measurement.
type rig struct {
	config
	plane     *plane.Plane
	ups       map[string]int // PIDs of the processes of the control plane, by name
	writer    *writer
	pods      *pods
	stopWatch context.CancelFunc // ends our watch
	started   bool
}

func newRig(c config) *rig {
	return &rig{config: c, stopWatch: func() {}, plane: &plane.Plane{
		Plimsoll: c.plimsoll, Instance: "bench-perf", Dir: c.dir, Port: c.port,
		Flags: []string{"--no-scheduler", "--no-lifecycle", "--no-controller-manager", "--gc-percent",
			strconv.Itoa(c.gcPercent)},
	}}
}

// renew replaces the control plane, if there is one, by a new one.
func (r *rig) renew(ctx context.Context) (err error) {
	r.stopWatch()
	if r.started {
		if err := r.plane.Purge(ctx); err != nil {
			return err
		}
	}
	r.started = true
	if err := r.plane.Up(ctx); err != nil {
		return err
	}
	if r.ups, err = r.plane.Children(ctx); err != nil {
		return err
	}
	config, err := r.plane.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	r.writer, r.pods = &writer{client: client, dynamic: objects, classes: map[int32]bool{}}, newPods()
	listening, stopWatch := context.WithCancel(ctx)
	r.stopWatch = stopWatch
	return r.pods.follow(listening, config)
}

// start starts one side's program.
func (r *rig) start(side, log string) (*plane.Process, error) {
	switch side {
	case ours:
		if r.profiles != "" {
			return r.plane.Scheduler(log, "--secure-port="+strconv.Itoa(r.profilePort()))
		}
		return r.plane.Scheduler(log)
	case bareLoop:
		return bare.Start(log, bare.Options{Kubeconfig: r.plane.Kubeconfig(), Workers: bare.Workers, Follow: true})
	}
	return r.plane.KubeScheduler(log, r.upstream, false, r.upstreamArgs...)
}

// measure runs a workload with one side.
func (r *rig) measure(ctx context.Context, m *record.Measurement, w *workload) (err error) {
	began := time.Now()
	if err := r.renew(ctx); err != nil {
		return err
	}
	before, err := record.Use(r.ups, 0)
	if err != nil {
		return err
	}
	process, err := r.start(m.Side, filepath.Join(r.dir, fmt.Sprintf("%d-%.8s.log", len(m.Values), m.Side)))
	if err != nil {
		return err
	}
	stopped := false
	stop := func() error { // stops once only, because the log is read after it
		if stopped {
			return nil
		}
		stopped = true
		return process.Stop()
	}
	defer func() { err = errors.Join(err, stop()) }()
	profiles, err := r.profile(ctx, m.Side, w.title())
	if err != nil {
		return err
	}
	played := &player{
		workload: w, writer: r.writer, pods: r.pods, scale: r.scale, limit: r.limit, check: process.Check,
		use: func() (record.Usage, error) { return record.Use(r.ups, process.PID()) },
	}
	span, err := played.play(ctx)
	if err != nil {
		return errors.Join(err, process.Check())
	}
	rate, err := span.rate()
	if err != nil {
		return err
	}
	bound := time.Now()
	if err := profiles.stop(ctx); err != nil {
		return err
	}
	drained, err := events.Wait(ctx, r.writer.client, process.PID())
	if err != nil {
		return err
	}
	after, err := record.Use(r.ups, process.PID())
	if err != nil {
		return err
	}
	peak, err := record.StatusMiB(process.PID(), "VmHWM")
	if err != nil {
		return err
	}
	result{
		span:    span,
		rate:    rate,
		spent:   played.spent,
		bound:   bound,
		drained: drained,
		used:    after.Less(before),
		wall:    time.Since(began).Seconds(),
		peak:    peak,
		pods:    r.pods.boundInAll(),
	}.put(m, w.title())
	if err := stop(); err != nil || m.Side == bareLoop || r.keep {
		return err
	}
	return os.Remove(process.Log())
}

// result is what was read of one side with one workload.
type result struct {
	span    measure        // of the pods that the workload measures
	rate    float64        // of these pods, binds per second
	spent   serving        // while they were bound
	bound   time.Time      // when the workload's operations had ended
	drained events.Drained // when all Events were written
	used    record.Usage   // from before the start of the scheduler until its Events were written
	wall    float64        // how long that took, in seconds
	peak    float64        // highest resident memory of the scheduler, in MiB
	pods    int            // pods that were bound, those that are not measured too
}

// put stores the values of a result, and prints the most important ones.
func (r result) put(m *record.Measurement, title string) {
	each := 1000 / float64(r.pods)
	for name, value := range map[string]float64{
		"rate":      r.rate,
		"writes":    r.spent.rate(),
		"each":      r.spent.writes / float64(r.span.bound),
		"idle":      r.spent.cores(r.spent.used.Idle),
		"serving":   r.spent.cores(r.spent.used.Control),
		"deciding":  r.spent.cores(r.spent.used.Side),
		"making":    r.spent.cores(r.spent.used.Harness),
		"strangers": r.spent.cores(r.spent.used.Others()),
		"cpu":       r.drained.CPU * each,
		"control":   r.used.Control * each,
		"peak":      r.peak,
		"events":    float64(r.drained.Events) / float64(r.pods),
		"drain":     max(0, r.drained.At.Sub(r.bound).Seconds()),
		"others":    r.used.Others() / r.wall,
		"stolen":    r.used.Stolen / r.wall,
		"span":      r.span.last.Sub(r.span.first).Seconds(),
	} {
		m.Put(name+"_"+title, value, r.pods)
	}
	stored := func(name string) float64 { return m.Values[name+"_"+title] }
	record.Progress("%s: %s: %.0f pods/s (%d measured); %.0f API writes/s, %.1f a pod; "+
		"cores meanwhile: control plane %.2f, scheduler %.2f, driver %.2f, others %.2f, idle %.2f; "+
		"CPU per pod %.3f ms (control plane %.2f ms), peak %.0f MiB, Events written after %.1f s; "+
		"cores: others %.2f, stolen %.2f; took %.0f s", m.Side, title, r.rate, r.span.bound,
		stored("writes"), stored("each"), stored("serving"), stored("deciding"), stored("making"), stored("strangers"),
		stored("idle"), stored("cpu"), stored("control"), r.peak, r.drained.At.Sub(r.bound).Seconds(),
		stored("others"), stored("stolen"), r.wall)
}
