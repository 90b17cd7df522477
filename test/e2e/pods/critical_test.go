//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A critical pod is admitted on a node without room: another pod is ended for it. All pods here request an extended
// resource of which the node has one, and which pods of other tests do not request.
func TestCritical(t *testing.T) {
	b := at(t)
	const lacked = "example.com/seat"
	patch := func(op string) {
		text := fmt.Sprintf(`[{"op": %q, "path": "/status/capacity/example.com~1seat", "value": "1"}]`, op)
		_, err := b.API.CoreV1().Nodes().Patch(t.Context(), b.NodeName, types.JSONPatchType, []byte(text),
			metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
	patch("add")
	rig.Eventually(t, soon, "the node has a seat", func(ctx context.Context) error {
		node, err := b.API.CoreV1().Nodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[lacked]; q.Value() != 1 {
			return fmt.Errorf("%d", q.Value())
		}
		return nil
	})
	seated := func(name string) corev1.PodSpec {
		spec := lasting(workload("c", "sleep", "infinity"))
		spec.NodeName = b.NodeName
		spec.Containers[0].Resources.Limits = corev1.ResourceList{lacked: quantity("1")}
		return spec
	}
	preempted := func(name string) {
		p := b.ended(name, corev1.PodFailed)
		b.want(name+" reason", p.Status.Reason, "Preempting")
		b.want(name+" message", p.Status.Message, "Preempted in order to admit critical pod")
		c := condition(p, corev1.DisruptionTarget)
		b.want(name+" condition", fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message),
			"True TerminationByKubelet Pod was preempted by Kubelet to accommodate a critical pod.")
		b.event(name, "Preempting", "Preempted in order to admit critical pod")
	}

	b.create("first", seated("first"))
	b.ready("first")
	b.create("plain", seated("plain"))
	b.want("plain", b.ended("plain", corev1.PodFailed).Status.Reason, "OutOfexample.com/seat")
	critical := seated("critical")
	critical.PriorityClassName = "system-cluster-critical"
	b.create("critical", critical)
	preempted("first")
	b.ready("critical")

	// A static pod may have a still higher priority, as kubeadm's have.
	path := filepath.Join(b.StaticPods(), b.ns+"-static.yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static, namespace: %s}\n"+
		"spec:\n  priorityClassName: system-node-critical\n  priority: 2000001000\n  containers:\n"+
		"  - {name: c, image: %q, args: [sleep, infinity], resources: {limits: {%s: 1}}}\n", b.ns, image, lacked)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	preempted("critical")
	b.ready("static-" + b.NodeName)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.gone("static-"+b.NodeName, soon)
	patch("remove")
}
