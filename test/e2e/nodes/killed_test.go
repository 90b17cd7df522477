//go:build e2e

package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// killNode: a node of which every process is killed at once, containers included, is Ready again after `join` without a
// token, with the pods that it had. Each container was started once more.
func killNode(t *testing.T, c *rig.Cluster, m *machine, namespace string) {
	was := serverOn(t, c, m, namespace)
	m.die()
	m.endAll()
	c.WaitCondition(t, m.name, corev1.NodeReady, corev1.ConditionUnknown, 2*time.Minute)
	if _, err := m.join(); err != nil {
		t.Fatal(err)
	}
	ready(t, c, m.name)
	rig.Eventually(t, time.Minute, "its pod runs again", func(context.Context) error {
		is := serverOn(t, c, m, namespace)
		s := is.Status.ContainerStatuses[0]
		if is.UID != was.UID || !s.Ready || s.RestartCount != was.Status.ContainerStatuses[0].RestartCount+1 {
			return fmt.Errorf("pod %s (was %s): %+v", is.UID, was.UID, s)
		}
		return nil
	})
	c.Reach(t, namespace, []string{m.name}, "http://shop."+namespace+".svc.cluster.local/")
	c.Reach(t, namespace, []string{c.NodeName}, "http://"+serverOn(t, c, m, namespace).Status.PodIP+":8080/")
}

// partition: two nodes that reach the server and not each other stay Ready. Their pods reach each other again when the
// machines do.
func partition(t *testing.T, c *rig.Cluster, one, other *machine, namespace string) {
	part := func(parted string) {
		t.Helper()
		for _, m := range []*machine{one, other} { // a bridge forwards nothing between isolated ports
			out, err := exec.Command("bridge", "link", "set", "dev", "to-"+m.name, "isolated", parted).CombinedOutput()
			if err != nil {
				t.Fatal(err, string(out))
			}
		}
	}
	from := "on-" + one.name
	to := "http://" + serverOn(t, c, other, namespace).Status.PodIP + ":8080/"
	began := time.Now()
	part("on")
	t.Cleanup(func() { part("off") })
	out, err := c.TryKubectl(t, "-n", namespace, "exec", from, "--", "/workload", "get", "--timeout", "2s", to)
	if err == nil {
		t.Fatalf("across the partition: %s", out)
	}
	own := "http://" + serverOn(t, c, one, namespace).Status.PodIP + ":8080/"
	c.Reach(t, namespace, []string{c.NodeName}, own, to)
	for _, m := range []*machine{one, other} { // each renews its Lease meanwhile
		rig.Eventually(t, time.Minute, m.name+" renews its Lease", func(ctx context.Context) error {
			lease, err := c.API.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, m.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if at := lease.Spec.RenewTime; at == nil || at.Before(&metav1.MicroTime{Time: began}) {
				return fmt.Errorf("it was renewed at %v, before %v", at, began)
			}
			return nil
		})
		ready(t, c, m.name)
	}
	part("off")
	c.Reach(t, namespace, []string{one.name}, to)
	c.Reach(t, namespace, []string{other.name}, own)
}

// serverOn returns the pod of rig.Cluster.Servers on a machine.
func serverOn(t *testing.T, c *rig.Cluster, m *machine, namespace string) *corev1.Pod {
	t.Helper()
	pod, err := c.API.CoreV1().Pods(namespace).Get(t.Context(), "on-"+m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Status.ContainerStatuses) != 1 {
		t.Fatalf("pod %s has the containers %+v", pod.Name, pod.Status.ContainerStatuses)
	}
	return pod
}

// endAll kills what die leaves: the processes of pods, and all others in the machine's network namespace.
func (m *machine) endAll() {
	m.t.Helper()
	rig.Eventually(m.t, 30*time.Second, "no process of the machine is left", func(context.Context) error {
		pids, err := m.processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		return fmt.Errorf("processes %v were killed", pids)
	})
}

// processes returns the processes of pods, and those in the machine's network namespace.
func (m *machine) processes() (pids []int, err error) {
	namespace, err := os.Stat(link.NamespacePath(m.namespace))
	if err != nil {
		return nil, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, process := range all {
		pid, err := strconv.Atoi(filepath.Base(process))
		if err != nil {
			return nil, err
		}
		group, err := os.ReadFile(filepath.Join(process, "cgroup"))
		if err != nil {
			continue // it has ended
		}
		its, err := os.Stat(filepath.Join(process, "ns/net"))
		inside := err == nil && os.SameFile(its, namespace)
		if inside || strings.Contains(string(group), ":/plimsoll-"+m.instance()+"/") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
