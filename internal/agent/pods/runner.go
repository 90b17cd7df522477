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

// Runner runs the pods of one node. It has the entries of all pods, receives changes of them, and has what their
// workers share.
type Runner struct {
	Options // never changes

	// Parts that have locks of their own. They are set once.
	exits    podview.Exits
	report   *statusreport.Reporter
	static   *staticpods.Source
	handlers *runtimehandler.Handlers
	oom      *oomwatch.Watch
	clock    *clock.Clock

	firstNetworkPod sync.Once // its start was measured

	// These bound how much is done at the same time.
	starts   *turns.Starts // slots of pods that are starting
	stops    turns.Places  // slots of containers that are being stopped
	removals turns.Places  // slots of sandboxes that are being stopped, and of sandboxes and containers being removed

	version atomic.Uint64 // see Version
	turned  atomic.Int64  // unit.Instant when the loop of relists turned last; 0: never yet
	listed  time.Time     // when the runtime was listed last; only the goroutine that lists it uses this

	turns turns.Order[*podentry.Entry] // the order of the pods that have come and were not judged yet
	// admission is held while a pod or the resizes are judged, so that each verdict counts the ones before it.
	admission sync.Mutex

	mu       sync.Mutex // guards everything that follows
	pods     map[types.UID]*podentry.Entry
	synced   bool            // the watch has delivered every pod at least once
	relisted bool            // the runtime was listed at least once; no worker starts before
	ctx      context.Context // of Run; workers and hooks end with it; nil before Run
	workers  sync.WaitGroup  // goroutines of workers and hooks; needs no lock
	lastSync unit.Instant    // when the last relist of the runtime succeeded; zero: none did
	sweepEnd unit.Instant    // until then relists call sweep
}

// now returns the time by the runner's monotonic clock and by the calendar.
func (r *Runner) now() (unit.Instant, unit.Wall) {
	return r.clock.Now(), unit.WallOf(time.Now())
}

// Starting returns nil if no pod is waiting for others to start. Otherwise it returns a channel that is closed when
// that burst of pods has started.
func (r *Runner) Starting() <-chan struct{} { return r.starts.Busy() }

// until returns how long a worker may rest if it must wake at an instant; zero if it need not wake.
func (r *Runner) until(wake unit.Instant) time.Duration {
	if wake.IsZero() {
		return 0
	}
	now, _ := r.now()
	return max(wake.Sub(now), time.Millisecond)
}

// entries returns the pods that the agent knows, in no order.
func (r *Runner) entries() []*podentry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.pods))
}

// first returns a pod for which is returns true; nil: there is none. It copies nothing, since every worker calls it
// more than once per sync.
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

// taken returns an error if the runtime says that a sandbox or container belongs to the pod by, and still says that it
// belongs to another pod.
func (r *Runner) taken(id string, by *podentry.Entry) error {
	if e := r.first(func(e *podentry.Entry) bool { return e != by && e.Has(id) }); e != nil {
		return fmt.Errorf("the runtime says that %s is of this pod, and that it is of %s", id, e.Name())
	}
	return nil
}

// entryOf returns the pod with that UID; nil if the agent does not know it.
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

// Synced reports whether the watch and the directory of manifests have delivered every pod that should be here.
func (r *Runner) Synced() bool {
	r.mu.Lock()
	synced := r.synced
	r.mu.Unlock()
	return synced && r.static.Synced()
}

// sweepLater makes the relists of the next sweepFor call sweep. The caller holds mu.
func (r *Runner) sweepLater() {
	now, _ := r.now()
	r.sweepEnd = now.Add(sweepFor)
}

// sweepFor is how long remains of pods are looked for after the agent's start, and after the last pod was removed.
// Chosen: far longer than a runtime goes on working after its caller has given up (seconds were seen on a busy
// machine).
const sweepFor = time.Minute

// hookContext returns a context that ends with the agent, since hooks outlive the actions that begin them.
func (r *Runner) hookContext() (context.Context, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return context.WithCancel(r.ctx)
}

// logs returns the directory of containers' logs.
func (r *Runner) logs() podlog.Directory { return podlog.Directory(r.LogDir) }

// Resync makes the pod's worker observe the pod again. Other parts of the agent call it, such as probes and volumes.
func (r *Runner) Resync(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		r.resync(e)
	}
}

// Retry makes the pod retry failed actions now, because something that it lacked may have become available.
func (r *Runner) Retry(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		e.OrderRetry()
		r.resync(e)
	}
}

// resync makes the pod's worker observe it, now or as soon as its present sync is over.
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

// abilities returns what pods may use on this node and not on every node.
func (r *Runner) abilities() podfields.Abilities {
	can := r.handlers.Known().Abilities
	can.UserNamespaces = can.UserNamespaces && r.UserNamespaces
	can.TrustBundles = r.TrustBundles
	can.CSIVolumes = r.CSIVolumes
	can.NFS = r.CSIVolumes // by the same part of the agent
	can.PodCertificates = r.PodCertificates
	return can
}
