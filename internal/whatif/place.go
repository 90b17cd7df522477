package whatif

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Placement is where the scheduler would place pods, in the order of its attempts.
type Placement struct {
	Placements    []PlacedPod   `json:"placements"`
	Unschedulable []UnplacedPod `json:"unschedulable"`
}

// PlacedPod is a pod with its node.
type PlacedPod struct {
	Pod   string `json:"pod"`
	Node  string `json:"node"`
	Score int64  `json:"score"` // 0 if there was only one node to choose from
}

// UnplacedPod is a pod that fits on no node, and why.
type UnplacedPod struct {
	Pod        string              `json:"pod"`
	Summary    string              `json:"summary"` // the text of upstream's Event
	Nodes      map[string][]string `json:"nodes"`   // the reasons of each node
	Preemption *Eviction           `json:"preemption,omitempty"`
}

// Eviction is a preemption that would make room.
type Eviction struct {
	Node    string   `json:"node"`
	Victims []string `json:"victims"`
}

// scene is the content of the files, as far as it was read.
type scene struct {
	placer   *scheduler.Placer
	profiles []scheduler.Profile
	warnings []string
	problems []string // for the error

	names   map[string]bool                        // kind and name of every object
	classes map[string]*schedulingv1.PriorityClass // priority classes by name
	pods    []*corev1.Pod                          // to be placed
	bound   []*corev1.Pod                          // on a node already
	nodes   map[string]bool
	uids    map[types.UID]bool // in use

	reports topology.Decoder // for reports of NUMA nodes

	claims         []*corev1.PersistentVolumeClaim // passed to the scheduler when all objects were read
	defaultClasses []string                        // names of default storage classes
}

// Place lets the scheduler place the pods among objects that have no node, one after the other. The other objects are
// the cluster: nodes, pods with a node, priority classes, disruption budgets, namespaces, services, owners of pods, and
// objects about volumes. An error names every object with a problem.
func Place(c *schedulerconfig.Config, objects []runtime.Object) (out *Placement, warnings []string, err error) {
	s := &scene{
		placer: scheduler.New(scheduler.Options{Profiles: c.Profiles}), profiles: c.Profiles,
		names: map[string]bool{}, classes: map[string]*schedulingv1.PriorityClass{}, nodes: map[string]bool{},
		uids: map[types.UID]bool{},
	}
	for i, o := range objects {
		s.addObject(i, o)
	}
	s.addClaims()
	for i, pod := range s.pods {
		s.addPod(i, pod)
	}
	for _, o := range objects { // budgets count the pods that are already on nodes
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
			s.placer.BudgetSeen(1, translate.SchedulerBudget(s.withStatus(b)))
		}
	}
	if len(s.problems) > 0 {
		return nil, nil, fmt.Errorf("place pods: %s", strings.Join(s.problems, "\nplace pods: "))
	}
	return s.place(), s.warnings, nil
}

func (s *scene) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// once records an object by its kind and name. It returns false, and records a problem, if there was one already.
func (s *scene) once(kind, namespace, name string) bool {
	id := strings.Trim(namespace+"/"+name, "/")
	if name == "" {
		s.problem("%s: metadata.name: required", kind)
		return false
	}
	if s.names[kind+id] {
		s.problem("%s %s: is listed twice", kind, id)
		return false
	}
	s.names[kind+id] = true
	return true
}

func (s *scene) addObject(i int, o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Node:
		if s.once("node", "", o.Name) {
			s.nodes[o.Name] = true
			s.placer.NodeSeen(1, translate.SchedulerNode(o))
		}
	case *corev1.Pod:
		pod := o.DeepCopy()
		manifests.DefaultPod(pod)
		pod.Namespace = orElse(pod.Namespace, corev1.NamespaceDefault)
		if s.once("pod", pod.Namespace, pod.Name) {
			pod.UID = s.identify(pod)
			s.pods = append(s.pods, pod)
		}
	case *schedulingv1.PriorityClass:
		if s.once("priority class", "", o.Name) {
			s.classes[o.Name] = o
		}
	case *corev1.Namespace:
		if s.once("namespace", "", o.Name) {
			s.placer.NamespaceSeen(1, o.Name, translate.SchedulerLabels(o.Labels))
		}
	case *topology.Object:
		if s.once("report of NUMA nodes", "", o.Name) {
			if n, err := s.reports.Decode(o); err == nil {
				s.placer.ReportSeen(1, o.Name, n.State)
			} else if errors.Is(err, topology.ErrForeign) {
				s.warnings = append(s.warnings, err.Error()+": left out")
			} else {
				s.problem("%v", err)
			}
		}
	case *policyv1.PodDisruptionBudget:
		o.Namespace = orElse(o.Namespace, corev1.NamespaceDefault)
		s.once("pod disruption budget", o.Namespace, o.Name)
	default:
		if s.addStorage(o) {
			return
		}
		g, ok := translate.SchedulerGroup(o)
		if !ok {
			s.warnings = append(s.warnings, fmt.Sprintf("object %d: %s: has no effect on the placement of pods: left out", i+1,
				o.GetObjectKind().GroupVersionKind().Kind))
			return
		}
		g.Namespace = orElse(g.Namespace, corev1.NamespaceDefault)
		if s.once(g.Kind, g.Namespace, g.Name) {
			s.placer.GroupSeen(1, g)
		}
	}
}

// identify returns a unique UID for a pod: the UID in the file, by which reports of NUMA nodes refer to it, or one made
// of its name.
func (s *scene) identify(pod *corev1.Pod) types.UID {
	if pod.UID == "" || s.uids[pod.UID] {
		return types.UID(pod.Namespace + "/" + pod.Name)
	}
	s.uids[pod.UID] = true
	return pod.UID
}

// addPod passes a pod to the scheduler. i is its number in the files, which decides between pods of equal priority.
func (s *scene) addPod(i int, pod *corev1.Pod) {
	name := pod.Namespace + "/" + pod.Name
	if err := s.prioritize(pod); err != nil {
		s.problem("pod %s: %v", name, err)
		return
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	switch {
	case pod.Spec.NodeName != "":
		if !s.nodes[pod.Spec.NodeName] {
			s.warnings = append(s.warnings, fmt.Sprintf("pod %s: spec.nodeName: %q: no such node in the files", name,
				pod.Spec.NodeName))
		}
		s.bound = append(s.bound, pod)
	case !slices.ContainsFunc(s.profiles, func(p scheduler.Profile) bool { return p.Name == pod.Spec.SchedulerName }):
		s.warnings = append(s.warnings, fmt.Sprintf("pod %s: spec.schedulerName: %q: no profile of that name: left out", name,
			pod.Spec.SchedulerName))
		return
	}
	s.placer.PodSeen(unit.Instant(i+1), translate.SchedulerPod(pod))
}

func (s *scene) prioritize(pod *corev1.Pod) error {
	pod.Spec.SchedulerName = orElse(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	return prioritize(pod, s.classes)
}

// prioritize does what the API server's admission does: it sets the priority of a pod by its priority class.
func prioritize(pod *corev1.Pod, classes map[string]*schedulingv1.PriorityClass) error {
	if pod.Spec.Priority != nil {
		return nil
	}
	var priority int32
	class := classes[pod.Spec.PriorityClassName]
	if pod.Spec.PriorityClassName == "" {
		for _, name := range slices.Sorted(maps.Keys(classes)) {
			if c := classes[name]; c.GlobalDefault && (class == nil || c.Value < class.Value) {
				class = c
			}
		}
	} else if system, ok := translate.SystemPriorities[pod.Spec.PriorityClassName]; ok && class == nil {
		priority = system
	} else if class == nil {
		return fmt.Errorf("spec.priorityClassName: %q: no such class in the files: add its manifest, or set spec.priority",
			pod.Spec.PriorityClassName)
	}
	if class != nil {
		priority = class.Value
		if pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = class.PreemptionPolicy
		}
	}
	pod.Spec.Priority = &priority
	return nil
}

// withStatus returns a budget with a status. If no controller has set it yet, it is computed from the specification and
// the pods that have nodes.
func (s *scene) withStatus(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	if b.Status.ObservedGeneration != 0 || b.Status.ExpectedPods != 0 || b.Status.DisruptionsAllowed != 0 {
		return b
	}
	probe := translate.SchedulerBudget(b)
	total := 0
	for _, pod := range s.bound {
		if pod.Namespace == b.Namespace && probe.Selector.Matches(translate.SchedulerLabels(pod.Labels)) {
			total++
		}
	}
	b = b.DeepCopy()
	keep := 0
	switch {
	case b.Spec.MaxUnavailable != nil:
		away, _ := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, total, true)
		keep = total - away
	case b.Spec.MinAvailable != nil:
		keep, _ = intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, total, true)
	}
	b.Status.DisruptionsAllowed = int32(max(total-keep, 0))
	return b
}

// attemptsMax bounds the attempts to place a pod (chosen). A pod that one of higher priority would preempt is tried
// again.
const attemptsMax = 4

func (s *scene) place() *Placement {
	out := &Placement{Placements: []PlacedPod{}, Unschedulable: []UnplacedPod{}}
	now := unit.Instant(len(s.pods) + 2)
	for range attemptsMax * len(s.pods) {
		d, ok := s.placer.Next(now)
		if !ok {
			break
		}
		name := d.Pod.Namespace + "/" + d.Pod.Name
		out.Unschedulable = slices.DeleteFunc(out.Unschedulable, func(u UnplacedPod) bool { return u.Pod == name })
		if d.Node != "" {
			out.Placements = append(out.Placements, PlacedPod{Pod: name, Node: d.Node, Score: d.Score})
			continue
		}
		u := UnplacedPod{Pod: name, Summary: d.Failure.String(), Nodes: map[string][]string{}}
		for _, v := range s.placer.Verdicts(d.Pod) {
			u.Nodes[v.Node] = v.Reasons
			if v.Detail != "" {
				u.Nodes[v.Node] = []string{v.Detail}
			}
		}
		if p := d.Preemption; p != nil {
			u.Preemption = &Eviction{Node: p.Node, Victims: []string{}}
			for _, v := range p.Victims {
				u.Preemption.Victims = append(u.Preemption.Victims, v.Namespace+"/"+v.Name)
			}
		}
		out.Unschedulable = append(out.Unschedulable, u)
	}
	for _, pod := range s.pods {
		if len(pod.Spec.SchedulingGates) > 0 && pod.Spec.NodeName == "" {
			out.Unschedulable = append(out.Unschedulable, UnplacedPod{
				Pod: pod.Namespace + "/" + pod.Name, Summary: "Scheduling is blocked due to non-empty scheduling gates",
				Nodes: map[string][]string{},
			})
		}
	}
	return out
}

// Table returns p for people.
func (p *Placement) Table() []byte {
	t := newTable()
	if len(p.Placements) > 0 {
		t.line("POD", "NODE", "SCORE")
		for _, x := range p.Placements {
			t.line(x.Pod, x.Node, fmt.Sprint(x.Score))
		}
	}
	for _, u := range p.Unschedulable {
		t.text("", u.Pod+": "+u.Summary)
		for _, node := range slices.Sorted(maps.Keys(u.Nodes)) {
			t.text("  " + node + ": " + strings.Join(u.Nodes[node], "; "))
		}
		if e := u.Preemption; e != nil {
			t.text("  would fit on " + e.Node + " without " + strings.Join(e.Victims, ", "))
		}
	}
	return t.bytes()
}
