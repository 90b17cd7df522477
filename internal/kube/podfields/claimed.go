package podfields

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// CodesOfVolume is CodesOf for a persistent volume: an agent that publishes one of the codes holds the pods whose
// claims are bound to the volume. It is nil for volumes that every agent of ours mounts.
func CodesOfVolume(v *corev1.PersistentVolume) []string {
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.HostPath != nil || s.Local != nil || *s == corev1.PersistentVolumeSource{}:
		return nil
	case s.CSI != nil || isMigrated(s):
		return []string{wellknown.LacksCSI}
	case s.NFS != nil:
		return []string{codeOfVolume("nfs")}
	case s.ISCSI != nil:
		return []string{codeOfVolume("iscsi")}
	case s.FC != nil:
		return []string{codeOfVolume("fc")}
	}
	return []string{codeInTree}
}

// codeOfVolume returns the code of a kind of volume with this name in the API.
func codeOfVolume(kind string) string { return "volumes." + kind }

// isMigrated reports whether a CSI driver mounts a persistent volume of a kind of its own (migratedVolumes).
func isMigrated(s *corev1.PersistentVolumeSource) bool {
	return s.AWSElasticBlockStore != nil || s.AzureDisk != nil || s.AzureFile != nil || s.Cinder != nil ||
		s.GCEPersistentDisk != nil || s.PortworxVolume != nil || s.VsphereVolume != nil
}

// CodesOfInTree returns the codes for volumes of in-tree provisioners. CSI drivers make and mount them today.
func CodesOfInTree() []string { return []string{wellknown.LacksCSI} }
