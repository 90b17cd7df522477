package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Labels, taints and terms: see package selector.
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

// Claims, volumes and what drivers report about nodes: see package volumes.
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

// PodID is a pod's UID. Names are reused, UIDs are not.
type PodID string

// Names of resources that have a column in every cluster.
const (
	CPU              = "cpu"               // millicores
	Memory           = "memory"            // bytes
	EphemeralStorage = "ephemeral-storage" // bytes
)

// An Amount is a quantity of a named resource in its base unit: millicores for cpu, otherwise bytes or a count.
type Amount struct {
	Resource string
	Value    int64
}

// Pod is everything about a pod on which decisions depend.
type Pod struct {
	ID              PodID
	Namespace, Name string
	Labels          []Label // sorted by key
	Owner           Owner   // its controller, if its kind selects pods
	Profile         string  // the profile that places it; see Options
	Priority        int32
	NeverPreempts   bool   // preemptionPolicy Never
	Deleting        bool   // its deletion was requested: it is never placed, but counts while it is bound
	Preempted       bool   // a scheduler requested its deletion, to make room
	Node            string // where it is bound; empty: pending
	Nominated       string // status.nominatedNodeName
	Gates           []string
	// Started is status.startTime in nanoseconds since 1970. Zero: not started, which counts as later than any other
	// time.
	Started int64

	Requests []Amount // a resource that is missing here is not requested
	// IncomingLoad and PlacedLoad are what the pod counts in scores: its requests, with a default for each container
	// without any, so that pods without requests do not all go to one node. IncomingLoad is for a node that is being
	// considered, PlacedLoad for the node that has the pod. They differ for pods with pod-level requests, as upstream.
	IncomingLoad, PlacedLoad Load

	Tolerations  []Toleration
	NodeSelector []Label     // all must be on the node
	NodeAffinity *[]NodeTerm // one must match; nil: no requirement; empty: no node matches
	Preferred    []WeightedTerm
	Ports        []HostPort

	Spread                                   []SpreadConstraint
	Affinity, AntiAffinity                   []PodTerm
	PreferredAffinity, PreferredAntiAffinity []WeightedPodTerm

	Images     []string // the images of its containers and volumes, one entry each, with tags
	Containers int      // how many containers it has, init containers included; image scores are scaled by it
	Features   []string // node features that it requires
	// NeedsOfAgent are the abilities that it requires of its node's agent and that not every agent has, as codes. It is
	// nil for most pods: they require none.
	NeedsOfAgent []string

	// NUMA is what its node's agent must find for it on the NUMA nodes. The UID in it is empty. Nil: nothing.
	NUMA *numa.Pod
	// Berth, of a bound pod, is the CPUs and NUMA nodes that were expected when it was bound; nil: not known.
	Berth  numa.Berth
	Mounts []Mount // its volumes, as far as rules read them

	// AsksExtenders says that extenders must be asked about nodes for it; see ExtenderAnswer. AsksPreemption says that
	// they must be asked about preemptions for it; see Decision.ExtenderCandidates.
	AsksExtenders, AsksPreemption bool

	// Unsupported has the names of requirements that no rule here supports. A pod with any is rejected.
	Unsupported []string
}

// Load is what a pod counts in scores by CPU and memory, such as LeastAllocated.
type Load struct {
	CPU    unit.MilliCPU
	Memory unit.Bytes
}

// Node is everything about a node on which decisions depend.
type Node struct {
	Name          string
	Unschedulable bool // cordoned
	Labels        []Label
	Taints        []Taint
	Allocatable   []Amount
	PodsMax       int64 // 0: the node takes no pods
	Images        []Image
	Features      []string // status.declaredFeatures
	// AgentLacks is what its agent reports that it cannot do, as codes. The agent would hold pods that need it.
	AgentLacks []string
	// OtherAgent says that a kubelet runs the node. A report about its NUMA nodes is then from an agent of ours that
	// ran it before, and is not used until one runs it again.
	OtherAgent bool
}

// Image is an image on a node, with all its names.
type Image struct {
	Names []string
	Size  int64 // bytes
}

// Owner is the controller of a pod. Kind is ReplicationController, ReplicaSet or StatefulSet; others are not recorded.
type Owner struct{ Kind, Name string }

// A Group is an object that selects pods: a Service, ReplicationController, ReplicaSet or StatefulSet. The default
// spread constraints spread pods among those of their groups.
type Group struct {
	Kind, Namespace, Name string
	Selector              LabelSelector
}

// KindService is the Kind of a Group whose pods are determined by its selector alone. For other kinds, Owner matters,
// too.
const KindService = "Service"

// The other kinds of Groups.
const (
	KindReplicationController = "ReplicationController"
	KindReplicaSet            = "ReplicaSet"
	KindStatefulSet           = "StatefulSet"
)

// A SpreadConstraint limits how unevenly pods are spread over the domains of a topology key.
type SpreadConstraint struct {
	MaxSkew        int32
	TopologyKey    string
	Hard           bool // DoNotSchedule; else ScheduleAnyway
	Selector       LabelSelector
	MinDomains     int32 // 1 or more; with fewer domains, the fewest pods in a domain count as zero
	IgnoreAffinity bool  // nodeAffinityPolicy Ignore: nodes that the pod's affinity excludes count, too
	HonorTaints    bool  // nodeTaintsPolicy Honor: nodes with untolerated taints do not count
}

// A PodTerm selects pods. Nodes with the same value of the label TopologyKey are a domain.
type PodTerm struct {
	Selector          LabelSelector
	Namespaces        []string // the translation fills in the pod's own namespace where the API implies it
	NamespaceSelector LabelSelector
	TopologyKey       string
}

// A WeightedPodTerm adds Weight to the score of a node for each pod in its domain that Term selects.
type WeightedPodTerm struct {
	Weight int64
	Term   PodTerm
}

// HostPort is a port that a pod uses on its node. IP "0.0.0.0" means every address of the node.
type HostPort struct {
	IP       string
	Protocol string
	Port     int32
}

// AnyIP is the host IP that means every address.
const AnyIP = "0.0.0.0"
