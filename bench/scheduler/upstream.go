package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

// upstream is kube-scheduler 1.36's own Scheduler with its own informers; we feed the watches.
type upstream struct {
	scheduler *scheduler.Scheduler
	cancel    context.CancelFunc
	binds     sync.WaitGroup

	mu      sync.Mutex
	watches map[string]*watch.FakeWatcher // by resource
	version int
	failed  map[types.UID]bool
	last    *corev1.Pod // the last pod that was bound
}

// watchBuffer is how many changes a watch buffers before its sender blocks. Chosen: a burst of a real watch.
const watchBuffer = 1000

func newUpstream() *upstream {
	ctx, cancel := context.WithCancel(context.Background())
	u := &upstream{cancel: cancel, watches: map[string]*watch.FakeWatcher{}, failed: map[types.UID]bool{}}
	client := fake.NewClientset()
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		return true, u.watch(action.GetResource().Resource), nil
	})
	factory := scheduler.NewInformerFactory(client, 0)
	recorder := profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()}))
	var err error
	u.scheduler, err = scheduler.New(ctx, client, factory, nil, recorder, scheduler.WithProfiles(u.profile()),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{"NoBind": u.newNoBind,
			"QuietPreemption": newQuietPreemption}))
	if err != nil {
		panic(fmt.Sprintf("make upstream's scheduler: %v", err))
	}
	u.scheduler.FailureHandler = u.fails
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	u.scheduler.SchedulingQueue.Run(klog.FromContext(ctx))
	return u
}

// watch returns the watch of a resource. There is one informer per resource.
func (u *upstream) watch(resource string) *watch.FakeWatcher {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.watches[resource] == nil {
		u.watches[resource] = watch.NewFakeWithChanSize(watchBuffer, true)
	}
	return u.watches[resource]
}

// profile is the default profile, with a Bind plugin that does nothing, preemption without requests, and no waiting for
// volumes.
func (u *upstream) profile() config.KubeSchedulerProfile {
	defaults, err := latest.Default()
	if err != nil {
		panic(fmt.Sprintf("read upstream's default configuration: %v", err))
	}
	p := defaults.Profiles[0]
	set := &p.Plugins.MultiPoint
	for i := range set.Enabled {
		switch set.Enabled[i].Name {
		case "DefaultBinder":
			set.Enabled[i].Name = "NoBind"
		case "DefaultPreemption":
			set.Enabled[i].Name = "QuietPreemption"
		}
	}
	p.Plugins.PreBind.Disabled = append(p.Plugins.PreBind.Disabled, config.Plugin{Name: "VolumeBinding"})
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig,
		func(c config.PluginConfig) bool { return c.Name == "DefaultPreemption" })
	return p
}

type noBind struct{ u *upstream }

func (u *upstream) newNoBind(context.Context, apiruntime.Object, fwk.Handle) (fwk.Plugin, error) {
	return noBind{u}, nil
}

func (noBind) Name() string { return "NoBind" }

// Bind shows the pod as bound on the watch, as the API server would.
func (b noBind) Bind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	b.u.mu.Lock()
	b.u.last = bound
	b.u.mu.Unlock()
	b.u.seen(bound)()
	b.u.binds.Done()
	return nil
}

// quietPreemption is DefaultPreemption under another name, without API requests.
type quietPreemption struct {
	*defaultpreemption.DefaultPreemption
}

func (quietPreemption) Name() string { return "QuietPreemption" }

func newQuietPreemption(ctx context.Context, _ apiruntime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}
	p, err := defaultpreemption.New(ctx, args, h, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p.Executor.PreemptPod = func(context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *corev1.Pod,
		string) error {
		return nil
	}
	return quietPreemption{p}, nil
}

// fails does what upstream's handler does, without the API: the pod waits for an event for which its plugins have
// registered.
func (u *upstream) fails(ctx context.Context, _ framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status,
	nominating *fwk.NominatingInfo, _ time.Time) {
	u.mu.Lock()
	u.failed[info.Pod.UID] = true
	u.mu.Unlock()
	u.binds.Done()
	logger := klog.FromContext(ctx)
	info.ClearRejectorPlugins()
	if fit := (*framework.FitError)(nil); errors.As(status.AsError(), &fit) {
		info.UnschedulablePlugins, info.PendingPlugins = fit.Diagnosis.UnschedulablePlugins, fit.Diagnosis.PendingPlugins
	}
	if err := u.scheduler.SchedulingQueue.AddUnschedulableIfNotPresent(logger, info,
		u.scheduler.SchedulingQueue.SchedulingCycle()); err != nil {
		u.scheduler.SchedulingQueue.Done(info.Pod.UID)
	}
	u.scheduler.SchedulingQueue.AddNominatedPod(logger, info.PodInfo, nominating)
}

// resourceOf returns the resource name of an object, the plural in the API.
func resourceOf(object any) string {
	switch object.(type) {
	case *corev1.Node:
		return "nodes"
	case *corev1.Pod:
		return "pods"
	case *corev1.Service:
		return "services"
	case *corev1.ReplicationController:
		return "replicationcontrollers"
	case *appsv1.ReplicaSet:
		return "replicasets"
	case *appsv1.StatefulSet:
		return "statefulsets"
	case *policyv1.PodDisruptionBudget:
		return "poddisruptionbudgets"
	case *corev1.PersistentVolumeClaim:
		return "persistentvolumeclaims"
	case *corev1.PersistentVolume:
		return "persistentvolumes"
	case *storagev1.StorageClass:
		return "storageclasses"
	case *storagev1.CSINode:
		return "csinodes"
	case *storagev1.CSIStorageCapacity:
		return "csistoragecapacities"
	case *storagev1.CSIDriver:
		return "csidrivers"
	}
	panic(fmt.Sprintf("an object of type %T: not known", object))
}

// seen shows the object on its watch. For an object that the informer has already, it is an update.
func (u *upstream) seen(object any) func() {
	if _, ours := object.(agentReport); ours {
		return func() {}
	}
	w := u.watch(resourceOf(object))
	u.mu.Lock()
	u.version++
	object.(metav1.Object).SetResourceVersion(strconv.Itoa(u.version))
	u.mu.Unlock()
	return func() { w.Add(object.(apiruntime.Object)) }
}

func (u *upstream) gone(object any) func() {
	w := u.watch(resourceOf(object))
	return func() { w.Delete(object.(apiruntime.Object)) }
}

// loaded waits for the informers.
func (u *upstream) loaded(nodes, pods int) {
	for {
		have, err := u.scheduler.Cache.PodCount()
		if err == nil && have >= pods && u.scheduler.Cache.NodeCount() >= nodes {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hearing is how long to wait until upstream's informers have processed what they were shown: their handlers run
// concurrently, and there is no signal when they are done. Chosen: a hundred times what they take on an idle machine.
// It takes no CPU time.
const hearing = 100 * time.Millisecond

func (u *upstream) heard() {
	for _, w := range u.all() {
		for len(w.ResultChan()) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(hearing)
}

func (u *upstream) all() []*watch.FakeWatcher {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.watches))
}

// place makes upstream schedule pods from its queue until the pod was scheduled.
func (u *upstream) place(ctx context.Context, pod *corev1.Pod) bool {
	for range decisionsMax {
		u.binds.Add(1)
		u.scheduler.ScheduleOne(ctx)
		u.mu.Lock()
		failed, last := u.failed[pod.UID], u.last
		u.mu.Unlock()
		if failed {
			return false
		}
		if assumed, err := u.scheduler.Cache.IsAssumedPod(pod); err == nil && assumed || last != nil && last.UID == pod.UID {
			return true
		}
		if p, err := u.scheduler.Cache.GetPod(pod); err == nil && p.Spec.NodeName != "" {
			return true
		}
	}
	panic(fmt.Sprintf("pod %s: not decided within %d decisions", pod.Name, decisionsMax))
}

// wait returns when every bind is in upstream's cache.
func (u *upstream) wait() {
	u.binds.Wait()
	u.mu.Lock()
	last := u.last
	u.mu.Unlock()
	for last != nil {
		if assumed, err := u.scheduler.Cache.IsAssumedPod(last); err != nil || !assumed {
			return
		}
		runtime.Gosched()
		time.Sleep(100 * time.Microsecond)
	}
}

func (u *upstream) close() { u.scheduler.SchedulingQueue.Close(); u.cancel() }
