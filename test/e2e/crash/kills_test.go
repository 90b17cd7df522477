//go:build e2e

package crash

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// steadyPods is how many pods run during all of TestKills: a Deployment's, a DaemonSet's and a static one.
const steadyPods = 30

// TestKills kills every process of an instance twice, at random moments, while pods come and go. Containers that ran go
// on, new ones start once, and nothing is left of deleted pods.
func TestKills(t *testing.T) {
	t.Parallel()
	random := chance(t)
	c := rig.New(t, "kill", rig.Options{})
	w := newWitness(t, c)
	namespace := c.Namespace(t)
	steady := w.steady(namespace)
	before, err := w.runs(t.Context())
	if err != nil || len(before) != steadyPods {
		t.Fatalf("%d containers run, %v", len(before), err)
	}
	churn := w.churn(random, c.Namespace(t))
	killed := killAll(t, c, random)
	w.lost = killed[containerd]
	came := churn.stop()
	t.Logf("killed %v; %d pods came and went", killed, len(came))

	rig.Eventually(t, soon, "node Ready", func(ctx ctxT) error { return nodeReady(ctx, c) })
	rig.Eventually(t, soon, "steady pods all run", func(ctx ctxT) error {
		_, err := running(ctx, c, namespace, steadyPods)
		return err
	})
	rig.Eventually(t, soon, "pods that went are gone", func(ctx ctxT) error {
		_, err := running(ctx, c, churn.namespace, 0)
		return err
	})
	took := rig.Eventually(t, soon, "nothing is left of them", func(ctx ctxT) error { return w.only(ctx, uids(steady)) })
	t.Logf("nothing left %v after the API forgot the last", took.Round(100*time.Millisecond))
	w.undisturbed(before, namespace)
	w.startedOnce(came, killed[containerd])
	if t.Failed() {
		return
	}
	t.Run("agent", func(t *testing.T) { w.at(t).agentInBurst(random, uids(steady)) })
	w.undisturbed(before, namespace)
}

func (w *witness) at(t *testing.T) *witness {
	at := *w
	at.t = t
	return &at
}

// startedOnce checks that the container of a pod has started once. If containerd dies between the start of a container
// and its record of it, it reports the state as unknown, and only a second start helps. So each death of containerd
// allows as many second starts as could be in progress.
func (w *witness) startedOnce(pods []types.UID, containerdDied int) {
	w.t.Helper()
	const underWay = 8
	more, once := 0, 0
	for _, uid := range pods {
		switch n := w.started(uid); {
		case n == 1:
			once++
		case n > 1:
			more++
			w.t.Logf("pod %s started %d times", uid, n)
		}
	}
	w.t.Logf("%d started once, %d more often, %d never", once, more, len(pods)-once-more)
	if more > containerdDied*underWay || once == 0 {
		w.t.Errorf("%d pods started more than once, %d once; containerd died %d times", more, once, containerdDied)
	}
}

// steady starts the pods that must not be affected.
func (w *witness) steady(namespace string) (pods []corev1.Pod) {
	w.t.Helper()
	labels := func(app string) metav1.ObjectMeta { return metav1.ObjectMeta{Labels: map[string]string{"app": app}} }
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	replicas, spec := int32(steadyPods-2), w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity")
	spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
		}},
	}
	_, err := w.c.API.AppsV1().Deployments(namespace).Create(w.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "steady"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: selector("steady"),
			Template: corev1.PodTemplateSpec{ObjectMeta: labels("steady"), Spec: spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = w.c.API.AppsV1().DaemonSets(namespace).Create(w.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "everywhere"},
		Spec: appsv1.DaemonSetSpec{
			Selector: selector("everywhere"),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: labels("everywhere"),
				Spec:       w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity"),
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.staticPod("fixed.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: fixed, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: %s, args: [sleep, infinity]}
`, namespace, workload))
	took := rig.Eventually(w.t, 2*time.Minute, "steady pods run", func(ctx ctxT) (err error) {
		pods, err = running(ctx, w.c, namespace, steadyPods)
		return err
	})
	w.t.Logf("%d pods run after %v", steadyPods, took.Round(100*time.Millisecond))
	for i := range pods { // the runtime has the static pod's own UID, not the mirror's
		if own := pods[i].Annotations["kubernetes.io/config.mirror"]; own != "" {
			pods[i].UID = types.UID(own)
		}
	}
	return pods
}

func (w *witness) staticPod(file, manifest string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.c.StaticPods(), file), []byte(manifest), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// killAll kills every process of the instance twice, in random order and at random moments, and returns how often each
// was killed. After the supervisor, the test runs another `up`, which must adopt the running children.
func killAll(t *testing.T, c *rig.Cluster, random *rand.Rand) map[string]int {
	t.Helper()
	targets := []string{agent, containerd, etcd, apiServer, controllerManager, scheduler, lifecycle, supervisor}
	order := append(slices.Clone(targets), targets...)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	killed := map[string]int{}
	for _, target := range order {
		wait(t, between(random, 200*time.Millisecond, 2500*time.Millisecond))
		killed[target]++
		if target != supervisor {
			t.Logf("kill %s, pid %d", target, signal(t, c, target, syscall.SIGKILL))
			continue
		}
		before := runningChildren(t, c)
		t.Logf("kill %s, pid %d", target, signal(t, c, target, syscall.SIGKILL))
		wait(t, between(random, 0, time.Second))
		if out, err := c.Up(); err != nil {
			t.Fatalf("up after the supervisor's death: %v\n%s", err, out)
		}
		after := runningChildren(t, c)
		// It ends by itself when it cannot renew its Lease, as after the deaths of the API server.
		delete(before, controllerManager)
		delete(after, controllerManager)
		if !maps.Equal(before, after) {
			t.Errorf("children before and after another up: %v, %v", before, after)
		}
	}
	return killed
}

// runningChildren returns the pids of all children once all of them run.
func runningChildren(t *testing.T, c *rig.Cluster) (pids map[string]int) {
	t.Helper()
	rig.Eventually(t, soon, "all children run", func(ctxT) error {
		children, _, err := c.Children()
		if err != nil {
			return err
		}
		pids = map[string]int{}
		for _, child := range children {
			if child.PID == 0 {
				return fmt.Errorf("%s does not", child.Name)
			}
			pids[child.Name] = child.PID
		}
		return nil
	})
	return pids
}

// churn creates and deletes pods all the time.
type churn struct {
	namespace string
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	mu        sync.Mutex
	came      []types.UID
}

// churn starts five goroutines that create pods and delete them a moment later, whatever state they are in.
func (w *witness) churn(random *rand.Rand, namespace string) *churn {
	ctx, cancel := context.WithCancel(w.t.Context())
	x := &churn{namespace: namespace, cancel: cancel}
	for person := range 5 {
		own := rand.New(rand.NewPCG(random.Uint64(), uint64(person)))
		x.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				x.one(w, own, fmt.Sprintf("churn-%d-%d", person, n), ctx)
			}
		})
	}
	return x
}

// one creates and deletes one pod. It is deleted even when the test is about to end.
func (x *churn) one(w *witness, random *rand.Rand, name string, ctx ctxT) {
	spec := w.spec(corev1.RestartPolicyNever, 1, "sleep infinity")
	if random.IntN(3) == 0 {
		spec = w.spec(corev1.RestartPolicyNever, 1, "exit --code 0 --after 300ms")
	}
	pods := w.c.API.CoreV1().Pods(x.namespace)
	var uid types.UID
	// Not with ctx: a cancelled request may still be carried out, after the deletion found nothing to delete.
	insist(w.t, context.WithoutCancel(ctx), func(ctx ctxT) error {
		made, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       spec,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the answer to an earlier attempt was lost
			made, err = pods.Get(ctx, name, metav1.GetOptions{})
		}
		if err == nil {
			uid = made.UID
			x.mu.Lock()
			x.came = append(x.came, uid)
			x.mu.Unlock()
		}
		return err
	})
	pause(ctx, between(random, 0, 5*time.Second))
	if random.IntN(3) == 0 { // on a busy machine none would start otherwise
		x.untilStarted(ctx, filepath.Join(w.starts, string(uid)))
	}
	grace := int64(random.IntN(3))
	insist(w.t, context.WithoutCancel(ctx), func(ctx ctxT) error {
		err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// untilStarted waits until a container has written the file of its starts, or ctx ends.
func (x *churn) untilStarted(ctx ctxT, starts string) {
	for ctx.Err() == nil {
		if _, err := os.Stat(starts); err == nil {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// stop ends the creations, waits for the deletions, and returns the names of all pods that were created.
func (x *churn) stop() []types.UID {
	x.cancel()
	x.wg.Wait()
	return x.came
}

// insist repeats a call that fails while processes are being killed, for a minute at most of a rig.Clock.
func insist(t *testing.T, ctx ctxT, do func(ctxT) error) {
	ctx, cancel := rig.StartClock().Limit(ctx, time.Minute)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Errorf("tried for a minute: %v", err)
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func pause(ctx ctxT, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
