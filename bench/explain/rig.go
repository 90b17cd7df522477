package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

const (
	namespace = "explain"
	// podsPerNode is how many pods a node may have.
	podsPerNode = 110
	// apps is how many different pods there are on nodes.
	apps = 30
	// syncTimeout bounds how long the scheduler takes for its first lists, and the waiting pods for their conditions.
	syncTimeout = 10 * time.Minute
)

// rig is the control plane with its nodes and pods, and the scheduler.
type rig struct {
	config
	plane     *plane.Plane
	client    *kubernetes.Clientset
	ups       map[string]int // PIDs of the processes of the control plane, by name
	scheduler *plane.Process
}

func newRig(c config) *rig {
	flags := []string{"--no-scheduler", "--no-lifecycle", "--no-controller-manager", "--gc-percent",
		strconv.Itoa(c.gcPercent)}
	return &rig{config: c,
		plane: &plane.Plane{Plimsoll: c.plimsoll, Instance: "bench-explain", Dir: c.dir, Port: c.port, Flags: flags}}
}

func (r *rig) down(ctx context.Context, keep bool) (err error) {
	if r.scheduler != nil {
		err = r.scheduler.Stop()
	}
	return errors.Join(err, r.plane.Down(ctx, keep))
}

// up starts the control plane and creates nodes and pods.
func (r *rig) up(ctx context.Context) error {
	if err := r.plane.Up(ctx); err != nil {
		return err
	}
	var err error
	if r.ups, err = r.plane.Children(ctx); err != nil {
		return err
	}
	config, err := r.plane.Config()
	if err != nil {
		return err
	}
	if r.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if _, err := r.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := r.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	began := time.Now()
	if err := errors.Join(r.makeNodes(ctx), r.makePods(ctx)); err != nil {
		return err
	}
	record.Progress("%d nodes and %d pods made in %.0f s", r.nodes, r.pods, time.Since(began).Seconds())
	return nil
}

// makeNodes creates a node, and copies it.
func (r *rig) makeNodes(ctx context.Context) error {
	if err := r.makeNode(ctx, 0); err != nil {
		return err
	}
	first := &corev1.Node{}
	typed, err := r.store().get(ctx, "/registry/minions/"+nodeName(0), first)
	if err != nil {
		return err
	}
	return r.store().put(ctx, typed, r.nodes-1, func(i int) (string, proto) {
		n := first.DeepCopy()
		n.Name = nodeName(i + 1)
		n.UID = types.UID(fmt.Sprintf("%s-node-%d", first.UID, i+1))
		n.Labels[corev1.LabelHostname] = n.Name
		n.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", (i+1)%3)
		return "/registry/minions/" + n.Name, n
	})
}

// makePods creates a pod of each application, and copies them.
func (r *rig) makePods(ctx context.Context) error {
	first := make([]*corev1.Pod, min(apps, r.pods))
	var typed *runtime.Unknown
	for i := range first {
		pod := podOf(podName(i), i, 500)
		pod.Spec.NodeName = nodeName(i % r.nodes)
		if _, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		first[i] = &corev1.Pod{}
		var err error
		if typed, err = r.store().get(ctx, podKey(podName(i)), first[i]); err != nil {
			return err
		}
	}
	return r.store().put(ctx, typed, r.pods-len(first), func(i int) (string, proto) {
		i += len(first)
		pod := *first[i%apps]
		pod.Name = podName(i)
		pod.UID = types.UID(fmt.Sprintf("%s-%d", pod.UID, i))
		pod.Spec.NodeName = nodeName(i % r.nodes)
		return podKey(pod.Name), &pod
	})
}

func podKey(name string) string { return "/registry/pods/" + namespace + "/" + name }

func (r *rig) store() store { return newStore(filepath.Join(r.plane.State(), "run/etcd/etcd.sock")) }

func nodeName(i int) string    { return fmt.Sprintf("node-%05d", i) }
func podName(i int) string     { return fmt.Sprintf("app%d-6d4b75cb6d-%05x", i%apps, i) }
func waitingName(i int) string { return fmt.Sprintf("waits-%05d", i) }

// makeNode creates a node without a machine. Admission adds a taint until a controller sees the node as Ready. No such
// controller runs.
func (r *rig) makeNode(ctx context.Context, i int) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: *resource.NewQuantity(podsPerNode, resource.DecimalSI),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
			corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := r.client.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, []byte(`{"spec":{"taints":null}}`),
		metav1.PatchOptions{})
	return err
}

// podOf returns a pod as a Deployment's: with an owner, a few labels and variables, and probes.
func podOf(name string, app int, milli int64) *corev1.Pod {
	labels := map[string]string{
		"app.kubernetes.io/name":     fmt.Sprintf("app%d", app),
		"app.kubernetes.io/instance": fmt.Sprintf("app%d-production", app),
		"pod-template-hash":          "6d4b75cb6d",
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	yes := true
	c := corev1.Container{
		Name: "app", Image: "registry.example.com/team/app:v1.2.3", LivenessProbe: probe, ReadinessProbe: probe,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
				corev1.ResourceMemory: resource.MustParse("1Gi")},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
		},
	}
	for i := range 5 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("x", 20)})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("app%d-6d4b75cb6d", app), Controller: &yes,
			UID: types.UID(fmt.Sprintf("6ff0f3a5-43a5-4d5c-a1f5-3b0a3a0f%04d", app)),
		}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}},
	}
}

// podBytes returns the size of a pod's object as the API server stores it, about.
func (r *rig) podBytes(ctx context.Context) (int, error) {
	pod, err := r.client.CoreV1().Pods(namespace).Get(ctx, podName(0), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return pod.Size(), nil
}

// startScheduler starts plimsoll scheduler --explain, and waits until it answers.
func (r *rig) startScheduler(ctx context.Context, log string) (err error) {
	cert, key, err := serving.SelfSigned([]string{"127.0.0.1", "localhost"})
	if err != nil {
		return err
	}
	certFile, keyFile := r.certificate(), r.certificate()+".key"
	err = errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600))
	if err != nil {
		return err
	}
	r.scheduler, err = r.plane.Scheduler(log, "--explain", "--secure-port", strconv.Itoa(r.port+1),
		"--bind-address=127.0.0.1", "--tls-cert-file", certFile, "--tls-private-key-file", keyFile)
	if err != nil {
		return err
	}
	began := time.Now()
	err = r.until(ctx, func() error {
		return r.answers(ctx, "pending")
	})
	record.Progress("the scheduler answers %.1f s after its start", time.Since(began).Seconds())
	return err
}

func (r *rig) certificate() string { return filepath.Join(r.dir, "scheduler.crt") }

func (r *rig) journalFlags() []string {
	return []string{"--journal", fmt.Sprintf("https://127.0.0.1:%d", r.port+1), "--journal-ca", r.certificate()}
}

// answers reports whether the scheduler answers a question, without the cluster being read.
func (r *rig) answers(ctx context.Context, args ...string) error {
	args = append(append([]string{"explain"}, args...), "--kubeconfig", r.plane.Kubeconfig(), "-o", "json")
	_, err := ask(ctx, r.plimsoll, append(args, r.journalFlags()...), `"from": "`)
	return err
}

// until tries until it succeeds.
func (r *rig) until(ctx context.Context, try func() error) error {
	for deadline := time.Now().Add(syncTimeout); ; {
		err := try()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		if err := errors.Join(r.scheduler.Check(), record.Pause(ctx, time.Second)); err != nil {
			return err
		}
	}
}

// makeWaiting creates the pods that fit nowhere, and waits until the scheduler has said so about each.
func (r *rig) makeWaiting(ctx context.Context) error {
	if err := plane.Parallel(r.waiting, func(i int) error {
		pod := podOf(waitingName(i), 0, 16000+int64(i%r.templates)*1000)
		_, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return r.until(ctx, func() error {
		list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil {
			return err
		}
		said := 0
		for i := range list.Items {
			if len(list.Items[i].Status.Conditions) > 0 {
				said++
			}
		}
		if said < r.waiting {
			return fmt.Errorf("the scheduler has said something about %d of %d pods", said, r.waiting)
		}
		return nil
	})
}
