// Package pluginregistry registers the plugins that have sockets in the directory plugins_registry, and passes each to
// the part of the agent that uses plugins of its kind.
//
// # Model
//
// A Registry is the shell of a registration.Registry, which alone decides. Each action runs in its own goroutine, is
// bounded in time, and returns its outcome to the loop. Handlers have a plugin's services from Register to Unregister.
//
// # Invariants
//
//   - A plugin that hangs in any call delays no other one.
//   - A Handler is called for one plugin of a name at a time, and Unregister follows the Register that succeeded.
//   - A failure is logged when it begins, once a minute, and when it ends; the plugin is told why.
//   - A file that is no socket is logged once, and left alone.
//
// When the agent stops, plugins stay as they are: they are not told, and a next agent registers them again.
package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	hostregistry "github.com/plimsoll-dev/plimsoll/internal/host/pluginregistry"
)

// Timeouts of a plugin's calls.
const (
	// askMax bounds a connection to a plugin together with its answer (kubelet: 10 s and 1 s).
	askMax = 10 * time.Second
	// tellMax bounds the call that tells a plugin the result of its registration. It is the kubelet's.
	tellMax = 5 * time.Second
	// registerMax bounds Handler.Register (kubelet: csiTimeout, 2 min, in addition to writes to the API).
	registerMax = 3 * time.Minute
)

// watchAgain is how long after an error the directory is watched again (chosen).
const watchAgain = 5 * time.Second

// Handler uses plugins of one kind.
type Handler interface {
	// Register makes a plugin usable. The plugin is told the error.
	Register(context.Context, registration.Plugin) error
	// Unregister must return soon.
	Unregister(registration.Plugin)
}

// Options are what a Registry needs.
type Options struct {
	Dir      string // plugins_registry, an absolute path
	Handlers map[registration.Kind]Handler
}

// Registry registers plugins. It is a prometheus.Collector of the kubelet's metric.
type Registry struct {
	o        Options
	clock    *clock.Clock
	events   chan func(now unit.Instant) // what happened; runs in Run's loop with mu held
	failures failurelog.Log
	running  sync.WaitGroup

	mu    sync.Mutex // guards state
	state *registration.Registry
}

// New prepares a Registry; Run starts it.
func New(o Options) *Registry {
	return &Registry{o: o, clock: clock.New(), state: registration.New(), events: make(chan func(unit.Instant))}
}

// Run registers plugins until ctx ends.
func (k *Registry) Run(ctx context.Context) error {
	k.running.Go(func() { k.watch(ctx) })
	defer k.running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		now := k.clock.Now()
		d := k.state.Step(now)
		k.mu.Unlock()
		k.act(ctx, d)
		timer.Stop()
		if !d.Wake.IsZero() {
			timer.Reset(max(d.Wake.Sub(now), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case event := <-k.events:
			k.mu.Lock()
			event(k.clock.Now())
			k.mu.Unlock()
		}
	}
}

// watch reports the sockets, and watches again after an error.
func (k *Registry) watch(ctx context.Context) {
	var reported []string
	for ctx.Err() == nil {
		err := hostregistry.Watch(ctx, k.o.Dir, func(sockets []registration.Socket, others []string) {
			k.failures.Succeeded("watch for plugins")
			reported = report(others, reported)
			k.happened(ctx, func(now unit.Instant) { k.state.Listed(now, sockets) })
		})
		if ctx.Err() != nil {
			return
		}
		k.failures.Failed("watch for plugins", err, "again in", watchAgain)
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// report logs the files that are no sockets, except those that were reported before. It returns the files to pass to
// the next call.
func report(files, before []string) []string {
	for _, path := range files {
		if !slices.Contains(before, path) {
			slog.Warn("file in the directory of plugins is ignored: it is not a socket, want the socket by which a plugin "+
				"registers: remove the file if it was put there by mistake", "path", path)
		}
	}
	return files
}

// happened runs event in the loop.
func (k *Registry) happened(ctx context.Context, event func(now unit.Instant)) {
	select {
	case k.events <- event:
	case <-ctx.Done():
	}
}

// act starts the actions of a decision.
func (k *Registry) act(ctx context.Context, d registration.Decision) {
	for _, p := range d.Unregister {
		slog.Info("plugin unregistered", "kind", p.Kind, "name", p.Name, "socket", p.Socket.Path)
		k.o.Handlers[p.Kind].Unregister(p)
	}
	for _, s := range d.Ask {
		k.running.Go(func() { k.ask(ctx, s) })
	}
	for _, p := range d.Register {
		k.running.Go(func() { k.register(ctx, p) })
	}
	for _, t := range d.Tell {
		k.running.Go(func() { k.tell(ctx, t) })
	}
}

// about names what is done with the plugin at a socket, for the log.
func about(s registration.Socket) string { return "register plugin at " + s.Path }

func (k *Registry) ask(ctx context.Context, s registration.Socket) {
	bounded, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	answer, err := hostregistry.Ask(bounded, s.Path)
	if err != nil && ctx.Err() == nil {
		k.failures.Failed(about(s), err)
	}
	k.happened(ctx, func(now unit.Instant) { k.state.Asked(now, s, answer, err) })
}

func (k *Registry) register(ctx context.Context, p registration.Plugin) {
	bounded, cancel := context.WithTimeout(ctx, registerMax)
	defer cancel()
	err := errors.New("this agent has no use for plugins of kind " + string(p.Kind))
	if h := k.o.Handlers[p.Kind]; h != nil {
		if err = h.Register(bounded, p); err != nil {
			err = fmt.Errorf("%s %s at %s: %w", p.Kind, p.Name, p.Endpoint, err)
		}
	}
	k.happened(ctx, func(now unit.Instant) { k.state.Registered(now, p.Socket, err) })
}

func (k *Registry) tell(ctx context.Context, t registration.Tell) {
	bounded, cancel := context.WithTimeout(ctx, tellMax)
	defer cancel()
	err := hostregistry.Tell(bounded, t.Socket.Path, t.OK, t.Why)
	switch {
	case ctx.Err() != nil:
		return
	case !t.OK:
		k.failures.Failed(about(t.Socket), errors.Join(errors.New(t.Why), err))
	case err != nil:
		k.failures.Failed(about(t.Socket), err)
	default:
		k.failures.Succeeded(about(t.Socket))
		slog.Info("plugin registered", "socket", t.Socket.Path)
	}
	k.happened(ctx, func(now unit.Instant) { k.state.Told(now, t.Socket, err) })
}

var totalPlugins = prometheus.NewDesc("plugin_manager_total_plugins",
	"Plugins with a socket in plugins_registry: those that are there (desired_state_of_world), "+
		"and those that are registered (actual_state_of_world)",
	[]string{"socket_path", "state"}, nil)

// Describe implements prometheus.Collector.
func (k *Registry) Describe(out chan<- *prometheus.Desc) { out <- totalPlugins }

// Collect implements prometheus.Collector.
func (k *Registry) Collect(out chan<- prometheus.Metric) {
	k.mu.Lock()
	there, registered := k.state.Paths(), k.state.List()
	k.mu.Unlock()
	for _, path := range there {
		out <- prometheus.MustNewConstMetric(totalPlugins, prometheus.GaugeValue, 1, path, "desired_state_of_world")
	}
	for _, p := range registered {
		out <- prometheus.MustNewConstMetric(totalPlugins, prometheus.GaugeValue, 1, p.Socket.Path, "actual_state_of_world")
	}
}
