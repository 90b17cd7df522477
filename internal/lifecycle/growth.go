package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/growth"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// teller tells nodes which volumes of their pods are to grow, by an annotation of the Node (core/growth decides). It
// learns from the controller's watches of nodes and pods, and from a watch of claims, which only the teller waits for:
// without the right to that watch nobody is told, and agents ask for themselves.
type teller struct {
	wake chan struct{}

	mu    sync.Mutex // guards everything that follows
	state *growth.State
	known bool // all first lists have arrived
}

func newTeller() *teller { return &teller{wake: make(chan struct{}, 1), state: growth.New()} }

// learn records a fact.
func (t *teller) learn(fact func(*growth.State)) {
	t.mu.Lock()
	fact(t.state)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // it is being woken
	}
}

// listed is called when all first lists have arrived.
func (t *teller) listed() { t.learn(func(*growth.State) { t.known = true }) }

func (t *teller) node(node *corev1.Node) {
	seen := translate.GrowthNode(node)
	t.learn(func(s *growth.State) { s.NodeSeen(seen) })
}

func (t *teller) pod(pod *corev1.Pod) {
	seen := translate.GrowthPod(pod)
	t.learn(func(s *growth.State) { s.PodSeen(seen) })
}

func (t *teller) podGone(pod *corev1.Pod) {
	t.learn(func(s *growth.State) { s.PodGone(string(pod.UID)) })
}

func trimClaim(obj runtime.Object) {
	if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		translate.TrimGrowthClaim(claim)
	}
}

func (t *teller) claimHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		claim := obj.(*corev1.PersistentVolumeClaim)
		grows := translate.Grows(claim)
		t.learn(func(s *growth.State) { s.ClaimSeen(claim.Namespace+"/"+claim.Name, grows) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, after any) { seen(after) },
		DeleteFunc: func(obj any) {
			if claim, ok := kube.Deleted[*corev1.PersistentVolumeClaim](obj); ok {
				t.learn(func(s *growth.State) { s.ClaimSeen(claim.Namespace+"/"+claim.Name, false) })
			}
		},
	}
}

// step returns what to tell now, and when to step again; see growth.State.Step.
func (t *teller) step(now unit.Instant) ([]growth.Message, unit.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known {
		return nil, 0
	}
	return t.state.Step(now)
}

// tellNodes writes messages, one after the other, until ctx ends.
func (c *controller) tellNodes(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		messages, wake := c.teller.step(c.clock.Now())
		for _, m := range messages {
			err := c.tell(ctx, m)
			if err != nil && ctx.Err() == nil && !errors.Is(err, kube.ErrNotLeading) {
				slog.Warn("node not told which volumes are to grow; trying again", "node", m.Node, "err", err)
			}
			c.teller.learn(func(s *growth.State) { s.Ended(c.clock.Now(), m.Node, err == nil) })
		}
		if !wake.IsZero() {
			timer.Reset(max(0, wake.Sub(c.clock.Now())))
		}
		select {
		case <-c.teller.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

func (c *controller) tell(ctx context.Context, m growth.Message) error {
	if !c.o.Leads() {
		return kube.ErrNotLeading
	}
	annotations := map[string]string{translate.AnnotationClaimsToGrow: m.Claims}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", m.Node, err)
	}
	after, err := c.api.patchNode(kube.As(ctx, throttle.Status), m.Node, types.MergePatchType, body)
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", m.Node, err)
	}
	c.send(ctx, func(now unit.Instant) { c.seeNode(now, after) })
	if m.Claims != "" {
		slog.Info("node told which volumes are to grow", "node", m.Node, "claims", m.Claims)
	}
	return nil
}
