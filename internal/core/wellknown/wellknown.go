// Package wellknown has the names of labels, taints and conditions that the cores have rules for, once.
//
// The cores import nothing of Kubernetes, so they cannot use the constants of k8s.io/api. This package's test compares
// the names with them. https://kubernetes.io/docs/reference/labels-annotations-taints/ says what each means. The names
// under Lacks are ours.
package wellknown

// Labels of nodes and persistent volumes.
const (
	LabelHostname = "kubernetes.io/hostname"
	LabelZone     = "topology.kubernetes.io/zone"
	LabelRegion   = "topology.kubernetes.io/region"

	// The names of zone and region before Kubernetes 1.17; volumes may still have them.
	LabelZoneBeta   = "failure-domain.beta.kubernetes.io/zone"
	LabelRegionBeta = "failure-domain.beta.kubernetes.io/region"
)

// Keys of taints of nodes.
const (
	TaintNotReady           = "node.kubernetes.io/not-ready"
	TaintUnreachable        = "node.kubernetes.io/unreachable"
	TaintMemoryPressure     = "node.kubernetes.io/memory-pressure"
	TaintDiskPressure       = "node.kubernetes.io/disk-pressure"
	TaintPIDPressure        = "node.kubernetes.io/pid-pressure"
	TaintNetworkUnavailable = "node.kubernetes.io/network-unavailable"
	TaintUnschedulable      = "node.kubernetes.io/unschedulable"
	TaintOutOfService       = "node.kubernetes.io/out-of-service" // set by people on a node that will not come back
)

// Effects of taints.
const (
	EffectNoSchedule       = "NoSchedule"
	EffectPreferNoSchedule = "PreferNoSchedule"
	EffectNoExecute        = "NoExecute"
)

// Conditions of nodes.
const (
	ConditionReady              = "Ready"
	ConditionMemoryPressure     = "MemoryPressure"
	ConditionDiskPressure       = "DiskPressure"
	ConditionPIDPressure        = "PIDPressure"
	ConditionNetworkUnavailable = "NetworkUnavailable"
)

// Codes of what a node's agent lacks, of those that the cores have rules for. internal/kube/podfields has all codes.
const (
	LacksCSI = "volumes.csi" // volumes of CSI drivers
)
