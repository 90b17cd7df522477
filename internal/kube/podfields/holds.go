package podfields

import (
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Abilities are what only some nodes with this agent can do, because it depends on their container runtime, kernel and
// configuration. The zero value is a node that can do none of it.
type Abilities struct {
	UserNamespaces bool // pods can have user namespaces
	ImageVolumes   bool // images can be mounted
	TrustBundles   bool // certificates of ClusterTrustBundles can be mounted: their feature gate is on

	CSIVolumes      bool // CSI drivers are registered and called
	NFS             bool // exports of NFS servers are mounted
	PodCertificates bool // certificates are requested for pods: their feature gate is on
}

// hold is a field that the agent cannot carry out, or cannot with some of its values. The path decides which one of
// pod, volume and container is set; that function reports whether a pod has the field with such a value.
type hold struct {
	path      string // of the field, as in rows
	code      string // what a node lacks that holds the pod, as in Codes
	why, help string
	pod       func(*corev1.PodSpec) bool
	volume    func(*corev1.Volume) bool
	container func(*corev1.Container) bool
	able      func(Abilities) bool // reports whether a node can carry it out; nil: none can
}

// Help texts that several holds share.
const (
	helpElsewhere = "run the pod on a node whose agent supports it, such as the kubelet"
	helpKubelet   = "run the pod on a node with the kubelet"
	helpVolume    = "use another kind of volume, or " + helpElsewhere
)

// holds are checked in this order, and the first few that apply are reported to users.
var holds = slices.Concat(podHolds, containerHolds, volumeHolds, migratedVolumeHolds(), oldVolumeHolds())

var podHolds = []hold{
	{
		path: "spec.hostUsers", code: "user-namespaces",
		why: "false requests a user namespace, which this node's container runtime or kernel cannot set up",
		help: "remove the field if the pod may share the host's user namespace, or run the pod on a node that can: " +
			"containerd 2 with runc 1.2 or later, on Linux 6.3 or later",
		able: func(a Abilities) bool { return a.UserNamespaces },
		pod:  func(s *corev1.PodSpec) bool { return s.HostUsers != nil && !*s.HostUsers },
	},
	{
		path: "spec.resourceClaims", code: "resource-claims",
		why:  "this node's agent does not prepare claimed devices (DRA)",
		help: "request devices of a device plugin in resources.limits, or " + helpElsewhere,
		pod:  func(s *corev1.PodSpec) bool { return len(s.ResourceClaims) > 0 },
	},
	{
		path: "spec.securityContext.seccompProfile.localhostProfile", code: "seccomp-localhost",
		why:  whySeccomp,
		help: helpSeccomp,
		pod: func(s *corev1.PodSpec) bool {
			return s.SecurityContext != nil && outsideSeccompDir(s.SecurityContext.SeccompProfile)
		},
	},
}

var containerHolds = []hold{
	{
		path: "spec.containers[].resources.claims", code: "resource-claims",
		why:       "this node's agent does not prepare claimed devices (DRA)",
		help:      "request devices of a device plugin in resources.limits, or " + helpElsewhere,
		container: func(c *corev1.Container) bool { return len(c.Resources.Claims) > 0 },
	},
	{
		path: "spec.containers[].volumeDevices", code: "block-devices",
		why:       "this node's agent does not attach block devices",
		help:      "use a volume with a file system, or " + helpElsewhere,
		container: func(c *corev1.Container) bool { return len(c.VolumeDevices) > 0 },
		able:      func(a Abilities) bool { return a.CSIVolumes },
	},
	{
		path: "spec.containers[].securityContext.seccompProfile.localhostProfile", code: "seccomp-localhost",
		why:  whySeccomp,
		help: helpSeccomp,
		container: func(c *corev1.Container) bool {
			return c.SecurityContext != nil && outsideSeccompDir(c.SecurityContext.SeccompProfile)
		},
	},
}

const (
	whySeccomp  = "a profile of type Localhost must be named by a path below the node's seccomp directory"
	helpSeccomp = "name a profile by a relative path without \"..\", or use type RuntimeDefault"
)

// outsideSeccompDir reports whether a profile is a file of the node (type Localhost) and its path is missing or leads
// out of the seccomp directory.
func outsideSeccompDir(p *corev1.SeccompProfile) bool {
	if p == nil || p.Type != corev1.SeccompProfileTypeLocalhost {
		return false
	}
	return p.LocalhostProfile == nil || !filepath.IsLocal(*p.LocalhostProfile) ||
		filepath.Clean(*p.LocalhostProfile) == "."
}

// volumeHold returns the hold for volumes of a kind.
func volumeHold(kind, why string, is func(*corev1.Volume) bool) hold {
	return hold{path: "spec.volumes[]." + kind, code: codeOfVolume(kind), why: why, help: Instead(kind), volume: is}
}

// instead says what does the same as volumes of a kind that this agent does not mount, for people.
var instead = map[string]string{
	"cephfs":     "use a volume of the CSI driver cephfs.csi.ceph.com (ceph-csi)",
	"fc":         "use a volume of the CSI driver of the storage's vendor, or " + helpKubelet,
	"flexVolume": "use a volume of a CSI driver for the same storage, or " + helpKubelet,
	"flocker":    "use a volume of a CSI driver: Kubernetes has removed this kind in 1.25",
	"gitRepo":    "clone the repository in an init container into an emptyDir",
	"glusterfs":  "use NFS or a CSI driver for the same storage: Kubernetes has removed this kind in 1.26",
	"iscsi": "use a volume of the CSI driver of the storage's vendor or of iscsi.csi.k8s.io, or " +
		helpKubelet,
	"photonPersistentDisk": "use a volume of a CSI driver: Kubernetes has removed this kind",
	"quobyte":              "use a volume of the CSI driver csi.quobyte.com: Kubernetes has removed this kind in 1.25",
	"rbd":                  "use a volume of the CSI driver rbd.csi.ceph.com (ceph-csi)",
	"scaleIO":              "use a volume of the CSI driver csi-vxflexos.dellemc.com: Kubernetes has removed this kind",
	"storageos":            "use a volume of a CSI driver: Kubernetes has removed this kind in 1.25",
}

// Instead says what to use in place of volumes of a kind that this agent does not mount, inline or behind claims.
func Instead(kind string) string {
	if text, ok := instead[kind]; ok {
		return text
	}
	return helpVolume
}

var volumeHolds = []hold{
	{
		path: "spec.volumes[].csi", code: codeOfVolume("csi"),
		why:    whyNoDrivers,
		help:   helpVolume,
		volume: func(v *corev1.Volume) bool { return v.CSI != nil },
		able:   func(a Abilities) bool { return a.CSIVolumes },
	},
	nfsHold(),
	volumeHold("iscsi", "this node's agent does not attach iSCSI disks",
		func(v *corev1.Volume) bool { return v.ISCSI != nil }),
	volumeHold("fc", "this node's agent does not attach Fibre Channel disks",
		func(v *corev1.Volume) bool { return v.FC != nil }),
	{
		path: "spec.volumes[].image", code: "volumes.image",
		why:    "this node's container runtime does not mount images, or does not say that it does",
		help:   "run the pod on a node with containerd 2.1 or CRI-O 1.31, or later",
		volume: func(v *corev1.Volume) bool { return v.Image != nil },
		able:   func(a Abilities) bool { return a.ImageVolumes },
	},
	{
		path: "spec.volumes[].emptyDir.medium", code: "volumes.emptyDir.medium",
		why:    "this node's agent does not know the medium",
		help:   "use Memory, HugePages, HugePages-<size> or none, or " + helpElsewhere,
		volume: unknownMedium,
	},
	trustBundleHold(),
	podCertificateHold(),
}

// nfsHold is for agents of earlier versions only.
func nfsHold() hold {
	h := volumeHold("nfs", "this node's agent does not mount NFS", func(v *corev1.Volume) bool { return v.NFS != nil })
	h.able = func(a Abilities) bool { return a.NFS }
	return h
}

// unknownMedium reports whether Kubernetes 1.36 does not have an emptyDir's medium.
func unknownMedium(v *corev1.Volume) bool {
	if v.EmptyDir == nil {
		return false
	}
	switch v.EmptyDir.Medium {
	case corev1.StorageMediumDefault, corev1.StorageMediumMemory, corev1.StorageMediumHugePages:
		return false
	}
	return !strings.HasPrefix(string(v.EmptyDir.Medium), string(corev1.StorageMediumHugePagesPrefix))
}

// sourceHold returns the hold for projected volumes with a source of a kind.
func sourceHold(kind, why string, is func(*corev1.VolumeProjection) bool) hold {
	return hold{
		path: "spec.volumes[].projected.sources[]." + kind, code: "volumes.projected." + kind, why: why, help: helpElsewhere,
		volume: func(v *corev1.Volume) bool {
			if v.Projected == nil {
				return false
			}
			for i := range v.Projected.Sources {
				if is(&v.Projected.Sources[i]) {
					return true
				}
			}
			return false
		},
	}
}

// trustBundleHold returns the hold for certificates of ClusterTrustBundles on nodes whose feature gate is off.
func trustBundleHold() hold {
	h := sourceHold("clusterTrustBundle",
		"this node's agent does not mount certificates of ClusterTrustBundles while their feature gate is off",
		func(p *corev1.VolumeProjection) bool { return p.ClusterTrustBundle != nil })
	h.help = "switch ClusterTrustBundleProjection on in featureGates of the node's configuration, or run the pod on a " +
		"node where it is on"
	h.able = func(a Abilities) bool { return a.TrustBundles }
	return h
}

// podCertificateHold returns the hold for certificates of pods on nodes whose feature gate is off.
func podCertificateHold() hold {
	h := sourceHold("podCertificate",
		"this node's agent does not request certificates for pods while the feature gate is off",
		func(p *corev1.VolumeProjection) bool { return p.PodCertificate != nil })
	h.help = "switch PodCertificateRequest on in featureGates of the node's configuration, or run the pod on a node " +
		"where it is on"
	h.able = func(a Abilities) bool { return a.PodCertificates }
	return h
}

// whyNoDrivers is why a node does not mount volumes of CSI drivers.
const whyNoDrivers = "this node's agent has no CSI drivers"

// migratedVolumes are the kinds that the API still has and whose volumes CSI drivers mount, as in the kubelet 1.36.
var migratedVolumes = map[string]func(*corev1.Volume) bool{
	"awsElasticBlockStore": func(v *corev1.Volume) bool { return v.AWSElasticBlockStore != nil },
	"azureDisk":            func(v *corev1.Volume) bool { return v.AzureDisk != nil },
	"azureFile":            func(v *corev1.Volume) bool { return v.AzureFile != nil },
	"cinder":               func(v *corev1.Volume) bool { return v.Cinder != nil },
	"gcePersistentDisk":    func(v *corev1.Volume) bool { return v.GCEPersistentDisk != nil },
	"portworxVolume":       func(v *corev1.Volume) bool { return v.PortworxVolume != nil },
	"vsphereVolume":        func(v *corev1.Volume) bool { return v.VsphereVolume != nil },
}

// migratedVolumeHolds returns the holds of migratedVolumes. What a node needs for them are CSI drivers.
func migratedVolumeHolds() []hold {
	var out []hold
	for kind, is := range migratedVolumes {
		h := volumeHold(kind, whyNoDrivers, is)
		h.code = codeOfVolume("csi")
		h.able = func(a Abilities) bool { return a.CSIVolumes }
		out = append(out, h)
	}
	return sortedByPath(out)
}

const codeInTree = "volumes.in-tree"

// oldVolumes are the kinds that the API still has and that Kubernetes 1.36 does not mount, or not by default.
var oldVolumes = map[string]func(*corev1.Volume) bool{
	"cephfs":               func(v *corev1.Volume) bool { return v.CephFS != nil },
	"flexVolume":           func(v *corev1.Volume) bool { return v.FlexVolume != nil },
	"flocker":              func(v *corev1.Volume) bool { return v.Flocker != nil },
	"gitRepo":              func(v *corev1.Volume) bool { return v.GitRepo != nil },
	"glusterfs":            func(v *corev1.Volume) bool { return v.Glusterfs != nil },
	"photonPersistentDisk": func(v *corev1.Volume) bool { return v.PhotonPersistentDisk != nil },
	"quobyte":              func(v *corev1.Volume) bool { return v.Quobyte != nil },
	"rbd":                  func(v *corev1.Volume) bool { return v.RBD != nil },
	"scaleIO":              func(v *corev1.Volume) bool { return v.ScaleIO != nil },
	"storageos":            func(v *corev1.Volume) bool { return v.StorageOS != nil },
}

// oldVolumeHolds returns the holds of oldVolumes. They share a code, because no release of our agent mounts any of
// these kinds.
func oldVolumeHolds() []hold {
	var out []hold
	for kind, is := range oldVolumes {
		h := volumeHold(kind, "this node's agent does not mount volumes of this kind", is)
		h.code = codeInTree
		out = append(out, h)
	}
	return sortedByPath(out)
}

func sortedByPath(all []hold) []hold {
	slices.SortFunc(all, func(a, b hold) int { return strings.Compare(a.path, b.path) })
	return all
}
