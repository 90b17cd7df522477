// Package shadow is the shell around core/shadow: it watches a cluster that others run, and says what our scheduler and
// our lifecycle controller would decide otherwise there.
//
// # Model
//
// One goroutine owns Placements and Nodes of core/shadow. Watches reach it as facts, in order, through one channel.
// After each batch of facts it lets both decide. Each Event becomes a Line, which is printed as it happens; all are
// counted. When the run ends, the Summary has counts, the rate of agreement, percentiles of the leads, and the first
// Findings of each kind.
//
// # Invariants
//
//   - Nothing is written. All requests go through a client that refuses every verb but get, list and watch
//     (kube.Client.ReadOnly), whatever the rights of its user are. deploy/rbac-shadow.yaml has a role that suffices,
//     and allows no more.
//   - Nothing is compared before all first lists have arrived.
//   - Nodes and pods must be readable. What else is not readable is named in the Summary, with what that means.
//   - Findings of a run are bounded in number; all are counted.
//
// # What it does not do
//
// It does not know extenders. It keeps no state: a run that begins again knows nothing of an earlier one.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	coreshadow "github.com/plimsoll-dev/plimsoll/internal/core/shadow"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// contactEvery is the interval of probes of the API server. Chosen as in package lifecycle: a little less than half of
// lifecycle.Options.ContactTimeout.
const contactEvery = 5 * time.Second

// factsMax is how many facts may wait. Chosen as in package scheduler: about one burst of a watch.
const factsMax = 1024

// findingsMax is how many Findings of each kind a Summary has. Chosen: as many as somebody reads.
const findingsMax = 20

// Options configure Run.
type Options struct {
	Client  *kube.Client // Run reads only, whatever this client may do
	Config  *schedulerconfig.Config
	Monitor corelifecycle.Options // how the lifecycle controller would be configured
	Settle  time.Duration         // see core/shadow.Options
	Line    func(Line)            // is called with each Line, from one goroutine
	Seed    uint64                // breaks ties between nodes
}

// Run watches until ctx ends, and returns what it found. An error means that nothing was compared.
func Run(ctx context.Context, o Options) (*Summary, error) {
	client, err := o.Client.ReadOnly()
	if err != nil {
		return nil, fmt.Errorf("shadow: %w", err)
	}
	now := clock.New()
	w := &watcher{
		o:      o,
		client: client,
		clock:  now,
		facts:  make(chan fact, factsMax),
		placements: coreshadow.NewPlacements(coreshadow.Options{
			Scheduler: corescheduler.Options{Seed: o.Seed, Profiles: o.Config.Profiles},
			Settle:    o.Settle,
		}),
		nodes:  coreshadow.NewNodes(now.Now(), o.Monitor),
		tally:  coreshadow.NewTally(),
		kept:   map[coreshadow.Kind]int{},
		others: map[string]int{},
	}
	return w.run(ctx)
}

// A fact changes what the goroutine of the watcher owns.
type fact func(now unit.Instant)

// watcher is the goroutine that owns Placements and Nodes, and what it shares with others.
type watcher struct {
	o      Options
	client *kube.Client
	clock  *clock.Clock
	facts  chan fact // all other goroutines use this channel to reach the fields below

	mu     sync.Mutex
	unseen []Unseen // what could not be read

	// Only the watcher's goroutine uses the fields from here on.
	placements *coreshadow.Placements
	nodes      *coreshadow.Nodes
	tally      *coreshadow.Tally
	synced     bool
	began      unit.Instant
	findings   []Line
	kept       map[coreshadow.Kind]int // of findings
	count      sizes
	others     map[string]int // pods that wait for schedulers that the configuration does not have
}

func (w *watcher) send(ctx context.Context, f fact) {
	select {
	case w.facts <- f:
	case <-ctx.Done():
	}
}

func (w *watcher) run(ctx context.Context) (*Summary, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	synced, err := w.watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("shadow: %w", err)
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			w.send(ctx, w.begin)
		}
	}()
	go w.probe(ctx)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case f := <-w.facts:
			f(w.clock.Now())
		case <-timer.C:
		case <-ctx.Done():
			if !w.synced {
				return nil, w.notBegun()
			}
			return w.summary(w.clock.Now()), nil
		}
		w.takeAll()
		if w.synced {
			if wake := w.advance(); !wake.IsZero() {
				timer.Reset(max(0, wake.Sub(w.clock.Now())))
			}
		}
	}
}

// takeAll takes every waiting fact, so that no node is judged while its renewal is in the queue. It ends after as many
// as may wait, so that decisions do not wait for ever.
func (w *watcher) takeAll() {
	for range factsMax {
		select {
		case f := <-w.facts:
			f(w.clock.Now())
		default:
			return
		}
	}
}

// begin begins to compare.
func (w *watcher) begin(now unit.Instant) {
	w.synced, w.began = true, now
	w.placements.Begin()
	waiting, _ := w.placements.Waiting()
	w.o.Line(Line{
		Time: w.clock.At(now),
		Kind: "Begin",
		Text: fmt.Sprintf("watching: %d nodes, %d pods, %d of them wait", w.count.nodes, w.count.pods(), waiting),
	})
}

func (w *watcher) advance() (wake unit.Instant) {
	now, wall := w.clock.Now(), unit.WallOf(time.Now())
	events, wake := w.placements.Advance(now)
	w.happened(events)
	events, also := w.nodes.Advance(now, wall)
	w.happened(events)
	return wake.Earlier(also)
}

// happened prints, counts and keeps Events.
func (w *watcher) happened(events []coreshadow.Event) {
	if !w.synced {
		return
	}
	for i := range events {
		e := &events[i]
		w.tally.Add(e)
		line := w.lineOf(e)
		if e.Kind.Finding() && w.kept[e.Kind] < findingsMax {
			w.kept[e.Kind]++
			w.findings = append(w.findings, line)
		}
		w.o.Line(line)
	}
}

// probe reports whether the API server answers: while it does not, silence of nodes means nothing.
func (w *watcher) probe(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.client.Ready(ctx)
		w.send(ctx, func(now unit.Instant) { w.nodes.Contact(now, err == nil) })
		select {
		case <-time.After(contactEvery):
		case <-ctx.Done():
		}
	}
}

// notBegun is the error if ctx ended before the first lists were there.
func (w *watcher) notBegun() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, u := range w.unseen {
		errs = append(errs, fmt.Errorf("list %s: %s", u.What, u.Error))
	}
	if len(errs) == 0 {
		return fmt.Errorf("shadow: ended before all objects were listed from %s: nothing was compared", w.client.Host())
	}
	return fmt.Errorf("shadow: nothing was compared: %w", errors.Join(errs...))
}
