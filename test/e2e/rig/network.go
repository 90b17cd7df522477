//go:build e2e

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apartVariable marks a process in a network namespace of its own.
const apartVariable = "PLIMSOLL_RIG_APART"

// Apart calls inside, which runs the tests of a package, in a new network namespace, and returns the exit code. Without
// root it calls inside in this network namespace.
func Apart(inside func() int) int {
	if os.Geteuid() != 0 || os.Getenv(apartVariable) != "" {
		return inside()
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Args[0] = os.Args[0]
	again.Env = append(os.Environ(), apartVariable+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal comes with the end of this thread
	if err := again.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		fmt.Fprintln(os.Stderr, "FAIL: a network namespace of its own:", err)
		return 1
	}
	return again.ProcessState.ExitCode()
}

// Servers starts a pod with an HTTP server on each node, on-NODE with the label app=server, and returns their addresses
// by node.
func (c *Cluster) Servers(t *testing.T, namespace string, nodes ...string) map[string]string {
	t.Helper()
	for _, node := range nodes {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Labels: map[string]string{"app": "server"}},
			Spec: corev1.PodSpec{
				NodeName:                      node,
				TerminationGracePeriodSeconds: new(int64),
				Containers: []corev1.Container{{
					Name:  "app",
					Image: "plimsoll.dev/workload:dev",
					Args:  []string{"http"},
				}},
			},
		}
		if _, err := c.API.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ips := map[string]string{}
	for _, node := range nodes {
		Eventually(t, time.Minute, "the pod on "+node+" runs", func(ctx context.Context) error {
			pod, err := c.API.CoreV1().Pods(namespace).Get(ctx, "on-"+node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ips[node] = pod.Status.PodIP; pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
				return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.Conditions)
			}
			return nil
		})
	}
	return ips
}

// Reach checks that the pods of Servers on all nodes reach each URL. It uses kubectl exec, so it also shows that
// kube-apiserver reaches the agents' servers and trusts their certificates.
func (c *Cluster) Reach(t *testing.T, namespace string, nodes []string, urls ...string) {
	t.Helper()
	for _, node := range nodes {
		for _, url := range urls {
			Eventually(t, 30*time.Second, node+" reaches "+url, func(context.Context) error {
				_, err := c.TryKubectl(t, "-n", namespace, "exec", "on-"+node, "--", "/workload", "get", url)
				return err
			})
		}
	}
}
