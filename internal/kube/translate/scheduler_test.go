package translate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

func TestSchedulerRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	box := func(cpu, memory string) corev1.Container {
		list := corev1.ResourceList{}
		if cpu != "" {
			list[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			list[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list}}
	}
	sidecar := box("100m", "10Mi")
	sidecar.RestartPolicy = &always
	for _, c := range []struct {
		name        string
		spec        corev1.PodSpec
		cpu, memory int64
		scoreCPU    unit.MilliCPU
		scoreMemory unit.Bytes
	}{
		{"nothing asked: counted in scores only", corev1.PodSpec{Containers: []corev1.Container{box("", "")}}, 0, 0, 100,
			200 * unit.MiB},
		{"containers add up", corev1.PodSpec{Containers: []corev1.Container{box("100m", "1Mi"), box("200m", "2Mi")}}, 300,
			3 << 20, 300, 3 * unit.MiB},
		{"the largest init container counts alone", corev1.PodSpec{
			InitContainers: []corev1.Container{box("2", "1Mi"), box("1", "8Mi")}, Containers: []corev1.Container{box("500m",
				"4Mi")},
		}, 2000, 8 << 20, 2000, 8 * unit.MiB},
		{"a sidecar runs beside both", corev1.PodSpec{
			InitContainers: []corev1.Container{sidecar, box("1", "1Mi")}, Containers: []corev1.Container{box("500m", "4Mi")},
		}, 1100, 14 << 20, 1100, 14 * unit.MiB},
		{"overhead on top", corev1.PodSpec{
			Containers: []corev1.Container{box("1", "1Mi")}, Overhead: box("10m", "1Mi").Resources.Requests,
		}, 1010, 2 << 20, 1010, 2 * unit.MiB},
		{"pod-level resources in place of the sum, except in scores", corev1.PodSpec{
			Containers: []corev1.Container{box("1", "1Mi")}, Resources: &corev1.ResourceRequirements{Requests: box("3",
				"").Resources.Requests},
		}, 3000, 1 << 20, 1000, 1 * unit.MiB},
		{"an absurd amount is bounded", corev1.PodSpec{Containers: []corev1.Container{box("9E", "9E")}}, amountMax, amountMax,
			amountMax, amountMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := SchedulerPod(&corev1.Pod{Spec: c.spec})
			var cpu, memory int64
			for _, a := range p.Requests {
				switch a.Resource {
				case scheduler.CPU:
					cpu = a.Value
				case scheduler.Memory:
					memory = a.Value
				}
			}
			if cpu != c.cpu || memory != c.memory || p.IncomingLoad.CPU != c.scoreCPU || p.IncomingLoad.Memory != c.scoreMemory {
				t.Errorf("got cpu %d memory %d score %d %d, want %+v", cpu, memory, p.IncomingLoad.CPU, p.IncomingLoad.Memory, c)
			}
		})
	}
}

func TestSchedulerTerms(t *testing.T) {
	for _, c := range []struct {
		name   string
		r      corev1.NodeSelectorRequirement
		field  bool
		broken bool
	}{
		{"in", corev1.NodeSelectorRequirement{Key: "k", Operator: "In", Values: []string{"a"}}, false, false},
		{"in without values", corev1.NodeSelectorRequirement{Key: "k", Operator: "In"}, false, true},
		{"exists with values", corev1.NodeSelectorRequirement{Key: "k", Operator: "Exists", Values: []string{"a"}}, false,
			true},
		{"greater than text", corev1.NodeSelectorRequirement{Key: "k", Operator: "Gt", Values: []string{"x"}}, false, true},
		{"greater than two numbers", corev1.NodeSelectorRequirement{Key: "k", Operator: "Gt", Values: []string{"1", "2"}},
			false, true},
		{"unknown operator", corev1.NodeSelectorRequirement{Key: "k", Operator: "Near", Values: []string{"1"}}, false, true},
		{"no label value", corev1.NodeSelectorRequirement{Key: "k", Operator: "In", Values: []string{"not a value!"}}, false,
			true},
		{"name", corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}, true, false},
		{"two names in one requirement", corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In",
			Values: []string{"n1", "n2"}}, true, true},
		{"other field", corev1.NodeSelectorRequirement{Key: "metadata.uid", Operator: "In", Values: []string{"n1"}}, true,
			true},
	} {
		term := &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{c.r}}
		if c.field {
			term = &corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{c.r}}
		}
		if got := schedulerTerm(term).Broken; got != c.broken {
			t.Errorf("%s: broken %v, want %v", c.name, got, c.broken)
		}
	}
}

// TestSchedulerIsStable makes sure that equal pods translate to equal values whatever the order of maps.
func TestSchedulerIsStable(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"a": "1", "b": "2", "c": "3"},
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			"cpu": resource.MustParse("1"), "memory": resource.MustParse("1"), "example.com/a": resource.MustParse("1"),
			"hugepages-2Mi": resource.MustParse("2Mi"),
		}}}},
	}}
	first := SchedulerPod(pod)
	for range 50 {
		if again := SchedulerPod(pod); !reflect.DeepEqual(first, again) {
			t.Fatalf("translated to %+v, then to %+v", first, again)
		}
	}
}

func TestSchedulerNode(t *testing.T) {
	n := SchedulerNode(&corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		"cpu": resource.MustParse("-4"), "pods": resource.MustParse("110"), "memory": resource.MustParse("9E"),
	}}})
	want := []scheduler.Amount{{Resource: "cpu", Value: 0}, {Resource: "memory", Value: amountMax}}
	if n.PodsMax != 110 || !reflect.DeepEqual(n.Allocatable, want) {
		t.Errorf("got pods %d, allocatable %v", n.PodsMax, n.Allocatable)
	}
}

// notTranslated are the fields of scheduler.Pod that the pod below does not set, and what sets them.
var notTranslated = map[string]string{
	"AsksExtenders":  "the scheduler, which knows the extenders",
	"AsksPreemption": "likewise",
	"Berth":          "an annotation with a node's CPUs in it: numa_test.go",
	"Features":       "upstream's inference, which few fields of pods have",
}

// TestSchedulerFillsEveryField: a field of the scheduler's pods and nodes that no translation sets would be a rule
// without effect.
func TestSchedulerFillsEveryField(t *testing.T) {
	pending := podWithEverything()
	bound := pending.DeepCopy()
	bound.Spec.NodeName = "n"
	a, b := reflect.ValueOf(SchedulerPod(pending)), reflect.ValueOf(SchedulerPod(bound))
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if why, elsewhere := notTranslated[name]; elsewhere != (a.Field(i).IsZero() && b.Field(i).IsZero()) {
			t.Errorf("Pod.%s is %v, and %v when it is bound (elsewhere: %q)", name, a.Field(i), b.Field(i), why)
		}
	}
	node := nodeWithEverything()
	n := reflect.ValueOf(SchedulerNode(node))
	node.Status.NodeInfo.KubeletVersion = "v1.36.3"
	other := reflect.ValueOf(SchedulerNode(node))
	for i := range n.NumField() {
		if n.Field(i).IsZero() && other.Field(i).IsZero() {
			t.Errorf("Node.%s is not translated, or this test's node has none", n.Type().Field(i).Name)
		}
	}
}

// podWithEverything returns a pod in which each field that the scheduler reads is set, except the name of its node.
func podWithEverything() *corev1.Pod {
	never := corev1.PreemptNever
	controls := true
	priority := int32(7)
	started, term := metav1.Unix(1, 0), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	around := []corev1.PodAffinityTerm{{LabelSelector: term, TopologyKey: "zone"}}
	drawn := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: around[0]}}
	zone := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone",
		Operator: corev1.NodeSelectorOpExists}}}
	resources := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "d",
			Name:              "p",
			UID:               "u",
			Labels:            map[string]string{"app": "web"},
			DeletionTimestamp: &started,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r",
				Controller: &controls}},
		},
		Spec: corev1.PodSpec{
			SchedulerName:    "mine",
			Priority:         &priority,
			PreemptionPolicy: &never,
			SchedulingGates:  []corev1.PodSchedulingGate{{Name: "g"}},
			Tolerations:      []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}},
			NodeSelector:     map[string]string{"zone": "a"},
			ResourceClaims:   []corev1.PodResourceClaim{{Name: "gpu"}},
			Containers: []corev1.Container{{
				Name:      "c",
				Image:     "example.com/image:1",
				Ports:     []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}},
				Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
			}},
			Volumes: []corev1.Volume{
				{Name: "nfs", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
				{Name: "claim",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
					}},
			},
			Affinity: &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{zone},
					},
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: zone}},
				},
				PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution:  around,
					PreferredDuringSchedulingIgnoredDuringExecution: drawn,
				},
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution:  around,
					PreferredDuringSchedulingIgnoredDuringExecution: drawn,
				},
			},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone",
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: term}},
		},
		Status: corev1.PodStatus{
			NominatedNodeName: "n",
			StartTime:         &started,
			Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: corev1.PodReasonPreemptionByScheduler}},
		},
	}
}

// nodeWithEverything returns a node in which each field that the scheduler reads is set.
func nodeWithEverything() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"},
			Annotations: map[string]string{AnnotationLacks: "volumes.csi"}},
		Spec: corev1.NodeSpec{Unschedulable: true,
			Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Allocatable:      corev1.ResourceList{"cpu": resource.MustParse("4"), "pods": resource.MustParse("110")},
			Images:           []corev1.ContainerImage{{Names: []string{"example.com/image:1"}, SizeBytes: 1}},
			DeclaredFeatures: []string{"f"},
			NodeInfo:         corev1.NodeSystemInfo{KubeletVersion: "v1.36.3+plimsoll.0.9"},
		},
	}
}

// TestSchedulerBadPods: an invalid requirement keeps a pod pending and is named, or matches nothing; the translation
// never panics, overflows or ignores it.
func TestSchedulerBadPods(t *testing.T) {
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near",
		Values: []string{"b"}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "p"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("-5"),
				"memory": resource.MustParse("-9E")}}}},
		Affinity: &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "zone", Operator: "Beside", Values: []string{"a"}},
					}}},
				},
			},
			PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{LabelSelector: broken, TopologyKey: "zone"},
				},
			},
		},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone",
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: broken}},
	}}
	p := scheduler.New(scheduler.Options{})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("9E"), "memory": resource.MustParse("-1Gi"), "pods": resource.MustParse("-3"),
			"example.com/x": resource.MustParse("9000000000000000000"),
		}}}
	p.NodeSeen(1, SchedulerNode(node))
	p.PodSeen(1, SchedulerPod(pod))
	d, ok := p.Next(1)
	if !ok || d.Failure == nil {
		t.Fatalf("decision %+v", d)
	}
	for _, part := range []string{"affinity", "topologySpreadConstraints", `"Near"`} {
		if !strings.Contains(d.Failure.String(), part) {
			t.Errorf("failure %q does not say %s", d.Failure, part)
		}
	}
	// Without invalid requirements only resources decide: the node accepts no pods, whatever its allocatable resources
	// are.
	pod.UID = "q"
	pod.Spec.TopologySpreadConstraints = nil
	pod.Spec.Affinity.PodAntiAffinity = nil
	for _, v := range p.Verdicts(SchedulerPod(pod)) {
		if v.Plugin != "NodeAffinity" {
			t.Errorf("%s: %q %v, want a term that matches nothing", v.Node, v.Plugin, v.Reasons)
		}
	}
	pod.Spec.Affinity = nil
	for _, v := range p.Verdicts(SchedulerPod(pod)) {
		if v.Plugin != "NodeResourcesFit" || v.Reasons[0] != "Too many pods" {
			t.Errorf("%s: %q %v, want a node without room for pods", v.Node, v.Plugin, v.Reasons)
		}
	}
	// Absurd requests do not overflow what a node counts.
	node.Status.Allocatable["pods"] = resource.MustParse("9E")
	p.NodeSeen(2, SchedulerNode(node))
	for i := range 2000 {
		pod.UID, pod.Name = types.UID(fmt.Sprint("big", i)), fmt.Sprint("big", i)
		pod.Spec.NodeName = "n"
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("9E"),
			"example.com/x": resource.MustParse("9000000000000000000")}
		p.PodSeen(2, SchedulerPod(pod))
	}
	pod.UID, pod.Spec.NodeName = "late", ""
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1m")}
	for _, v := range p.Verdicts(SchedulerPod(pod)) {
		if v.Plugin != "NodeResourcesFit" || v.Reasons[0] != "Insufficient cpu" {
			t.Errorf("%s: %q %v, want a full node", v.Node, v.Plugin, v.Reasons)
		}
	}
}

// TestAgentLacks: the annotation is read only from Nodes whose agent is ours, and only up to a bound.
func TestAgentLacks(t *testing.T) {
	for name, c := range map[string]struct {
		version, annotation string
		want                int
	}{
		"ours":            {"v1.36.3+plimsoll.0.9", "a,b", 2},
		"ours, of old":    {"v1.36.3+plimsoll.0.1", "", 0},
		"a kubelet's":     {"v1.36.3", "a,b", 0},
		"somebody's joke": {"v1.36.3+plimsoll.0.9", strings.Repeat("a,", 1<<20), 0},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationLacks: c.annotation}}}
		node.Status.NodeInfo.KubeletVersion = c.version
		if got := SchedulerNode(node).AgentLacks; len(got) != c.want {
			t.Errorf("%s: %d codes, want %d", name, len(got), c.want)
		}
	}
	for version, want := range map[string]bool{"": false, "v1.36.3+plimsoll.0.9": false, "v1.36.3": true,
		"v1.36.3+hollow": true} {
		node := &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version}}}
		if got := SchedulerNode(node).OtherAgent; got != want {
			t.Errorf("version %q: another agent's: %v", version, got)
		}
	}
	no := false
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostUsers: &no,
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}}}
	if got := SchedulerPod(pod).NeedsOfAgent; !slices.Equal(got, []string{"user-namespaces", "volumes.nfs"}) {
		t.Errorf("a pod needs %v", got)
	}
	pod.Spec.NodeName = "n"
	if got := SchedulerPod(pod).NeedsOfAgent; got != nil {
		t.Errorf("a bound pod needs %v", got)
	}
}

// TestVolumesNeedTheirAgent: for every kind of persistent volume, the agent mounts it or publishes that it does not,
// and the scheduler uses the same codes.
func TestVolumesNeedTheirAgent(t *testing.T) {
	kinds := reflect.TypeFor[corev1.PersistentVolumeSource]()
	for i := range kinds.NumField() {
		v := &corev1.PersistentVolume{}
		source := reflect.ValueOf(&v.Spec.PersistentVolumeSource).Elem().Field(i)
		source.Set(reflect.New(source.Type().Elem()))
		needs, kind := SchedulerVolume(v).NeedsOfAgent, kinds.Field(i).Name
		if mounted := kind == "HostPath" || kind == "Local"; mounted != (needs == nil) {
			t.Errorf("%s needs %v", kind, needs)
		}
		inline := corev1.Volume{Name: "v"}
		if same := reflect.ValueOf(&inline.VolumeSource).Elem().FieldByName(kind); same.IsValid() {
			same.Set(reflect.New(same.Type().Elem()))
			pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{inline}}}
			if got := SchedulerPod(pod).NeedsOfAgent; !slices.Equal(got, needs) {
				t.Errorf("%s needs %v, and %v when the pod names it itself", kind, needs, got)
			}
		}
		for _, code := range needs {
			if !slices.Contains(podfields.Codes(podfields.Abilities{}), code) {
				t.Errorf("%s needs %s, which no agent publishes", kind, code)
			}
		}
		if kind == "CSI" && !slices.Equal(needs, []string{wellknown.LacksCSI}) {
			t.Errorf("CSI needs %v", needs)
		}
	}
	moved := SchedulerStorageClass(&storagev1.StorageClass{Provisioner: "kubernetes.io/aws-ebs"})
	if !slices.Equal(moved.NeedsOfAgent, []string{"volumes.csi"}) {
		t.Errorf("volumes of a provisioner that has moved need %v", moved.NeedsOfAgent)
	}
	if other := SchedulerStorageClass(&storagev1.StorageClass{
		Provisioner: "rancher.io/local-path",
	}); other.NeedsOfAgent != nil {
		t.Errorf("volumes of a provisioner that nobody knows need %v", other.NeedsOfAgent)
	}
}
