//go:build e2e

package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// apply creates the objects of a manifest, in which IMAGE is replaced.
func (b bench) apply(manifest string) {
	b.t.Helper()
	cmd := b.KubectlCommand(b.t.Context(), "apply", "-n", b.ns, "-f", "-")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(manifest, "IMAGE", image))
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
}

// pods waits for a number of pods with a label that have not ended, and returns them.
func (b bench) pods(selector string, want int) []corev1.Pod {
	b.t.Helper()
	var pods []corev1.Pod
	rig.Eventually(b.t, soon, fmt.Sprintf("%d pods %s", want, selector), func(ctx context.Context) error {
		list, err := b.API.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if pods = list.Items; len(pods) != want {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	return pods
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: c
        image: IMAGE
        args: [http]
        env: [{name: VERSION, value: one}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`

// A Deployment rolls out, replaces a deleted pod, scales, changes, and ends within its termination grace period.
func TestDeployment(t *testing.T) {
	b := at(t)
	b.apply(deployment)
	b.kubectl("rollout", "status", "deployment/web", rig.KubectlWaits)
	addresses := map[string]bool{}
	for _, p := range b.pods("app=web", 3) {
		addresses[p.Status.PodIP] = true
	}
	if len(addresses) != 3 {
		t.Errorf("addresses %v", addresses)
	}
	b.kubectl("set", "env", "deployment/web", "VERSION=two")
	b.kubectl("rollout", "status", "deployment/web", rig.KubectlWaits)
	for _, p := range b.pods("app=web", 3) {
		b.want("version", b.in(p.Name, "env", "VERSION"), "two")
	}
	b.kubectl("scale", "deployment/web", "--replicas=1")
	b.pods("app=web", 1)
	clock := rig.StartClock()
	b.kubectl("delete", "deployment", "web")
	b.pods("app=web", 0)
	clock.AtMost(t, 5*time.Second+slack, "the deletion, with a grace of 5 s,")
}

// A Job runs to completion and retries failures. A DaemonSet has one pod on this node. A StatefulSet creates its pods
// one by one.
func TestControllers(t *testing.T) {
	b := at(t)
	b.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: good}
spec: {completions: 3, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: IMAGE, args: [exit]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: bad}
spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: c, image: IMAGE, args: [exit, --code, "1"]}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: IMAGE, args: [sleep, infinity]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: row}
spec:
  replicas: 3
  serviceName: row
  selector: {matchLabels: {app: row}}
  template:
    metadata: {labels: {app: row}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: IMAGE, args: [http, --ready-after, 1s], readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]
`)
	b.kubectl("wait", "--for=condition=Complete", "job/good", rig.KubectlWaits)
	b.kubectl("wait", "--for=condition=Failed", "job/bad", rig.KubectlWaits)
	b.kubectl("rollout", "status", "daemonset/everywhere", rig.KubectlWaits)
	b.kubectl("rollout", "status", "statefulset/row", rig.KubectlWaits)
	row := b.pods("app=row", 3)
	for i := 1; i < len(row); i++ {
		before, after := condition(&row[i-1], corev1.PodReady), container(&row[i], "c").State.Running
		if row[i].Name != fmt.Sprintf("row-%d", i) || after == nil || after.StartedAt.Before(&before.LastTransitionTime) {
			t.Errorf("%s started at %v, the one before it was ready at %v", row[i].Name, after, before.LastTransitionTime)
		}
	}
	b.want("its name", b.in("row-2", "env", "HOSTNAME"), "row-2")
	b.kubectl("scale", "statefulset/row", "--replicas=1")
	b.pods("app=row", 1)
	was := b.pods("app=everywhere", 1)[0]
	b.kubectl("delete", "pod", was.Name)
	b.kubectl("rollout", "status", "daemonset/everywhere", rig.KubectlWaits)
	if is := b.pods("app=everywhere", 1)[0]; is.UID == was.UID {
		t.Error("the DaemonSet's pod was not replaced")
	}
}

// kubectl drain evicts the node's pods, and uncordon allows new ones. It concerns all pods of the node, so it runs
// alone, before the parallel tests.
func TestDrain(t *testing.T) {
	c := rig.Shared(t)
	b := bench{c, t, c.Namespace(t)}
	b.apply(deployment)
	b.kubectl("rollout", "status", "deployment/web", rig.KubectlWaits)
	was := map[string]bool{}
	for _, p := range b.pods("app=web", 3) {
		was[p.Name] = true
	}
	b.Kubectl(t, "drain", b.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", rig.KubectlWaits)
	defer b.Kubectl(t, "uncordon", b.NodeName)
	for _, p := range b.pods("app=web", 3) {
		if was[p.Name] || p.Spec.NodeName != "" {
			t.Errorf("pod %s is on node %q", p.Name, p.Spec.NodeName)
		}
		b.event(p.Name, "FailedScheduling", "1 node(s) were unschedulable")
	}
	b.Kubectl(t, "uncordon", b.NodeName)
	b.kubectl("rollout", "status", "deployment/web", rig.KubectlWaits)
}
