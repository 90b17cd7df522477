//go:build e2e

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// lifeTimeout bounds each step of a pod's life here (chosen: minutes above what it takes on a busy machine).
const lifeTimeout = 2 * time.Minute

// told is an instance with a real node, and pods whose lives are told.
type told struct {
	*rig.Cluster
	ns string
}

// TestStory lets a pod wait for room, get it, start, fail, start again, and be preempted. Then it asks what became of
// the pod, also when the API has it no more, from what is left of the journals, and repeats all decisions.
func TestStory(t *testing.T) {
	s := &told{Cluster: rig.New(t, "story", rig.Options{})}
	s.ns = s.Namespace(t)
	node, err := s.API.CoreV1().Nodes().Get(t.Context(), s.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Two of these pods never fit together, whatever else runs on the node.
	half := resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	never := corev1.PreemptNever
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "story-waits"}, Value: 100, PreemptionPolicy: &never},
		{ObjectMeta: metav1.ObjectMeta{Name: "story-urgent"}, Value: 1000},
	} {
		if _, err := s.API.SchedulingV1().PriorityClasses().Create(t.Context(), &class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, "holder", "", half, "sleep", "infinity")
	s.until(t, "holder", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.run(t, "web", "story-waits", half, "exit", "--code", "3", "--after", "2s")
	s.until(t, "web", "waits", func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
	s.delete(t, "holder")
	s.until(t, "web", "has failed and started again", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	const waits, placed = `scheduler: 0/1 nodes are available: 1 Insufficient cpu.* \(try 1, .* after it came\)`,
		`scheduler: placed on node-story: 1 of 1 nodes fit; cpu: .* requested, .* free of .*\(try [23], .* after it came\)`
	s.tells(t, "web", "API: created: requests cpu "+half.String()+"; priority 100", waits, placed,
		`agent on node-story: admitted: cpu: .* requested, .* free of .*; [0-9]+ pods of 110 were here`,
		`agent on node-story: container c starts \(run 1\)`,
		`agent on node-story: container c ends \(run 1\) after (1\.9|2).*: exit code 3, Error`,
		`agent on node-story: container c starts \(run 2\)`)
	if text, err := s.Plimsoll("explain", "pod", s.ns+"/web", "--kubeconfig", s.Kubeconfig); err == nil {
		t.Log(text)
	}

	s.run(t, "urgent", "story-urgent", half, "sleep", "infinity")
	s.until(t, "urgent", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	preempted := "scheduler: preempted on node-story for " + s.ns + "/urgent of priority 1000: " +
		"0/1 nodes are available: 1 Insufficient cpu"
	s.tells(t, "web", waits, placed, preempted)
	if text, err := s.Plimsoll("explain", "pod", s.ns+"/web", "--kubeconfig", s.Kubeconfig); err == nil {
		t.Log(text)
	}
	s.tells(t, "urgent", "API: created", "scheduler: .* Preempts on node-story: "+s.ns+"/web",
		"scheduler: placed on node-story", `agent on node-story: container c starts \(run 1\)`)
	s.alone(t, waits, placed, preempted)
	s.troubles(t)
	s.quota(t)
	s.repeats(t)
}

// quota lets a Deployment ask for more than a quota allows: its pods do not exist, and the answers say why.
func (s *told) quota(t *testing.T) {
	t.Helper()
	ns := s.Namespace(t)
	quotas := s.API.CoreV1().ResourceQuotas(ns)
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.cpu": resource.MustParse("100m")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, lifeTimeout, "the quota counts", func(ctx context.Context) error {
		q, err := quotas.Get(ctx, "small", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) == 0 {
			err = errors.New("it does not")
		}
		return err
	})
	one, labels := int32(1), map[string]string{"app": "greedy"}
	_, err = s.API.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "greedy"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name:  "c",
					Image: image.Demo,
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("200m"),
					}},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	says := `ReplicaSet ` + ns + `/greedy-\S+ cannot create pods .*exceeded quota: small, ` +
		`requested: requests\.cpu=200m, used: requests\.cpu=0, limited: requests\.cpu=100m`
	s.Explains(t, "pending", nil, says)
	s.Explains(t, "pod "+ns+"/greedy", nil, says)
}

// run creates a pod with one container.
func (s *told) run(t *testing.T, name, class string, cpu *resource.Quantity, args ...string) {
	t.Helper()
	second := int64(1)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		PriorityClassName:             class,
		TerminationGracePeriodSeconds: &second,
		Containers: []corev1.Container{{
			Name:  "c",
			Image: image.Demo,
			Args:  args,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: *cpu},
			},
		}},
	}}
	if _, err := s.API.CoreV1().Pods(s.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *told) delete(t *testing.T, name string) {
	t.Helper()
	if err := s.API.CoreV1().Pods(s.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// until waits until a pod is as it should be.
func (s *told) until(t *testing.T, name, what string, is func(*corev1.Pod) bool) {
	t.Helper()
	rig.Eventually(t, lifeTimeout, name+" "+what, func(ctx context.Context) error {
		pod, err := s.API.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !is(pod) {
			return fmt.Errorf("%+v", pod.Status)
		}
		return nil
	})
}

// tells waits until the story of a pod has moments that match, in that order.
func (s *told) tells(t *testing.T, name string, want ...string) {
	t.Helper()
	rig.Eventually(t, lifeTimeout, "the story of "+name, func(context.Context) error {
		text, err := s.Plimsoll("explain", "pod", s.ns+"/"+name, "--kubeconfig", s.Kubeconfig, "-o", "json")
		if err != nil {
			return err
		}
		return hasInOrder(text, want...)
	})
}

// hasInOrder reports which of the moments is not in an answer after those before it.
func hasInOrder(text string, want ...string) error {
	var answer struct {
		Story []struct{ From, What string } `json:"story"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	at, lines := 0, ""
	for _, m := range answer.Story {
		line := m.From + ": " + m.What
		lines += line + "\n"
		if at < len(want) && regexp.MustCompile(want[at]).MatchString(line) {
			at++
		}
	}
	if at < len(want) {
		return fmt.Errorf("%q is not there, or not in order:\n%s", want[at], lines)
	}
	return nil
}

// alone asks about the pod that is gone with one journal at a time, copied, and with none.
func (s *told) alone(t *testing.T, want ...string) {
	t.Helper()
	journal := filepath.Join(s.StateDir, "journal")
	ask := func(path string) (string, error) {
		return s.Plimsoll("explain", "pod", s.ns+"/web", "--kubeconfig", s.Kubeconfig, "-o", "json", "--journal", path)
	}
	text, err := ask(filepath.Join(journal, "scheduler", "decisions"))
	if err != nil {
		t.Fatal(err)
	}
	if err := hasInOrder(text, want...); err != nil {
		t.Error(err)
	}
	if !strings.Contains(text, "no journal of the lifecycle controller was read") {
		t.Errorf("the answer does not say what is missing: %s", text)
	}
	if text, err := ask(filepath.Join(journal, "none")); err == nil && !strings.Contains(text, `"unseen"`) {
		t.Errorf("a journal that is not there is not named: %s", text)
	}
}

// repeats puts all decisions of the lifecycle controller and of the agent through the core again.
func (s *told) repeats(t *testing.T) {
	t.Helper()
	path := filepath.Join(s.StateDir, "journal", "lifecycle")
	text, err := exec.CommandContext(t.Context(), rig.Binary(t), "explain", "--replay", path).CombinedOutput()
	out := string(text)
	if err != nil || !strings.Contains(out, "; 0 with another outcome.") || !strings.Contains(out, " node)") {
		t.Errorf("%v: %s", err, out)
	}
}
