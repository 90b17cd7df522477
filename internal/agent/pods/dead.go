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

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// clearEvicted removes an evicted pod's containers from the runtime, and their logs, to free their disk space. Other
// pods that have ended keep their containers, since users may want to read the logs.
func (w *worker) clearEvicted(ctx context.Context, pod *corev1.Pod) {
	if pod == nil || w.volumes != volumesReleased {
		return
	}
	if len(w.view.Sandboxes) == 0 {
		w.e.Cleared()
		return
	}
	if !w.e.Evicted(pod) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(w.view.Sandboxes)) {
		err := w.onSandbox(ctx, podlife.Action{Kind: podlife.RemoveSandbox, ID: id}, func(ctx context.Context) error {
			_, err := w.r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		})
		if err != nil {
			w.log().Warn("containers of an evicted pod not removed yet", "err", err)
			return
		}
	}
	w.r.logs().RemovePod(string(w.e.UID()))
	w.e.Cleared()
}

// RemoveDead removes the containers of pods that have ended for good, and their logs, until enough returns true. It
// begins with the oldest sandbox. The pods stay in the API, and their statuses still say how their containers ended.
func (r *Runner) RemoveDead(ctx context.Context, enough func() bool) error {
	list, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{
			State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
		},
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
			continue // the sandbox is not of a pod here
		}
		pod := e.Object()
		if pod == nil || translate.PodlifeTerminal(pod) == "" {
			continue // not reported to the API yet, or it runs on
		}
		err := limited(ctx, 2*r.WorkTimeout, func(ctx context.Context) error {
			_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
			return err
		})
		if err != nil && !gone(err) {
			problems = append(problems, fmt.Errorf("remove sandbox %s: %w", s.Id, err))
			continue
		}
		r.logs().RemovePod(string(e.UID()))
		e.MarkDirty("")
		r.resync(e)
	}
	return errors.Join(append(problems, ctx.Err())...)
}
