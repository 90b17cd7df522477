package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

// copiesMax is how many copies of a pod may be asked about at once. Chosen: the answer for 5,000 nodes is there within
// a second.
const copiesMax = 100

// tryPod answers what would become of a pod.
func (h *hub) tryPod(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Manifest string `json:"manifest"`
		Copies   int    `json:"copies"`
	}
	if !readJSON(w, r, &asked) {
		return
	}
	pod, note, err := podOf(asked.Manifest)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if asked.Copies < 1 || asked.Copies > copiesMax {
		http.Error(w, fmt.Sprintf("copies: %d: want 1 to %d", asked.Copies, copiesMax), http.StatusBadRequest)
		return
	}
	out := h.live.Try(pod, asked.Copies)
	if note != "" {
		out.Notes = append(out.Notes, note)
	}
	writeJSON(w, out)
}

// podOf reads a manifest of one pod.
func podOf(manifest string) (pod *corev1.Pod, note string, err error) {
	objects, err := manifests.Parse([]byte(manifest))
	if err != nil {
		return nil, "", err
	}
	if len(objects) != 1 {
		return nil, "", fmt.Errorf("want one pod, not %d objects", len(objects))
	}
	pod, is := objects[0].(*corev1.Pod)
	if !is {
		return nil, "", fmt.Errorf("%s: want a pod", objects[0].GetObjectKind().GroupVersionKind().Kind)
	}
	manifests.DefaultPod(pod)
	pod.Namespace = cmp.Or(pod.Namespace, corev1.NamespaceDefault)
	pod.Name = cmp.Or(pod.Name, "what-if")
	pod.Spec.NodeName = ""
	pod.Spec.SchedulerName = cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if pod.Spec.PriorityClassName != "" && pod.Spec.Priority == nil {
		note = "priority classes are not read: the pod is judged with priority 0; set spec.priority"
	}
	return pod, note, nil
}

// Threshold is the answer about another eviction threshold of a node.
type Threshold struct {
	// Before and After are what the node would publish with its configuration, and with the threshold.
	Before *whatif.Allocatable `json:"before"`
	After  *whatif.Allocatable `json:"after"`
	// What the node has of a resource, in base units: now, and with the threshold. Free is what its pods leave of the
	// latter; negative: they request more.
	Resource    string `json:"resource,omitempty"` // empty: the threshold is not subtracted
	Was         int64  `json:"was"`
	Allocatable int64  `json:"allocatable"`
	Requested   int64  `json:"requested"`
	Free        int64  `json:"free"`

	Shed    *whatif.Shedding `json:"shed,omitempty"` // what the node would evict now
	Waiting int              `json:"waiting"`        // how many pods wait in the cluster
	Takes   []string         `json:"takes"`          // which of them would fit on the node
	Notes   []string         `json:"notes"`
}

// resourceOf is the resource from which a hard threshold of a signal is subtracted.
var resourceOf = map[string]string{
	"memory.available": string(corev1.ResourceMemory),
	"nodefs.available": string(corev1.ResourceEphemeralStorage),
}

// tryThreshold answers what another threshold would do on a node.
func (h *hub) tryThreshold(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Node   string `json:"node"`
		Signal string `json:"signal"`
		Value  string `json:"value"` // as in a KubeletConfiguration: "100Mi", "5%"
	}
	if !readJSON(w, r, &asked) {
		return
	}
	room, known := h.live.Room(asked.Node)
	if !known {
		http.Error(w, fmt.Sprintf("node %.80q: the API has no such node", asked.Node), http.StatusNotFound)
		return
	}
	on := h.groundOf(r.Context(), room.Node)
	out := Threshold{Takes: []string{}, Notes: on.notes}
	changed := *on.config
	changed.EvictionHard = maps.Clone(changed.EvictionHard)
	if changed.EvictionHard == nil {
		changed.EvictionHard = map[string]string{}
	}
	changed.EvictionHard[asked.Signal] = asked.Value
	var err error
	if out.Before, err = whatif.DrawAllocatable(on.config, on.machine); err != nil {
		out.Notes = append(out.Notes, "with the configuration as it is: "+err.Error())
	}
	if out.After, err = whatif.DrawAllocatable(&changed, on.machine); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if on.summary != nil {
		usage := whatif.Usage{Summary: on.summary, For: -1}
		if out.Shed, err = whatif.Evict(&changed, usage, on.pods); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
	}
	h.weigh(&out, asked.Node, resourceOf[asked.Signal], room)
	writeJSON(w, out)
}

// weigh adds what a changed allocatable amount means for the pods that are there, and for those that wait.
func (h *hub) weigh(out *Threshold, node, name string, room explain.LiveRoom) {
	for _, l := range room.Load {
		if l.Resource != name || out.Before == nil {
			continue
		}
		// The difference is applied to what the node publishes, in case its configuration is only assumed.
		allocatable := l.Allocatable + amount(out.After.Allocatable[name]) - amount(out.Before.Allocatable[name])
		out.Resource = name
		out.Was = l.Allocatable
		out.Allocatable = allocatable
		out.Requested = l.Requested
		out.Free = allocatable - l.Requested
		out.Waiting, out.Takes = h.live.TryAllocatable(node, map[string]int64{name: allocatable})
	}
	if out.Takes == nil {
		out.Takes = []string{}
	}
}

func amount(text string) int64 {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return q.Value()
}

// ground is what is known of a node for a question about its thresholds.
type ground struct {
	at      time.Time
	config  *kubeletconfigv1beta1.KubeletConfiguration
	machine machine.Machine
	summary *statsapi.Summary // nil: not known
	pods    []runtime.Object
	notes   []string
}

// groundTime is how long a ground is used. Chosen: as long as somebody drags a threshold to and fro.
const groundTime = 10 * time.Second

// groundOf reads what a question about a node needs, or what was read a moment ago.
func (h *hub) groundOf(ctx context.Context, node *corev1.Node) *ground {
	h.mu.Lock()
	known := h.grounds[node.Name]
	h.mu.Unlock()
	if known != nil && h.now().Sub(known.at) < groundTime {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	g := &ground{at: h.now(), machine: machineOf(node), notes: []string{}}
	note := func(err error, effect string) {
		if err != nil {
			g.notes = append(g.notes, effect+": "+err.Error())
		}
	}
	var err error
	if g.config, err = h.configOf(ctx, node); err != nil {
		note(err, "its configuration is not known, so the defaults are assumed")
		if g.config, err = configIn([]byte(`{"kubeletconfig":{}}`)); err != nil {
			panic(err) // impossible: it has defaults only
		}
	}
	if report := h.live.Report(node.Name); report != nil {
		if m, err := topology.MachineOf(report); err == nil {
			g.machine = m
		}
	}
	g.summary, err = h.summary(ctx, node, true)
	note(err, "what it uses is not known, so evictions are not judged")
	if g.summary != nil {
		g.pods, err = h.podsOf(ctx, node.Name)
		note(err, "its pods are not known, so evictions are not judged")
		if err != nil {
			g.summary = nil
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.grounds, func(_ string, g *ground) bool { return h.now().Sub(g.at) > groundTime })
	h.grounds[node.Name] = g
	return g
}

// podsOf reads the pods on a node.
func (h *hub) podsOf(ctx context.Context, node string) (out []runtime.Object, err error) {
	list := &corev1.PodList{}
	o := metav1.ListOptions{FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", node),
		kube.LivePods).String()}
	if err := h.asker.Client.List(ctx, kube.Pods, "", o, list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// describedMax bounds the CPUs of a described machine: a node may claim any number. Chosen: as many as
// kube/topology reads.
const describedMax = 4096

// machineOf describes the machine of a node by its capacity, for nodes without a report about their machine: one NUMA
// node with all CPUs and memory.
func machineOf(node *corev1.Node) machine.Machine {
	capacity := node.Status.Capacity
	var cpus []int
	for i := range int(min(capacity.Cpu().Value(), describedMax)) {
		cpus = append(cpus, i)
	}
	m := machine.Machine{
		CPUs:      idset.Of(cpus...),
		Memory:    unit.Bytes(capacity.Memory().Value()),
		NUMANodes: []machine.NUMANode{{CPUs: idset.Of(cpus...), Memory: unit.Bytes(capacity.Memory().Value())}},
		NodeFS:    machine.Filesystem{Capacity: unit.Bytes(capacity.StorageEphemeral().Value())},
	}
	m.ImageFS = m.NodeFS
	return m.Complete()
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // an error means that the page is gone
}
