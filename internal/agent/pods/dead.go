package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// clearEvicted removes what an evicted pod left in the runtime, and its logs: its disk space is what it was evicted for, or
// will be missed next. Other pods that ended keep their containers, whose logs somebody may want to read.
func (r *Runner) clearEvicted(ctx context.Context, e *entry, pod *corev1.Pod) {
	if pod == nil || !e.released {
		return
	}
	e.mu.Lock()
	evicted := e.status.Reason == eviction.Reason || pod.Status.Reason == eviction.Reason
	if len(e.view.sandboxes) == 0 {
		e.remains = false
	}
	e.mu.Unlock()
	if !evicted || len(e.view.sandboxes) == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(e.view.sandboxes)) {
		err := r.onSandbox(ctx, e, podlife.Action{Kind: podlife.RemoveSandbox, ID: id}, func(ctx context.Context) error {
			_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		})
		if err != nil {
			r.log(e).Warn("containers of an evicted pod not removed yet", "err", err)
			return
		}
	}
	r.logs().RemovePod(string(e.uid))
	e.mu.Lock()
	e.remains = false
	e.mu.Unlock()
}

// RemoveDead removes the containers of pods that have ended for good, and their logs, the pod that ended first before the others, until
// enough says so. The pods stay in the API; it is they who remember how their containers ended.
func (r *Runner) RemoveDead(ctx context.Context, enough func() bool) error {
	list, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}},
	})
	if err != nil {
		return fmt.Errorf("remove dead containers: list sandboxes: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b *runtimeapi.PodSandbox) int { return int(a.CreatedAt - b.CreatedAt) })
	var problems []error
	for _, s := range list.Items {
		if ctx.Err() != nil || enough() {
			break
		}
		e := r.entryOf(types.UID(s.GetMetadata().GetUid()))
		if e == nil {
			continue // somebody else's
		}
		e.mu.Lock()
		pod := e.pod
		e.mu.Unlock()
		if pod == nil || translate.PodlifeTerminal(pod) == "" {
			continue // not told to the API yet, or it runs on
		}
		err := limited(ctx, 2*r.WorkTimeout, func(ctx context.Context) error {
			_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
			return err
		})
		if err != nil && !gone(err) {
			problems = append(problems, fmt.Errorf("remove sandbox %s: %w", s.Id, err))
			continue
		}
		r.logs().RemovePod(string(e.uid))
		e.soil("")
		r.kick(e)
	}
	return errors.Join(append(problems, ctx.Err())...)
}
