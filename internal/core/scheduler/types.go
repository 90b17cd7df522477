package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// What labels, taints and terms select: see package selector.
type (
	Label         = selector.Label
	LabelSelector = selector.Selector
	Requirement   = selector.Requirement
	Operator      = selector.Operator
	NodeTerm      = selector.NodeTerm
	WeightedTerm  = selector.WeightedTerm
	Effect        = selector.Effect
	Taint         = selector.Taint
	Toleration    = selector.Toleration
)

// Claims, volumes and what drivers say of nodes: see package volumes.
type (
	Mount        = volumes.Mount
	Disk         = volumes.Disk
	Attached     = volumes.Attached
	Claim        = volumes.Claim
	Volume       = volumes.Volume
	StorageClass = volumes.StorageClass
	Capacity     = volumes.Capacity
	NodeStorage  = volumes.NodeStorage
	Attachment   = volumes.Attachment

	VolumeBind      = volumes.Bind
	VolumeProvision = volumes.ProvisionFor
)

// AgentCSI is the code of what an agent lacks that mounts no volumes of CSI drivers.
const AgentCSI = volumes.AgentCSI

// Operators of requirements, and effects of taints.
const (
	In           = selector.In
	NotIn        = selector.NotIn
	Exists       = selector.Exists
	DoesNotExist = selector.DoesNotExist
	Gt           = selector.Gt
	Lt           = selector.Lt

	NoSchedule       = selector.NoSchedule
	PreferNoSchedule = selector.PreferNoSchedule
	NoExecute        = selector.NoExecute
)

// PodID is a pod's UID: names come back, UIDs do not.
type PodID string

// Resource names with a column of their own in every cluster.
const (
	CPU              = "cpu"               // millicores
	Memory           = "memory"            // bytes
	EphemeralStorage = "ephemeral-storage" // bytes
)

// An Amount is a quantity of a named resource, in its base unit: millicores for cpu, else bytes or a count.
type Amount struct {
	Resource string
	Value    int64
}

// Pod is what a decision about a pod depends on.
type Pod struct {
	ID              PodID
	Namespace, Name string
	Labels          []Label // sorted by key
	Owner           Owner   // its controller, if it is of a kind that selects pods
	Profile         string  // the profile that places it; see Options
	Priority        int32
	NeverPreempts   bool   // preemptionPolicy Never
	Deleting        bool   // a deletion was asked for: never placed, but counted while bound
	Preempted       bool   // its deletion was asked for by a scheduler, to make room
	Node            string // where it is bound; empty: pending
	Nominated       string // status.nominatedNodeName: where room is being made for it
	Gates           []string
	// Started is status.startTime in nanoseconds since 1970. Zero: not yet, later than any other.
	Started int64

	Requests []Amount // what the pod takes; a resource that is absent is not asked for
	// What the pod counts for when nodes are scored: its requests, with a default for each container that names none,
	// so that a crowd of pods without requests does not pile up on one node. Asked is for the node that is being
	// considered, Held for one that has the pod already; upstream's two rules differ for pods with pod-level requests.
	Asked, Held Load

	Tolerations  []Toleration
	NodeSelector []Label     // all must be on the node
	NodeAffinity *[]NodeTerm // one must match; nil: no such demand; empty: nothing matches
	Preferred    []WeightedTerm
	Ports        []HostPort

	Spread                                   []SpreadConstraint
	Affinity, AntiAffinity                   []PodTerm
	PreferredAffinity, PreferredAntiAffinity []WeightedPodTerm

	Images     []string // that its containers and volumes run from, one entry each, with their tags
	Containers int      // init containers included: images are judged large or small for so many
	Features   []string // node features it cannot do without
	// NeedsOfAgent are codes of what it asks of its node's agent that not every agent can do; nil, as for most:
	// nothing.
	NeedsOfAgent []string

	// NUMA is what its node's agent must find for it on the NUMA nodes, the UID left out; nil: nothing.
	NUMA *numa.Pod
	// Berth, of a bound pod, is where whoever placed it expects it to lie; nil: nobody said.
	Berth  numa.Berth
	Mounts []Mount // its volumes, as far as rules look at them

	// Asks: others outside are to be asked about nodes for it; see Opinion. AsksEvictions: likewise about evictions
	// that would make room for it; see Decision.Offers.
	Asks, AsksEvictions bool

	// Unsupported names demands of the pod that no rule here can honour. A pod with any is refused.
	Unsupported []string
}

// Load is what LeastAllocated looks at.
type Load struct {
	CPU    unit.MilliCPU
	Memory unit.Bytes
}

// Node is what a decision about a node depends on.
type Node struct {
	Name          string
	Unschedulable bool // cordoned
	Labels        []Label
	Taints        []Taint
	Allocatable   []Amount
	PodsMax       int64 // 0: the node takes no pods
	Images        []Image
	Features      []string // status.declaredFeatures
	// AgentLacks are the codes of what its agent says that it cannot do: it would hold pods that need it.
	AgentLacks []string
}

// Image is one that a node has, under all its names.
type Image struct {
	Names []string
	Size  int64 // bytes
}

// Owner is the controller of a pod. Kind is ReplicationController, ReplicaSet or StatefulSet; others are left out.
type Owner struct{ Kind, Name string }

// A Group is an object that selects pods: a Service, ReplicationController, ReplicaSet or StatefulSet. Pods without
// spread constraints of their own are spread with the pods of their groups.
type Group struct {
	Kind, Namespace, Name string
	Selector              LabelSelector
}

// KindService is the Kind of a Group whose pods are found by its selector alone; those of the other kinds by Owner.
const KindService = "Service"

// A SpreadConstraint bounds how unevenly pods may lie over the domains of a topology key.
type SpreadConstraint struct {
	MaxSkew        int32
	TopologyKey    string
	Hard           bool // DoNotSchedule; else ScheduleAnyway
	Selector       LabelSelector
	MinDomains     int32 // fewer domains than that: the emptiest counts as empty. 1 or more
	IgnoreAffinity bool  // nodeAffinityPolicy Ignore: nodes the pod may not use count too
	HonorTaints    bool  // nodeTaintsPolicy Honor: nodes with untolerated taints do not count
}

// A PodTerm means pods, and a key: nodes with the same value of that label are together.
type PodTerm struct {
	Selector          LabelSelector
	Namespaces        []string // the pod's own is filled in where the API means it
	NamespaceSelector LabelSelector
	TopologyKey       string
}

// A WeightedPodTerm adds Weight to the score of nodes for each pod that it means there.
type WeightedPodTerm struct {
	Weight int64
	Term   PodTerm
}

// HostPort is a port a pod takes on its node. IP "0.0.0.0" is every address of the node.
type HostPort struct {
	IP       string
	Protocol string
	Port     int32
}

// AnyIP is the host IP that stands for all of them.
const AnyIP = "0.0.0.0"
