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

// This file has the relist and the event stream of the runtime. Both only say that something of a pod changed; the
// pod's worker then reads it.

// runtimeRetry is the pause after a failed read of the runtime, or after its event stream broke. Chosen: the kubelet
// relists as often.
const runtimeRetry = time.Second

// inventory is everything that the runtime has, by pod.
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
	delete(all, "") // sandboxes and containers of other programs are left alone
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

// firstRelist lists the runtime before anything is decided. It waits for the runtime without a bound.
func (r *Runner) firstRelist(ctx context.Context) error {
	for {
		r.turn()
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
		case <-time.After(runtimeRetry):
		}
	}
}

// merge creates entries for pods that only the runtime knows, and resyncs pods whose view is out of date.
func (r *Runner) merge(all inventory) {
	now, _ := r.now()
	r.mu.Lock()
	r.lastSync = now
	for uid, p := range all {
		if r.pods[uid] == nil {
			e := r.newEntry(uid)
			e.FoundInRuntime(p.who, p.states)
			r.pods[uid] = e
			if r.synced { // otherwise its source may not have delivered it yet
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

// relistLoop lists the runtime at intervals, in case an exit or an event was lost.
func (r *Runner) relistLoop(ctx context.Context) {
	tick := time.NewTicker(r.Relist)
	defer tick.Stop()
	for {
		r.turn()
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

// followEvents follows the runtime's event stream, if it has one (containerd 1.7 and later, CRI-O).
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
		case <-time.After(runtimeRetry):
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

// learnHandlers asks the runtime for the features of its handlers.
func (r *Runner) learnHandlers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, podview.AskMax)
	defer cancel()
	changed, err := r.handlers.Learn(ctx, r.Runtime)
	if err != nil && ctx.Err() == nil {
		slog.Warn("the features of the runtime's handlers could not be read", "err", err)
	}
	if changed {
		r.ResyncHeld() // some may have waited for another release of the runtime
	}
}
