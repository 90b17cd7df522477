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
	case s.CSI != nil:
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

// CodesOfInTree returns the codes for volumes of in-tree provisioners, which CSI drivers have replaced.
func CodesOfInTree() []string { return []string{codeInTree} }
