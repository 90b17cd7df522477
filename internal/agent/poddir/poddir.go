// Package poddir names the directories of pods below the agent's root directory. The names are the kubelet's, so that
// either agent finds what the other left, and so do tools that look there.
//
// It reads and creates nothing. Package volume fills the directories; package stats measures them.
package poddir

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// Pods is the directory of all pods below the root directory.
const Pods = "pods"

// The parts of a pod's directory.
const (
	Volumes  = "volumes"
	Devices  = "volumeDevices"   // links to block volumes
	SubPaths = "volume-subpaths" // mounts of parts of volumes, which are counted as volumes
)

// The directories of a pod's volumes, one for each kind, below Volumes.
const (
	EmptyDir    = "kubernetes.io~empty-dir"
	ConfigMap   = "kubernetes.io~configmap"
	Secret      = "kubernetes.io~secret"
	Projected   = "kubernetes.io~projected"
	DownwardAPI = "kubernetes.io~downward-api"
	CSI         = "kubernetes.io~csi"
	NFS         = "kubernetes.io~nfs"
)

// Of returns a pod's directory.
func Of(root string, uid types.UID) string { return filepath.Join(root, Pods, string(uid)) }
