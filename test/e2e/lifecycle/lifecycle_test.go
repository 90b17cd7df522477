//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// The times of the test: Leases of 4 s are renewed every second, a node is silent after 6 s, one node of the zone is
// tainted every 4 s, and pods tolerate that for 2 s.
const (
	leaseDuration = "4s"
	grace         = 6 * time.Second
	patience      = int64(2)
)

// soon bounds what takes seconds on an idle machine. slack is how much later than it should something may happen on a
// busy machine.
const (
	soon  = 2 * time.Minute
	slack = 20 * time.Second
)

// cluster is an instance without lifecycle controller and nodes of its own; the test runs them.
type cluster struct {
	*rig.Cluster
	ns       string
	ports    []string // of the controllers
	journals []string // theirs, as flags of explain
}

// TestFates breaks the nodes of one cluster in several ways. Each part needs the state that the part before it left.
func TestFates(t *testing.T) {
	top := t
	c := &cluster{Cluster: rig.New(t, "fates", rig.Options{NoNode: true, UpFlags: []string{"--no-lifecycle"}})}
	c.fleet(t, "live", 4)
	doomed := c.fleet(t, "doomed", 3)
	left, right := c.controller(t, "left"), c.controller(t, "right")
	rig.Eventually(t, soon, "all nodes open", func(ctx context.Context) error {
		nodes, err := c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if len(n.Spec.Taints) > 0 {
				return fmt.Errorf("%s has %v", n.Name, n.Spec.Taints)
			}
		}
		return nil
	})
	c.ns = c.Namespace(t)
	c.workloads(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"death", func(t *testing.T) { c.death(t, doomed, left, right) }},
		{"metrics", c.metrics},
		{"out of service", c.outOfService},
		{"deleted node", c.deletedNode},
		{"return", func(t *testing.T) { c.comeBack(t, doomed) }},
		{"budgets", func(t *testing.T) {
			left.Stop()
			right.Stop()
			c.controller(top, "budgets", "--respect-disruption-budgets")
			c.budgets(t)
		}},
		{"API away", c.away},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

func (c *cluster) fleet(t *testing.T, group string, nodes int) *rig.Program {
	k := c.Keep(t, "fleet-"+group, "fleet", "--nodes", fmt.Sprint(nodes), "--node-prefix", group+"-", "--lease-duration",
		leaseDuration, "--control", "")
	rig.Eventually(t, soon, "the nodes "+group, func(ctx context.Context) error {
		list, err := c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, group) {
				ready++
			}
		}
		if ready != nodes {
			return fmt.Errorf("%d of %d", ready, nodes)
		}
		return nil
	})
	return k
}

func (c *cluster) controller(t *testing.T, name string, more ...string) *rig.Program {
	port := fmt.Sprint(freeport.ForTest(t))
	c.ports = append(c.ports, port)
	journal := filepath.Join(c.StateDir, "journal", name)
	c.journals = append(c.journals, "--journal", journal)
	return c.Keep(t, "lifecycle-"+name, append([]string{"lifecycle", "--secure-port", port, "--bind-address", "127.0.0.1",
		"--journal-dir", journal, "--node-monitor-grace-period", grace.String(), "--node-eviction-rate", "0.25",
		"--orphan-quarantine", "2s", "--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s",
		"--leader-elect-retry-period", "500ms"},
		more...)...)
}

func tolerations() []corev1.Toleration {
	seconds := patience
	var out []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		out = append(out, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	return out
}

// workloads creates one workload of each kind. Each pod of the StatefulSet is on a doomed node. A pod with a static
// pod's tolerations and annotations is on doomed-2.
func (c *cluster) workloads(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	labels := func(app string) metav1.ObjectMeta { return metav1.ObjectMeta{Labels: map[string]string{"app": app}} }
	selector := func(app string) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: labels(app).Labels} }
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}, Tolerations: tolerations()}
	replicas := int32(14)
	_, err := c.API.AppsV1().Deployments(c.ns).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector("web"), Template: corev1.PodTemplateSpec{ObjectMeta: labels("web"),
				Spec: spec},
		}}, metav1.CreateOptions{})
	daemon := corev1.PodSpec{Containers: spec.Containers}
	_, err2 := c.API.AppsV1().DaemonSets(c.ns).Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds"},
		Spec: appsv1.DaemonSetSpec{
			Selector: selector("ds"), Template: corev1.PodTemplateSpec{ObjectMeta: labels("ds"), Spec: daemon},
		}}, metav1.CreateOptions{})
	static := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "static-doomed-2",
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		Spec: corev1.PodSpec{Containers: spec.Containers, NodeName: "doomed-2", EnableServiceLinks: new(bool),
			AutomountServiceAccountToken: new(bool),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute}}},
	}
	_, err3 := c.API.CoreV1().Pods(c.ns).Create(ctx, static, metav1.CreateOptions{})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	// The test binds the StatefulSet's three pods itself, one to each doomed node.
	three := int32(3)
	stateful := spec
	stateful.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key:      corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{"doomed-0", "doomed-1", "doomed-2"},
			}}},
		}},
	}}
	stateful.Containers = []corev1.Container{{Name: "c", Image: "x", Ports: []corev1.ContainerPort{{ContainerPort: 80,
		HostPort: 7777}}}} // one per node
	_, err = c.API.AppsV1().StatefulSets(c.ns).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &three, ServiceName: "db", PodManagementPolicy: appsv1.ParallelPodManagement, Selector: selector("db"),
			Template: corev1.PodTemplateSpec{ObjectMeta: labels("db"), Spec: stateful},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "14 + 7 + 3 + 1 pods Ready", func(ctx context.Context) error {
		ready := 0
		for _, p := range c.pods(ctx) {
			ready += one(isReady(&p))
			if app := p.Labels["app"]; app == "db" && p.Spec.NodeName != "" && !onDoomed(&p) {
				return fmt.Errorf("%s is on %s", p.Name, p.Spec.NodeName)
			}
		}
		if ready != 25 {
			return fmt.Errorf("%d", ready)
		}
		return nil
	})
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func onDoomed(p *corev1.Pod) bool { return strings.HasPrefix(p.Spec.NodeName, "doomed-") }

func (c *cluster) pods(ctx context.Context) []corev1.Pod {
	list, err := c.API.CoreV1().Pods(c.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return list.Items
}

func (c *cluster) doomedNodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []corev1.Node
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, "doomed-") {
			out = append(out, n)
		}
	}
	return out, nil
}

// emptied returns when each doomed node got its NoExecute taint.
func emptied(nodes []corev1.Node) map[string]time.Time {
	out := map[string]time.Time{}
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			if t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded != nil {
				out[n.Name] = t.TimeAdded.Time
			}
		}
	}
	return out
}
