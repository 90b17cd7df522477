package oracle

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"k8s.io/klog/v2"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	_ "k8s.io/kubernetes/pkg/controller/tainteviction"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	healthCases = flag.Int("health.cases", 100_000, "random zones, and random pods on tainted nodes, that are judged")
	healthNodes = flag.Int("health.nodes", 1_000,
		"random nodes whose taints are judged; each goes through a fake API server")
	healthSeed = flag.Uint64("health.seed", 1, "seed of the random cases")
)

// TestZoneStates compares the state of a zone with upstream's ComputeZoneState.
func TestZoneStates(t *testing.T) {
	random := rand.New(rand.NewPCG(*healthSeed, 1))
	states := map[lifecycle.State]int{}
	upstream := map[float32]*nodelifecycle.Controller{}
	for n := range *healthCases {
		threshold := []float32{0, 0.1, 0.25, 1.0 / 3, 0.5, 0.55, 0.6, 0.99, 1}[random.IntN(9)]
		if upstream[threshold] == nil {
			upstream[threshold] = lifecycleController(t, fake.NewClientset(), threshold)
		}
		var conditions []*corev1.NodeCondition
		size, down := random.IntN(1+[]int{4, 21, 120}[random.IntN(3)]), 0
		for range size {
			var c *corev1.NodeCondition
			switch status := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown,
				""}[random.IntN(1+random.IntN(4))]; status {
			case "": // no report so far
				down++
			default:
				c = &corev1.NodeCondition{Type: corev1.NodeReady, Status: status}
				if status != corev1.ConditionTrue {
					down++
				}
			}
			conditions = append(conditions, c)
		}
		wantDown, want := upstream[threshold].ComputeZoneState(conditions)
		got := lifecycle.StateOf(size, down, threshold)
		states[got]++
		if string(got) != string(want) || down != wantDown {
			t.Fatalf("seed %d, case %d: %d of %d down, threshold %v: %s, want %s (%d down)", *healthSeed, n, down, size,
				threshold, got, want, wantDown)
		}
	}
	t.Logf("seed %d: %v", *healthSeed, states)
}

func lifecycleController(t *testing.T, client *fake.Clientset, threshold float32) *nodelifecycle.Controller {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	c, err := nodelifecycle.NewNodeLifecycleController(t.Context(), factory.Coordination().V1().Leases(), core.Pods(),
		core.Nodes(),
		factory.Apps().V1().DaemonSets(), client, time.Second, time.Minute, 50*time.Second, 0.1, 0.01, 50, threshold)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

//go:linkname getMinTolerationTime k8s.io/kubernetes/pkg/controller/tainteviction.getMinTolerationTime
func getMinTolerationTime(tolerations []corev1.Toleration) time.Duration

// TestTolerationSeconds compares how long a pod stays on a node with NoExecute taints with upstream's
// GetMatchingTolerations and the least toleration time of its result.
func TestTolerationSeconds(t *testing.T) {
	random := rand.New(rand.NewPCG(*healthSeed, 2))
	outcomes := map[string]int{}
	for n := range *healthCases {
		var taints []corev1.Taint
		for range random.IntN(4) {
			taints = append(taints, corev1.Taint{Key: key(random), Value: value(random), Effect: corev1.TaintEffectNoExecute})
		}
		var tolerations []corev1.Toleration
		for range random.IntN(5) {
			o := corev1.Toleration{Key: key(random), Value: value(random), Operator: []corev1.TolerationOperator{"",
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpGt, corev1.TolerationOpLt}[random.IntN(5)]}
			o.Effect = []corev1.TaintEffect{"", corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule}[random.IntN(3)]
			if random.IntN(8) == 0 {
				o.Key = ""
			}
			if random.IntN(3) > 0 {
				seconds := random.Int64N(400) - 20
				o.TolerationSeconds = &seconds
			}
			tolerations = append(tolerations, o)
		}
		judgeTolerationSeconds(t, n, taints, tolerations, outcomes)
	}
	t.Logf("seed %d: %v", *healthSeed, outcomes)
}

func key(r *rand.Rand) string   { return []string{"a", "b", "node.kubernetes.io/unreachable"}[r.IntN(3)] }
func value(r *rand.Rand) string { return []string{"", "x", "7"}[r.IntN(3)] }

func judgeTolerationSeconds(t *testing.T, n int, taints []corev1.Taint, tolerations []corev1.Toleration,
	outcomes map[string]int) {
	t.Helper()
	node := translate.LifecycleNode(&corev1.Node{Spec: corev1.NodeSpec{Taints: taints}})
	var ours []lifecycle.Toleration
	for i := range tolerations {
		ours = append(ours, translate.LifecycleToleration(&tolerations[i]))
	}
	got, ends := lifecycle.ToleratedTime(node.Taints, ours)
	if len(taints) == 0 { // upstream cancels before the computation
		if ends {
			t.Fatalf("seed %d, case %d: the node has no taint, and the pod leaves", *healthSeed, n)
		}
		return
	}
	want, wantEnds := time.Duration(0), true
	if all, used := v1helper.GetMatchingTolerations(klog.Background(), taints, tolerations); all {
		want = getMinTolerationTime(used)
		wantEnds = want >= 0
	}
	outcome := "stays"
	switch {
	case ends && got == 0:
		outcome = "leaves now"
	case ends:
		outcome = "leaves later"
	}
	outcomes[outcome]++
	if ends != wantEnds || ends && got != want {
		t.Fatalf("seed %d, case %d: taints %+v, tolerations %+v: %v (ends %v), want %v (%v)", *healthSeed, n, taints,
			tolerations, got, ends, want, wantEnds)
	}
}

//go:linkname doNoScheduleTaintingPass k8s.io/kubernetes/pkg/controller/nodelifecycle.(*Controller).doNoScheduleTaintingPass
func doNoScheduleTaintingPass(c *nodelifecycle.Controller, ctx context.Context, node string) error

// TestNoScheduleTaints compares the taints for conditions and the cordon with upstream's own processing of a node, with
// an API server in memory.
func TestNoScheduleTaints(t *testing.T) {
	random := rand.New(rand.NewPCG(*healthSeed, 3))
	changed := 0
	for n := range *healthNodes {
		node := taintedNode(random, n)
		want := upstreamTaints(t, node)
		got := ourTaints(t, node)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, node %d: %v, want %v\nbefore %v, conditions %+v, cordoned %v", *healthSeed, n, got, want,
				spell(node.Spec.Taints), node.Status.Conditions, node.Spec.Unschedulable)
		}
		if !slices.Equal(got, spell(node.Spec.Taints)) {
			changed++
		}
	}
	t.Logf("seed %d: %d of %d nodes had to change", *healthSeed, changed, *healthNodes)
}

func taintedNode(random *rand.Rand, n int) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", n), UID: "u"},
		Spec: corev1.NodeSpec{Unschedulable: random.IntN(3) == 0}}
	for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeNetworkUnavailable, "Mine"} {
		// Our controller does not change a node without a Ready condition, so none is generated; see README.md.
		if c == corev1.NodeReady || random.IntN(3) > 0 {
			status := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse,
				corev1.ConditionUnknown}[random.IntN(3)]
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: c, Status: status})
		}
	}
	for _, key := range []string{wellknown.TaintNotReady, wellknown.TaintUnreachable, wellknown.TaintMemoryPressure,
		wellknown.TaintDiskPressure, wellknown.TaintPIDPressure,
		wellknown.TaintNetworkUnavailable, wellknown.TaintUnschedulable, "example.com/mine"} {
		if random.IntN(3) == 0 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		// those two are rate-limited
		if key != wellknown.TaintNotReady && key != wellknown.TaintUnreachable && random.IntN(8) == 0 {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
	}
	return node
}

func upstreamTaints(t *testing.T, node *corev1.Node) []string {
	t.Helper()
	client := fake.NewClientset(node.DeepCopy())
	var last *corev1.Node
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	c, err := nodelifecycle.NewNodeLifecycleController(t.Context(), factory.Coordination().V1().Leases(), core.Pods(),
		core.Nodes(),
		factory.Apps().V1().DaemonSets(), client, time.Second, time.Minute, 50*time.Second, 0.1, 0.01, 50, 0.55)
	if err != nil {
		t.Fatal(err)
	}
	if err := core.Nodes().Informer().GetStore().Add(node); err != nil {
		t.Fatal(err)
	}
	if err := doNoScheduleTaintingPass(c, t.Context(), node.Name); err != nil {
		t.Fatal(err)
	}
	if last, err = client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	return spell(last.Spec.Taints)
}

// ourTaints passes the node to a Monitor, with a healthy one, and carries out what the Monitor decides at once.
func ourTaints(t *testing.T, node *corev1.Node) []string {
	t.Helper()
	o := lifecycle.Defaults()
	o.EvictionRate, o.SecondaryRate = 0, 0 // NoExecute taints are rate-limited, which is not tested here
	now, wall := unit.Instant(time.Hour), unit.WallOf(time.Now())
	m := lifecycle.New(now, o)
	m.NodeSeen(now, wall, lifecycle.Node{Name: "well", UID: "w",
		Status: map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: lifecycle.True}})
	m.NodeSeen(now, wall, translate.LifecycleNode(node))
	taints := slices.Clone(node.Spec.Taints)
	for _, a := range m.Advance(now).Actions {
		if a.Node != node.Name || len(a.Unknown) > 0 {
			t.Fatalf("unexpected action %+v", a)
		}
		taints = slices.DeleteFunc(taints, func(x corev1.Taint) bool {
			return slices.ContainsFunc(a.Drop, lifecycle.Taint{Key: x.Key, Effect: lifecycle.Effect(x.Effect)}.Same)
		})
		for _, x := range a.Add {
			taints = append(taints, corev1.Taint{Key: x.Key, Effect: corev1.TaintEffect(x.Effect)})
		}
	}
	return spell(taints)
}

func spell(taints []corev1.Taint) []string {
	var out []string
	for _, t := range taints {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return out
}
