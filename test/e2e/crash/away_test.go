//go:build e2e

package crash

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// crowd is how many pods run during the outages.
const crowd = 10

// TestAwayAPI makes the API server unreachable for the agent, for longer than the node-monitor grace period.
func TestAwayAPI(t *testing.T) {
	t.Parallel()
	w, namespace := newCrowd(t, "away")
	w.withoutAPI(namespace)
}

// TestAwayRuntime stops the runtime for a minute while the agent runs.
func TestAwayRuntime(t *testing.T) {
	t.Parallel()
	w, namespace := newCrowd(t, "hung")
	w.withoutRuntime(namespace)
}

// newCrowd starts an instance on which a crowd of pods runs.
func newCrowd(t *testing.T, name string) (w *witness, namespace string) {
	t.Helper()
	c := rig.New(t, name, rig.Options{})
	w = newWitness(t, c)
	namespace = c.Namespace(t)
	w.crowd(namespace)
	return w, namespace
}

// crowd starts a Deployment and returns when it runs.
func (w *witness) crowd(namespace string) {
	w.t.Helper()
	replicas, labels := int32(crowd), map[string]string{"app": "crowd"}
	_, err := w.c.API.AppsV1().Deployments(namespace).Create(w.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "crowd"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity"),
			}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	rig.Eventually(w.t, soon, "the crowd runs", func(ctx ctxT) error {
		_, err := running(ctx, w.c, namespace, crowd)
		return err
	})
}

// How long the API server does not answer, and how long it is down after that. Together that is more than the
// node-monitor grace period of 50 s (--node-monitor-grace-period).
const (
	silentFor = 35 * time.Second
	awayFor   = 70 * time.Second
)

// withoutAPI makes the API server unreachable in two ways. First it is stopped: connections stay open and nothing is
// answered. Then it is killed while its supervisor is stopped: connections are refused. Meanwhile a container dies
// twice, and the agent once.
func (w *witness) withoutAPI(namespace string) {
	t, c := w.t, w.c
	before, err := w.runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pods, err := running(t.Context(), c, namespace, crowd)
	if err != nil {
		t.Fatal(err)
	}
	wasReady := w.nodeReadySince()
	victim := namespace + "/" + pods[0].Name + "/c"
	began := time.Now()
	freeze(t, c, apiServer)
	wait(t, 5*time.Second)
	for n, within := range []time.Duration{slack, 10*time.Second + slack} { // the second time after a back-off of 10 s
		w.killContainer(victim)
		took := w.restarted(victim, uint32(n+1), within)
		t.Logf("killed container runs again after %v, without an API server", took.Round(10*time.Millisecond))
	}
	signal(t, c, agent, syscall.SIGKILL)
	wait(t, time.Until(began.Add(silentFor)))

	thaw := freeze(t, c, supervisor)
	signal(t, c, apiServer, syscall.SIGKILL)
	c.Explains(t, "pod "+namespace+"/"+pods[0].Name, nil, `https://127\.0\.0\.1:[0-9]+/.*: connection refused`)
	wait(t, time.Until(began.Add(awayFor)))
	at, err := w.runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, was := range before {
		if name != victim && at[name] != was {
			t.Errorf("%s was %+v and is, without API server, %+v", name, was, at[name])
		}
	}
	before[victim] = at[victim]
	if before[victim].Attempt != 2 {
		t.Errorf("the killed container: %+v", before[victim])
	}
	thaw()
	back := rig.Eventually(t, soon, "API server answers", func(ctx ctxT) error {
		_, err := c.API.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
		return err
	})
	ready := rig.Eventually(t, 30*time.Second, "node and pods Ready", func(ctx ctxT) error {
		if err := nodeReady(ctx, c); err != nil {
			return err
		}
		if err := w.saidRestarts(ctx, namespace, pods[0].Name, 2); err != nil {
			return err
		}
		_, err := running(ctx, c, namespace, crowd)
		return err
	})
	t.Logf("API server back after %v, all Ready %v later", back.Round(100*time.Millisecond),
		ready.Round(100*time.Millisecond))
	// The agent was killed right after the last start: its record may be lost.
	c.Explains(t, "pod "+namespace+"/"+pods[0].Name, nil, `c starts \(run 1\).* c ends \(run 1\) after [0-9].*: exit code 137`+
		`.* c starts \(run 2\).* c ends \(run 2\) after [0-9].*: exit code 137`)
	w.noStorm()
	delete(before, victim) // three starts
	w.undisturbed(before, namespace)
	if since := w.nodeReadySince(); !since.Equal(&wasReady) {
		t.Errorf("the node is Ready since %v, was since %v: it was marked as unreachable", since, wasReady)
	}
	w.noEvents(namespace, "Killing", "Evicted", "TaintManagerEviction")
}

func (w *witness) killContainer(name string) {
	w.t.Helper()
	runs, err := w.runs(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := syscall.Kill(runs[name].PID, syscall.SIGKILL); err != nil || runs[name].PID == 0 {
		w.t.Fatalf("kill %s, pid %d: %v", name, runs[name].PID, err)
	}
}

// restarted waits until a container's given attempt runs.
func (w *witness) restarted(name string, attempt uint32, within time.Duration) time.Duration {
	w.t.Helper()
	return rig.Eventually(w.t, within, fmt.Sprintf("attempt %d of %s", attempt, name), func(ctx ctxT) error {
		runs, err := w.runs(ctx)
		if err == nil && (runs[name].PID == 0 || runs[name].Attempt != attempt) {
			err = fmt.Errorf("it is %+v", runs[name])
		}
		return err
	})
}

func (w *witness) saidRestarts(ctx ctxT, namespace, name string, want int32) error {
	pod, err := w.c.API.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := pod.Status.ContainerStatuses[0].RestartCount; got != want {
		return fmt.Errorf("%s has %d restarts, want %d", name, got, want)
	}
	return nil
}

func (w *witness) nodeReadySince() metav1.Time {
	w.t.Helper()
	node, err := w.c.API.CoreV1().Nodes().Get(w.t.Context(), w.c.NodeName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return condition(node).LastTransitionTime
}

// noStorm reads how many requests the agent has sent since the API server returned. Two reports for each pod, and one
// for the node every few seconds, are expected. More is a storm.
func (w *witness) noStorm() {
	w.t.Helper()
	text, err := w.c.API.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, question := range []struct {
		what string
		with []string
		most int
	}{
		{"reports of pods", []string{`resource="pods"`, `subresource="status"`, `verb="PATCH"`}, 2*crowd + 10},
		{"reports of the node", []string{`resource="nodes"`, `subresource="status"`, `verb="PATCH"`}, 6},
		{"renewals of leases", []string{`resource="leases"`, `verb="PUT"`}, 30},
		{"lists of pods", []string{`resource="pods"`, `verb="LIST"`}, 30},
		{"tokens", []string{
			`resource="serviceaccounts"`, `subresource="token"`,
		}, 150}, // most are from kube-controller-manager
	} {
		count := 0
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "apiserver_request_total{") {
				continue
			}
			matches := true
			for _, with := range question.with {
				matches = matches && strings.Contains(line, with)
			}
			if fields := strings.Fields(line); matches {
				n, err := strconv.Atoi(fields[len(fields)-1])
				if err != nil {
					w.t.Fatal(err)
				}
				count += n
			}
		}
		w.t.Logf("%s since the return: %d", question.what, count)
		if count > question.most {
			w.t.Errorf("%d %s, want at most %d", count, question.what, question.most)
		}
	}
}

// noEvents fails the test if a pod has an Event with one of these reasons.
func (w *witness) noEvents(namespace string, reasons ...string) {
	w.t.Helper()
	for _, reason := range reasons {
		events, err := w.c.API.CoreV1().Events(namespace).List(w.t.Context(), metav1.ListOptions{
			FieldSelector: "reason=" + reason,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range events.Items {
			w.t.Errorf("event %s of %s: %s", e.Reason, e.InvolvedObject.Name, e.Message)
		}
	}
}

// withoutRuntime stops containerd for a minute: it accepts calls and answers none. The node becomes NotReady in time
// and no container restarts. Pods that were created or deleted meanwhile start or end afterwards.
func (w *witness) withoutRuntime(namespace string) {
	t, c := w.t, w.c
	before, err := w.runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pods, err := running(t.Context(), c, namespace, crowd)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	thaw := freeze(t, c, containerd)
	late, err := c.API.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec:       w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity"),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone := pods[0]
	if err := c.API.CoreV1().Pods(namespace).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	took := rig.Eventually(t, 75*time.Second, "node not Ready", func(ctx ctxT) error {
		node, err := c.API.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := condition(node)
		if ready.Status != corev1.ConditionFalse || ready.Reason != "KubeletNotReady" ||
			!strings.Contains(ready.Message, "container runtime is down") {
			return fmt.Errorf("Ready is %s, %s: %s", ready.Status, ready.Reason, ready.Message)
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady && taint.Effect == corev1.TaintEffectNoSchedule {
				return nil
			}
		}
		return fmt.Errorf("taints are %v", node.Spec.Taints)
	})
	t.Logf("node says that its runtime is down after %v", took.Round(time.Second))
	wait(t, time.Until(began.Add(time.Minute)))
	for name, was := range before { // the kernel reports it without the runtime
		if err := syscall.Kill(was.PID, 0); err != nil {
			t.Errorf("%s, pid %d: %v", name, was.PID, err)
		}
	}
	thaw()
	took = rig.Eventually(t, time.Minute, "all pods run again", func(ctx ctxT) error {
		if err := nodeReady(ctx, c); err != nil {
			return err
		}
		_, err := running(ctx, c, namespace, crowd+1) // with the pod that came late; the deleted pod has a successor
		return err
	})
	t.Logf("all pods run again after %v", took.Round(100*time.Millisecond))
	w.startsOnce(late.UID, "the late pod")
	if n := w.started(gone.UID); n != 1 {
		t.Errorf("the deleted pod started %d times", n)
	}
	delete(before, namespace+"/"+gone.Name+"/c")
	w.undisturbed(before, namespace)
	all, err := running(t.Context(), c, namespace, crowd+1)
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "nothing is left over", func(ctx ctxT) error { return w.only(ctx, uids(all)) })
}
