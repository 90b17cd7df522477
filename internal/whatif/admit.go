package whatif

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Admission is the node's verdicts on pods that arrive one after the other.
type Admission struct {
	Pods []AdmittedPod `json:"pods"`
	Free Free          `json:"free"`
}

// AdmittedPod is the verdict on one pod, admitted or not.
type AdmittedPod struct {
	Pod        string              `json:"pod"`
	Admitted   bool                `json:"admitted"`
	Reason     string              `json:"reason"`
	Message    string              `json:"message"`
	QoSClass   string              `json:"qosClass"`
	NUMANodes  []machine.NUMAID    `json:"numaNodes"` // of all that is assigned to it; never null
	Containers []AdmittedContainer `json:"containers"`
}

// AdmittedContainer is what is assigned to a container.
type AdmittedContainer struct {
	Name    string              `json:"name"`
	CPUs    string              `json:"cpus"` // "": the container uses the shared pool
	Memory  []MemoryBlock       `json:"memory"`
	Devices map[string][]string `json:"devices"`
}

// MemoryBlock is memory of one type, on one or more NUMA nodes together.
type MemoryBlock struct {
	NUMANodes []machine.NUMAID `json:"numaNodes"`
	Type      string           `json:"type"`
	Bytes     int64            `json:"bytes"`
}

// Free is what the node has free.
type Free struct {
	Resources  map[string]string   `json:"resources"`  // allocatable resources that no pod requests
	SharedCPUs string              `json:"sharedCPUs"` // for all containers without assigned CPUs
	NUMANodes  []FreeNode          `json:"numaNodes"`
	Devices    map[string][]string `json:"devices"`
}

// FreeNode is what can still be assigned on a NUMA node.
type FreeNode struct {
	ID     machine.NUMAID    `json:"id"`
	CPUs   string            `json:"cpus"`
	Memory map[string]string `json:"memory"`
}

// Admit lets a node with a configuration on a machine decide about pods, in their order, as the agent does: first about
// the CPUs, memory and devices to assign, then about the sum of all requests. An error says why no node would start
// with the configuration, or what is wrong with the pods.
func Admit(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine, name string,
	pods []*corev1.Pod) (*Admission, error) {
	settings, err := kubeletconfig.Allocatable(c)
	if err != nil {
		return nil, err
	}
	resources, err := allocatable.Compute(m, settings)
	if err != nil {
		return nil, err
	}
	config, err := kubeletconfig.NUMA(c, resources)
	if err != nil {
		return nil, err
	}
	layout, err := numa.New(m, config)
	if err != nil {
		return nil, err
	}
	n := node{state: layout.NewState(), offers: offersOf(resources, m, orElse(name, "node")), machine: m}
	n.pods = admission.NewNode(n.offers)
	for _, p := range translate.NUMAPlugins(m) {
		n.state.SetPlugin(p)
	}
	out := &Admission{}
	for i, pod := range pods {
		pod = pod.DeepCopy()
		manifests.DefaultPod(pod)
		if pod.Namespace == "" {
			pod.Namespace = corev1.NamespaceDefault
		}
		pod.UID = types.UID(fmt.Sprintf("%06d", i)) // in the order of arrival; the same pod may arrive twice
		out.Pods = append(out.Pods, n.admit(pod))
	}
	out.Free = n.free()
	return out, nil
}

// node is the state of the simulated node.
type node struct {
	state   *numa.State
	offers  scheduler.Node
	pods    *admission.Node // a node with offers, and the pods that were admitted
	machine machine.Machine
}

// offersOf is what a node of this name on a machine offers to pods.
func offersOf(resources allocatable.Resources, m machine.Machine, name string) scheduler.Node {
	n := scheduler.Node{
		Name:   name,
		Labels: []scheduler.Label{{Key: corev1.LabelHostname, Value: name}, {Key: corev1.LabelOSStable, Value: "linux"}},
	}
	n.Allocatable, n.PodsMax = translate.SchedulerAllocatable(resources)
	for resource, devices := range m.Devices {
		n.Allocatable = append(n.Allocatable, scheduler.Amount{Resource: resource, Value: int64(len(devices))})
	}
	return n
}

func (n *node) admit(pod *corev1.Pod) AdmittedPod {
	out := AdmittedPod{
		Pod: pod.Namespace + "/" + pod.Name, QoSClass: string(qos.ClassOf(translate.QoSPod(pod))),
		NUMANodes: []machine.NUMAID{}, Containers: []AdmittedContainer{},
	}
	wants := translate.NUMAPod(pod)
	offer, rejection := n.state.Offer(wants, nil)
	if rejection != nil {
		out.Reason, out.Message = rejection.Reason, rejection.Message()
		return out
	}
	asked := translate.SchedulerPod(pod)
	if r := n.pods.Check(asked); r != nil {
		out.Reason, out.Message = r.Reason, r.Message
		return out
	}
	if err := n.state.Commit(offer); err != nil {
		panic(err) // impossible: nothing changed since the offer
	}
	n.pods.Set(asked)
	out.Admitted = true
	for i, h := range offer.Assignment.Containers {
		c := n.container(h)
		if h.Init { // the next container may use the same memory
			for j := range h.Memory {
				c.Memory[j].Bytes = int64(wants.Init[i].Memory[j].Bytes)
			}
		}
		out.Containers = append(out.Containers, c)
		out.NUMANodes = append(out.NUMANodes, n.nodesOf(h)...)
	}
	slices.Sort(out.NUMANodes)
	out.NUMANodes = slices.Compact(out.NUMANodes)
	return out
}

func (n *node) container(h numa.Assigned) AdmittedContainer {
	out := AdmittedContainer{Name: h.Container, CPUs: h.CPUs.String(), Memory: []MemoryBlock{},
		Devices: map[string][]string{}}
	for _, b := range h.Memory {
		out.Memory = append(out.Memory, MemoryBlock{b.Nodes, numa.KindName(b.PageSize), int64(b.Bytes)})
	}
	for _, d := range h.Devices {
		out.Devices[d.Resource] = d.IDs
	}
	return out
}

// nodesOf returns the NUMA nodes of what is assigned to a container.
func (n *node) nodesOf(h numa.Assigned) []machine.NUMAID {
	var out []machine.NUMAID
	for _, node := range n.machine.NUMANodes {
		if !node.CPUs.Intersect(h.CPUs).IsEmpty() {
			out = append(out, node.ID)
		}
	}
	for _, b := range h.Memory {
		out = append(out, b.Nodes...)
	}
	for _, d := range h.Devices {
		for _, id := range d.IDs {
			out = append(out, n.machine.Devices[d.Resource][id]...)
		}
	}
	return out
}

func (n *node) free() Free {
	out := Free{
		Resources: map[string]string{}, SharedCPUs: n.state.SharedCPUs().String(),
		NUMANodes: []FreeNode{}, Devices: map[string][]string{},
	}
	for _, a := range n.offers.Allocatable {
		out.Resources[a.Resource] = quantity(a.Resource, a.Value-n.pods.Requested(a.Resource))
	}
	out.Resources[string(corev1.ResourcePods)] = fmt.Sprint(n.offers.PodsMax - int64(n.pods.Pods()))
	for _, f := range n.state.Free() {
		node := FreeNode{ID: f.Node, CPUs: f.CPUs.String(), Memory: map[string]string{}}
		for _, m := range f.Memory {
			node.Memory[numa.KindName(m.PageSize)] = m.Bytes.String()
		}
		out.NUMANodes = append(out.NUMANodes, node)
	}
	for _, d := range n.state.FreeDevices() {
		out.Devices[d.Resource] = append([]string{}, d.IDs...)
	}
	return out
}

func quantity(resource string, n int64) string {
	switch _, huge := translate.HugePageSize(corev1.ResourceName(resource)); {
	case resource == string(corev1.ResourceCPU):
		return unit.MilliCPU(n).String()
	case huge, resource == string(corev1.ResourceMemory), resource == string(corev1.ResourceEphemeralStorage):
		return unit.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

// Table returns the verdict on each pod, and below what is free, for people.
func (a *Admission) Table() []byte {
	t := newTable()
	t.line("POD", "QOS", "ADMITTED", "NUMA", "CONTAINER", "CPUS", "MEMORY", "DEVICES")
	for _, p := range a.Pods {
		admitted := "yes"
		if !p.Admitted {
			admitted = "no: " + p.Reason
		}
		nodes := "-"
		if len(p.NUMANodes) > 0 {
			nodes = listed(p.NUMANodes)
		}
		if len(p.Containers) == 0 {
			t.line(p.Pod, p.QoSClass, admitted, nodes, "-", "-", "-", "-")
		}
		for i, c := range p.Containers {
			if i > 0 {
				p.Pod = ""
				p.QoSClass = ""
				admitted = ""
				nodes = ""
			}
			t.line(p.Pod, p.QoSClass, admitted, nodes, c.Name, orElse(c.CPUs, "shared"), orElse(c.blocks(), "-"),
				orElse(c.devices(), "-"))
		}
	}
	t.text()
	for _, p := range a.Pods {
		if !p.Admitted {
			t.text("", p.Pod+": "+p.Message)
		}
	}
	t.text("")
	t.line("FREE", "CPUS", "MEMORY")
	for _, n := range a.Free.NUMANodes {
		t.line(fmt.Sprintf("NUMA node %d", n.ID), orElse(n.CPUs, "-"), n.Memory["memory"])
	}
	t.line("shared pool", orElse(a.Free.SharedCPUs, "-"), "-")
	return t.bytes()
}

func (c AdmittedContainer) blocks() string {
	var parts []string
	for _, b := range c.Memory {
		parts = append(parts, fmt.Sprintf("%s %v on %s", b.Type, unit.Bytes(b.Bytes), listed(b.NUMANodes)))
	}
	return strings.Join(parts, ", ")
}

func (c AdmittedContainer) devices() string {
	var parts []string
	for _, ids := range c.Devices {
		parts = append(parts, strings.Join(ids, ","))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func listed(nodes []machine.NUMAID) string {
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(nodes), "[]")), ",")
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
