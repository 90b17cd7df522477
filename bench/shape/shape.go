// Package shape makes clusters with the shape of real ones, from a seed: most pods are of few kinds, sizes and
// lifetimes have heavy tails, hardly two pods are equal, and some pods wait for something that never happens.
//
// A Cluster consists of API objects: nodes of several types in three zones, some of them spot nodes with a taint;
// Deployments with their Services and budgets, StatefulSets with claims, Jobs that arrive in bursts, DaemonSets. Next
// returns what happens next, one arriving pod at a time: before it others end, Deployments roll out, nodes come, go and
// change their labels.
//
// The numbers are chosen, after what operators report of their clusters; none is measured. The package schedules
// nothing: the pods of the start are on nodes with room for them, and arriving pods have no node.
package shape

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Options are the sizes of a Cluster.
type Options struct {
	Seed  uint64
	Nodes int
	Pods  int // number at the start, without those of DaemonSets
	Kinds int // number of kinds of pods; each is a Deployment, a StatefulSet or a series of Jobs
	// Churn is how many other changes happen per arriving pod: ends of pods, rollouts, nodes.
	Churn float64
}

// Change is an object that is new or changed; Gone: it was deleted.
type Change struct {
	Object any
	Gone   bool
}

// Cluster is the state of a cluster and of its random changes.
type Cluster struct {
	o     Options
	r     *rand.Rand
	kinds []*kind
	sum   []float64 // cumulative weights of the kinds
	nodes []*node
	pods  []*corev1.Pod // pods that may end
	made  int           // how many pods were made, for their names
	count int           // how many nodes were made
}

// The controller of a kind of pods.
type controller int

const (
	deployment controller = iota
	statefulSet
	job
)

// A kind is what the pods of one workload have in common.
type kind struct {
	name      string
	of        controller
	revision  int // of a Deployment: each has its own ReplicaSet
	cpu       int64
	memory    int64
	priority  int32
	spot      bool // its pods tolerate spot nodes
	dress     []func(k *kind, p *corev1.Pod)
	burst     int // of a Job: how many pods are still to come
	bursts    int
	hasBudget bool
}

type node struct {
	object      *corev1.Node
	cpu, memory int64 // free
}

const namespace = "default"

// New makes a Cluster. The same options make the same Cluster.
func New(o Options) *Cluster {
	c := &Cluster{o: o, r: rand.New(rand.NewPCG(o.Seed, 1))}
	for range o.Nodes {
		c.nodes = append(c.nodes, c.newNode())
	}
	total := 0.0
	for i := range max(1, o.Kinds) {
		c.kinds = append(c.kinds, c.newKind(i))
		total += math.Pow(float64(i+1), -zipf)
		c.sum = append(c.sum, total)
	}
	for range o.Pods {
		c.fill()
	}
	return c
}

// zipf is the exponent of the distribution of pods over kinds: the second kind has half as many as the first, and so
// on.
const zipf = 1.0

// instances are the types of nodes: CPUs, GiB, and their percentage.
var instances = []struct {
	name        string
	cpu, memory int64
	percent     int
}{
	{"c16", 16, 32, 30}, {"m32", 32, 128, 40}, {"r32", 32, 256, 20}, {"m96", 96, 384, 10},
}

// Our own keys of labels and taints.
const (
	spotKey    = "example.com/spot"
	readingKey = "example.com/reading"
)

// spotPercent is the percentage of spot nodes.
const spotPercent = 20

func (c *Cluster) newNode() *node {
	at, instance := c.r.IntN(100), instances[0]
	for _, t := range instances {
		if instance = t; at < t.percent {
			break
		}
		at -= t.percent
	}
	name := fmt.Sprintf("node-%06d", c.count)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname:           name,
			corev1.LabelTopologyZone:       fmt.Sprint("zone-", c.count%3),
			corev1.LabelTopologyRegion:     "region-1",
			corev1.LabelInstanceTypeStable: instance.name,
			corev1.LabelOSStable:           "linux",
			corev1.LabelArchStable:         "amd64",
		}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewQuantity(instance.cpu, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(instance.memory<<30, resource.BinarySI),
			corev1.ResourcePods:             resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		}},
	}
	if c.r.IntN(100) < spotPercent {
		n.Labels[spotKey] = "true"
		n.Spec.Taints = []corev1.Taint{{Key: spotKey, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	}
	c.count++
	return &node{object: n, cpu: 1000 * instance.cpu, memory: instance.memory << 30}
}

// heavy draws from a Pareto distribution between least and most, with far fewer large values than small.
func (c *Cluster) heavy(least, most int64) int64 {
	const tail = 1.2
	v := float64(least) * math.Pow(1-c.r.Float64(), -1/tail)
	return min(int64(v), most)
}

func (c *Cluster) percent(p int) bool { return c.r.IntN(100) < p }

func (c *Cluster) newKind(i int) *kind {
	k := &kind{
		name:   fmt.Sprint("app-", i),
		cpu:    c.heavy(50, 8000),
		memory: c.heavy(64<<20, 32<<30),
		spot:   c.percent(30),
	}
	switch at := c.r.IntN(100); {
	case at < 60:
		k.of, k.hasBudget = deployment, c.percent(40)
	case at < 72:
		k.of, k.hasBudget = statefulSet, true
		k.spot = false
		k.dress = append(k.dress, hostApart)
	default:
		k.of = job
	}
	if c.percent(5) {
		k.priority = 1000
	}
	if c.percent(10) {
		k.dress = append(k.dress, zonesEven)
	}
	if c.percent(15) {
		k.dress = append(k.dress, hostRatherApart)
	}
	if c.percent(5) {
		t := instances[c.r.IntN(len(instances))].name
		k.dress = append(k.dress, func(_ *kind, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: t}
		})
	}
	if k.spot {
		k.dress = append(k.dress, onSpot)
	}
	return k
}

func (k *kind) labels() map[string]string { return map[string]string{"app": k.name} }

func (k *kind) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: k.labels()}
}

func hostApart(k *kind, p *corev1.Pod) {
	around(p).PodAntiAffinity = &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{LabelSelector: k.selector(), TopologyKey: corev1.LabelHostname},
		},
	}
}

func hostRatherApart(k *kind, p *corev1.Pod) {
	if around(p).PodAntiAffinity == nil {
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: k.selector(),
					TopologyKey: corev1.LabelHostname}},
			},
		}
	}
}

func zonesEven(k *kind, p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: k.selector(),
	}}
}

func onSpot(_ *kind, p *corev1.Pod) {
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: spotKey, Operator: corev1.TolerationOpExists})
}

func around(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}
}

func (k *kind) set() string { return fmt.Sprintf("%s-%d", k.name, k.revision) }

// replicaSet returns the ReplicaSet of the Deployment's current revision.
func (k *kind) replicaSet() *appsv1.ReplicaSet {
	labels := k.labels()
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = fmt.Sprint(k.revision)
	return &appsv1.ReplicaSet{ObjectMeta: meta(k.set()),
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}}
}

// World returns the objects besides nodes and pods: ReplicaSets, StatefulSets, Services and budgets.
func (c *Cluster) World() (out []any) {
	for _, k := range c.kinds {
		switch k.of {
		case deployment:
			out = append(out, k.replicaSet())
		case statefulSet:
			out = append(out, &appsv1.StatefulSet{ObjectMeta: meta(k.name),
				Spec: appsv1.StatefulSetSpec{Selector: k.selector()}})
		case job:
			continue
		}
		out = append(out, &corev1.Service{ObjectMeta: meta(k.name), Spec: corev1.ServiceSpec{Selector: k.labels()}})
		if k.hasBudget {
			out = append(out, c.budget(k))
		}
	}
	return out
}

func (c *Cluster) budget(k *kind) *policyv1.PodDisruptionBudget {
	most := intstr.FromInt32(1)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: meta(k.name),
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: k.selector()},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(c.r.IntN(3))},
	}
}

// daemons is how many DaemonSets have a pod on each node.
const daemons = 3

// Nodes returns the nodes of the start.
func (c *Cluster) Nodes() (out []*corev1.Node) {
	for _, n := range c.nodes {
		out = append(out, n.object)
	}
	return out
}

// Pods returns the pods of the start, including those of DaemonSets.
func (c *Cluster) Pods() (out []*corev1.Pod) {
	for _, n := range c.nodes {
		out = append(out, daemonPods(n.object.Name)...)
	}
	return append(out, c.pods...)
}

func daemonPods(nodeName string) (out []*corev1.Pod) {
	for d := range daemons {
		p := newPod(fmt.Sprintf("daemon-%d-%s", d, nodeName), 20, 32<<20)
		owned(p, "apps/v1", "DaemonSet", fmt.Sprint("daemon-", d))
		p.Labels = map[string]string{"daemon": fmt.Sprint(d)}
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Spec.NodeName = nodeName
		out = append(out, p)
	}
	return out
}

func newPod(name string, cpu, memory int64) *corev1.Pod {
	zero := int32(0)
	return &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{
		SchedulerName: corev1.DefaultSchedulerName,
		Priority:      &zero,
		Containers: []corev1.Container{{
			Name:  "main",
			Image: "registry.example/main:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
			}},
		}},
	}}
}

func owned(p *corev1.Pod, apiVersion, kind, name string) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name,
		UID: types.UID("uid-" + name), Controller: &yes}}
}

// draw returns a random kind, weighted by how many pods the kinds have.
func (c *Cluster) draw() *kind {
	at := c.r.Float64() * c.sum[len(c.sum)-1]
	i, _ := slices.BinarySearch(c.sum, at)
	return c.kinds[min(i, len(c.kinds)-1)]
}

// jobMax bounds the pods of one Job.
const jobMax = 50

// newPod makes one more pod of a kind. before is what must exist first.
func (c *Cluster) newPod(k *kind) (p *corev1.Pod, before []Change) {
	name := fmt.Sprintf("%s-%d", k.name, c.made)
	c.made++
	p = newPod(name, k.cpu, k.memory)
	p.Labels = k.labels()
	p.Spec.Containers[0].Image = "registry.example/" + k.name + ":1"
	*p.Spec.Priority = k.priority
	switch k.of {
	case deployment:
		p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = fmt.Sprint(k.revision)
		owned(p, "apps/v1", "ReplicaSet", k.set())
	case statefulSet:
		owned(p, "apps/v1", "StatefulSet", k.name)
		p.Labels[appsv1.StatefulSetPodNameLabel] = name
		before = mount(p, "data-"+name)
	case job:
		if k.burst == 0 {
			k.burst = int(c.heavy(1, jobMax))
			k.bursts++
		}
		k.burst--
		of := fmt.Sprintf("%s-run-%d", k.name, k.bursts)
		owned(p, "batch/v1", "Job", of)
		p.Labels["batch.kubernetes.io/job-name"] = of
		p.Labels["batch.kubernetes.io/controller-uid"] = "uid-" + of
	}
	for _, dress := range k.dress {
		dress(k, p)
	}
	return p, before
}

// mount makes a pod use a claim that is bound to a volume, and returns both.
func mount(p *corev1.Pod, name string) []Change {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
	filesystem := corev1.PersistentVolumeFilesystem
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: meta(name),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "volume-" + name, AccessModes: modes, VolumeMode: &filesystem,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, VolumeMode: &filesystem, Capacity: size,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}}
	return []Change{{Object: volume}, {Object: claim}}
}

// fillTries is how many nodes are tried for a pod of the start.
const fillTries = 20

// fill adds one more pod to a node that has room for it. A pod that does not fit on the tried nodes, or that has
// claims, is left out.
func (c *Cluster) fill() {
	k := c.draw()
	if k.of == statefulSet || len(c.nodes) == 0 {
		return
	}
	p, _ := c.newPod(k)
	for range fillTries {
		n := c.nodes[c.r.IntN(len(c.nodes))]
		if n.cpu < k.cpu || n.memory < k.memory || len(n.object.Spec.Taints) > 0 && !k.spot {
			continue
		}
		if t := p.Spec.NodeSelector[corev1.LabelInstanceTypeStable]; t != "" &&
			n.object.Labels[corev1.LabelInstanceTypeStable] != t {
			continue
		}
		n.cpu, n.memory = n.cpu-k.cpu, n.memory-k.memory
		p.Spec.NodeName = n.object.Name
		started := metav1.Unix(1700000000+int64(c.made), 0)
		p.Status.StartTime = &started
		c.pods = append(c.pods, p)
		return
	}
}

// Next returns the changes before the next pod arrives, and the pod.
func (c *Cluster) Next() (before []Change, p *corev1.Pod) {
	happens := int(c.o.Churn)
	if c.r.Float64() < c.o.Churn-float64(happens) {
		happens++
	}
	for range happens {
		before = append(before, c.event()...)
	}
	p, first := c.newPod(c.draw())
	return append(before, first...), p
}

// event is one change: usually, a pod ends.
func (c *Cluster) event() []Change {
	switch at := c.r.IntN(1000); {
	case at < 5 && len(c.nodes) > 0:
		return c.replaceNode()
	case at < 35 && len(c.nodes) > 0:
		n := c.nodes[c.r.IntN(len(c.nodes))]
		n.object = n.object.DeepCopy() // callers that got the old object keep it
		n.object.Labels[readingKey] = fmt.Sprint("v", c.r.IntN(1000))
		return []Change{{Object: n.object}}
	case at < 65:
		return c.rollOut()
	case at < 115:
		if k := c.draw(); k.hasBudget {
			return []Change{{Object: c.budget(k)}}
		}
	}
	return c.end()
}

// end deletes a pod. Older pods live longer: of two random ones the younger ends.
func (c *Cluster) end() []Change {
	if len(c.pods) == 0 {
		return nil
	}
	i := max(c.r.IntN(len(c.pods)), c.r.IntN(len(c.pods)))
	p := c.pods[i]
	c.pods[i] = c.pods[len(c.pods)-1]
	c.pods = c.pods[:len(c.pods)-1]
	return []Change{{Object: p, Gone: true}}
}

// rollOut begins a new revision of a Deployment. The ReplicaSet of the revision before the last is deleted.
func (c *Cluster) rollOut() (out []Change) {
	k := c.draw()
	if k.of != deployment {
		return nil
	}
	if k.revision > 0 {
		old := *k
		old.revision--
		out = append(out, Change{Object: old.replicaSet(), Gone: true})
	}
	k.revision++
	return append(out, Change{Object: k.replicaSet()})
}

// replaceNode deletes a node with its pods and adds another node.
func (c *Cluster) replaceNode() (out []Change) {
	i := c.r.IntN(len(c.nodes))
	old := c.nodes[i].object
	for _, p := range daemonPods(old.Name) {
		out = append(out, Change{Object: p, Gone: true})
	}
	c.pods = slices.DeleteFunc(c.pods, func(p *corev1.Pod) bool {
		gone := p.Spec.NodeName == old.Name
		if gone {
			out = append(out, Change{Object: p, Gone: true})
		}
		return gone
	})
	out = append(out, Change{Object: old, Gone: true})
	c.nodes[i] = c.newNode()
	out = append(out, Change{Object: c.nodes[i].object})
	for _, p := range daemonPods(c.nodes[i].object.Name) {
		out = append(out, Change{Object: p})
	}
	return out
}
