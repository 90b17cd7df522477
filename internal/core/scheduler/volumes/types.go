package volumes

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"

// A Mount is one volume of a pod, as far as a rule looks at it: a claim, a disk that is named in the pod itself, or
// both a disk and what it attaches.
type Mount struct {
	// Claim names a claim in the pod's namespace. Own: it is that of a generic ephemeral volume, and must be controlled
	// by the pod.
	Claim string
	Own   bool
	Disk  *Disk
	// Attached is what counts towards the node's limits for a disk that some CSI driver attaches in place of the
	// kubelet.
	Attached Attached
}

// A Disk is named in the pod itself, and two pods on one node must not use it, but for reading if it allows that.
type Disk struct {
	Kind     string // of volume source; disks of different kinds differ
	ID       string
	Monitors []string // of two disks with monitors, one must be common, or they differ
	ReadOnly bool     // pods that only read it get along with each other
}

// Attached names a volume to a CSI driver. Two pods on a node with the same one count once. The zero Attached is none.
type Attached struct{ Driver, Handle string }

// A Claim is a PersistentVolumeClaim.
type Claim struct {
	Namespace, Name, UID string
	Version              string // opaque; another one after every change
	Class                string // of storage; empty: none
	Volume               string // that it is bound to, or wants; empty: none yet
	Bound                bool   // the binding to Volume is complete
	Lost                 bool   // the volume that it was bound to is gone
	Deleting             bool
	// Selected: a scheduler has asked for a volume that can be reached from Node.
	Selected bool
	Node     string

	Modes      []string // of access
	OncePod    bool     // one of them is ReadWriteOncePod
	Block      bool     // a device, not a file system
	Size       int64    // bytes
	Sized      bool     // Size was asked for
	Attributes string   // name of a volume attributes class
	Selector   *selector.Selector
	Controller string // UID of its controlling owner; of any kind
}

// A Volume is a PersistentVolume.
type Volume struct {
	Name, Version string
	Labels        []selector.Label // sorted by key
	Class         string
	Capacity      int64 // bytes
	Available     bool  // its phase
	Deleting      bool
	Modes         []string
	Block         bool
	Attributes    string

	Claimed      bool // it is bound to, or kept for, the claim of ClaimSpace, ClaimName and, unless empty, ClaimUID
	ClaimSpace   string
	ClaimName    string
	ClaimUID     string
	ByController bool // the binding was made by a controller or scheduler, not by a person

	Affinity *[]selector.NodeTerm // where it can be reached; nil: anywhere
	Attached Attached
	CSI      bool // Attached is its own source, not a translation
	// NeedsOfAgent are codes of what a node's agent must have to mount it that not every agent has; see
	// Pod.NeedsOfAgent.
	NeedsOfAgent []string
	// Plugin is the in-tree plugin of a volume that a CSI driver serves on nodes that have moved it; there Moved holds
	// in place of Affinity.
	Plugin string
	Moved  *[]selector.NodeTerm
}

// A StorageClass says how volumes come to claims.
type StorageClass struct {
	Name        string
	Provisioner string
	// Waits: volumes are bound when a pod is placed (WaitForFirstConsumer), not before. Unset: the mode is not known.
	Waits, Unset bool
	Driver       string // that attaches its volumes; empty: none that counts
	// NeedsOfAgent are, as a Volume's, of volumes that Provisioner makes, if it is of a kind that is known by its name.
	// Of those that a CSI driver makes, AgentCSI is one by itself.
	NeedsOfAgent []string
	Topologies   *[]selector.NodeTerm // where volumes can be made; nil: anywhere
}

// NoProvisioner is the value of StorageClass.Provisioner that stands for none.
const NoProvisioner = "kubernetes.io/no-provisioner"

// AgentCSI is the code of what an agent lacks that mounts no volumes of CSI drivers.
const AgentCSI = "volumes.csi"

// A Capacity says how large a volume of a class can be made for some nodes.
type Capacity struct {
	Namespace, Name string
	Class           string
	Nodes           *selector.Selector // nil: none
	Size            int64
	Sized           bool // false: not known, which is not enough
}

// NodeStorage is a CSINode: what its drivers can attach.
type NodeStorage struct {
	Node    string
	Limits  map[string]int64 // by driver; absent: no limit
	Plugins []string         // in-tree plugins that have moved to their CSI drivers there
}

// An Attachment is a VolumeAttachment: a driver attaches, or still has attached, a volume to a node.
type Attachment struct{ Name, Node, Driver, Volume string }
