//go:build e2e

package lab

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// unknownWithin bounds the time from a node's last renewal to the condition Unknown: the node-monitor grace period is
// 50 s.
const unknownWithin = 3 * time.Minute

// TestCrashAndReturn crashes a node with two pods: one tolerates an unreachable node for ever, the other for a short
// time. The node becomes Unknown, and the latter pod is evicted. The machine boots again from what its disk has. Then
// the node is Ready, the former is the same pod with its container restarted once, and the latter is gone.
func TestCrashAndReturn(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	ns := c.Namespace(t)
	n := c.Join(t, lab.Boot(t, "tiny", lab.Options{Name: "crashes"}), rig.JoinOptions{})
	patient := runTolerant(t, c, ns, "patient", n.Name, nil)
	impatient := runTolerant(t, c, ns, "impatient", n.Name, new(int64))

	// containerd 1.6 does not flush its records of a pod's network, and cannot remove a pod whose record is lost.
	n.Run(t, "sync")
	n.Kill()
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionUnknown, unknownWithin)
	wantPod(t, c, ns, "patient is not ready", patient, func(p *corev1.Pod) error {
		if podReady(p) == nil || p.DeletionTimestamp != nil {
			return fmt.Errorf("ready %v, deleted %v", podReady(p) == nil, p.DeletionTimestamp)
		}
		return nil
	})
	wantPod(t, c, ns, "impatient is to end", impatient, func(p *corev1.Pod) error {
		if p.DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return nil
	})

	n.Restart(t)
	n.StartRuntime(t)
	n.StartAgent(t)
	n.WaitReady(t)
	wantPod(t, c, ns, "patient runs again", patient, func(p *corev1.Pod) error {
		if s := p.Status.ContainerStatuses; podReady(p) != nil || s[0].RestartCount != 1 ||
			s[0].ContainerID == patient.Status.ContainerStatuses[0].ContainerID {
			return fmt.Errorf("%w, %+v", podReady(p), s)
		}
		return nil
	})
	rig.Eventually(t, podWithin, "impatient is gone", func(ctx context.Context) error {
		_, err := c.API.CoreV1().Pods(ns).Get(ctx, impatient.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if text := c.Kubectl(t, "logs", "--namespace", ns, "patient", "--previous"); text != "line 1\n" {
		t.Errorf("the log of the container that crashed with its machine: %q", text)
	}
}

// runTolerant creates a pod that tolerates an unreachable node for so many seconds (nil: for ever), and returns it when
// it runs.
func runTolerant(t *testing.T, c *rig.Cluster, ns, name, node string, seconds *int64) *corev1.Pod {
	t.Helper()
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"run", "log --lines 1",
				"sleep infinity"}}}},
	}
	for _, taint := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds})
	}
	return createReady(t, c, ns, pod)
}

// wantPod waits until the pod, which must have the same UID, is in the wanted state.
func wantPod(t *testing.T, c *rig.Cluster, ns, what string, pod *corev1.Pod, is func(*corev1.Pod) error) {
	t.Helper()
	rig.Eventually(t, podWithin, what, func(ctx context.Context) error {
		now, err := c.API.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID != pod.UID {
			return fmt.Errorf("it is another pod, %s", now.UID)
		}
		return is(now)
	})
}
