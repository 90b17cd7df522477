//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestGracefulShutdown shuts a machine with systemd down. The pods end in order, each within its grace period, and the
// API has their ends before the machine is off. Meanwhile the node is not ready and takes no pod. When the machine is
// back, so is the node, and what ended stays ended.
func TestGracefulShutdown(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	ns := c.Namespace(t)
	g := lab.Boot(t, "tiny", lab.Options{Init: lab.Systemd, Name: "shutdown"})
	n := c.Join(t, g, rig.JoinOptions{CgroupDriver: "systemd", Config: map[string]any{
		"shutdownGracePeriod":             "90s",
		"shutdownGracePeriodCriticalPods": "30s",
	}})
	pod := func(name string, grace int64, args ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName:                      n.Name,
				TerminationGracePeriodSeconds: &grace,
				Containers:                    []corev1.Container{{Name: "c", Image: image.Demo, Args: args}},
				Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}
	}
	web := createReady(t, c, ns, pod("web", 20, "ignore-term"))
	critical := pod("dns", 30, "sleep", "infinity")
	critical.Spec.PriorityClassName = "system-node-critical"
	dns := createReady(t, c, ns, critical)
	delay := g.Run(t, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
	if delay != "t 90000000" {
		t.Errorf("logind waits %s microseconds, want 90 s", delay)
	}

	began := time.Now()
	g.Run(t, "systemctl", "poweroff")
	rig.Eventually(t, podWithin, "the node says that it shuts down", func(ctx context.Context) error {
		node, err := c.API.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionFalse &&
				condition.Reason == "KubeletNotReady" && strings.Contains(condition.Message, "node is shutting down") {
				return nil
			}
		}
		return fmt.Errorf("%+v", node.Status.Conditions)
	})
	c.Explains(t, "node "+n.Name, nil, `Ready +False .*KubeletNotReady +.*node is shutting down`)
	late, err := c.API.CoreV1().Pods(ns).Create(t.Context(), pod("late", 1, "sleep", "infinity"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantPod(t, c, ns, "late is rejected", late, func(p *corev1.Pod) error {
		// as in the kubelet
		return failedBy(p, "NodeShutdown", "Pod was rejected: Pod was rejected as the node is shutting down.")
	})
	const ended = "Pod was terminated in response to imminent node shutdown."
	var ends []time.Time
	for _, p := range []*corev1.Pod{web, dns} {
		wantPod(t, c, ns, p.Name+" has ended", p, func(now *corev1.Pod) error {
			if err := failedBy(now, "Terminated", ended); err != nil {
				return err
			}
			for _, condition := range now.Status.Conditions {
				if condition.Type == corev1.DisruptionTarget && condition.Reason == "TerminationByKubelet" {
					ends = append(ends, now.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time)
					return nil
				}
			}
			return fmt.Errorf("no DisruptionTarget: %+v", now.Status.Conditions)
		})
	}
	c.Explains(t, "pod "+ns+"/late", nil, `NodeShutdown.*Pod was rejected as the node is shutting down`)
	c.Explains(t, "pod "+ns+"/web", nil, `Terminated.*`+regexp.QuoteMeta(ended))
	if len(ends) == 2 && ends[1].Before(ends[0]) {
		t.Errorf("the critical pod ended at %v, the other at %v", ends[1], ends[0])
	}
	off, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	why, err := g.Wait(off)
	if err != nil || why != "guest-shutdown" {
		t.Fatalf("the machine ended: %q, %v", why, err)
	}
	t.Logf("the machine was off %v after the order", time.Since(began).Round(100*time.Millisecond))

	g.Kill() // it is off; now it can be started again
	n.Restart(t)
	n.StartRuntime(t)
	n.StartAgent(t)
	n.WaitReady(t)
	createReady(t, c, ns, pod("after", 1, "sleep", "infinity"))
	wantPod(t, c, ns, "web stays ended", web, func(p *corev1.Pod) error { return failedBy(p, "Terminated", ended) })
	state := g.Run(t, "cat", "/var/lib/kubelet/graceful_node_shutdown_state")
	if !strings.Contains(state, `"endTime":"20`) {
		t.Errorf("the last shutdown is kept as %s", state)
	}
}

// failedBy returns an error unless a pod is Failed for this reason.
func failedBy(p *corev1.Pod, reason, message string) error {
	if s := p.Status; s.Phase != corev1.PodFailed || s.Reason != reason || s.Message != message {
		return fmt.Errorf("%s: %s: %s", s.Phase, s.Reason, s.Message)
	}
	return nil
}
