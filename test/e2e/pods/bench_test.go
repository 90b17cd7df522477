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
	"k8s.io/apimachinery/pkg/fields"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// soon bounds what takes a second or two on an idle machine.
const soon = 2 * time.Minute

// slack is how much later than set a timer of the agent may fire on a busy machine (measured at a load of 60 on two
// CPUs: 13 s). Termination grace periods in tests are so long that a wrong one is noticed nevertheless.
const slack = 20 * time.Second

// bench is what one test works with: the package's node and its own namespace.
type bench struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// at runs the test in parallel with others, in its own namespace.
func at(t *testing.T) bench {
	t.Parallel()
	c := rig.Shared(t)
	return bench{c, t, c.Namespace(t)}
}

// image is our own workload image.
const image = ours.Demo

// workload is a container of our own image that does what args say.
func workload(name string, args ...string) corev1.Container {
	return corev1.Container{Name: name, Image: image, Args: args}
}

// brief is a pod that ends at once on SIGTERM and does not restart.
func brief(containers ...corev1.Container) corev1.PodSpec {
	grace := int64(1)
	return corev1.PodSpec{TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyNever,
		Containers: containers}
}

// lasting is a pod that is kept running.
func lasting(containers ...corev1.Container) corev1.PodSpec {
	spec := brief(containers...)
	spec.RestartPolicy = corev1.RestartPolicyAlways
	return spec
}

func (b bench) create(name string, spec corev1.PodSpec) *corev1.Pod {
	b.t.Helper()
	return b.post(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: spec})
}

func (b bench) post(pod *corev1.Pod) *corev1.Pod {
	b.t.Helper()
	pod, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return pod
}

// until waits for a state of a pod and returns that version of the pod.
func (b bench) until(name, what string, within time.Duration, look func(*corev1.Pod) error) *corev1.Pod {
	b.t.Helper()
	var pod *corev1.Pod
	rig.Eventually(b.t, within, "pod "+name+": "+what, func(ctx context.Context) (err error) {
		if pod, err = b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return look(pod)
	})
	return pod
}

// ready waits until the pod is Ready.
func (b bench) ready(name string) *corev1.Pod {
	b.t.Helper()
	return b.until(name, "Ready", soon, func(p *corev1.Pod) error {
		return wantCondition(p, corev1.PodReady,
			corev1.ConditionTrue)
	})
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func wantCondition(p *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus) error {
	if c := condition(p, kind); c.Status != status {
		return fmt.Errorf("condition %s is %q (%s: %s), want %s; phase %s", kind, c.Status, c.Reason, c.Message, status,
			p.Status.Phase)
	}
	return nil
}

// ended waits until the pod has ended for good, and checks its phase.
func (b bench) ended(name string, phase corev1.PodPhase) *corev1.Pod {
	b.t.Helper()
	p := b.until(name, "ended", soon, func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
	if p.Status.Phase != phase {
		b.t.Errorf("pod %s is %s (%s: %s), want %s", name, p.Status.Phase, p.Status.Reason, p.Status.Message, phase)
	}
	return p
}

// container returns the status of a container; empty while there is none.
func container(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == name {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// waiting checks that a container waits with the given reason.
func waiting(name, reason string) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		if w := container(p, name).State.Waiting; w == nil || w.Reason != reason {
			return fmt.Errorf("container %s: %+v", name, container(p, name).State)
		}
		return nil
	}
}

// event waits for an event of a pod with that reason whose message holds every text, and returns it.
func (b bench) event(pod, reason string, texts ...string) corev1.Event {
	b.t.Helper()
	var found corev1.Event
	rig.Eventually(b.t, soon, fmt.Sprintf("event %s of pod %s with %q", reason, pod, texts),
		func(ctx context.Context) error {
			events, err := b.API.CoreV1().Events(b.ns).List(ctx,
				metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.name": pod}.String()})
			if err != nil {
				return err
			}
			var said []string
			for _, e := range events.Items {
				said = append(said, e.Reason+": "+e.Message)
				if e.Reason == reason && containsAll(e.Message, texts) {
					found = e
					return nil
				}
			}
			return fmt.Errorf("have:\n  %s", strings.Join(said, "\n  "))
		})
	return found
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// kubectl runs kubectl in the test's namespace.
func (b bench) kubectl(args ...string) string {
	b.t.Helper()
	return b.Kubectl(b.t, append([]string{"--namespace", b.ns}, args...)...)
}

// in runs a verb of the workload program in a container: the pod's first one, unless pod has the form pod/container.
func (b bench) in(pod string, args ...string) string {
	b.t.Helper()
	out, err := b.tryIn(pod, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSuffix(out, "\n")
}

func (b bench) tryIn(pod string, args ...string) (string, error) {
	target := []string{"exec", pod}
	if name, c, ok := strings.Cut(pod, "/"); ok {
		target = []string{"exec", name, "-c", c}
	}
	return b.TryKubectl(b.t, append(append(append([]string{"--namespace", b.ns}, target...), "--", "/workload"),
		args...)...)
}

// logs returns what a container has printed.
func (b bench) logs(pod, container string) string {
	b.t.Helper()
	out, err := b.tryLogs(pod, container)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b bench) tryLogs(pod, container string) (string, error) {
	out, err := b.API.CoreV1().Pods(b.ns).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(b.t.Context())
	return string(out), err
}

// delete deletes a pod with a grace period (negative: the pod's own) and returns how long it took until it was gone.
func (b bench) delete(name string, grace int64, within time.Duration) time.Duration {
	b.t.Helper()
	o := metav1.DeleteOptions{}
	if grace >= 0 {
		o.GracePeriodSeconds = &grace
	}
	began := time.Now()
	if err := b.API.CoreV1().Pods(b.ns).Delete(b.t.Context(), name, o); err != nil {
		b.t.Fatal(err)
	}
	b.gone(name, within)
	return time.Since(began)
}

// gone waits until a pod is no longer there.
func (b bench) gone(name string, within time.Duration) {
	b.t.Helper()
	rig.Eventually(b.t, within, "pod "+name+" is gone", func(ctx context.Context) error {
		pods, err := b.API.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("phase %s, deleted at %v", pods.Items[0].Status.Phase, pods.Items[0].DeletionTimestamp)
		}
		return err
	})
}

func ptr[T any](v T) *T { return &v }

// want fails the test if two values differ.
func (b bench) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}
