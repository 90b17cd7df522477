package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
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

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// upstream is kube-scheduler 1.36's own Scheduler.
type upstream struct {
	scheduler *scheduler.Scheduler
	pods      cache.Indexer
	cancel    context.CancelFunc
	binds     sync.WaitGroup
	placed    bool
}

func newUpstream(s *scenario) side {
	ctx, cancel := context.WithCancel(context.Background())
	u := &upstream{cancel: cancel}
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	u.pods = factory.Core().V1().Pods().Informer().GetIndexer()
	var err error
	u.scheduler, err = scheduler.New(ctx, client, factory, nil, profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})),
		scheduler.WithProfiles(u.profile()),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{"NoBind": u.newNoBind, "QuietPreemption": newQuietPreemption}))
	if err != nil {
		panic(fmt.Sprintf("make upstream's scheduler: %v", err))
	}
	u.scheduler.FailureHandler = u.failed
	logger := klog.FromContext(ctx)
	for i := range s.nodes {
		u.scheduler.Cache.AddNode(logger, s.node(i))
		for k := range s.perNode {
			if err := u.scheduler.Cache.AddPod(logger, s.existing(i, k)); err != nil {
				panic(fmt.Sprintf("add a pod to upstream's cache: %v", err))
			}
		}
	}
	return u
}

// profile is the default one, with a Bind plugin that does nothing and a preemption that sends nothing.
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
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c config.PluginConfig) bool { return c.Name == "DefaultPreemption" })
	return p
}

type noBind struct{ u *upstream }

func (u *upstream) newNoBind(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return noBind{u}, nil
}

func (noBind) Name() string { return "NoBind" }

func (b noBind) Bind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	b.u.binds.Done()
	return nil
}

// quietPreemption is DefaultPreemption under another name, without API calls.
type quietPreemption struct {
	*defaultpreemption.DefaultPreemption
}

func (quietPreemption) Name() string { return "QuietPreemption" }

func newQuietPreemption(ctx context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}
	p, err := defaultpreemption.New(ctx, args, h, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p.Executor.PreemptPod = func(context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *corev1.Pod, string) error {
		return nil
	}
	return quietPreemption{p}, nil
}

func (u *upstream) failed(ctx context.Context, _ framework.Framework, info *framework.QueuedPodInfo, _ *fwk.Status, nominating *fwk.NominatingInfo, _ time.Time) {
	u.placed = false
	u.binds.Done()
	if nominating != nil && nominating.NominatedNodeName != "" {
		u.scheduler.SchedulingQueue.AddNominatedPod(klog.FromContext(ctx), info.PodInfo, nominating)
	}
	u.scheduler.SchedulingQueue.Done(info.Pod.UID)
}

func (u *upstream) add(s *scenario, first, n int) {
	for i := range n {
		p := s.coming(first + i)
		if err := u.pods.Add(p); err != nil { // preemption looks the pod up
			panic(fmt.Sprintf("add a pod to upstream's informer: %v", err))
		}
		u.scheduler.SchedulingQueue.Add(context.Background(), p)
	}
}

func (u *upstream) place(ctx context.Context) bool {
	u.placed = true
	u.binds.Add(1)
	u.scheduler.ScheduleOne(ctx)
	return u.placed
}

func (u *upstream) wait()  { u.binds.Wait() }
func (u *upstream) close() { u.scheduler.SchedulingQueue.Close(); u.cancel() }
