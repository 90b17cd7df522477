//go:build e2e && lab

package lab

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestAway cuts a running node off: first its network is down, while the agent is killed and started again; then the
// guest is frozen. Each time the node becomes Unknown, and is Ready again later with the same container.
func TestAway(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	ns := c.Namespace(t)
	n := c.Join(t, lab.Boot(t, "tiny", lab.Options{Name: "away"}), rig.JoinOptions{})
	pod := runTolerant(t, c, ns, "kept", n.Name, nil)
	kept := func(p *corev1.Pod) error {
		if s := p.Status.ContainerStatuses; podReady(p) != nil || s[0].RestartCount != 0 ||
			s[0].ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
			return fmt.Errorf("%w, %+v", podReady(p), s)
		}
		return nil
	}

	n.CutNetwork(t)
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionUnknown, unknownWithin)
	n.Agent.Stop()
	n.StartAgentOnly(t)
	n.RestoreNetwork(t)
	n.WaitReady(t)
	wantPod(t, c, ns, "kept is ready after a cut", pod, kept)

	n.Freeze(t)
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionUnknown, unknownWithin)
	n.Thaw(t)
	n.WaitReady(t)
	wantPod(t, c, ns, "kept is ready after a freeze", pod, kept)
}
