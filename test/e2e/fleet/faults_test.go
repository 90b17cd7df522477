//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// order sends an order to the instance's fleet by the command line.
func (i *instance) order(words ...string) string {
	i.t.Helper()
	out, err := exec.Command(i.binary, append(append([]string{"fleet", "fault"}, words...),
		i.flags...)...).CombinedOutput()
	if err != nil {
		i.t.Fatalf("plimsoll fleet fault %s: %v\n%s", words, err, out)
	}
	return string(out)
}

// faults sends orders to the running fleet and checks the Nodes in the API: some nodes report that they are not ready,
// at once, and are Ready again after another order.
func (i *instance) faults(t *testing.T) {
	i.t = t
	if out := i.order("notready", "count=3"); !strings.Contains(out, "3 nodes") {
		t.Errorf("the fleet said %q", out)
	}
	i.until("three nodes not Ready and tainted", time.Minute, func(ctx context.Context) (bool, string) {
		nodes, err := i.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		down := 0
		for _, n := range nodes.Items {
			for _, taint := range n.Spec.Taints {
				if taint.Key == corev1.TaintNodeNotReady && taint.Effect == corev1.TaintEffectNoSchedule {
					down++
				}
			}
		}
		return down == 3, fmt.Sprint(down, " nodes tainted")
	})
	if out := i.order("return"); !strings.Contains(out, "return: 3 nodes") {
		t.Errorf("the fleet said %q", out)
	}
	i.until("all Ready and untainted", time.Minute, func(ctx context.Context) (bool, string) {
		up, tainted := i.countNodes(ctx, corev1.ConditionTrue)
		return up == hollowNodes && tainted == 0, fmt.Sprintf("%d Ready, %d taints", up, tainted)
	})
}
