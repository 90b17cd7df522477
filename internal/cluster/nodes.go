package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/fleet"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A Node may still be Ready from the time before a stop or a crash. So a node counts as ready only if its lease was
// also renewed after its agent's process was started.

// startOf returns when the running process of a child was started. If it does not run, that is a time in the distant
// future.
func (c *cluster) startOf(child string) time.Time {
	for _, s := range c.supervisor.Status() {
		if s.Name == child && s.PID != 0 {
			return time.Now().Add(-s.Uptime)
		}
	}
	return time.Unix(1<<60, 0)
}

// nodeReady returns nil if a node is Ready and has renewed its lease after since; otherwise the reason why not.
func nodeReady(ctx context.Context, c *kube.Client, name string, since time.Time) error {
	node := &corev1.Node{}
	if err := c.Get(ctx, kube.Nodes, "", name, node); err != nil {
		return err
	}
	if err := readyCondition(node); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{}
	if err := c.Get(ctx, kube.Leases, corev1.NamespaceNodeLease, name, lease); err != nil {
		return err
	}
	if !renewedAfter(lease, since) {
		return fmt.Errorf("node %s: Ready from an earlier run; its agent has not renewed its lease yet", name)
	}
	return nil
}

func readyCondition(node *corev1.Node) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s: Ready is %s: %s: %s", node.Name, condition.Status, condition.Reason, condition.Message)
		}
	}
	return fmt.Errorf("node %s: has not reported Ready yet", node.Name)
}

func renewedAfter(lease *coordinationv1.Lease, since time.Time) bool {
	return lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(since)
}

// The nodes of our fleet have this label and the names hollow-0, hollow-1 and so on.
const (
	hollowLabel  = fleet.LabelHollow + "=true"
	hollowPrefix = "hollow-"
)

// hollowReady returns nil if the wanted number of hollow nodes is ready in the sense of nodeReady.
func hollowReady(ctx context.Context, c *kube.Client, want int, since time.Time) error {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, kube.Nodes, "", metav1.ListOptions{LabelSelector: hollowLabel}, nodes); err != nil {
		return err
	}
	leases := &coordinationv1.LeaseList{}
	if err := c.List(ctx, kube.Leases, corev1.NamespaceNodeLease, metav1.ListOptions{}, leases); err != nil {
		return err
	}
	renewed := map[string]bool{}
	for i := range leases.Items {
		renewed[leases.Items[i].Name] = renewedAfter(&leases.Items[i], since)
	}
	ready := 0
	var reason error
	for i := range nodes.Items {
		if err := readyCondition(&nodes.Items[i]); err != nil {
			reason = err
		} else if renewed[nodes.Items[i].Name] {
			ready++
		}
	}
	if ready >= want {
		return nil
	}
	return errors.Join(fmt.Errorf("%d of %d hollow nodes are Ready", ready, want), reason)
}

// removeSurplus deletes the hollow nodes of an earlier, larger fleet: no process renews their leases any more.
func removeSurplus(ctx context.Context, c *kube.Client, want int) error {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, kube.Nodes, "", metav1.ListOptions{LabelSelector: hollowLabel}, nodes); err != nil {
		return fmt.Errorf("remove surplus hollow nodes: %w", err)
	}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		number, err := strconv.Atoi(strings.TrimPrefix(name, hollowPrefix))
		if err != nil || number < want {
			continue // it belongs to another fleet, or is still wanted
		}
		if err := c.Delete(ctx, kube.Nodes, "", name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove surplus hollow nodes: %s: %w", name, err)
		}
	}
	return nil
}
