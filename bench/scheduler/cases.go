package main

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// kindsInTurn is how many kinds of pods come in rotation, waitingPods how many pods wait: the project's numbers.
const (
	kindsInTurn = 1000
	waitingPods = 1000
)

// cases are the cases of the project's issue on real clusters ("Numbers"), in which pods may all be different. The bars
// are from there, too.
func cases() []scenario { return append(casesOn(5000), casesOn(50000)...) }

// largeNodes is the number of nodes from which on the bars of the large cluster apply.
const largeNodes = 50000

// casesOn returns the cases on a cluster with this many nodes.
func casesOn(nodes int) (out []scenario) {
	add := func(small, large time.Duration, all ...scenario) {
		for _, s := range all {
			if s.most = small; nodes >= largeNodes {
				s.most = large
			}
			out = append(out, s)
		}
	}
	add(8*time.Microsecond, 12*time.Microsecond, s0("identical pods", nodes))
	add(100*time.Microsecond, 500*time.Microsecond, kindsCase(nodes), jobsCase(nodes))
	for _, base := range out {
		for _, w := range waits {
			s := base
			s.name, s.base = base.name+", 1,000 wait for "+w.name, base.name
			s.waiting, s.waits = waitingPods, w.pod
			out = append(out, s)
		}
	}
	add(500*time.Microsecond, 2*time.Millisecond, budgetsCase(nodes), lookingCase(nodes))
	add(time.Millisecond, 5*time.Millisecond, racksCase(nodes), hostnamesCase(nodes), capacitiesCase(nodes),
		labelsCase(nodes))
	add(100*time.Microsecond, 500*time.Microsecond, mixCase(nodes)) // the bar of kindsCase: the issue has none for it
	return out
}

// s0 is a cluster with a few pods on each node.
func s0(name string, nodes int) scenario {
	s := scenario{name: name, nodes: nodes, perNode: 4, upstreamPods: 300, ourPods: 5000}
	if nodes >= largeNodes {
		s.perNode, s.upstreamPods = 1, 60
	}
	return s
}

// meta is the metadata of an object in the namespace of all pods.
func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}
}

// owned sets the controller of a pod.
func owned(p *corev1.Pod, apiVersion, kind, name string) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name,
		UID: types.UID("uid-" + name), Controller: &yes}}
}

// replicaSet returns a ReplicaSet with its selector, and a Service with the same selector.
func replicaSet(name string, labels map[string]string) []any {
	return []any{
		&appsv1.ReplicaSet{ObjectMeta: meta(name),
			Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}},
		&corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{Selector: labels}},
	}
}

// ofKind makes a pod one of the k-th ReplicaSet: its labels, owner and requests.
func ofKind(k int, p *corev1.Pod) {
	name := fmt.Sprint("kind-", k)
	p.Labels = map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: fmt.Sprint("hash-", k)}
	owned(p, "apps/v1", "ReplicaSet", name)
	p.Spec.Containers[0].Image = fmt.Sprintf("registry.example/%s:1", name)
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(50+k%17*10), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(64+k%23*16)<<20, resource.BinarySI),
	}
}

// kindsCase has pods of many ReplicaSets in rotation, with the default spread constraints over nodes and zones.
func kindsCase(nodes int) scenario {
	s := s0("1,000 kinds in turn, default spread", nodes)
	s.old = func(i, k int, p *corev1.Pod) { ofKind((i*s.perNode+k)%kindsInTurn, p) }
	s.change = func(i int, p *corev1.Pod) { ofKind(i%kindsInTurn, p) }
	s.world = func() (out []any) {
		for k := range kindsInTurn {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
			ofKind(k, p)
			out = append(out, replicaSet(fmt.Sprint("kind-", k), p.Labels)...)
		}
		return out
	}
	return s
}

// claim returns a bound claim and its volume, which is accessible from every node.
func claim(name string) []any {
	filesystem := corev1.PersistentVolumeFilesystem
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: meta(name),
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "volume-" + name, AccessModes: modes,
			VolumeMode: &filesystem, Resources: corev1.VolumeResourceRequirements{Requests: size}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-" + name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, VolumeMode: &filesystem, Capacity: size,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: name,
				UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver,
				VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	return []any{v, c}
}

// driver is a CSI driver that provisions volumes.
const driver = "disk.example.com"

// mount makes a pod use a claim.
func mount(p *corev1.Pod, claim string) {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
}

// jobsCase has pods of one Job each, with separate labels and claims, and with anti-affinity to other pods of the Job.
func jobsCase(nodes int) scenario {
	s := s0("each pod a Job, claim and label of its own", nodes)
	s.change = func(i int, p *corev1.Pod) { ofJob(fmt.Sprint("job-", i), p) }
	s.before = func(i int) []change { return seen(claim(fmt.Sprintf("data-job-%d", i))...) }
	return s
}

// ofJob makes a pod that of a Job.
func ofJob(name string, p *corev1.Pod) {
	p.Labels = map[string]string{"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": "uid-" + name}
	owned(p, "batch/v1", "Job", name)
	mount(p, "data-"+name)
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100,
			PodAffinityTerm: termFor(hostname, p.Labels)}},
	}}
}

func seen(objects ...any) (out []change) {
	for _, o := range objects {
		out = append(out, change{object: o})
	}
	return out
}

// waits are requirements of waiting pods that are never met. All these pods are different.
var waits = []struct {
	name string
	pod  func(i int) *corev1.Pod
}{
	{"partners", func(i int) *corev1.Pod {
		p := waitingPod(i)
		key := zone
		if i%2 == 1 {
			key = hostname
		}
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				termFor(key, map[string]string{"app": fmt.Sprint("partner-", i)}),
			},
		}}
		return p
	}},
	{"zones", func(i int) *corev1.Pod {
		p := waitingPod(i)
		p.Spec.NodeSelector = map[string]string{zone: fmt.Sprint("zone-away-", i)}
		return p
	}},
	{"claims", func(i int) *corev1.Pod {
		p := waitingPod(i)
		mount(p, fmt.Sprint("lost-", i))
		return p
	}},
	{"room", func(i int) *corev1.Pod {
		p := waitingPod(i)
		request(p, fmt.Sprintf("%dm", 32000+i)) // nodes have 32 CPUs
		return p
	}},
}

func waitingPod(i int) *corev1.Pod {
	p := podNamed(fmt.Sprint("waiting-", i))
	p.Labels = map[string]string{"app": p.Name}
	return p
}

// fullNodes are nodes without room for pods of priority 0.
func fullNodes(name string, nodes int) scenario {
	s := s0(name, nodes)
	s.perNode = 4
	s.ourPods = 1000
	s.upstreamPods = 100
	if nodes >= largeNodes {
		s.perNode, s.upstreamPods = 2, 20
	}
	size := fmt.Sprintf("%dm", 31600/s.perNode)
	s.old = func(i, k int, p *corev1.Pod) {
		p.Labels = map[string]string{"app": fmt.Sprint("old-", (i*s.perNode+k)%budgetsThere)}
		request(p, size)
	}
	s.change = func(_ int, p *corev1.Pod) { preemptor(p) }
	return s
}

// budgetsThere is how many budgets there are. Each selects the same number of pods.
const budgetsThere = 100

func budget(b, allowed int) *policyv1.PodDisruptionBudget {
	name := fmt.Sprint("old-", b)
	least := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: meta(name),
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(allowed)},
	}
}

// budgetsCase has preemptors, and a budget that changes between any two of them.
func budgetsCase(nodes int) scenario {
	s := fullNodes("preemptors, a budget changes between any two", nodes)
	s.world = func() (out []any) {
		for b := range budgetsThere {
			out = append(out, budget(b, 1+b%3))
		}
		return out
	}
	s.before = func(i int) []change { return seen(budget(i*7%budgetsThere, i%4)) }
	return s
}

// lookingCase has preemptors with constraints about other pods: anti-affinity to each other, and affinity to zones with
// old pods.
func lookingCase(nodes int) scenario {
	s := fullNodes("preemptors that look around", nodes)
	s.change = func(i int, p *corev1.Pod) {
		preemptor(p)
		p.Labels = map[string]string{"app": fmt.Sprint("preemptor-", i%20)}
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				termFor(zone, map[string]string{"app": fmt.Sprint("old-", i%budgetsThere)}),
			}},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				termFor(hostname, p.Labels),
			}},
		}
	}
	return s
}

// rack is the topology key of domains with two nodes each: 25,000 domains in the large cluster.
const rack = "topology.example.com/rack"

// racksCase has pods of a hundred kinds with spread constraints over racks, and preferred anti-affinity to racks with a
// pod of the same kind.
func racksCase(nodes int) scenario {
	s := s0("racks of two nodes", nodes)
	s.dress = func(i int, n *corev1.Node) { n.Labels[rack] = fmt.Sprint("rack-", i/2) }
	const kinds = 100
	s.old = func(i, k int, p *corev1.Pod) {
		p.Labels = map[string]string{"app": fmt.Sprint("racked-", (i*s.perNode+k)%kinds)}
	}
	s.change = func(i int, p *corev1.Pod) {
		p.Labels = map[string]string{"app": fmt.Sprint("racked-", i%kinds)}
		spread(p, corev1.DoNotSchedule, rack)
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 10,
				PodAffinityTerm: termFor(rack, p.Labels)}},
		}}
	}
	return s
}

// hostnamesCase is kindsCase where some nodes have the host name label of another node.
func hostnamesCase(nodes int) scenario {
	s := kindsCase(nodes)
	s.name = "doubled host names, 1,000 kinds in turn"
	s.dress = func(i int, n *corev1.Node) {
		if i%500 == 1 {
			n.Labels[hostname] = nodeName(i - 1)
		}
	}
	return s
}

// capacitiesCase has claims that wait for their first consumer, and a driver that publishes a capacity for each node.
func capacitiesCase(nodes int) scenario {
	s := s0("storage capacities per node", nodes)
	if s.ourPods = 1000; nodes >= largeNodes {
		// upstream lists all capacities for each node: 6 s of CPU for one pod on 5,000 nodes (2026-11-22), a hundred
		// times that here
		s.upstreamPods = 0
	}
	const class = "local"
	s.world = func() []any {
		yes, wait := true, storagev1.VolumeBindingWaitForFirstConsumer
		out := []any{
			&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver},
				Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}},
			&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver, VolumeBindingMode: &wait},
		}
		for i := range nodes {
			size := resource.NewQuantity(int64(1+i%10)<<30, resource.BinarySI)
			out = append(out, &storagev1.CSIStorageCapacity{
				ObjectMeta: meta(fmt.Sprint("capacity-", i)), StorageClassName: class, Capacity: size,
				NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{hostname: nodeName(i)}},
			})
		}
		return out
	}
	s.before = func(i int) []change {
		name := class
		filesystem := corev1.PersistentVolumeFilesystem
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(fmt.Sprint("scratch-", i)),
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &name, VolumeMode: &filesystem,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
				},
			}}
		c.Status.Phase = corev1.ClaimPending
		return seen(c)
	}
	s.change = func(i int, p *corev1.Pod) { mount(p, fmt.Sprint("scratch-", i)) }
	return s
}

// labelsCase is kindsCase where a label of a node changes between any two pods, to a new value, and half of the kinds
// require that label key.
func labelsCase(nodes int) scenario {
	s := kindsCase(nodes)
	s.name = "labels of nodes change all the time, 1,000 kinds in turn"
	const key = "example.com/reading"
	s.dress = func(i int, n *corev1.Node) { n.Labels[key] = fmt.Sprint("start-", i) }
	change0 := s.change
	s.change = func(i int, p *corev1.Pod) {
		if change0(i, p); i%2 == 1 {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key,
						Operator: corev1.NodeSelectorOpExists}}}},
				},
			}}
		}
	}
	s.before = func(i int) []change {
		n := s.node(i * 31 % nodes)
		n.Labels[key] = fmt.Sprint("reading-", i)
		return seen(n)
	}
	return s
}
