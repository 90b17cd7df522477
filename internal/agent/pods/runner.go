package pods

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/oomwatch"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/runtimehandler"
	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Runner runs the pods of one node: it knows them (pods), hears of what happens to them, and has what their workers
// share.
type Runner struct {
	Options // never changes

	// Parts with locks and goroutines of their own; set once.
	exits    podview.Exits
	report   *statusreport.Reporter
	static   *staticpods.Source
	handlers *runtimehandler.Handlers
	oom      *oomwatch.Watch
	clock    *clock.Clock

	firstNetworkPod sync.Once // its start was measured

	// How much is done at once.
	starts   *turns.Starts // slots of pods that start
	stops    turns.Places  // slots of stops that the runtime works on
	removals turns.Places  // slots of sandboxes that are stopped, and of what is removed

	version atomic.Uint64 // see Version
	listed  time.Time     // when the runtime was listed last; only the goroutine that lists it uses this

	turns     turns.Order[*podentry.Entry] // of pods that have come and were not judged yet
	admission sync.Mutex                   // held while one pod is judged, or resizes are: each verdict counts with those before it

	mu       sync.Mutex // guards everything that follows
	pods     map[types.UID]*podentry.Entry
	synced   bool            // the API has shown every pod at least once
	relisted bool            // everything the runtime has was read at least once; no worker starts before
	ctx      context.Context // of Run: workers and hooks end with it; nil before
	workers  sync.WaitGroup  // goroutines of workers and hooks; needs no lock
	lastSync unit.Instant    // when everything the runtime has was read last; zero: not yet
	sweepEnd unit.Instant    // until then relists look for what pods that went left outside the runtime
}

// now returns the runner's monotonic clock and the calendar.
func (r *Runner) now() (unit.Instant, unit.Wall) {
	return r.clock.Now(), unit.WallOf(time.Now())
}

// Starting returns a channel that is closed when the pods have started of which some had to wait for others; nil: none
// has to.
func (r *Runner) Starting() <-chan struct{} { return r.starts.Busy() }

// until is how long a worker may rest that is to wake at an instant; zero for none.
func (r *Runner) until(wake unit.Instant) time.Duration {
	if wake.IsZero() {
		return 0
	}
	now, _ := r.now()
	return max(wake.Sub(now), time.Millisecond)
}

// entries are the pods that the agent knows, in no order.
func (r *Runner) entries() []*podentry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.pods))
}

// first returns a pod that the agent knows and that is so; nil: none is. Every worker asks more than once per sync, so
// that nothing is copied.
func (r *Runner) first(is func(*podentry.Entry) bool) *podentry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.pods {
		if is(e) {
			return e
		}
	}
	return nil
}

// taken returns an error where the runtime says that a sandbox or container is of a pod, and said before, and did not
// take back, that it is of another one.
func (r *Runner) taken(id string, by *podentry.Entry) error {
	if e := r.first(func(e *podentry.Entry) bool { return e != by && e.Has(id) }); e != nil {
		return fmt.Errorf("the runtime says that %s is of this pod, and that it is of %s", id, e.Name())
	}
	return nil
}

// entryOf is the pod of that UID, nil if it is not here.
func (r *Runner) entryOf(uid types.UID) *podentry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid]
}

func (r *Runner) log(e *podentry.Entry) *slog.Logger {
	return slog.With("pod", e.Name(), "uid", e.UID())
}

func (r *Runner) event(pod *corev1.Pod, container, kind, reason, text string) {
	r.Recorder.Event(translate.ContainerReference(pod, container), kind, reason, text)
}

// Synced reports whether the API and the directory of manifests have shown every pod that should be here.
func (r *Runner) Synced() bool {
	r.mu.Lock()
	synced := r.synced
	r.mu.Unlock()
	return synced && r.static.Synced()
}

// sweepLater has the relists of the next while sweep. Caller holds mu.
func (r *Runner) sweepLater() {
	now, _ := r.now()
	r.sweepEnd = now.Add(sweepFor)
}

// sweepFor is how long after the last pod went, and after the start, its remains are looked for: far longer than a
// runtime works on after its caller gave up (chosen; seconds were seen on a busy machine).
const sweepFor = time.Minute

// hookContext ends with the agent: hooks outlive the actions that begin them.
func (r *Runner) hookContext() (context.Context, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return context.WithCancel(r.ctx)
}

// logs is the directory of the logs of containers.
func (r *Runner) logs() podlog.Directory { return podlog.Directory(r.LogDir) }

// Resync makes the pod's worker look again, for parts of the agent that learned something about it (a probe, a volume).
func (r *Runner) Resync(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		r.resync(e)
	}
}

// Retry makes the pod try again what it waits to retry, because something it may lack has appeared.
func (r *Runner) Retry(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		e.OrderRetry()
		r.resync(e)
	}
}

// resync makes the pod's worker look at it, now or as soon as it is done with what it does.
func (r *Runner) resync(e *podentry.Entry) {
	r.mu.Lock()
	ctx, ready := r.ctx, r.relisted
	r.mu.Unlock()
	if ctx == nil || !ready || ctx.Err() != nil {
		return
	}
	if w := e.Wake(); w != nil {
		r.workers.Go(func() { w.Run(ctx) })
	}
}

// abilities are what pods may ask for on this node that they may not on every one.
func (r *Runner) abilities() podfields.Abilities {
	can := r.handlers.Known().Abilities
	can.UserNamespaces = can.UserNamespaces && r.UserNamespaces
	can.TrustBundles = r.TrustBundles
	can.CSIVolumes = r.CSIVolumes
	can.PodCertificates = r.PodCertificates
	return can
}
