package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	ndftypes "k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// SchedulerLabels translates labels, sorted by key.
func SchedulerLabels(in map[string]string) []scheduler.Label {
	if len(in) == 0 {
		return nil
	}
	out := make([]scheduler.Label, 0, len(in))
	for k, v := range in {
		out = append(out, scheduler.Label{Key: k, Value: v})
	}
	slices.SortFunc(out, byKey)
	return out
}

// schedulerSelector translates a label selector; an absent one matches nothing. The error says which part is invalid.
func schedulerSelector(in *metav1.LabelSelector) (scheduler.LabelSelector, error) {
	if in == nil {
		return scheduler.LabelSelector{Nothing: true}, nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return scheduler.LabelSelector{Nothing: true}, err
	}
	return requirementsOf(parsed)
}

func requirementsOf(s labels.Selector) (scheduler.LabelSelector, error) {
	list, selectable := s.Requirements()
	if !selectable {
		return scheduler.LabelSelector{Nothing: true}, nil
	}
	var out scheduler.LabelSelector
	for _, r := range list {
		q := scheduler.Requirement{Key: r.Key(), Values: r.Values().List()}
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			q.Op = scheduler.In
		case selection.NotIn, selection.NotEquals:
			q.Op = scheduler.NotIn
		case selection.Exists:
			q.Op = scheduler.Exists
		case selection.DoesNotExist:
			q.Op = scheduler.DoesNotExist
		default:
			err := fmt.Errorf("operator %q is not one of In, NotIn, Exists, DoesNotExist", r.Operator())
			return scheduler.LabelSelector{Nothing: true}, err
		}
		out.Requirements = append(out.Requirements, q)
	}
	return out, nil
}

// schedulerMapSelector translates a selector that requires each label with its value.
func schedulerMapSelector(in map[string]string) scheduler.LabelSelector {
	if in == nil {
		return scheduler.LabelSelector{Nothing: true}
	}
	var out scheduler.LabelSelector
	for _, k := range slices.Sorted(maps.Keys(in)) {
		out.Requirements = append(out.Requirements, scheduler.Requirement{Key: k, Op: scheduler.In, Values: []string{in[k]}})
	}
	return out
}

// schedulerSpread translates topology spread constraints. Invalid ones are left out; broken says what is wrong with
// them.
func schedulerSpread(pod *corev1.Pod) (out []scheduler.SpreadConstraint, broken []string) {
	for i := range pod.Spec.TopologySpreadConstraints {
		t := &pod.Spec.TopologySpreadConstraints[i]
		selector, err := schedulerSelector(t.LabelSelector)
		if err != nil {
			where := fmt.Sprintf("spec.topologySpreadConstraints[%d].labelSelector", i)
			broken = append(broken, fmt.Sprintf("a broken selector (%s: %v)", where, err))
			continue
		}
		if !selector.Nothing { // a selector that matches nothing cannot be narrowed further
			selector.Requirements = slices.Concat(matchedKeys(t.MatchLabelKeys, pod.Labels), selector.Requirements)
		}
		out = append(out, schedulerConstraint(t, selector))
	}
	return out, broken
}

func schedulerConstraint(
	t *corev1.TopologySpreadConstraint, selector scheduler.LabelSelector,
) scheduler.SpreadConstraint {
	c := scheduler.SpreadConstraint{
		MaxSkew:     t.MaxSkew,
		TopologyKey: t.TopologyKey,
		Hard:        t.WhenUnsatisfiable == corev1.DoNotSchedule,
		Selector:    selector,
		MinDomains:  1,
	}
	if t.MinDomains != nil {
		c.MinDomains = *t.MinDomains
	}
	c.IgnoreAffinity = t.NodeAffinityPolicy != nil && *t.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
	c.HonorTaints = t.NodeTaintsPolicy != nil && *t.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
	return c
}

// SchedulerDefaultSpread translates constraints for pods that have none of their own. They have no selector.
func SchedulerDefaultSpread(in []corev1.TopologySpreadConstraint) (out []scheduler.SpreadConstraint) {
	for i := range in {
		out = append(out, schedulerConstraint(&in[i], scheduler.LabelSelector{}))
	}
	return out
}

// SchedulerNodeAffinity translates a node affinity. broken says which term is invalid and why.
func SchedulerNodeAffinity(
	a *corev1.NodeAffinity,
) (required *[]scheduler.NodeTerm, preferred []scheduler.WeightedTerm, broken []string) {
	term := func(where string, in *corev1.NodeSelectorTerm) scheduler.NodeTerm {
		t := schedulerTerm(in)
		if t.Broken {
			broken = append(broken, where+": a requirement has an unknown operator or key, or values that do not go with it")
		}
		return t
	}
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		required = &[]scheduler.NodeTerm{}
		for i := range r.NodeSelectorTerms {
			where := fmt.Sprintf("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d]", i)
			*required = append(*required, term(where, &r.NodeSelectorTerms[i]))
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		p := &a.PreferredDuringSchedulingIgnoredDuringExecution[i]
		where := fmt.Sprintf("preferredDuringSchedulingIgnoredDuringExecution[%d]", i)
		if p.Weight < 1 || p.Weight > 100 {
			broken = append(broken, fmt.Sprintf("%s.weight: %d: want 1 to 100", where, p.Weight))
		}
		t := term(where+".preference", &p.Preference)
		preferred = append(preferred, scheduler.WeightedTerm{Weight: int64(p.Weight), Term: t})
	}
	return required, preferred, broken
}

// matchedKeys requires the pod's own values of matchLabelKeys. The API server adds them to the selector where it can; a
// duplicate does no harm.
func matchedKeys(keys []string, own map[string]string) []scheduler.Requirement {
	var out []scheduler.Requirement
	for _, k := range slices.Sorted(slices.Values(keys)) {
		if v, ok := own[k]; ok {
			out = append(out, scheduler.Requirement{Key: k, Op: scheduler.In, Values: []string{v}})
		}
	}
	return out
}

// mismatchedKeys requires other values than the pod's own.
func mismatchedKeys(keys []string, own map[string]string) []scheduler.Requirement {
	out := matchedKeys(keys, own)
	for i := range out {
		out[i].Op = scheduler.NotIn
	}
	return out
}

// schedulerPodAffinity translates the terms of pod affinity and anti-affinity into out. Invalid ones are left out;
// broken says what is wrong with them.
func schedulerPodAffinity(pod *corev1.Pod, out *scheduler.Pod) (broken []string) {
	term := func(where string, t *corev1.PodAffinityTerm) (scheduler.PodTerm, bool) {
		o := scheduler.PodTerm{TopologyKey: t.TopologyKey, Namespaces: t.Namespaces}
		if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
			o.Namespaces = []string{pod.Namespace}
		}
		var err, err2 error
		o.Selector, err = schedulerSelector(t.LabelSelector)
		if !o.Selector.Nothing {
			same, other := matchedKeys(t.MatchLabelKeys, pod.Labels), mismatchedKeys(t.MismatchLabelKeys, pod.Labels)
			o.Selector.Requirements = slices.Concat(same, other, o.Selector.Requirements)
		}
		o.NamespaceSelector, err2 = schedulerSelector(t.NamespaceSelector)
		if err = cmp.Or(err, err2); err != nil {
			broken = append(broken, fmt.Sprintf("a broken selector (spec.affinity.%s: %v)", where, err))
		}
		return o, err == nil
	}
	required := func(where string, in []corev1.PodAffinityTerm) (list []scheduler.PodTerm) {
		for i := range in {
			if t, ok := term(fmt.Sprintf("%s.requiredDuringSchedulingIgnoredDuringExecution[%d]", where, i), &in[i]); ok {
				list = append(list, t)
			}
		}
		return list
	}
	preferred := func(where string, in []corev1.WeightedPodAffinityTerm) (list []scheduler.WeightedPodTerm) {
		for i := range in {
			at := fmt.Sprintf("%s.preferredDuringSchedulingIgnoredDuringExecution[%d]", where, i)
			if t, ok := term(at, &in[i].PodAffinityTerm); ok {
				list = append(list, scheduler.WeightedPodTerm{Weight: int64(in[i].Weight), Term: t})
			}
		}
		return list
	}
	a := pod.Spec.Affinity
	if a == nil {
		return nil
	}
	if p := a.PodAffinity; p != nil {
		out.Affinity = required("podAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution)
		out.PreferredAffinity = preferred("podAffinity", p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		out.AntiAffinity = required("podAntiAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution)
		out.PreferredAntiAffinity = preferred("podAntiAffinity", p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return broken
}

// schedulerOwner returns the controller of pod if it is of a kind whose pods are spread by default.
func schedulerOwner(pod *corev1.Pod) scheduler.Owner {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return scheduler.Owner{}
	}
	switch o.APIVersion + " " + o.Kind {
	case "v1 ReplicationController", "apps/v1 ReplicaSet", "apps/v1 StatefulSet":
		return scheduler.Owner{Kind: o.Kind, Name: o.Name}
	}
	return scheduler.Owner{}
}

// SchedulerGroup translates an object that selects pods; ok is false for any other. An invalid selector matches
// nothing.
func SchedulerGroup(obj any) (g scheduler.Group, ok bool) {
	switch o := obj.(type) {
	case *corev1.Service:
		g = scheduler.Group{Kind: scheduler.KindService, Namespace: o.Namespace, Name: o.Name}
		g.Selector = schedulerMapSelector(o.Spec.Selector)
		return g, true
	case *corev1.ReplicationController:
		g = scheduler.Group{Kind: scheduler.KindReplicationController, Namespace: o.Namespace, Name: o.Name}
		if o.Spec.Selector != nil {
			g.Selector = schedulerMapSelector(o.Spec.Selector)
		}
		return g, true
	case *appsv1.ReplicaSet:
		g = scheduler.Group{Kind: scheduler.KindReplicaSet, Namespace: o.Namespace, Name: o.Name}
		g.Selector, _ = schedulerSelector(o.Spec.Selector)
		return g, true
	case *appsv1.StatefulSet:
		g = scheduler.Group{Kind: scheduler.KindStatefulSet, Namespace: o.Namespace, Name: o.Name}
		g.Selector, _ = schedulerSelector(o.Spec.Selector)
		return g, true
	}
	return scheduler.Group{}, false
}

// SchedulerBudget translates a PodDisruptionBudget. An invalid selector matches nothing.
func SchedulerBudget(b *policyv1.PodDisruptionBudget) scheduler.Budget {
	out := scheduler.Budget{Namespace: b.Namespace, Name: b.Name, Allowed: b.Status.DisruptionsAllowed}
	out.Selector, _ = schedulerSelector(b.Spec.Selector)
	out.Disrupted = slices.Sorted(maps.Keys(b.Status.DisruptedPods))
	return out
}

// schedulerImages returns the images of containers and of image volumes, each with a tag, and the number of containers.
func schedulerImages(pod *corev1.Pod) (images []string, containers int) {
	add := func(name string) {
		if name == "" {
			return
		}
		if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
			name += ":latest"
		}
		images = append(images, name)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		containers += len(list)
		for i := range list {
			add(list[i].Image)
		}
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	slices.Sort(images)
	return images, containers
}

// compatible is the version of Kubernetes whose pods are placed. A feature that every node has from some version on is
// not required of a node.
var compatible = version.MajorMinor(1, 36)

// schedulerFeatures returns the node features that pod needs.
func schedulerFeatures(pod *corev1.Pod) []string {
	set, err := ndf.DefaultFramework.InferForPodScheduling(&ndftypes.PodInfo{Spec: &pod.Spec}, compatible)
	if err != nil || set.IsEmpty() {
		return nil
	}
	names, err := ndf.DefaultFramework.Unmap(set)
	if err != nil {
		return nil
	}
	return names
}
