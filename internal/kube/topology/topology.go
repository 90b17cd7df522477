// Package topology is the NodeResourceTopology object (topology.node.k8s.io/v1alpha2) of a node: what its NUMA nodes have
// left, published by the agent, read by schedulers.
//
// # Model
//
// The object has two readers. Those who know the API as it is (scheduler plugins, dashboards) find a zone for each NUMA node
// with costs and with what it has, offers and has left, and the topology policy in the usual attributes. Sums by zone do not
// determine what the node will admit, though: CPUs come in cores, memory in groups, devices have names. So further
// attributes hold the whole value on which the agent decides (numa.State), from which Decode makes it again:
//
//	plimsoll.dev/machine   the machine, as machinefile writes it in JSON
//	plimsoll.dev/config    what the configuration says beyond policy and scope
//	plimsoll.dev/plugins   devices by resource: which there are, near which nodes, which are healthy
//	plimsoll.dev/pods      what pods own, by UID
//
// # Invariants
//
//   - Offers on what was decoded are those on what was encoded, to the last CPU, byte and word of a refusal.
//   - The same state gives the same object, whatever its history; so an object that differs says that something changed.
//   - A pod that owns something is named with its UID: a scheduler that assumed it there finds out that it arrived.
//   - Decode believes nothing: a bad object is one error with every problem, ErrForeign when somebody else wrote it.
//
// # What it does not do
//
// It sends and receives nothing. Pods that own nothing are not in the object.
package topology

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is where the API server has the objects.
var GroupVersion = schema.GroupVersion{Group: "topology.node.k8s.io", Version: "v1alpha2"}

// Resource is their name in paths.
const Resource = "noderesourcetopologies"

// Object is a NodeResourceTopology. The types are spelled out here because the module that publishes them brings client-go's
// whole code generator with it; the names on the wire are the API's.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	TopologyPolicies []string    `json:"topologyPolicies"` // deprecated, but required by the first definitions of this version
	Zones            []Zone      `json:"zones"`
	Attributes       []Attribute `json:"attributes,omitempty"`
}

// Zone is what the node has in one place; here, a NUMA node.
type Zone struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Parent     string         `json:"parent,omitempty"`
	Costs      []Cost         `json:"costs,omitempty"`
	Attributes []Attribute    `json:"attributes,omitempty"`
	Resources  []ResourceInfo `json:"resources,omitempty"`
}

// Cost is how far another zone is.
type Cost struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// Attribute is a name with a value.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ResourceInfo is what a zone has of one resource, what of it pods can own, and what of that nobody owns.
type ResourceInfo struct {
	Name        string            `json:"name"`
	Capacity    resource.Quantity `json:"capacity"`
	Allocatable resource.Quantity `json:"allocatable"`
	Available   resource.Quantity `json:"available"`
}

// List is several objects, as the API server lists them.
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
			z.Resources = append(z.Resources, ResourceInfo{r.Name, r.Capacity.DeepCopy(), r.Allocatable.DeepCopy(), r.Available.DeepCopy()})
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
