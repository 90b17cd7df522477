package pods

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
)

// worker is what only the goroutine has that works for a pod. Its entry keeps it while there is nothing to do, and
// hands it to one goroutine at a time (Entry.Wake, Entry.Rest), so nothing in it needs a lock. While that goroutine
// waits for the actions that it performs, theirs have it: one that may write, or several that only read. What other
// goroutines may ask or change is in the entry.
type worker struct {
	r *Runner         // what all workers share; never changes
	e *podentry.Entry // never changes

	life *podlife.Life // what core/podlife remembers of the pod between two steps
	view *podview.View // what the runtime has of it
	seen time.Time     // when it was first looked at; zero: not yet. Waits for devices begin then
	up   bool          // a sandbox of it was ready since this agent is here: it waits for devices no more

	roomBy time.Time // when the pods should be gone that end to make room for it; zero: none does

	measured measured // of what it did, for metrics

	unread     string    // why the runtime could not be read of which users had an Event last; empty: it was read since
	unreadSaid time.Time // when they had it

	volumes volumeState
	// unmountable is what of the pod's volumes this agent cannot mount, as found when they were set up. Empty: nothing.
	unmountable string
	refused     string // the reason of that, if a signer refused a certificate; empty: reasonField

	size resize.Size // of the pod's own cgroup; unknown until it was made or read
}

// volumeState is what became of a pod's volumes, and in the end of its cgroup, since this agent is here.
type volumeState int

const (
	volumesUntouched volumeState = iota // an agent before this one may have set them up
	volumesPartlyUp                     // they were taken up as far as that was possible
	volumesUp                           // they were set up
	volumesReleased                     // the pod has ended for good: volumes and cgroup were taken down
)

// newEntry is a pod that nothing is known of yet, with its worker.
func (r *Runner) newEntry(uid types.UID) *podentry.Entry {
	e := podentry.New(uid)
	w := &worker{r: r, e: e, life: podlife.New(r.BackoffMax), view: podview.New(uid, e.Name)}
	w.measured.known = time.Now()
	w.view.From = r.sources()
	w.view.Exited = func(id string) {
		e.Exited(id)
		r.resync(e)
	}
	e.HandBack(w)
	return e
}

// sources are where a worker reads what the runtime has.
func (r *Runner) sources() podview.Sources {
	return podview.Sources{Runtime: r.Runtime, OOM: r.oom, Exits: r.exits, LogDir: r.LogDir}
}

func (w *worker) log() *slog.Logger { return w.r.log(w.e) }

// address is where the pod's containers are reached.
func (w *worker) address(pod *corev1.Pod) string {
	for _, s := range w.view.Sandboxes {
		if s.State == podlife.SandboxReady && len(s.IPs) > 0 {
			return s.IPs[0]
		}
	}
	if pod.Spec.HostNetwork && len(w.r.HostIPs) > 0 {
		return w.r.HostIPs[0]
	}
	return ""
}

// measured is what a worker remembers for metrics.
type measured struct {
	known   time.Time     // when the pod was heard of
	synced  bool          // a sync of it has ended
	version string        // of its object, at the last sync
	pulling time.Duration // what pulls of its images took in all
}

// pulling measures one pull.
type pulling struct {
	of    *measured
	begun time.Time // zero: nothing is pulled
}

func (m *measured) pull() *pulling { return &pulling{of: m} }

func (p *pulling) began() { p.begun = time.Now() }

func (p *pulling) ended() {
	if !p.begun.IsZero() {
		p.of.pulling += time.Since(p.begun)
	}
}

// limited makes a call that must end in time.
func limited(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

func gone(err error) bool { return status.Code(err) == codes.NotFound }
