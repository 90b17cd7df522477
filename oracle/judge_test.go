// Package oracle compares our decisions with upstream's own code, on random input. Upstream's packages are used only
// for comparison, and only here.
package oracle

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util"
)

// judge is upstream's scheduling framework with its default profile, without the plugins for which we have no rule.
type judge struct {
	framework framework.Framework
	scores    []weighted
	preempts  *defaultpreemption.DefaultPreemption
	factory   informers.SharedInformerFactory
	world     *upstreamWorld
}

type weighted struct {
	plugin fwk.ScorePlugin
	weight int64
}

// upstreamWorld is the snapshot that plugins read. It is replaced for each cluster.
type upstreamWorld struct {
	fwk.SharedLister
	nominations map[string][]fwk.PodInfo
}

func (w *upstreamWorld) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (w *upstreamWorld) DeleteNominatedPodIfExists(*corev1.Pod)                        {}
func (w *upstreamWorld) UpdateNominatedPod(klog.Logger, *corev1.Pod, fwk.PodInfo)      {}
func (w *upstreamWorld) NominatedPodsForNode(node string) []fwk.PodInfo                { return w.nominations[node] }

// noDevices is a cluster without device classes.
type noDevices struct{ fwk.SharedDRAManager }

func (noDevices) DeviceClassResolver() fwk.DeviceClassResolver               { return noDevices{} }
func (noDevices) GetDeviceClass(corev1.ResourceName) *resourcev1.DeviceClass { return nil }

// notOurs are the plugins without a rule of ours. No generated pod needs one.
var notOurs = []string{"DynamicResources", "SchedulingGates"}

// newJudge builds upstream's framework from a configuration file, as upstream itself reads it. Weights must be in
// multiPoint.
func newJudge(t *testing.T, file string) *judge {
	t.Helper()
	metrics.Register()
	ctx := context.Background()
	decoded, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(file), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	profile := &decoded.(*config.KubeSchedulerConfiguration).Profiles[0]
	set := &profile.Plugins.MultiPoint
	set.Enabled = slices.DeleteFunc(set.Enabled, func(p config.Plugin) bool { return slices.Contains(notOurs, p.Name) })
	client := fake.NewClientset()
	j := &judge{factory: informers.NewSharedInformerFactory(client, 0), world: &upstreamWorld{}}
	registry := plugins.NewInTreeRegistry()
	j.framework, err = frameworkruntime.NewFramework(ctx, registry, profile,
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(j.factory),
		frameworkruntime.WithSnapshotSharedLister(j.world),
		frameworkruntime.WithPodNominator(j.world), frameworkruntime.WithSharedDRAManager(noDevices{}),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(j.factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithParallelism(1), frameworkruntime.WithLogger(klog.Background()))
	if err != nil {
		t.Fatal(err)
	}
	args := map[string]runtime.Object{}
	for _, c := range profile.PluginConfig {
		args[c.Name] = c.Args
	}
	for _, p := range set.Enabled {
		made, err := registry[p.Name](ctx, args[p.Name], j.framework)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := made.(fwk.ScorePlugin); ok && p.Weight > 0 {
			j.scores = append(j.scores, weighted{s, int64(p.Weight)})
		}
		if d, ok := made.(*defaultpreemption.DefaultPreemption); ok {
			j.preempts = d
		}
	}
	return j
}

// see gives the plugins a cluster.
func (j *judge) see(t *testing.T, c *cluster) {
	j.world.SharedLister = internalcache.NewSnapshot(c.bound, c.nodes)
	j.world.nominations = map[string][]fwk.PodInfo{}
	for _, p := range c.nominated {
		info, err := framework.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		node := p.Status.NominatedNodeName
		j.world.nominations[node] = append(j.world.nominations[node], info)
	}
	replace(t, j.factory.Core().V1().Namespaces().Informer(), c.namespaces)
	replace(t, j.factory.Core().V1().Services().Informer(), c.services)
	replace(t, j.factory.Policy().V1().PodDisruptionBudgets().Informer(), c.budgets)
	if c.stores != nil {
		j.seeStores(t, c.stores)
	}
}

func (j *judge) seeStores(t *testing.T, s *stores) {
	core, storage := j.factory.Core().V1(), j.factory.Storage().V1()
	replace(t, core.PersistentVolumeClaims().Informer(), s.claims)
	replace(t, core.PersistentVolumes().Informer(), s.volumes)
	replace(t, storage.StorageClasses().Informer(), s.classes)
	replace(t, storage.CSINodes().Informer(), s.nodes)
	replace(t, storage.CSIDrivers().Informer(), s.drivers)
	replace(t, storage.CSIStorageCapacities().Informer(), s.capacities)
	replace(t, storage.VolumeAttachments().Informer(), s.attachments)
}

func replace[T any](t *testing.T, informer cache.SharedIndexInformer, list []T) {
	objects := make([]any, len(list))
	for i := range list {
		objects[i] = list[i]
	}
	if err := informer.GetIndexer().Replace(objects, ""); err != nil {
		t.Fatal(err)
	}
}

// cluster is what both sides get.
type cluster struct {
	nodes      []*corev1.Node
	bound      []*corev1.Pod
	nominated  []*corev1.Pod
	namespaces []*corev1.Namespace
	services   []*corev1.Service
	budgets    []*policyv1.PodDisruptionBudget
	stores     *stores // nil: no storage
}

// verdict is upstream's result for one pod.
type verdict struct {
	reasons map[string][]string         // of each node that is not feasible
	final   map[string]bool             // the nodes whose rejection no eviction changes
	scores  map[string]map[string]score // of each feasible node, by plugin, if several are feasible
	totals  map[string]int64            // of each feasible node
	status  *framework.NodeToStatus
	state   fwk.CycleState
}

type score struct{ raw, normalized int64 }

func (j *judge) judge(t *testing.T, pod *corev1.Pod) verdict {
	ctx, state := context.Background(), framework.NewCycleState()
	v := verdict{map[string][]string{}, map[string]bool{}, map[string]map[string]score{}, map[string]int64{},
		framework.NewDefaultNodeToStatus(), state}
	infos, err := j.world.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	reject := func(node string, s *fwk.Status) {
		v.reasons[node], v.final[node] = s.Reasons(), s.Code() == fwk.UnschedulableAndUnresolvable
		v.status.Set(node, s)
	}
	only, status, _ := j.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		t.Fatal(status)
	}
	var feasible []fwk.NodeInfo
	for _, n := range infos {
		name := n.Node().Name
		switch {
		case !status.IsSuccess():
			reject(name, status)
		case only != nil && !only.AllNodes() && !only.NodeNames.Has(name):
			reject(name, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) [NodeAffinity]"))
		default:
			if s := j.framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, n); !s.IsSuccess() {
				reject(name, s)
				continue
			}
			feasible = append(feasible, n)
			v.totals[name] = 0
			v.scores[name] = map[string]score{}
		}
	}
	if len(feasible) > 1 {
		j.score(t, pod, feasible, &v)
	}
	return v
}

func (j *judge) score(t *testing.T, pod *corev1.Pod, feasible []fwk.NodeInfo, v *verdict) {
	ctx := context.Background()
	if s := j.framework.RunPreScorePlugins(ctx, v.state, pod, feasible); !s.IsSuccess() {
		t.Fatal(s)
	}
	for _, s := range j.scores {
		if v.state.GetSkipScorePlugins().Has(s.plugin.Name()) {
			continue
		}
		var list fwk.NodeScoreList
		for _, n := range feasible {
			one, status := s.plugin.Score(ctx, v.state, pod, n)
			if !status.IsSuccess() {
				t.Fatal(status)
			}
			list = append(list, fwk.NodeScore{Name: n.Node().Name, Score: one})
			v.scores[n.Node().Name][s.plugin.Name()] = score{raw: one}
		}
		if e := s.plugin.ScoreExtensions(); e != nil {
			e.NormalizeScore(ctx, v.state, pod, list)
		}
		for _, x := range list {
			one := v.scores[x.Name][s.plugin.Name()]
			one.normalized = x.Score
			v.scores[x.Name][s.plugin.Name()] = one
			v.totals[x.Name] += s.weight * x.Score
		}
	}
}

var everything = labels.Everything()

// rank returns the values by which upstream compares candidates before it chooses at random.
func rank(candidates []preemption.Candidate, node string) string {
	for _, c := range candidates {
		if c.Name() == node {
			sum := int64(0)
			for _, p := range c.Victims().Pods {
				sum += int64(*p.Spec.Priority) + math.MaxInt32 + 1
			}
			return fmt.Sprint(c.Victims().NumPDBViolations, *c.Victims().Pods[0].Spec.Priority, sum, len(c.Victims().Pods),
				util.GetEarliestPodStartTime(c.Victims()))
		}
	}
	return "none"
}
