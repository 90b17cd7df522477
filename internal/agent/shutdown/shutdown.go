// Package shutdown ends the node's pods in order before its machine shuts down.
//
// # Model
//
//	logind: PrepareForShutdown(true) ──► node not ready, new pods rejected ──► core/shutdown, asked again and again
//	                                                                               │ ends pods, period by period
//	machine shuts down ◄── inhibitor lock closed ◄── all have ended, or the budget is over
//	logind: PrepareForShutdown(false) ──► no other pod is ended, lock taken again, node ready
//
// A Guard has an inhibitor lock of logind while the agent runs. It makes logind wait as long as the budget.
//
// # Invariants
//
//   - The lock is closed when core/shutdown is done, whatever else fails.
//   - New pods are rejected before the pods that are here are listed, so none is forgotten.
//   - A lost bus, or a logind that starts again, ends no pod and closes no lock that is needed: a shutdown that has
//     begun goes on, and the lock is taken again when logind answers.
//   - An agent that starts while the machine shuts down begins with what is left.
//
// # What it does not do
//
// It does not shut the machine down, and learns of a shutdown only from logind: `systemctl reboot --force` and a lost
// power supply end pods as a crash does. Pods that were ended by a shutdown that was cancelled stay ended.
package shutdown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/shutdown"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/logind"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// The kubelet's words. Users' alerts match on them.
const (
	reasonEnded   = "Terminated"
	messageEnded  = "Pod was terminated in response to imminent node shutdown."
	reasonEvent   = "NodeShutdown"
	eventBegins   = "Shutdown manager detected shutdown event"
	eventCancels  = "Shutdown manager detected shutdown cancellation"
	ReasonReject  = "NodeShutdown"
	MessageReject = "Pod was rejected as the node is shutting down."
)

const (
	// lookEvery is how often the pods are looked at during a shutdown. Chosen: it is what a period takes longer.
	lookEvery = 100 * time.Millisecond
	// connectEvery is how often a lost logind is asked for again (the kubelet's), and retryEvery after a refusal.
	// Chosen: a refusal lasts until somebody changes the machine's configuration.
	connectEvery = time.Second
	retryEvery   = time.Minute
	// raiseTries bounds how often logind is asked whether it has taken another InhibitDelayMaxSec, raiseFirst is the
	// first pause, which doubles (the kubelet's: 3.1 s in all).
	raiseTries = 5
	raiseFirst = 100 * time.Millisecond
)

// Pods are the pods of the node; *pods.Runner is.
type Pods interface {
	Standing() []podentry.Present
	Terminate(uid types.UID, v pods.Eviction)
	EndOf(uid types.UID) shutdown.Stage
}

// Options are what a Guard needs. All fields are required unless they say otherwise.
type Options struct {
	Periods   []shutdown.Period // some
	Pods      Pods
	Changed   func() // the node's status is to be reported anew
	Recorder  record.EventRecorder
	Node      *corev1.ObjectReference
	StateFile string // when the last shutdown began and ended, for the metrics
	Bus       string // address of the bus; empty: the system bus
	DropIns   string // of logind's configuration; empty: logind.DropIns
}

// Guard delays shutdowns of the machine.
type Guard struct {
	o        Options
	clock    *clock.Clock
	failures failurelog.Log
	begun    prometheus.Gauge
	ended    prometheus.Gauge

	// Of Run's goroutine.

	lock    *os.File // nil: there is none
	current *shutdown.Shutdown
	pods    []*corev1.Pod // of current
	began   time.Time     // current

	mu   sync.Mutex
	down bool // the machine is about to shut down
}

// New prepares a Guard. Run connects.
func New(o Options) *Guard {
	if o.DropIns == "" {
		o.DropIns = logind.DropIns
	}
	return &Guard{
		o:     o,
		clock: clock.New(),
		begun: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_start_time_seconds",
			Help: "When the last graceful shutdown began, in seconds since 1970; 0: there was none",
		}),
		ended: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_end_time_seconds",
			Help: "When the last graceful shutdown ended, in seconds since 1970; 0: there was none, or it has not ended",
		}),
	}
}

// Register registers the measurements.
func (g *Guard) Register(r prometheus.Registerer) { r.MustRegister(g.begun, g.ended) }

// ShuttingDown reports whether the machine is about to shut down. Any goroutine may call it.
func (g *Guard) ShuttingDown() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.down
}

func (g *Guard) setDown(down bool) {
	g.mu.Lock()
	g.down = down
	g.mu.Unlock()
	g.o.Changed()
}

// Run delays shutdowns until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	g.showLast()
	defer g.unlock()
	for ctx.Err() == nil {
		err := g.attend(ctx)
		pause := connectEvery
		if err != nil && ctx.Err() == nil {
			g.failures.Failed("delay shutdowns of the machine", err,
				"help", "pods are killed when the machine shuts down; without systemd-logind set shutdownGracePeriod to 0s")
			pause = retryEvery
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// attend takes the lock and carries out shutdowns until the connection is lost, which is no error, or ctx ends.
func (g *Guard) attend(ctx context.Context) error {
	conn, err := logind.Dial(ctx, g.o.Bus, g.o.DropIns)
	if err != nil {
		return err
	}
	defer conn.Close()
	changes, err := conn.Watch(ctx) // before the question: no change is missed in between
	if err != nil {
		return err
	}
	preparing, err := conn.Preparing(ctx)
	if err != nil {
		return err
	}
	if !preparing {
		if err := g.raiseDelay(ctx, conn); err != nil {
			return err
		}
		if err := g.take(ctx, conn); err != nil {
			return err
		}
	}
	g.failures.Succeeded("delay shutdowns of the machine")
	if preparing != g.ShuttingDown() {
		if err := g.change(ctx, conn, preparing); err != nil {
			return err
		}
	}
	for {
		var look <-chan time.Time
		if g.current != nil {
			look = time.After(g.step())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look:
		case down, ok := <-changes:
			if !ok {
				return g.finish(ctx)
			}
			if err := g.change(ctx, conn, down); err != nil {
				return err
			}
		}
	}
}

// finish carries on a shutdown without a connection.
func (g *Guard) finish(ctx context.Context) error {
	for g.current != nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(g.step()):
		}
	}
	return nil
}

// raiseDelay has logind wait as long as the budget.
func (g *Guard) raiseDelay(ctx context.Context, conn *logind.Conn) error {
	want := shutdown.Total(g.o.Periods)
	has, err := conn.DelayMax(ctx)
	if err != nil || has >= want {
		return err
	}
	if err := conn.SetDelayMax(ctx, want); err != nil {
		return fmt.Errorf("logind waits %v at most, shutdownGracePeriod is %v: %w; set InhibitDelayMaxSec=%.0f in a file "+
			"in %s", has, want, err, want.Seconds(), g.o.DropIns)
	}
	pause := raiseFirst
	for range raiseTries {
		if has, err = conn.DelayMax(ctx); err != nil || has >= want {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause *= 2
	}
	return fmt.Errorf("logind waits %v at most, shutdownGracePeriod is %v, and its configuration does not change that: "+
		"look for InhibitDelayMaxSec in logind.conf and its drop-ins after 99-kubelet.conf (systemd-analyze cat-config "+
		"systemd/logind.conf)", has, want)
}

// take takes a lock, and closes the one before.
func (g *Guard) take(ctx context.Context, conn *logind.Conn) error {
	lock, err := conn.Inhibit(ctx, "plimsoll agent", "pods of the node end in order (shutdownGracePeriod)")
	if err != nil {
		return err
	}
	g.unlock()
	g.lock = lock
	return nil
}

func (g *Guard) unlock() {
	if g.lock != nil {
		_ = g.lock.Close()
		g.lock = nil
	}
}

// change begins a shutdown, or ends one that was cancelled. An error says that there is no lock for the next one.
func (g *Guard) change(ctx context.Context, conn *logind.Conn, down bool) error {
	if down == g.ShuttingDown() {
		return nil
	}
	g.setDown(down)
	if !down {
		g.o.Recorder.Event(g.o.Node, corev1.EventTypeNormal, reasonEvent, eventCancels)
		slog.Info("the shutdown of the machine was cancelled", "running", g.current != nil)
		g.current = nil
		g.pods = nil
		if err := g.take(ctx, conn); err != nil && g.lock == nil {
			return err
		}
		return nil // also with the lock of the shutdown that was cancelled, which holds the next one up, too
	}
	g.o.Recorder.Event(g.o.Node, corev1.EventTypeNormal, reasonEvent, eventBegins)
	g.began = time.Now()
	g.record(g.began, time.Time{})
	g.pods = nil
	var all []shutdown.Pod
	for _, p := range g.o.Pods.Standing() {
		all = append(all, translate.ShutdownPod(p.Pod))
		g.pods = append(g.pods, p.Pod)
	}
	slog.Info("the machine is about to shut down", "pods", len(all), "budget", shutdown.Total(g.o.Periods))
	g.current = shutdown.Begin(g.clock.Now(), g.o.Periods, all)
	return nil
}

// step asks what is next, does it, and returns when to ask again.
func (g *Guard) step() time.Duration {
	stages := map[string]shutdown.Stage{}
	for _, pod := range g.pods {
		stages[string(pod.UID)] = g.o.Pods.EndOf(pod.UID)
	}
	now := g.clock.Now()
	d := g.current.Step(now, stages)
	for _, n := range d.Notes {
		slog.Info("shutdown of the node: "+string(n.What), "priority", n.Priority, "pods", n.Pods, "budget", n.Budget)
	}
	for _, stop := range d.Stops {
		g.o.Pods.Terminate(types.UID(stop.ID), pods.Eviction{
			Reason:   reasonEnded,
			Message:  messageEnded,
			KillAt:   time.Now().Add(stop.Grace),
			Disrupts: true,
		})
	}
	if d.Done {
		g.record(g.began, time.Now())
		g.current = nil
		g.unlock()
		slog.Info("the machine may shut down")
		return 0
	}
	return min(d.Wake.Sub(now), lookEvery)
}

// A last is the last shutdown as the kubelet keeps it in its directory (graceful_node_shutdown_state).
type last struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
}

// showLast shows the last shutdown in the metrics.
func (g *Guard) showLast() {
	var l last
	text, err := os.ReadFile(g.o.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		slog.Warn("the last shutdown of the node is not known", "file", g.o.StateFile, "err", err)
		return
	}
	g.show(l)
}

func (g *Guard) show(l last) {
	seconds := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return float64(t.Unix())
	}
	g.begun.Set(seconds(l.StartTime))
	g.ended.Set(seconds(l.EndTime))
}

// record notes a shutdown for the metrics, also of the next agent.
func (g *Guard) record(began, ended time.Time) {
	l := last{StartTime: began, EndTime: ended}
	g.show(l)
	text, err := json.Marshal(l)
	if err == nil {
		err = durable.Write(g.o.StateFile, text)
	}
	if err != nil {
		slog.Warn("the shutdown of the node is not recorded", "err", err)
	}
}
