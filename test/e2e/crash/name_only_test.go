//go:build e2e

package crash

import (
	"fmt"
	"os"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestAliveInNameOnly freezes containerd for longer than the node's Lease may be renewed without it. The agent still
// runs and reaches the API server. It first reports that its runtime is down, and then renews and reports nothing more,
// also when the lifecycle controller has marked the node. When the runtime answers again the node is Ready at once. It
// takes five minutes:
//
//	PLIMSOLL_E2E_LONG=1 go test -tags e2e -count=1 -run TestAliveInNameOnly ./test/e2e/crash
func TestAliveInNameOnly(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes five minutes: set PLIMSOLL_E2E_LONG=1 (make test-long)")
	}
	t.Parallel()
	c := rig.New(t, "nameonly", rig.Options{})
	look := func(ctx ctxT) (corev1.NodeCondition, *coordinationv1.Lease, error) {
		node, err := c.API.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
		if err != nil {
			return corev1.NodeCondition{}, nil, err
		}
		lease, err := c.API.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, c.NodeName, metav1.GetOptions{})
		return condition(node), lease, err
	}
	is := func(status corev1.ConditionStatus) func(ctxT) error {
		return func(ctx ctxT) error {
			ready, _, err := look(ctx)
			if err == nil && ready.Status != status {
				err = fmt.Errorf("Ready is %s: %s", ready.Status, ready.Message)
			}
			return err
		}
	}
	began, pid := time.Now(), pidOf(t, c, agent)
	thaw := freeze(t, c, containerd)
	rig.Eventually(t, 75*time.Second, "the node says that its runtime is down", is(corev1.ConditionFalse))
	took := rig.Eventually(t, 5*time.Minute, "the lifecycle controller gives up on it", is(corev1.ConditionUnknown))
	t.Logf("given up %v after the runtime froze", time.Since(began).Round(time.Second))
	_, lease, err := look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if renewed := lease.Spec.RenewTime.Sub(began); renewed < 2*time.Minute || renewed > 3*time.Minute+15*time.Second {
		t.Errorf("the lease was last renewed %v after the freeze (the condition took %v)", renewed, took)
	}
	wait(t, 30*time.Second) // an agent that still renewed would have done so by now
	if err := is(corev1.ConditionUnknown)(t.Context()); err != nil {
		t.Errorf("given up, and yet: %v", err)
	}
	thaw()
	took = rig.Eventually(t, 20*time.Second, "Ready again", is(corev1.ConditionTrue))
	t.Logf("Ready %v after the thaw", took.Round(100*time.Millisecond))
	if now := pidOf(t, c, agent); now != pid {
		t.Errorf("the agent was process %d and is %d: something restarted it", pid, now)
	}
}
