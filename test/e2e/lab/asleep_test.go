//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// asleep is how long the node sleeps by its real-time clock.
const asleep = time.Hour

// TestAsleep suspends a node to memory for longer than its Lease lasts. When it resumes, its real-time clock has moved
// on by an hour and its monotonic clock has not. The agent continues and the node is Ready again. The containers are
// the same, although one is probed every second and a pod with a termination grace period of half an hour was deleted
// just before. Nothing is evicted.
func TestAsleep(t *testing.T) {
	c := rig.Shared(t)
	n := evictingNode{runningNode{t: t, c: c, ns: c.Namespace(t), names: cgroupfsNames}, t}
	n.GuestNode = c.Join(t, lab.Boot(t, "tiny", lab.Options{Name: "sleeper"}), rig.JoinOptions{})
	stay := []*corev1.Pod{n.load("steady", "sleep infinity"), n.probed()}
	n.load("leaving", "ignore-term")
	grace := fmt.Sprintf("--grace-period=%d", asleep/2/time.Second)
	n.c.Kubectl(t, "--namespace", n.ns, "delete", "pod", "--wait=false", grace, "leaving")
	n.logs("leaving", "SIGTERM ignored")

	before := n.clocks()
	n.Suspend(t)
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionUnknown, unknownWithin)
	woken := time.Now()
	n.Wake(t, woken.Add(asleep))
	after := n.clocks()
	if after.calendar-before.calendar < asleep || after.monotonic-before.monotonic > asleep/2 {
		t.Fatalf("it had %+v, and has %+v after its sleep: want an hour more by the calendar alone", before, after)
	}

	n.WaitReady(t)
	t.Logf("the node is Ready %v after it was woken", time.Since(woken).Round(100*time.Millisecond))
	n.renews(woken)
	for _, was := range stay {
		n.untouched(was)
	}
	n.lives("leaving")
	n.remove("leaving")
	for _, reason := range []string{"Evicted", "Unhealthy", "BackOff"} {
		args := []string{"--namespace", n.ns, "get", "events", "--field-selector", "reason=" + reason}
		if told := n.c.Kubectl(t, append(args, "-o", "jsonpath={.items[*].message}")...); told != "" {
			t.Errorf("%s: %s", reason, told)
		}
	}
	n.SetClock(t, time.Now())
	n.takesPods("after-the-sleep")
	for _, was := range stay {
		n.untouched(was)
	}
	n.alive()
}

// probed is a pod that is restarted when one probe fails.
func (n evictingNode) probed() *corev1.Pod {
	n.t.Helper()
	pod := n.pod("probed", []corev1.Container{sized("c", "10m,16Mi", "")})
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	c := &pod.Spec.Containers[0]
	c.Args = []string{"http", "--port", "8080"}
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
		PeriodSeconds: 1, TimeoutSeconds: 20, FailureThreshold: 1, InitialDelaySeconds: 1,
	}
	c.ReadinessProbe = c.LivenessProbe.DeepCopy()
	n.postPod(pod)
	return n.until("probed", "is ready", podReady)
}

// clocks are the readings of a guest's clocks.
type clocks struct{ calendar, monotonic time.Duration }

func (n evictingNode) clocks() clocks {
	n.t.Helper()
	read := func(script string, unit time.Duration) time.Duration {
		text := n.Run(n.t, "sh", "-c", script)
		count, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			n.t.Fatalf("%s: %v", script, err)
		}
		return time.Duration(count) * unit
	}
	return clocks{read("date +%s", time.Second), read(`sed -n 's/^now at \([0-9]*\) nsecs/\1/p' /proc/timer_list`, 1)}
}

// renews waits until the node's Lease was renewed within the given time.
func (n evictingNode) renews(since time.Time) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "the lease is renewed", func(ctx context.Context) error {
		lease, err := n.c.API.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(since) {
			err = fmt.Errorf("renewed %v", lease.Spec.RenewTime)
		}
		return err
	})
}

// untouched checks that a pod is ready and that its container is the same as before.
func (n evictingNode) untouched(was *corev1.Pod) {
	n.t.Helper()
	n.until(was.Name, "runs on", func(p *corev1.Pod) error {
		now, before := p.Status.ContainerStatuses[0], was.Status.ContainerStatuses[0]
		if now.ContainerID != before.ContainerID || now.RestartCount != before.RestartCount {
			n.t.Fatalf("%s was container %s and is %s, restarted %d times",
				was.Name, before.ContainerID, now.ContainerID, now.RestartCount)
		}
		return podReady(p)
	})
}
