package explain

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// following is a Live to which a test tells changes, and the objects as they are.
type following struct {
	live    *Live
	sources map[string]source
	nodes   map[string]*corev1.Node
	pods    map[string]*corev1.Pod
	budgets map[string]*policyv1.PodDisruptionBudget
}

// TestLiveAnswersAsRead: after any history of changes, a Live answers as a cluster that is read afresh.
func TestLiveAnswersAsRead(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := askerOf(t, newServer(t), "")
		f := following{
			live:    NewLive(a),
			sources: map[string]source{},
			nodes:   map[string]*corev1.Node{},
			pods:    map[string]*corev1.Pod{},
			budgets: map[string]*policyv1.PodDisruptionBudget{},
		}
		for _, of := range f.live.s.others(func(string, *topology.Node) {}) {
			f.sources[of.kind.Resource] = f.live.marking(of)
		}
		for step := range 80 {
			f.change(rng, step)
			if step%8 != 7 {
				continue
			}
			got, err := a.Waiting(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			fresh := f.fresh(t)
			if got, want := texts(t, got), texts(t, fresh); got != want {
				t.Fatalf("seed %d, step %d: the Live says\n%s\nread afresh it is\n%s", seed, step, got, want)
			}
			for name := range f.nodes {
				if room, known := f.live.Room(name); !known || room.Load[2].Requested != f.podsOn(name) {
					t.Fatalf("seed %d, step %d: node %s: %+v, want %d pods", seed, step, name, room.Load, f.podsOn(name))
				}
			}
		}
	}
}

func texts(t *testing.T, w *Waiting) string {
	t.Helper()
	text, err := json.MarshalIndent(w, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (f *following) podsOn(node string) (n int64) {
	for _, p := range f.pods {
		if p.Spec.NodeName == node {
			n++
		}
	}
	return n
}

// fresh answers from the objects.
func (f *following) fresh(t *testing.T) *Waiting {
	a := askerOf(t, newServer(t), "")
	s := a.newSnapshot()
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		s.world.NodeSeen(atRead, translate.SchedulerNode(f.nodes[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(f.pods)) {
		s.podSeen(f.pods[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.budgets)) {
		s.world.BudgetSeen(atRead, translate.SchedulerBudget(f.budgets[name]))
	}
	return &Waiting{Nodes: s.world.Nodes(), Pods: len(s.waiting), Groups: s.groups()}
}

// change makes one change, and tells the Live.
func (f *following) change(rng *rand.Rand, step int) {
	switch rng.IntN(8) {
	case 0, 1:
		n := randomNode(rng, fmt.Sprintf("n%d", rng.IntN(5)))
		f.nodes[n.Name] = n
		f.live.nodeSeen(keepNode(n.DeepCopy()).(*LiveNode))
	case 2:
		if name := fmt.Sprintf("n%d", rng.IntN(5)); f.nodes[name] != nil && f.podsOn(name) == 0 {
			delete(f.nodes, name)
			f.live.nodeGone(name)
		}
	case 3:
		name := fmt.Sprintf("b%d", rng.IntN(2))
		if rng.IntN(3) == 0 && f.budgets[name] != nil {
			delete(f.budgets, name)
			f.sources[kube.DisruptionBudgets.Resource].gone("default", name)
			return
		}
		f.budgets[name] = randomBudget(rng, name)
		f.sources[kube.DisruptionBudgets.Resource].see(runtime.Object(f.budgets[name]))
	case 4:
		for _, name := range slices.Sorted(maps.Keys(f.pods)) { // one ends
			p := f.pods[name]
			delete(f.pods, name)
			f.live.livePodGone(keepPod(p.DeepCopy()).(*LivePod))
			return
		}
	case 5:
		for _, name := range slices.Sorted(maps.Keys(f.pods)) { // one is placed
			p := f.pods[name].DeepCopy()
			if on := fmt.Sprintf("n%d", rng.IntN(5)); p.Spec.NodeName == "" && f.nodes[on] != nil {
				p.Spec.NodeName, p.Status.NominatedNodeName = on, ""
				f.pods[name] = p
				f.live.livePodSeen(keepPod(p.DeepCopy()).(*LivePod))
				return
			}
		}
	default:
		p := randomPod(rng, fmt.Sprintf("p%d", step))
		f.pods[p.Name] = p
		f.live.livePodSeen(keepPod(p.DeepCopy()).(*LivePod))
	}
}

func randomNode(rng *rand.Rand, name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu":    *resource.NewQuantity(1+rng.Int64N(4), resource.DecimalSI),
		"memory": *resource.NewQuantity((1+rng.Int64N(8))<<30, resource.BinarySI),
		"pods":   *resource.NewQuantity(2+rng.Int64N(20), resource.DecimalSI),
	}
	n.Spec.Unschedulable = rng.IntN(8) == 0
	if rng.IntN(3) == 0 {
		n.Labels["disk"] = "ssd"
	}
	if rng.IntN(4) == 0 {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

func randomPod(rng *rand.Rand, name string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": fmt.Sprint(rng.IntN(2))}},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				"cpu":    *resource.NewMilliQuantity(500*(1+rng.Int64N(8)), resource.DecimalSI),
				"memory": *resource.NewQuantity(rng.Int64N(6)<<30, resource.BinarySI),
			}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if rng.IntN(3) == 0 {
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if priority := int32(rng.IntN(3)); priority > 0 {
		p.Spec.Priority = &priority
	}
	if rng.IntN(4) == 0 {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey:   "disk",
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "1"}},
			}},
		}}
	}
	return p
}

func randomBudget(rng *rand.Rand, name string) *policyv1.PodDisruptionBudget {
	most := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &most,
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(rng.IntN(2))}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(rng.IntN(2)), ObservedGeneration: 1},
	}
}

// TestTryChangesNothing: questions about pods and nodes that are not there leave the cluster as it is.
func TestTryChangesNothing(t *testing.T) {
	a := askerOf(t, newServer(t), "")
	l := NewLive(a)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 6 {
		n := randomNode(rng, fmt.Sprintf("n%d", i))
		n.Spec.Unschedulable, n.Spec.Taints = false, nil
		n.Status.Allocatable["cpu"] = resource.MustParse("4")
		n.Status.Allocatable["memory"] = resource.MustParse("8Gi")
		l.nodeSeen(keepNode(n).(*LiveNode))
	}
	wait := randomPod(rng, "wait")
	wait.Spec.Affinity, wait.Spec.NodeSelector = nil, nil
	wait.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("5")
	l.livePodSeen(keepPod(wait.DeepCopy()).(*LivePod))
	before, err := a.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := randomPod(rng, "one")
	one.Spec.Affinity, one.Spec.NodeSelector = nil, nil
	one.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1500m")}
	trial := l.Try(one, 20)
	if trial.Fit != 12 || len(trial.Placed) != 6 || trial.Feasible != 0 || len(trial.Reasons) == 0 {
		t.Errorf("20 copies of 1.5 CPUs on 6 nodes of 4: %+v", trial)
	}
	if trial := l.Try(one, 1); trial.Fit != 1 || trial.Feasible != 6 {
		t.Errorf("one copy: %+v", trial)
	}
	waiting, takes := l.TryAllocatable("n0", map[string]int64{"cpu": 5000})
	if waiting != 1 || !slices.Equal(takes, []string{"default/wait"}) {
		t.Errorf("with 5 CPUs n0 takes %v of %d", takes, waiting)
	}
	if _, takes := l.TryAllocatable("n0", nil); len(takes) != 0 {
		t.Errorf("n0 takes %v as it is", takes)
	}
	after, err := a.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if texts(t, before) != texts(t, after) {
		t.Errorf("after the questions it is\n%s\nbefore\n%s", texts(t, after), texts(t, before))
	}
}
