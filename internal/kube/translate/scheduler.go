package translate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// The requests that a container without requests is scored with: upstream's DefaultMilliCPURequest and
// DefaultMemoryRequest (pkg/scheduler/util). They spread pods without requests over nodes. Whether a pod fits does not
// depend on them.
const (
	scoreCPUDefault    = 100 * unit.MilliCPU(1)
	scoreMemoryDefault = 200 * unit.MiB
)

// amountMax bounds every amount, so that the sum over 4,000 pods on a node cannot overflow. Chosen: 2^51, which is 2
// PiB or two trillion CPUs. A node that claims more is treated as having that much.
const amountMax = 1 << 51

// SchedulerPod translates what the scheduler needs to know of a pod.
func SchedulerPod(pod *corev1.Pod) scheduler.Pod {
	out := scheduler.Pod{
		ID:          scheduler.PodID(pod.UID),
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		Labels:      SchedulerLabels(pod.Labels),
		Owner:       schedulerOwner(pod),
		Profile:     pod.Spec.SchedulerName,
		Deleting:    pod.DeletionTimestamp != nil,
		Preempted:   preempted(pod),
		Node:        pod.Spec.NodeName,
		Nominated:   pod.Status.NominatedNodeName,
		Tolerations: schedulerTolerations(pod.Spec.Tolerations),
		Ports:       schedulerPorts(pod),
	}
	if pod.Spec.Priority != nil {
		out.Priority = *pod.Spec.Priority
	}
	out.NeverPreempts = pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever
	if pod.Status.StartTime != nil {
		out.Started = pod.Status.StartTime.UnixNano()
	}
	for _, g := range pod.Spec.SchedulingGates {
		out.Gates = append(out.Gates, g.Name)
	}
	out.Requests, out.IncomingLoad, out.PlacedLoad = schedulerRequests(pod)
	for k, v := range pod.Spec.NodeSelector {
		out.NodeSelector = append(out.NodeSelector, scheduler.Label{Key: k, Value: v})
	}
	slices.SortFunc(out.NodeSelector, byKey)
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		out.NodeAffinity, out.Preferred, _ = SchedulerNodeAffinity(a.NodeAffinity) // an invalid term matches nothing
	}
	var broken []string
	out.Spread, broken = schedulerSpread(pod)
	broken = append(broken, schedulerPodAffinity(pod, &out)...)
	out.Images, out.Containers = schedulerImages(pod)
	out.Features = schedulerFeatures(pod)
	out.NUMA, out.Berth = schedulerNUMA(pod)
	out.Mounts = schedulerMounts(pod)
	if pod.Spec.NodeName == "" {
		out.Unsupported = append(schedulerUnsupported(pod), broken...)
		out.NeedsOfAgent = podfields.CodesOf(pod)
	}
	return out
}

// schedulerNUMA returns what the node's agent must assign to the pod on NUMA nodes; nil: nothing. berth is where the
// scheduler that bound the pod expects it.
func schedulerNUMA(pod *corev1.Pod) (wants *numa.Pod, berth numa.Berth) {
	devices := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Limits {
				devices = devices || strings.Contains(string(name), "/")
			}
		}
	}
	if class := pod.Status.QOSClass; !devices && class != "" && class != corev1.PodQOSGuaranteed {
		return nil, nil // the common case
	}
	out := NUMAPod(pod)
	if !devices && !out.Guaranteed {
		return nil, nil
	}
	if pod.Spec.NodeName != "" {
		berth = out.Berth
	}
	out.UID, out.Berth = "", nil
	return &out, berth
}

// SchedulerNode translates what the scheduler needs to know of a node.
func SchedulerNode(node *corev1.Node) scheduler.Node {
	out := scheduler.Node{Name: node.Name, Unschedulable: node.Spec.Unschedulable}
	for k, v := range node.Labels {
		out.Labels = append(out.Labels, scheduler.Label{Key: k, Value: v})
	}
	for _, t := range node.Spec.Taints {
		out.Taints = append(out.Taints, scheduler.Taint{Key: t.Key, Value: t.Value, Effect: scheduler.Effect(t.Effect)})
	}
	for name, q := range node.Status.Allocatable {
		if name == corev1.ResourcePods {
			out.PodsMax = amount(name, q)
			continue
		}
		out.Allocatable = append(out.Allocatable, scheduler.Amount{Resource: string(name), Value: amount(name, q)})
	}
	slices.SortFunc(out.Allocatable, byResource)
	for i := range node.Status.Images {
		image := &node.Status.Images[i]
		out.Images = append(out.Images, scheduler.Image{Names: image.Names, Size: image.SizeBytes})
	}
	out.Features, out.AgentLacks = node.Status.DeclaredFeatures, agentLacks(node)
	out.OtherAgent = node.Status.NodeInfo.KubeletVersion != "" && !OurAgent(node)
	return out
}

// SchedulerAllocatable translates what a node has allocatable, sorted by resource, and how many pods it takes.
func SchedulerAllocatable(r allocatable.Resources) (list []scheduler.Amount, podsMax int64) {
	add := func(name corev1.ResourceName, value int64) {
		list = append(list, scheduler.Amount{Resource: string(name), Value: bounded(value)})
	}
	add(corev1.ResourceCPU, int64(r.CPU.Allocatable))
	add(corev1.ResourceMemory, int64(r.Memory.Allocatable))
	if !r.StorageUncounted {
		add(corev1.ResourceEphemeralStorage, int64(r.EphemeralStorage.Allocatable))
	}
	for _, h := range r.HugePages {
		add(HugePageResource(h.Size), int64(h.Allocatable))
	}
	slices.SortFunc(list, byResource)
	return list, bounded(r.Pods.Allocatable)
}

// AnnotationLacks of a Node lists what its agent cannot do, by the codes of podfields, separated by commas. The agent
// holds pods that need it.
const AnnotationLacks = "plimsoll.dev/agent-lacks"

// AgentVersionMark is in the kubelet version that this project's agent reports, between upstream's version and the
// agent's.
const AgentVersionMark = "+plimsoll."

// OurAgent reports whether this project's agent wrote a Node's status, in any release. The agent's annotations and its
// report of NUMA nodes remain when a kubelet takes the node over, because an agent that was killed cannot remove them.
// But the first status that the kubelet writes has the kubelet's version. So what an agent left behind is believed only
// while the version is ours.
func OurAgent(node *corev1.Node) bool {
	return strings.Contains(node.Status.NodeInfo.KubeletVersion, AgentVersionMark)
}

// agentLacks returns the codes of what the node's agent cannot do.
func agentLacks(node *corev1.Node) []string {
	text := node.Annotations[AnnotationLacks]
	if text == "" || len(text) > agentLacksMax || !OurAgent(node) {
		return nil
	}
	return strings.Split(text, ",")
}

// agentLacksMax bounds the annotation, in bytes, so that it cannot make the scheduler keep megabytes for each node
// (chosen: ten times what the agent writes).
const agentLacksMax = 8 << 10

// preempted reports whether a scheduler has preempted pod.
func preempted(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

func byKey(a, b scheduler.Label) int       { return cmp.Compare(a.Key, b.Key) }
func byResource(a, b scheduler.Amount) int { return cmp.Compare(a.Resource, b.Resource) }

// amount returns q in the base unit of its resource, limited to [0, amountMax].
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	v := q.Value() // saturates
	if name == corev1.ResourceCPU {
		if v > amountMax/1000 {
			return amountMax // MilliValue would wrap around
		}
		v = q.MilliValue()
	}
	return bounded(v)
}

// bounded returns v, limited to [0, amountMax].
func bounded(v int64) int64 { return min(max(v, 0), amountMax) }

// SchedulerRequests returns what a pod requests of its node, as the scheduler counts it.
func SchedulerRequests(pod *corev1.Pod) []scheduler.Amount {
	requests, _, _ := schedulerRequests(pod)
	return requests
}

// schedulerRequests applies the API's rule for the requests of a pod: the sum of the containers, or the largest init
// container if that is more; sidecars are added to both; pod-level resources replace the sum; overhead is added. For a
// running pod that is being resized it is the larger of the desired and the allocated resources.
func schedulerRequests(pod *corev1.Pod) (requests []scheduler.Amount, asked, held scheduler.Load) {
	options := podresource.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}
	list := podresource.PodRequests(pod, options)
	for name, q := range list {
		if v := amount(name, q); v != 0 {
			requests = append(requests, scheduler.Amount{Resource: string(name), Value: v})
		}
	}
	slices.SortFunc(requests, byResource)

	options.NonMissingContainerRequests = corev1.ResourceList{
		corev1.ResourceCPU:    CPUQuantity(scoreCPUDefault),
		corev1.ResourceMemory: BytesQuantity(scoreMemoryDefault),
	}
	if !podresource.IsPodLevelRequestsSet(pod) {
		asked = schedulerLoad(podresource.PodRequests(pod, options))
		return requests, asked, asked
	}
	// While NodeResourcesFit 1.36 scores a pod, it ignores pod-level requests (NewFit does not set its scorer's
	// enablePodLevelResources; found by oracle/). We promise the same scores, so we ignore them too.
	withoutPodLevel := options
	withoutPodLevel.SkipPodLevelResources = true
	asked = schedulerLoad(podresource.PodRequests(pod, withoutPodLevel))
	// For pods on a node, upstream counts pod-level requests. It adds the defaults to containers only for resources
	// that neither they nor the pod as a whole request.
	for name := range options.NonMissingContainerRequests {
		if _, ok := list[name]; ok {
			delete(options.NonMissingContainerRequests, name)
		}
	}
	return requests, asked, schedulerLoad(podresource.PodRequests(pod, options))
}

func schedulerLoad(list corev1.ResourceList) scheduler.Load {
	return scheduler.Load{
		CPU:    unit.MilliCPU(amount(corev1.ResourceCPU, list[corev1.ResourceCPU])),
		Memory: unit.Bytes(amount(corev1.ResourceMemory, list[corev1.ResourceMemory])),
	}
}

func schedulerTolerations(in []corev1.Toleration) []scheduler.Toleration {
	var out []scheduler.Toleration
	for _, t := range in {
		o := scheduler.Toleration{Key: t.Key, Value: t.Value, Effect: scheduler.Effect(t.Effect)}
		switch t.Operator {
		case "", corev1.TolerationOpEqual:
		case corev1.TolerationOpExists:
			o.Exists = true
		default: // Lt and Gt are an alpha of 1.36, off by default: they tolerate nothing
			o.Never = true
		}
		out = append(out, o)
	}
	return out
}

// schedulerPorts returns the host ports that the pod uses for its whole life: those of containers and of sidecars.
func schedulerPorts(pod *corev1.Pod) []scheduler.HostPort {
	var out []scheduler.HostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, scheduler.HostPort{
					IP:       cmp.Or(p.HostIP, scheduler.AnyIP),
					Protocol: cmp.Or(string(p.Protocol), "TCP"),
					Port:     p.HostPort,
				})
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; IsSidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func schedulerTerm(t *corev1.NodeSelectorTerm) scheduler.NodeTerm {
	var out scheduler.NodeTerm
	for i := range t.MatchExpressions {
		r, ok := schedulerRequirement(&t.MatchExpressions[i])
		out.Labels = append(out.Labels, r)
		out.Broken = out.Broken || !ok
	}
	for i := range t.MatchFields {
		f := &t.MatchFields[i]
		r, ok := schedulerRequirement(f)
		ok = ok && f.Key == "metadata.name" && len(f.Values) == 1 && (r.Op == scheduler.In || r.Op == scheduler.NotIn)
		out.Names = append(out.Names, r)
		out.Broken = out.Broken || !ok
	}
	return out
}

// schedulerRequirement returns false for a requirement that upstream cannot parse; its term then matches nothing.
func schedulerRequirement(r *corev1.NodeSelectorRequirement) (scheduler.Requirement, bool) {
	out := scheduler.Requirement{Key: r.Key, Values: r.Values}
	for _, v := range r.Values {
		if len(validation.IsValidLabelValue(v)) > 0 && r.Key != "metadata.name" {
			return out, false
		}
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		out.Op = scheduler.In
		return out, len(r.Values) > 0
	case corev1.NodeSelectorOpNotIn:
		out.Op = scheduler.NotIn
		return out, len(r.Values) > 0
	case corev1.NodeSelectorOpExists:
		out.Op = scheduler.Exists
		return out, len(r.Values) == 0
	case corev1.NodeSelectorOpDoesNotExist:
		out.Op = scheduler.DoesNotExist
		return out, len(r.Values) == 0
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		out.Op = scheduler.Gt
		if r.Operator == corev1.NodeSelectorOpLt {
			out.Op = scheduler.Lt
		}
		if len(r.Values) != 1 {
			return out, false
		}
		n, err := strconv.ParseInt(r.Values[0], 10, 64)
		out.Bound, out.Values = n, nil
		return out, err == nil
	}
	return out, false
}

// schedulerUnsupported returns the requirements of pod for which core/scheduler has no rule yet.
func schedulerUnsupported(pod *corev1.Pod) []string {
	var out []string
	if len(pod.Spec.ResourceClaims) > 0 {
		out = append(out, "resource claims (spec.resourceClaims)")
	}
	if pod.Spec.SchedulingGroup != nil {
		out = append(out, "gangs (spec.schedulingGroup)")
	}
	return out
}
