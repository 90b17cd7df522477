package oracle

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	upstream "k8s.io/kubernetes/pkg/kubelet/eviction"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	evictionCases = flag.Int("eviction.cases", 20_000,
		"random configurations, nodes and histories whose evictions are judged")
	evictionSeed = flag.Uint64("eviction.seed", 1, "seed of the random evictions")
)

type podStats = func(*corev1.Pod) (statsapi.PodStats, bool)

//go:linkname upstreamRankers k8s.io/kubernetes/pkg/kubelet/eviction.buildSignalToRankFunc
func upstreamRankers(withImageFs, split bool) map[evictionapi.Signal]func([]*corev1.Pod, podStats)

//go:linkname upstreamCachedStats k8s.io/kubernetes/pkg/kubelet/eviction.cachedStatsFunc
func upstreamCachedStats([]statsapi.PodStats) podStats

//go:linkname upstreamSynchronize k8s.io/kubernetes/pkg/kubelet/eviction.(*managerImpl).synchronize
func upstreamSynchronize(m unsafe.Pointer, ctx context.Context, d upstream.DiskInfoProvider,
	pods upstream.ActivePodsFunc) ([]*corev1.Pod, error)

// evictor is upstream's eviction manager on a node that a test describes.
type evictor struct {
	upstream.Manager
	manager unsafe.Pointer
	clock   *testingclock.FakeClock
	disks   eviction.Disks
	summary *statsapi.Summary
	pods    []*corev1.Pod

	killed      *corev1.Pod
	grace       int64
	status      corev1.PodStatus
	annotations map[string]string
	reclaimed   []string
}

func newEvictor(c upstream.Config, disks eviction.Disks, localStorage bool) *evictor {
	e := &evictor{clock: testingclock.NewFakeClock(time.Unix(1000, 0)), disks: disks}
	e.Manager, _ = upstream.NewManager(e, c, e.kill, e, e, e, &corev1.ObjectReference{}, e.clock, localStorage)
	e.manager = (*[2]unsafe.Pointer)(unsafe.Pointer(&e.Manager))[1]
	return e
}

func (e *evictor) Get(context.Context, bool) (*statsapi.Summary, error) { return e.summary, nil }
func (e *evictor) GetCPUAndMemoryStats(context.Context) (*statsapi.Summary, error) {
	return e.summary, nil
}
func (e *evictor) HasDedicatedImageFs(context.Context) (bool, error) {
	return e.disks != eviction.OneDisk, nil
}
func (e *evictor) HasDedicatedContainerFs(context.Context) (bool, error) {
	return e.disks == eviction.SplitDisk, nil
}
func (e *evictor) DeleteUnusedImages(context.Context) error {
	e.reclaimed = append(e.reclaimed, "images")
	return nil
}
func (e *evictor) DeleteAllUnusedContainers(context.Context) error {
	e.reclaimed = append(e.reclaimed, "containers")
	return nil
}
func (e *evictor) Event(runtime.Object, string, string, string)          {}
func (e *evictor) Eventf(runtime.Object, string, string, string, ...any) {}
func (e *evictor) AnnotatedEventf(_ runtime.Object, a map[string]string, _, _, _ string, _ ...any) {
	e.annotations = a
}

func (e *evictor) kill(pod *corev1.Pod, _ bool, grace *int64, fn func(*corev1.PodStatus)) error {
	e.killed = pod
	e.grace = *grace
	e.status = corev1.PodStatus{}
	fn(&e.status)
	return nil
}

// synchronize runs one check of upstream's eviction manager.
func (e *evictor) synchronize(t *testing.T) {
	t.Helper()
	e.killed, e.annotations = nil, nil
	_, err := upstreamSynchronize(e.manager, context.Background(), e, func() []*corev1.Pod { return slices.Clone(e.pods) })
	if err != nil {
		t.Fatal(err)
	}
}

func (e *evictor) conditions() []eviction.Condition {
	var out []eviction.Condition
	for c, holds := range map[eviction.Condition]bool{
		eviction.MemoryPressure: e.IsUnderMemoryPressure(), eviction.DiskPressure: e.IsUnderDiskPressure(),
		eviction.PIDPressure: e.IsUnderPIDPressure(),
	} {
		if holds {
			out = append(out, c)
		}
	}
	return slices.Sorted(slices.Values(out))
}

// thresholds returns the maps of a configuration, mostly valid ones.
func (r random) thresholds() (hard, soft, graces, reclaims map[string]string) {
	hard = map[string]string{}
	soft = map[string]string{}
	graces = map[string]string{}
	reclaims = map[string]string{}
	amounts := []string{"100Mi", "1Gi", "500", "1k", "10%", "12.5%", "0%", "100%", "99.9%", "0.5Gi", "1e3", "5%"}
	if r.chance(12) {
		amounts = append(amounts, "-1", "0", "x", "-5%", "101%", "", "%")
	}
	for _, s := range allocatable.Signals() {
		name := string(s)
		if r.chance(3) {
			hard[name] = r.of(amounts...)
		}
		if r.chance(4) {
			soft[name], graces[name] = r.of(amounts...), r.of("30s", "1m30s", "0s", "5m")
			if r.chance(30) {
				delete(graces, name)
			}
		}
		if r.chance(4) {
			reclaims[name] = r.of("0", "50Mi", "5%", "500", "100%")
		}
	}
	if r.chance(40) {
		hard["memory.free"] = "1Gi"
	}
	return hard, soft, graces, reclaims
}

// TestEvictionThresholds compares parsing of thresholds: which are refused, and every threshold and minimum reclaim.
func TestEvictionThresholds(t *testing.T) {
	r := random{rand.New(rand.NewPCG(*evictionSeed, 11))}
	refused := 0
	for n := range *evictionCases {
		hard, soft, graces, reclaims := r.thresholds()
		enforce := []string{"pods"}
		if r.chance(4) {
			enforce = []string{"none"}
		}
		c, _, err := kubeletconfig.Parse(nil, "")
		if err != nil {
			t.Fatal(err)
		}
		c.EvictionHard = hard
		c.EvictionSoft = soft
		c.EvictionSoftGracePeriod = graces
		c.EvictionMinimumReclaim = reclaims
		c.EnforceNodeAllocatable = enforce
		ours, err := kubeletconfig.Eviction(c)
		theirs, wantErr := upstream.ParseThresholdConfig(enforce, hard, soft, graces, reclaims)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("case %d: error %v, want %v\n%v %v %v %v", n, err, wantErr, hard, soft, graces, reclaims)
		}
		if err != nil {
			refused++
			continue
		}
		capacity := resource.NewQuantity(1+r.Int64N(1<<42), resource.BinarySI)
		var got, want []string
		for _, x := range ours.Thresholds {
			got = append(got, fmt.Sprint(x.Signal, x.Grace, x.Value.Of(capacity.Value()), x.Reclaim.Of(capacity.Value()),
				x.Text))
		}
		for _, x := range theirs {
			line := evictionapi.GetThresholdQuantity(x.Value, capacity)
			reclaim := int64(0)
			text := ""
			if x.MinReclaim != nil {
				reclaim = evictionapi.GetThresholdQuantity(*x.MinReclaim, capacity).Value()
			}
			if x.Value.Quantity != nil {
				text = x.Value.Quantity.String()
			}
			want = append(want, fmt.Sprint(allocatable.Signal(x.Signal), x.GracePeriod, line.Value(), reclaim, text))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("case %d:\n got %v\nwant %v", n, got, want)
		}
	}
	t.Logf("seed %d: %d configurations, of them refused %d", *evictionSeed, *evictionCases, refused)
}

func (r random) fs(max int64) *statsapi.FsStats {
	if r.chance(10) {
		return nil
	}
	used, inodes := uint64(r.Int64N(max)), uint64(r.Int64N(2000))
	return &statsapi.FsStats{UsedBytes: &used, InodesUsed: &inodes}
}

// evictee returns a pod and its usage. Half of them are generated so that ties are frequent.
func (r random) evictee(i int) (*corev1.Pod, *statsapi.PodStats) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "default",
		UID: types.UID(fmt.Sprint("u", i))}}
	list := func() corev1.ResourceList {
		out := corev1.ResourceList{}
		if r.chance(2) {
			out["memory"] = resource.MustParse(r.of("0", "1Ki", "100M", "64Mi", "0.5Gi", "1Gi"))
		}
		if r.chance(2) {
			out["ephemeral-storage"] = resource.MustParse(r.of("0", "1Ki", "1G", "64Mi", "1Gi"))
		}
		return out
	}
	always := corev1.ContainerRestartPolicyAlways
	for j := range 1 + r.IntN(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", j),
			Resources: corev1.ResourceRequirements{Requests: list(), Limits: list()}})
	}
	if r.chance(4) {
		c := corev1.Container{Name: "i", Resources: corev1.ResourceRequirements{Requests: list()}}
		if r.chance(2) {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if r.chance(5) {
		pod.Spec.Resources = &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"memory": resource.MustParse(r.of("1Gi", "200Mi"))},
		}
	}
	if r.chance(5) {
		pod.Spec.Overhead = corev1.ResourceList{"memory": resource.MustParse("30Mi"),
			"ephemeral-storage": resource.MustParse("5Mi")}
	}
	if !r.chance(3) {
		pod.Spec.Priority = new(int32)
		*pod.Spec.Priority = int32(r.IntN(3))
	}
	if r.chance(3) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		*pod.Spec.TerminationGracePeriodSeconds = r.Int64N(60)
	}
	size := resource.MustParse(r.of("0", "1Gi", "10Mi"))
	for name, source := range map[string]corev1.VolumeSource{
		"empty":  {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"sized":  {EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}},
		"memory": {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
		"host":   {HostPath: &corev1.HostPathVolumeSource{}},
		"config": {ConfigMap: &corev1.ConfigMapVolumeSource{}}, "secret": {Secret: &corev1.SecretVolumeSource{}},
	} {
		if r.chance(4) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		}
	}
	if r.chance(10) {
		return pod, nil
	}
	return pod, r.usage(pod)
}

func (r random) usage(pod *corev1.Pod) *statsapi.PodStats {
	s := &statsapi.PodStats{PodRef: statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}}
	memory := func() *statsapi.MemoryStats {
		set := uint64(r.Int64N(1 << 31))
		if r.chance(2) {
			set = uint64(r.IntN(4)) << 29
		}
		return &statsapi.MemoryStats{WorkingSetBytes: &set}
	}
	s.Memory = memory()
	count, total := uint64(r.IntN(500)), uint64(r.Int64N(3<<30))
	s.ProcessStats = &statsapi.ProcessStats{ProcessCount: &count}
	s.EphemeralStorage = &statsapi.FsStats{UsedBytes: &total}
	for _, c := range append(slices.Clone(pod.Spec.Containers), pod.Spec.InitContainers...) {
		s.Containers = append(s.Containers, statsapi.ContainerStats{Name: c.Name, Memory: memory(), Rootfs: r.fs(1 << 31),
			Logs: r.fs(1 << 29)})
	}
	if r.chance(6) {
		s.Containers = append(s.Containers, statsapi.ContainerStats{Name: "debug", Memory: memory(), Rootfs: r.fs(1 << 31),
			Logs: r.fs(1 << 29)})
	}
	for _, v := range pod.Spec.Volumes {
		if f := r.fs(1 << 31); f != nil {
			s.VolumeStats = append(s.VolumeStats, statsapi.VolumeStats{Name: v.Name, FsStats: *f})
		}
	}
	return s
}

// evictees returns pods, their statistics, and the same as our types.
func (r random) evictees() ([]*corev1.Pod, []statsapi.PodStats, []eviction.Pod) {
	var pods []*corev1.Pod
	var stats []statsapi.PodStats
	var ours []eviction.Pod
	for i := range r.IntN(8) {
		pod, s := r.evictee(i)
		one := translate.EvictionPod(pod)
		if s != nil {
			translate.EvictionUsage(&one, s)
			stats = append(stats, *s)
		}
		pods, ours = append(pods, pod), append(ours, one)
	}
	return pods, stats, ours
}

// TestEvictionOrder compares our order of pods with upstream's, for every signal and layout of disks. Equal pods may be
// in any order.
func TestEvictionOrder(t *testing.T) {
	r := random{rand.New(rand.NewPCG(*evictionSeed, 12))}
	for n := range *evictionCases {
		pods, stats, ours := r.evictees()
		disks := eviction.Disks(r.IntN(3))
		rankers := upstreamRankers(disks != eviction.OneDisk, disks == eviction.SplitDisk)
		for _, signal := range allocatable.Signals() {
			sorted := slices.Clone(pods)
			rankers[evictionapi.Signal(signal)](sorted, upstreamCachedStats(stats))
			key := func(x eviction.Ranked, p eviction.Pod) string {
				if !x.Known {
					return fmt.Sprint("unknown ", x.Priority)
				}
				over, excess := x.Over, x.Usage-x.Request
				switch {
				case signal == allocatable.PIDAvailable:
					over, excess = false, x.Usage
				case strings.HasSuffix(string(signal), "inodesFree"):
					excess = x.Usage - int64(p.StorageRequest)
				}
				return fmt.Sprint(over, x.Priority, excess)
			}
			byID, ranked := map[string]eviction.Pod{}, map[string]eviction.Ranked{}
			var got, want []string
			for _, p := range ours {
				byID[p.ID] = p
			}
			for _, x := range eviction.Rank(signal, ours, eviction.SignalWorkingSet, disks) {
				ranked[x.ID] = x
				got = append(got, key(x, byID[x.ID]))
			}
			for _, p := range sorted {
				want = append(want, key(ranked[string(p.UID)], byID[string(p.UID)]))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("case %d, %s, disks %d:\n got %v\nwant %v", n, signal, disks, got, want)
			}
		}
	}
}

func (r random) summary(stats []statsapi.PodStats) *statsapi.Summary {
	s := &statsapi.Summary{Pods: stats}
	memory := func(total int64) *statsapi.MemoryStats {
		available := uint64(r.Int64N(total))
		if r.chance(2) {
			available = uint64(total) / 100 * uint64(r.IntN(30))
		}
		set := uint64(total) - available
		return &statsapi.MemoryStats{AvailableBytes: &available, WorkingSetBytes: &set}
	}
	disk := func() *statsapi.FsStats {
		capacity, inodes := uint64(100)<<30, uint64(655360)
		available, free := capacity/100*uint64(r.IntN(30)), inodes/100*uint64(r.IntN(30))
		return &statsapi.FsStats{CapacityBytes: &capacity, AvailableBytes: &available, Inodes: &inodes, InodesFree: &free}
	}
	s.Node.Memory, s.Node.Fs = memory(8<<30), disk()
	s.Node.SystemContainers = []statsapi.ContainerStats{{Name: statsapi.SystemContainerPods, Memory: memory(7 << 30)}}
	s.Node.Runtime = &statsapi.RuntimeStats{ImageFs: disk(), ContainerFs: disk()}
	maxPID, running := int64(32768), r.Int64N(32768)
	s.Node.Rlimit = &statsapi.RlimitStats{MaxPID: &maxPID, NumOfRunningProcesses: &running}
	return s
}

// TestEvictionHistory compares conditions over time with upstream's: grace periods, minimum reclaim, the transition
// period.
func TestEvictionHistory(t *testing.T) {
	r := random{rand.New(rand.NewPCG(*evictionSeed, 13))}
	changed := 0
	for n := range *evictionCases / 10 {
		config, theirs := r.config(t)
		disks := eviction.Disks(r.IntN(3))
		e, d := newEvictor(theirs, disks, false), eviction.New(config)
		now := unit.Instant(0).Add(time.Hour)
		e.summary = &statsapi.Summary{}
		e.synchronize(t) // in its first check upstream still uses thresholds of containerfs that it has just replaced
		var last []eviction.Condition
		for step := range 10 {
			pass := time.Duration(r.IntN(180)) * time.Second
			now = now.Add(pass)
			e.clock.Step(pass)
			e.summary = r.summary(nil)
			e.synchronize(t)
			got := d.Step(now, eviction.Facts{Signals: translate.EvictionSignals(e.summary), Disks: disks}).Conditions
			if want := e.conditions(); !slices.Equal(got, want) {
				t.Fatalf("case %d, step %d: conditions %v, want %v, disks %d\n%+v\n%+v", n, step, got, want, disks, config,
					translate.EvictionSignals(e.summary))
			}
			if !slices.Equal(got, last) {
				changed++
			}
			last = got
		}
	}
	t.Logf("seed %d: %d histories, %d changes of conditions", *evictionSeed, *evictionCases/10, changed)
}

// config generates valid thresholds, as our types and upstream's.
func (r random) config(t *testing.T) (eviction.Config, upstream.Config) {
	for {
		hard, soft, graces, reclaims := r.thresholds()
		if slices.Contains(slices.Collect(maps.Values(graces)), "0s") {
			continue // two hard thresholds of a file system: upstream copies either of them to containerfs, at random
		}
		c, _, err := kubeletconfig.Parse(nil, "")
		if err != nil {
			t.Fatal(err)
		}
		c.EvictionHard = hard
		c.EvictionSoft = soft
		c.EvictionSoftGracePeriod = graces
		c.EvictionMinimumReclaim = reclaims
		c.EvictionPressureTransitionPeriod = metav1.Duration{Duration: time.Duration(1+r.IntN(5)) * time.Minute}
		c.EvictionMaxPodGracePeriod = int32(r.IntN(60))
		ours, err := kubeletconfig.Eviction(c)
		thresholds, wantErr := upstream.ParseThresholdConfig([]string{"pods"}, hard, soft, graces, reclaims)
		if err == nil && wantErr == nil {
			return ours, upstream.Config{Thresholds: thresholds,
				PressureTransitionPeriod: c.EvictionPressureTransitionPeriod.Duration,
				MaxPodGracePeriodSeconds: int64(c.EvictionMaxPodGracePeriod)}
		}
	}
}

// TestEvictionVictim compares how upstream evicts its victim with how we would: message, annotations, condition and
// termination grace period. It also checks that our victim, unless it can be spared, is first in upstream's order.
func TestEvictionVictim(t *testing.T) {
	r := random{rand.New(rand.NewPCG(*evictionSeed, 14))}
	causes := map[eviction.Cause]int{}
	for n := range *evictionCases {
		pods, stats, ours := r.evictees()
		disks, signal := eviction.Disks(r.IntN(3)), allocatable.Signals()[r.IntN(9)]
		hard := map[string]string{string(signal): r.of("25%", "7Gi", "90Gi", "30k")}
		theirs, err := upstream.ParseThresholdConfig(nil, hard, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := kubeletconfig.Parse(nil, "")
		if err != nil {
			t.Fatal(err)
		}
		c.EvictionHard, c.EnforceNodeAllocatable = hard, []string{"none"}
		config, err := kubeletconfig.Eviction(c)
		if err != nil {
			t.Fatal(err)
		}
		config.LocalStorage = r.chance(2)
		e := newEvictor(upstream.Config{Thresholds: theirs, PressureTransitionPeriod: time.Minute}, disks,
			config.LocalStorage)
		e.summary, e.pods = r.summary(stats), pods
		e.synchronize(t)
		if e.killed == nil {
			continue
		}
		at := slices.IndexFunc(ours, func(p eviction.Pod) bool { return p.ID == string(e.killed.UID) })
		facts := eviction.Facts{Signals: translate.EvictionSignals(e.summary), Disks: disks, Pods: ours[at : at+1],
			Done: map[eviction.Step]unit.Instant{}}
		d, now := eviction.New(config), unit.Instant(0).Add(time.Hour)
		var out eviction.Decision
		for range 4 {
			out = d.Step(now, facts)
			for _, x := range out.Reclaim {
				facts.Done[x.Step] = now
			}
			now++
			if len(out.Victims) > 0 {
				break
			}
		}
		if len(out.Victims) == 0 {
			if len(out.Ranking) == 1 && out.Ranking[0].Frees > 0 {
				t.Fatalf("case %d: %s is no victim of ours: %+v", n, e.killed.Name, out.Met)
			}
			continue // frees nothing that is measured
		}
		v := out.Victims[0]
		causes[v.Cause]++
		if v.Message != e.status.Message || !maps.Equal(v.Annotations, e.annotations) {
			t.Fatalf("case %d: %s\n got %q %v\nwant %q %v", n, v.Cause, v.Message, v.Annotations, e.status.Message,
				e.annotations)
		}
		if e.status.Reason != eviction.Reason || v.Disruption != (len(e.status.Conditions) == 1) {
			t.Fatalf("case %d: %+v, want %+v", n, v, e.status)
		}
	}
	if len(causes) < 10 {
		t.Errorf("only %v were judged", causes)
	}
	t.Logf("seed %d: %v", *evictionSeed, causes)
}
