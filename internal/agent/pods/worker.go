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
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// worker is the part of a pod's state that belongs to the pod's goroutine alone. The entry keeps it while there is
// nothing to do, and hands it to one goroutine at a time (Entry.Wake, Entry.Rest), so nothing in it needs a lock. While
// that goroutine waits for its actions, the actions' goroutines use the worker: either one that may write, or several
// that only read. What other goroutines may read or change is in the entry.
type worker struct {
	r *Runner         // what all workers share; never changes
	e *podentry.Entry // never changes

	life *podlife.Life // core/podlife's state of the pod between two steps
	view *podview.View // what the runtime has of the pod
	seen time.Time     // when it was first observed, from which waits for devices count; zero: not yet
	up   bool          // a sandbox of it was ready since this agent started: it does not wait for devices any more

	roomBy time.Time // when the pods that end to make room for it should be gone; zero: none ends for it

	measured measured // for metrics

	// For the journal: what the last verdict was decided from, the failure that was recorded last, and the stops that were
	// recorded, by container ID and why.
	judged  journal.Judged
	failure string
	stops   map[string]bool

	unread     string    // the error of the last Event that the runtime could not be read; empty: it was read since
	unreadSaid time.Time // when that Event was recorded

	volumes  volumeState
	finishes bool // Finish was begun
	// unmountable is why the agent cannot set up some of the pod's volumes, as found by setUp. Empty: it can.
	unmountable string
	refused     string // the hold's reason for unmountable if a signer refused a certificate; empty: reasonField

	size resize.Size // actual size of the pod's own cgroup; unknown until it was created or read
}

// volumeState is what this agent has done to a pod's volumes, and finally to its cgroup.
type volumeState int

const (
	volumesUntouched volumeState = iota // nothing; an earlier agent may have set them up
	volumesPartlyUp                     // an earlier agent's volumes were set up again as far as possible
	volumesUp                           // all were set up
	volumesReleased                     // the pod has ended for good: volumes and cgroup were removed
)

// newEntry returns the entry of a new pod, with its worker.
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

// sources returns where a view reads what the runtime has.
func (r *Runner) sources() podview.Sources {
	return podview.Sources{Runtime: r.Runtime, OOM: r.oom, Exits: r.exits, LogDir: r.LogDir}
}

func (w *worker) log() *slog.Logger { return w.r.log(w.e) }

// address returns the address at which the pod's containers are reached.
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

// measured is what a worker stores for metrics.
type measured struct {
	known   time.Time     // when the agent first knew of the pod
	synced  bool          // a sync of it has ended
	version string        // resourceVersion of its object at the last sync
	pulling time.Duration // total time of the pulls of its images
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

// limited makes a call and cancels it after limit.
func limited(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

func gone(err error) bool { return status.Code(err) == codes.NotFound }
