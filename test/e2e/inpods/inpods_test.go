//go:build e2e

// Package inpods runs scheduler and lifecycle controller as pods, by the manifests in deploy/ and the image that `make
// image` builds, on a cluster that has no others.
//
// The test process has its own network namespace, since a namespace can have one kube-proxy.
package inpods

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// soon bounds what takes seconds on an idle machine.
const soon = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(rig.Apart(func() int {
		if os.Geteuid() == 0 {
			if err := link.SetUp("lo"); err != nil {
				fmt.Fprintln(os.Stderr, "FAIL:", err)
				return 1
			}
		}
		return m.Run()
	}))
}

// cluster is an instance without scheduler and lifecycle controller.
type cluster struct {
	*rig.Cluster
	ns string
}

// TestInPods goes the ways of docs/in-pods.md: in the place of upstream's, then beside kube-scheduler.
func TestInPods(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(config, []byte(withChains), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: rig.New(t, "inpods", rig.Options{
		Services: true,
		UpFlags: []string{
			"--no-scheduler", "--no-lifecycle", "--without", "coredns,metrics-server", "--agent-config", config,
		},
	})}
	wantChains(t)
	c.ns = c.Namespace(t)
	if out, err := c.Plimsoll("image", "load", archive(t)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	other := c.Keep(t, "scheduler", "scheduler", "--secure-port", fmt.Sprint(freeport.ForTest(t)), "--bind-address",
		"127.0.0.1") // it places the pods of the other, as kube-scheduler does
	c.apply(t, "lifecycle")
	c.apply(t, "scheduler/instead")
	c.ready(t, "plimsoll-lifecycle")
	c.ready(t, "plimsoll-scheduler")
	other.Stop()
	c.led(t, "kube-scheduler", "plimsoll-scheduler-")
	c.led(t, "plimsoll-lifecycle", "plimsoll-lifecycle-")
	c.runs(t, "placed", "")
	c.cordoned(t)

	c.apply(t, "scheduler/beside")
	c.ready(t, "plimsoll-scheduler")
	c.led(t, "plimsoll-scheduler", "plimsoll-scheduler-")
	c.runs(t, "beside", "plimsoll")
	if by := c.pod(t, "others", corev1.DefaultSchedulerName); by.Spec.NodeName != "" {
		t.Errorf("a pod of the default scheduler is on %s, and that scheduler does not run", by.Spec.NodeName)
	}
	c.mayDoWhatTheyAsk(t)
}

// withChains has the agent make the kubelet's chains. `up` switches them off otherwise. This package is the place to
// look for them, since its network namespace has no chains but those of this instance.
const withChains = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
makeIPTablesUtilChains: true
`

// wantChains waits until the machine's programs list the chains that a kubelet makes, and the rule in them.
func wantChains(t *testing.T) {
	t.Helper()
	const drop = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 " +
		`-m comment --comment "block incoming localnet connections" ` +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
	for command, want := range map[string][]string{
		"iptables -t mangle -S":  {"-N KUBE-IPTABLES-HINT"},
		"iptables -t filter -S":  {"-N KUBE-FIREWALL", "-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", drop},
		"ip6tables -t mangle -S": {"-N KUBE-IPTABLES-HINT"},
	} {
		words := strings.Fields(command)
		rig.Eventually(t, soon, "the chains of makeIPTablesUtilChains: "+command, func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			lines := strings.Split(string(out), "\n")
			for _, line := range want {
				if !slices.Contains(lines, line) {
					return fmt.Errorf("%s is not among:\n%s", line, out)
				}
			}
			return nil
		})
	}
}

// archive returns the image for the manifests, of the program that is tested.
func archive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "run", "./images/build", "--plimsoll", rig.Binary(t), "--out", dir)
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, image.ProgramFile)
}

// apply applies a directory of deploy/.
func (c *cluster) apply(t *testing.T, dir string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../deploy", dir))
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "apply", "-k", path)
}

// ready waits until a Deployment has its last form, whole.
func (c *cluster) ready(t *testing.T, name string) {
	t.Helper()
	rig.Eventually(t, soon, name+" is ready", func(ctx context.Context) error {
		d, err := c.API.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.Replicas != *d.Spec.Replicas || s.UpdatedReplicas != s.Replicas ||
			s.AvailableReplicas != s.Replicas {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// led waits until a pod holds a Lease.
func (c *cluster) led(t *testing.T, lease, pod string) {
	t.Helper()
	rig.Eventually(t, soon, "a pod holds Lease "+lease, func(ctx context.Context) error {
		l, err := c.API.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if by := l.Spec.HolderIdentity; by == nil || !strings.HasPrefix(*by, pod) {
			return fmt.Errorf("it is held by %v", *l.Spec.HolderIdentity)
		}
		return nil
	})
}

// pod creates a pod that names a scheduler.
func (c *cluster) pod(t *testing.T, name, scheduler string) *corev1.Pod {
	t.Helper()
	pod, err := c.API.CoreV1().Pods(c.ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers:    []corev1.Container{{Name: "app", Image: image.Demo, Args: []string{"sleep", "infinity"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// runs creates a pod and waits until it runs.
func (c *cluster) runs(t *testing.T, name, scheduler string) {
	t.Helper()
	c.pod(t, name, scheduler)
	rig.Eventually(t, soon, name+" runs", func(ctx context.Context) error {
		pod, err := c.API.CoreV1().Pods(c.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s, %+v", pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
}

// cordoned checks that the lifecycle controller acts: it taints a node that is cordoned.
func (c *cluster) cordoned(t *testing.T) {
	t.Helper()
	nodes := c.API.CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cordoned"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "the node is tainted", func(ctx context.Context) error {
		n, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, taint := range n.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("it has %v", n.Spec.Taints)
	})
	if err := nodes.Delete(t.Context(), node.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// mayDoWhatTheyAsk reads the logs: nothing was forbidden, and no container was restarted.
func (c *cluster) mayDoWhatTheyAsk(t *testing.T) {
	t.Helper()
	pods := c.API.CoreV1().Pods(metav1.NamespaceSystem)
	list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name"})
	if err != nil || len(list.Items) < 4 {
		t.Fatalf("%d pods, %v", len(list.Items), err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		text, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "cannot ") {
				t.Errorf("%s: %s", pod.Name, line)
			}
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				t.Errorf("%s was restarted: %+v", pod.Name, s.LastTerminationState)
			}
		}
	}
}
