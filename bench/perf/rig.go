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
	plane   *plane.Plane
	ups     map[string]int // PIDs of the processes of the control plane, by name
	writer  *writer
	pods    *pods
	deafen  context.CancelFunc // ends our watch
	started bool
}

func newRig(c config) *rig {
	return &rig{config: c, deafen: func() {}, plane: &plane.Plane{
		Plimsoll: c.plimsoll, Instance: "bench-perf", Dir: c.dir, Port: c.port,
		Flags: []string{"--no-scheduler", "--no-lifecycle", "--no-controller-manager", "--gc-percent", strconv.Itoa(c.gcPercent)},
	}}
}

// renew replaces the control plane, if there is one, by a new one.
func (r *rig) renew(ctx context.Context) (err error) {
	r.deafen()
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
	listening, deafen := context.WithCancel(ctx)
	r.deafen = deafen
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
	pods := r.pods.boundInAll()
	spent := played.spent
	used := after.Less(before)
	wall := time.Since(began).Seconds()
	each := 1000 / float64(pods)
	for name, value := range map[string]float64{
		"rate":      rate,
		"writes":    spent.rate(),
		"each":      spent.writes / float64(span.bound),
		"idle":      spent.cores(spent.used.Idle),
		"serving":   spent.cores(spent.used.Control),
		"deciding":  spent.cores(spent.used.Side),
		"making":    spent.cores(spent.used.Harness),
		"strangers": spent.cores(spent.used.Others()),
		"cpu":       drained.CPU * each,
		"control":   used.Control * each,
		"peak":      peak,
		"events":    float64(drained.Events) / float64(pods),
		"drain":     max(0, drained.At.Sub(bound).Seconds()),
		"others":    used.Others() / wall,
		"stolen":    used.Stolen / wall,
		"span":      span.last.Sub(span.first).Seconds(),
	} {
		m.Put(name+"_"+w.title(), value, pods)
	}
	record.Progress("%s: %s: %.0f pods/s (%d measured); %.0f API writes/s, %.1f a pod; "+
		"cores meanwhile: control plane %.2f, scheduler %.2f, driver %.2f, others %.2f, idle %.2f; "+
		"CPU per pod %.3f ms (control plane %.2f ms), peak %.0f MiB, Events drained after %.1f s; "+
		"cores: others %.2f, stolen %.2f; took %.0f s", m.Side, w.title(), rate, span.bound,
		m.Values["writes_"+w.title()], m.Values["each_"+w.title()], m.Values["serving_"+w.title()], m.Values["deciding_"+w.title()],
		m.Values["making_"+w.title()], m.Values["strangers_"+w.title()], m.Values["idle_"+w.title()],
		drained.CPU*each, used.Control*each, peak, drained.At.Sub(bound).Seconds(),
		used.Others()/wall, used.Stolen/wall, wall)
	if err := stop(); err != nil || m.Side == bareLoop || r.keep {
		return err
	}
	return os.Remove(process.Log())
}
