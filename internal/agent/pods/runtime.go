package pods

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// What the relist and the event stream share: both say that something of the runtime changed, and the pod's worker
// re-reads it.

// inventory is everything the runtime has, by pod.
type inventory map[types.UID]*podInventory

type podInventory struct {
	who    podentry.Identity
	states map[string]int32 // sandboxes and containers by id
}

// takeInventory lists all sandboxes and containers.
func (r *Runner) takeInventory(ctx context.Context) (inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, podview.AskMax)
	defer cancel()
	begun := time.Now()
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := r.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	all := inventory{}
	for _, s := range sandboxes.Items {
		all.at(s.Labels, nil).states[s.Id] = int32(s.State)
	}
	for _, c := range containers.Containers {
		all.at(c.Labels, c.Annotations).states[c.Id] = int32(c.State)
	}
	delete(all, "") // sandboxes and containers that no kubelet made are not ours to touch
	r.Metrics.Relist.Observe(time.Since(begun).Seconds())
	if !r.listed.IsZero() {
		r.Metrics.RelistInterval.Observe(begun.Sub(r.listed).Seconds())
	}
	r.listed = begun
	r.Metrics.RelistLast.SetToCurrentTime()
	return all, nil
}

func (all inventory) at(labels, annotations map[string]string) *podInventory {
	uid := cri.PodUID(labels)
	p := all[uid]
	if p == nil {
		p = &podInventory{states: map[string]int32{}, who: podentry.Identity{
			Namespace: labels[cri.LabelPodNamespace],
			Name:      labels[cri.LabelPodName],
			Grace:     specGraceDefault,
		}}
		all[uid] = p
	}
	if seconds, err := strconv.ParseInt(annotations[cri.AnnotationPodGracePeriod], 10, 64); err == nil && seconds >= 0 {
		p.who.Grace = time.Duration(seconds) * time.Second
	}
	return p
}

// firstRelist learns what runs before anything is decided. It waits for the runtime as long as it takes.
func (r *Runner) firstRelist(ctx context.Context) error {
	for {
		all, err := r.takeInventory(ctx)
		if err == nil {
			r.merge(all)
			r.mu.Lock()
			r.relisted = true
			r.mu.Unlock()
			slog.Info("runtime read", "pods", len(all))
			return nil
		}
		slog.Warn("runtime does not answer yet", "endpoint", r.Runtime.Endpoint, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// merge makes entries for pods that only the runtime knows, and resyncs those whose view is out of date.
func (r *Runner) merge(all inventory) {
	now, _ := r.now()
	r.mu.Lock()
	r.lastSync = now
	for uid, p := range all {
		if r.pods[uid] == nil {
			e := r.newEntry(uid)
			e.FoundInRuntime(p.who, p.states)
			r.pods[uid] = e
			if r.synced { // else its source may not have shown it yet
				r.Metrics.OrphanedRuntimePods.Inc()
			}
		}
	}
	r.mu.Unlock()
	for _, e := range r.entries() {
		states := map[string]int32{}
		if p := all[e.UID()]; p != nil {
			states = p.states
		}
		if e.Compare(states) {
			r.resync(e)
		}
	}
}

// relistLoop reads everything now and then, in case an exit or an event was lost.
func (r *Runner) relistLoop(ctx context.Context) {
	tick := time.NewTicker(r.Relist)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all, err := r.takeInventory(ctx)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("relist failed", "err", err)
			}
			continue
		}
		r.merge(all)
		r.sweep()
		r.oom.Count()
		r.learnHandlers(ctx)
	}
}

// followEvents uses the runtime's own event stream where it has one (containerd 1.7 and later, CRI-O).
func (r *Runner) followEvents(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.streamEvents(ctx)
		if status.Code(err) == codes.Unimplemented {
			slog.Info("runtime has no event stream; exits come from the kernel, the rest from relists", "relist", r.Relist)
			return
		}
		if ctx.Err() == nil {
			slog.Debug("runtime event stream ended", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (r *Runner) streamEvents(ctx context.Context) error {
	stream, err := r.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if first {
			slog.Info("the container runtime sends events of containers", "event", event.GetContainerEventType())
		}
		if e := r.entryOf(types.UID(event.GetPodSandboxStatus().GetMetadata().GetUid())); e != nil {
			e.MarkDirty("")
			r.resync(e)
		}
	}
}

// learnHandlers asks the runtime what its handlers can do.
func (r *Runner) learnHandlers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, podview.AskMax)
	defer cancel()
	changed, err := r.handlers.Learn(ctx, r.Runtime)
	if err != nil && ctx.Err() == nil {
		slog.Warn("the runtime does not say what its handlers can do", "err", err)
	}
	if changed {
		r.ResyncHeld() // some may have waited for another release of the runtime
	}
}
