package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

const (
	namespace    = "default"
	nodeName     = "bench"
	limit        = 1 << 30          // of all pods together, in bytes
	threshold    = 100 << 20        // eviction below this, in bytes
	steadies     = 3                // number of pods that do not grow
	roundTimeout = 5 * time.Minute  // of one round (chosen)
	readPeriod   = time.Millisecond // interval of reads from the kernel
)

// rig is one instance of `plimsoll up` with one agent, and the kernel's files of its pods.
type rig struct {
	config
	side   string
	name   string   // of the instance
	flags  []string // of our agent, in addition to those of up
	more   string   // further lines of the agent's configuration
	client *kubernetes.Clientset
	agent  int // pid
}

func (r *rig) state() string    { return filepath.Join(r.dir, r.name) }
func (r *rig) instance() string { return "evict-" + r.name }
func (r *rig) pods() string {
	return "/sys/fs/cgroup/memory/plimsoll-" + r.instance() + "/kubepods"
}

// agentConfig allows the pods 1 GiB. The rest is what upstream's kubelet needs to start on any machine on which our
// agent starts, and a short transition period, so that the next run's pods are admitted.
func agentConfig() (string, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "", err
	}
	var kib int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err != nil {
		return "", fmt.Errorf("read /proc/meminfo: %w", err)
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
clusterDomain: cluster.local
clusterDNS: [10.98.0.10]
kubeReserved: {memory: "%d"}
evictionHard: {memory.available: %dMi}
evictionPressureTransitionPeriod: 1s
`, kib<<10-limit, threshold>>20), nil
}

func (r *rig) up(ctx context.Context) error {
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.stat"); err != nil {
		return fmt.Errorf("this program reads cgroup v1: %w", err)
	}
	text, err := agentConfig()
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, r.name+".yaml")
	if err := os.WriteFile(file, []byte(text+r.more), 0o600); err != nil {
		return err
	}
	args := []string{"up", "--detach", "--instance", r.instance(), "--state-dir", r.state(), "--node-name", nodeName,
		"--pod-cidr", "10.87.0.0/16",
		"--service-cidr", "10.98.0.0/16", "--agent-config", file, "--timeout", "3m", "--without",
		"kube-proxy,coredns,metrics-server,csi"}
	for i, flag := range []string{"apiserver-port", "controller-manager-port", "agent-port", "agent-health-port"} {
		args = append(args, "--"+flag, strconv.Itoa(r.portBase+i))
	}
	switch {
	case r.side == kubelet:
		args = append(args, "--agent-binary", r.kubelet)
	case len(r.flags) > 0:
		program, err := r.wrap()
		if err != nil {
			return err
		}
		args = append(args, "--agent-binary", program)
	}
	if _, err := r.run(ctx, args...); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(r.state(), "admin.kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS = -1
	if r.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if err := r.findAgent(ctx); err != nil {
		return err
	}
	for i := range steadies {
		pod := podNamed(fmt.Sprintf("steady-%d", i), "memory", "--hold=64Mi")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("96Mi")}
		if err := r.create(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// wrap writes a program that runs our agent with more flags, since `up` cannot pass flags on.
func (r *rig) wrap() (string, error) {
	ours, err := filepath.Abs(r.plimsoll)
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.dir, r.name+"-agent")
	return file, os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nexec %s agent %s \"$@\"\n", ours, strings.Join(r.flags,
		" ")), 0o700)
}

func (r *rig) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	_, err := r.run(ctx, "down", "--instance", r.instance(), "--state-dir", r.state(), "--purge")
	return err
}

// run calls our program and returns what it printed.
func (r *rig) run(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, r.plimsoll, args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

func (r *rig) findAgent(ctx context.Context) error {
	out, err := r.run(ctx, "status", "-o", "json", "--instance", r.instance(), "--state-dir", r.state())
	if err != nil {
		return err
	}
	status := struct {
		Children []struct {
			Name string
			PID  int
		}
	}{}
	if err := json.Unmarshal(out, &status); err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	for _, c := range status.Children {
		if c.Name == "agent" {
			r.agent = c.PID
			return nil
		}
	}
	return fmt.Errorf("read status: no agent in %s", out)
}

func podNamed(name string, args ...string) *corev1.Pod {
	zero := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{Name: "c", Image: "plimsoll.dev/workload:1",
				ImagePullPolicy: corev1.PullIfNotPresent, Args: args}},
		},
	}
}

// kubeletRest is longer than the kubelet's periods of 10 s: only then do its conditions say whether it admits pods.
const kubeletRest = 12 * time.Second

// settle waits until nothing is left of the last run: no memory of its pods, no pressure condition of the node, and no
// taint that repels pods.
func (r *rig) settle(ctx context.Context) error {
	if r.side == kubelet {
		if err := record.Pause(ctx, kubeletRest); err != nil {
			return err
		}
	}
	return r.until(ctx, "pressure ends", func() error {
		if left := r.usage(); left > (limit-threshold)/2 {
			return fmt.Errorf("pods use %d bytes", left)
		}
		node, err := r.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeMemoryPressure && c.Status != corev1.ConditionFalse {
				return fmt.Errorf("%s is %s", c.Type, c.Status)
			}
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("taints %v", node.Spec.Taints)
		}
		return nil
	})
}

// create creates a pod and waits until it runs. Right after the start, creation fails until the service account exists.
func (r *rig) create(ctx context.Context, pod *corev1.Pod) error {
	err := r.until(ctx, "create "+pod.Name, func() error {
		_, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return r.until(ctx, pod.Name+" runs", func() error {
		now, err := r.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase == corev1.PodPending {
			err = errors.New("it is pending")
		}
		return err
	})
}

func (r *rig) until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
