package volumes

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"

// A Mount is one volume of a pod, as far as filters use it: a claim, or a disk that the pod names itself, or such a
// disk together with what it attaches.
type Mount struct {
	// Claim is the name of a claim in the pod's namespace. Own says that the claim is that of a generic ephemeral
	// volume, and must be controlled by the pod.
	Claim string
	Own   bool
	Disk  *Disk
	// Attached is what counts toward the node's limits if a CSI driver, not the kubelet, attaches the disk.
	Attached Attached
}

// A Disk is named in the pod itself. Two pods on one node must not use it, except if both only read it and its kind
// allows that.
type Disk struct {
	Kind     string // the kind of volume source; disks of different kinds are different
	ID       string
	Monitors []string // two disks with monitors are the same only if they have a monitor in common
	ReadOnly bool     // pods that only read it do not conflict
}

// Attached is how a CSI driver knows a volume. Uses by several pods on a node count once. The zero value means none.
type Attached struct{ Driver, Handle string }

// A Claim is a PersistentVolumeClaim.
type Claim struct {
	Namespace, Name, UID string
	Version              string // opaque; different after every change
	Class                string // the storage class; empty: none
	Volume               string // to which it is bound, or which it requests; empty: none yet
	Bound                bool   // the binding to Volume is complete
	Lost                 bool   // the volume to which it was bound is gone
	Deleting             bool
	// Selected says that a scheduler has requested a volume accessible from Node.
	Selected bool
	Node     string

	Modes      []string // access modes
	OncePod    bool     // one of Modes is ReadWriteOncePod
	Block      bool     // a device, not a file system
	Size       int64    // bytes
	Sized      bool     // the claim requests a size
	Attributes string   // name of a volume attributes class
	Selector   *selector.Selector
	Controller string // UID of its controlling owner, of any kind
}

// A Volume is a PersistentVolume.
type Volume struct {
	Name, Version string
	Labels        []selector.Label // sorted by key
	Class         string
	Capacity      int64 // bytes
	Available     bool  // its phase is Available
	Deleting      bool
	Modes         []string
	Block         bool
	Attributes    string

	// Claimed says that it is bound to, or reserved for, the claim ClaimNamespace/ClaimName with ClaimUID. If ClaimUID is
	// empty, the claim may have any UID.
	Claimed        bool
	ClaimNamespace string
	ClaimName      string
	ClaimUID       string
	ByController   bool // a controller or scheduler made the binding, not a person

	Affinity *[]selector.NodeTerm // from where it is accessible; nil: from anywhere
	Attached Attached
	CSI      bool // Attached comes from a CSI source, and is not translated from an in-tree one
	// NeedsOfAgent is what a node's agent must be able to do to mount it and not every agent can do, as codes; see
	// Pod.NeedsOfAgent.
	NeedsOfAgent []string
	// Plugin is the in-tree plugin of a volume for which a CSI driver is responsible on nodes where the plugin is
	// migrated; on these nodes, Moved replaces Affinity.
	Plugin string
	Moved  *[]selector.NodeTerm
}

// A StorageClass says how claims get volumes.
type StorageClass struct {
	Name        string
	Provisioner string
	// Waits says that volumes are bound when a pod is placed (WaitForFirstConsumer), not before. Unset says that the
	// mode is not set.
	Waits, Unset bool
	Driver       string // the CSI driver that attaches its volumes; empty: none with limits
	// NeedsOfAgent is the same as for a Volume, for the volumes that Provisioner makes, if Provisioner is a known
	// in-tree one. Volumes of any CSI driver need wellknown.LacksCSI.
	NeedsOfAgent []string
	Topologies   *[]selector.NodeTerm // where volumes can be provisioned; nil: anywhere
}

// NoProvisioner is the value of StorageClass.Provisioner of classes whose volumes are not provisioned.
const NoProvisioner = "kubernetes.io/no-provisioner"

// A Capacity says how large a volume of a class some nodes can get.
type Capacity struct {
	Namespace, Name string
	Class           string
	Nodes           *selector.Selector // nil: no node
	Size            int64
	Sized           bool // false: the size is not known, which counts as too small
}

// NodeStorage is a CSINode: how many volumes its drivers can attach.
type NodeStorage struct {
	Node    string
	Limits  map[string]int64 // by driver; absent: no limit
	Plugins []string         // in-tree plugins that are migrated to CSI drivers on the node
}

// An Attachment is a VolumeAttachment: a driver attaches a volume to a node, or has it still attached.
type Attachment struct{ Name, Node, Driver, Volume string }
