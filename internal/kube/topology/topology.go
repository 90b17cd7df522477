// Package topology is the NodeResourceTopology object (topology.node.k8s.io/v1alpha2) of a node: what its NUMA nodes
// have free. The agent publishes it, and schedulers read it.
//
// # Model
//
// The object has two kinds of readers. Readers of the standard API (scheduler plugins, dashboards) find a zone for each
// NUMA node, with its costs, capacity, allocatable and available resources, and the topology policy in the usual
// attributes. But sums by zone do not determine which pods the node will admit: CPUs come in cores, memory in groups,
// and devices have names. So further attributes contain the whole value by which the agent decides (numa.State), and
// Decode restores it:
//
//	plimsoll.dev/machine   the machine, as machinefile writes it in JSON
//	plimsoll.dev/config    the configuration, except policy and scope
//	plimsoll.dev/plugins   devices by resource, with their NUMA nodes and health
//	plimsoll.dev/pods      what is assigned to pods, by UID
//
// # Invariants
//
//   - Decisions on a decoded state are those on the encoded one, to the last CPU, byte and word of a message.
//   - The same state gives the same object, whatever its history. So a different object means that something changed.
//   - A pod that has something assigned is listed with its UID. So a scheduler that assumed the pod on the node sees
//     that it has arrived.
//   - Decode trusts nothing: a bad object is one error with every problem, or ErrForeign when another program wrote it.
//
// # What it does not do
//
// It sends and receives nothing. Pods without assigned resources are not in the object.
package topology

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the objects.
var GroupVersion = schema.GroupVersion{Group: "topology.node.k8s.io", Version: "v1alpha2"}

// Resource is the objects' name in API paths.
const Resource = "noderesourcetopologies"

// Object is a NodeResourceTopology. The types are defined here because the module that publishes them depends on
// client-go's whole code generator. The names on the wire are the API's.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	TopologyPolicies []string    `json:"topologyPolicies"` // deprecated, but early definitions of this version require it
	Zones            []Zone      `json:"zones"`
	Attributes       []Attribute `json:"attributes,omitempty"`
}

// Zone is a part of a node; here, a NUMA node.
type Zone struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Parent     string         `json:"parent,omitempty"`
	Costs      []Cost         `json:"costs,omitempty"`
	Attributes []Attribute    `json:"attributes,omitempty"`
	Resources  []ResourceInfo `json:"resources,omitempty"`
}

// Cost is the distance to another zone.
type Cost struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// Attribute is a name with a value.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ResourceInfo is a zone's capacity of one resource, the part of it that can be assigned to pods, and the part of that
// which is not assigned.
type ResourceInfo struct {
	Name        string            `json:"name"`
	Capacity    resource.Quantity `json:"capacity"`
	Allocatable resource.Quantity `json:"allocatable"`
	Available   resource.Quantity `json:"available"`
}

// List is a list of objects, as the API server returns it.
type List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Object `json:"items"`
}

// AddToScheme registers the types under the API's names.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(GroupVersion.WithKind("NodeResourceTopology"), &Object{})
	s.AddKnownTypeWithName(GroupVersion.WithKind("NodeResourceTopologyList"), &List{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopy returns a copy that shares nothing with o.
func (o *Object) DeepCopy() *Object {
	if o == nil {
		return nil
	}
	out := &Object{TypeMeta: o.TypeMeta, ObjectMeta: *o.ObjectMeta.DeepCopy()}
	out.TopologyPolicies = append([]string(nil), o.TopologyPolicies...)
	out.Attributes = append([]Attribute(nil), o.Attributes...)
	for _, z := range o.Zones {
		z.Costs = append([]Cost(nil), z.Costs...)
		z.Attributes = append([]Attribute(nil), z.Attributes...)
		resources := z.Resources
		z.Resources = nil
		for _, r := range resources {
			z.Resources = append(z.Resources, ResourceInfo{Name: r.Name, Capacity: r.Capacity.DeepCopy(),
				Allocatable: r.Allocatable.DeepCopy(), Available: r.Available.DeepCopy()})
		}
		out.Zones = append(out.Zones, z)
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *List) DeepCopyObject() runtime.Object {
	out := &List{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}

// Attribute returns the value of an attribute of the node, and whether it is there.
func (o *Object) Attribute(name string) (string, bool) {
	for _, a := range o.Attributes {
		if a.Name == name {
			return a.Value, true
		}
	}
	return "", false
}
