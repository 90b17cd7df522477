package lifecycle

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/growth"
	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// post hands a fact from a watch to the controller; watches pass no context.
func (c *controller) post(f fact) { c.send(context.Background(), f) }

func (c *controller) nodeHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		node := obj.(*corev1.Node)
		c.teller.node(node)
		c.post(func(now unit.Instant) { c.seeNode(now, node) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, after any) { seen(after) },
		DeleteFunc: func(obj any) {
			if node, ok := kube.Deleted[*corev1.Node](obj); ok {
				c.teller.learn(func(s *growth.State) { s.NodeGone(node.Name) })
				c.post(func(now unit.Instant) {
					delete(c.latest, node.Name)
					c.monitor.NodeGone(now, node.Name)
				})
			}
		},
	}
}

// sendRenewals hands renewals that arrived together to the controller as one fact.
func (c *controller) sendRenewals(ctx context.Context, batch []kube.Renewal) {
	if len(batch) == 0 {
		return
	}
	c.send(ctx, func(now unit.Instant) {
		wall := unit.WallOf(time.Now())
		for _, r := range batch {
			switch {
			case r.Gone:
				delete(c.leases, r.Name)
				c.monitor.LeaseGone(r.Name)
			case r.Renewed != 0: // a lease without a time is no renewal
				c.leases[r.Name] = r.Renewed
				c.monitor.LeaseSeen(now, wall, r.Name, r.Renewed)
			}
		}
	})
}

func (c *controller) podHandler() cache.ResourceEventHandler {
	gone := func(pod *corev1.Pod) {
		c.teller.podGone(pod)
		id := corelifecycle.PodID(pod.UID)
		c.post(func(now unit.Instant) {
			delete(c.pods, id)
			c.monitor.PodGone(now, id)
		})
	}
	seen := func(pod *corev1.Pod) {
		c.teller.pod(pod)
		p := translate.LifecyclePod(pod)
		c.post(func(now unit.Instant) {
			c.pods[p.ID] = pod
			c.monitor.PodSeen(now, p)
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj.(*corev1.Pod)) },
		UpdateFunc: func(before, after any) {
			if old := before.(*corev1.Pod); old.UID != after.(*corev1.Pod).UID {
				gone(old)
			}
			seen(after.(*corev1.Pod))
		},
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[*corev1.Pod](obj); ok {
				gone(pod)
			}
		},
	}
}
