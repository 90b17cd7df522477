package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/bench/bare"
	"github.com/plimsoll-dev/plimsoll/bench/events"
	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

const (
	namespace = "binds"
	apiServer = "kube-apiserver" // name of the process of plimsoll up
	// bindTimeout limits the wait for all pods of one side, so that a hung side does not stop the run.
	bindTimeout = 4 * time.Minute
	// clearTimeout is the same for the deletion of pods.
	clearTimeout = 2 * time.Minute
)

// rig is the control plane, its nodes, and the pods that our watch shows.
type rig struct {
	config
	plane     *plane.Plane
	client    *kubernetes.Clientset
	ups       map[string]int // PIDs of the processes of the control plane, by name
	seen      *waiting
	stopWatch context.CancelFunc // ends our watch
}

func newRig(c config) *rig {
	flags := []string{"--no-scheduler", "--no-lifecycle", "--gc-percent", strconv.Itoa(c.gcPercent)}
	if !c.controllers {
		flags = append(flags, "--no-controller-manager")
	}
	return &rig{config: c, stopWatch: func() {},
		plane: &plane.Plane{Plimsoll: c.plimsoll, Instance: "bench-binds", Dir: c.dir, Port: c.port, Flags: flags}}
}

// waiting has the pods that wait for a node, and when the first and the last stopped waiting.
type waiting struct {
	mu          sync.Mutex
	pods        map[types.UID]bool
	first, last time.Time
	wake        chan struct{}
}

func (w *waiting) see(obj any, waits bool) {
	now := time.Now()
	pod, ok := kube.Deleted[metav1.Object](obj) // or a pod that still exists
	if !ok {
		return
	}
	id := pod.GetUID()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case waits:
		w.pods[id] = true
	case w.pods[id]:
		delete(w.pods, id)
		if w.first.IsZero() {
			w.first = now
		}
		w.last = now
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// await waits until count pods wait, and returns the times. It fails when check returns an error.
func (w *waiting) await(ctx context.Context, count int, limit time.Duration,
	check func() error) (first, last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w.mu.Lock()
		left := len(w.pods)
		first, last = w.first, w.last
		w.mu.Unlock()
		if left == count {
			return first, last, nil
		}
		select {
		case <-w.wake:
		case <-tick.C:
			if err := check(); err != nil {
				return first, last, err
			}
		case <-ctx.Done():
			return first, last, fmt.Errorf("%d pods wait, not %d, after %v", left, count, limit)
		}
	}
}

// renew replaces the control plane, if there is one, by a new one. kube-apiserver keeps recent changes in memory, so
// without that a side would have to handle the remains of those before it.
func (r *rig) renew(ctx context.Context) error {
	r.stopWatch()
	if r.ups != nil {
		if err := r.plane.Purge(ctx); err != nil {
			return err
		}
	}
	return r.up(ctx)
}

// up starts the control plane and creates the nodes.
func (r *rig) up(ctx context.Context) error {
	r.seen = &waiting{pods: map[types.UID]bool{}, wake: make(chan struct{}, 1)}
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
	// Pods need a service account. If kube-controller-manager runs, it may exist already.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := r.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	began := time.Now()
	if err := plane.Parallel(r.config.nodes, func(i int) error { return r.makeNode(ctx, i) }); err != nil {
		return err
	}
	record.Progress("%d nodes made in %.1f s", r.config.nodes, time.Since(began).Seconds())
	// Our watch must cost little on the server, so it uses metadata over HTTP/1.1; and little on the machine, so it
	// handles events every 5 ms.
	gathering, err := kube.NewClientForConfig(config)
	if err != nil {
		return err
	}
	if gathering, err = gathering.Gathering(kube.GatherBursts); err != nil {
		return err
	}
	lean, err := metadata.NewForConfig(gathering.RESTConfig())
	if err != nil {
		return err
	}
	seen := r.seen
	pods := lean.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace)
	const unbound = "spec.nodeName="
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = unbound
				return pods.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = unbound
				return pods.Watch(ctx, o)
			},
		},
		ObjectType: &metav1.PartialObjectMetadata{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { seen.see(obj, true) },
			DeleteFunc: func(obj any) { seen.see(obj, false) },
		},
	})
	listening, stopWatch := context.WithCancel(ctx)
	r.stopWatch = stopWatch
	go informer.RunWithContext(listening)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

// makeNode creates a node without a machine. Admission adds a taint until a controller sees the node as Ready. No such
// controller runs.
func (r *rig) makeNode(ctx context.Context, i int) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	name := fmt.Sprintf("node-%05d", i)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d",
				i%r.zones), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := r.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`),
		metav1.PatchOptions{})
	return err
}

func podOf(scenario string, i int) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%05d", scenario, i), Labels: map[string]string{"app": scenario}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause:3.10",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("100Mi")},
			}}}},
	}
	if scenario == spread {
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: spreadSkew, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}}
	}
	return pod
}

// spreadSkew is the value of upstream's scheduler_perf (TopologySpreading).
const spreadSkew = 5

// start starts one side's program. Leader election is off, because there is only one scheduler.
func (r *rig) start(side, name string, limited bool) (*plane.Process, error) {
	log := filepath.Join(r.dir, name+".log")
	switch side {
	case ours:
		return r.plane.Scheduler(log)
	case bareLoop:
		return bare.Start(log, bare.Options{Kubeconfig: r.plane.Kubeconfig(), Workers: r.workers, Namespace: namespace})
	}
	return r.plane.KubeScheduler(log, r.upstream, limited)
}

// create creates the pods of a scenario, and returns when our watch has shown all of them.
func (r *rig) create(ctx context.Context, scenario string, pods int) error {
	if err := plane.Parallel(pods, func(i int) error {
		_, err := r.client.CoreV1().Pods(namespace).Create(ctx, podOf(scenario, i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	running := func() error { return nil } // there is no scheduler yet that could end
	if _, _, err := r.seen.await(ctx, pods, clearTimeout, running); err != nil {
		return err
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	r.seen.first = time.Time{}
	return nil
}

// measure measures one side that binds all pods of a scenario. The pods exist before the side starts.
func (r *rig) measure(ctx context.Context, m *record.Measurement, scenario string, pods int, limited bool) (err error) {
	defer func() { err = errors.Join(err, r.clear(context.WithoutCancel(ctx))) }()
	if err := r.create(ctx, scenario, pods); err != nil {
		return err
	}
	before, err := record.Use(r.ups, 0)
	if err != nil {
		return err
	}
	written, err := events.Count(ctx, r.client)
	if err != nil {
		return err
	}
	began := time.Now()
	p, err := r.start(m.Side, fmt.Sprintf("%.8s-%s-%d-%v", m.Side, scenario, m.Round, limited), limited)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	first, last, err := r.seen.await(ctx, 0, bindTimeout, p.Check)
	if err != nil {
		return errors.Join(err, p.Check())
	}
	bound, err := record.Use(r.ups, p.PID())
	if err != nil {
		return err
	}
	wall := time.Since(began).Seconds()
	rate := float64(pods-1) / last.Sub(first).Seconds()
	if limited {
		m.Put("rate_limited", rate, pods)
		record.Progress("%s with its default limit: %.0f binds/s", m.Side, rate)
		return nil
	}
	drained, err := events.Wait(ctx, r.client, p.PID())
	if err != nil {
		return err
	}
	after, err := record.Use(r.ups, p.PID())
	if err != nil {
		return err
	}
	each := 1000 / float64(pods)
	rss, err := record.StatusMiB(p.PID(), "VmRSS")
	if err != nil {
		return err
	}
	serverRSS, err := record.StatusMiB(r.ups[apiServer], "VmRSS")
	if err != nil {
		return err
	}
	binding, all := bound.Less(before), after.Less(before)
	for name, value := range map[string]float64{
		"rate":       rate,
		"all":        last.Sub(began).Seconds(),
		"cpu":        drained.CPU * each,
		"cpu_bound":  bound.Side * each,
		"control":    all.Control * each,
		"rss":        rss,
		"server_rss": serverRSS,
		"events":     float64(drained.Events-written) / float64(pods),
		"drain":      max(0, drained.At.Sub(last).Seconds()),
		"others":     binding.Others() / wall,
		"idle":       binding.Idle / wall,
		"stolen":     binding.Stolen / wall,
	} {
		m.Put(name+"_"+scenario, value, pods)
	}
	for name := range r.ups {
		m.Put("of_"+name+"_"+scenario, all.Parts[name]*each, pods)
	}
	record.Progress("%s: %s: %.0f binds/s; CPU per pod: %.2f ms, control plane %.2f ms; "+
		"cores: others %.2f, idle %.2f, stolen %.2f", m.Side, scenario, rate,
		m.Values["cpu_"+scenario], m.Values["control_"+scenario], m.Values["others_"+scenario],
		m.Values["idle_"+scenario], m.Values["stolen_"+scenario])
	return r.verify(ctx, scenario, pods)
}

// verify checks that every pod is on a node, and is spread as its constraints require.
func (r *rig) verify(ctx context.Context, scenario string, pods int) error {
	list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	zones := make([]int, r.zones)
	for i := range list.Items {
		var node int
		if _, err := fmt.Sscanf(list.Items[i].Spec.NodeName, "node-%d", &node); err != nil {
			return fmt.Errorf("pod %s is on node %q: %w", list.Items[i].Name, list.Items[i].Spec.NodeName, err)
		}
		zones[node%r.zones]++
	}
	if len(list.Items) != pods {
		return fmt.Errorf("%d pods are bound, want %d", len(list.Items), pods)
	}
	least, most := zones[0], zones[0]
	for _, n := range zones {
		least, most = min(least, n), max(most, n)
	}
	if scenario == spread && most-least > spreadSkew {
		return fmt.Errorf("zones have %v pods: spread by more than %d", zones, spreadSkew)
	}
	return nil
}

// clear deletes all pods and waits until they are gone. No agent runs them.
func (r *rig) clear(ctx context.Context) error {
	list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	now := int64(0)
	return plane.Parallel(len(list.Items), func(i int) error {
		err := r.client.CoreV1().Pods(namespace).Delete(ctx, list.Items[i].Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
