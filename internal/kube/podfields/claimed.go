package podfields

import corev1 "k8s.io/api/core/v1"

// CodesOfVolume are the codes of what an agent must have to mount a persistent volume, as CodesOf; nil: nothing that
// this one has not. A pod whose claim is bound to it is held by an agent that publishes one of them.
func CodesOfVolume(v *corev1.PersistentVolume) []string {
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.HostPath != nil || s.Local != nil || *s == corev1.PersistentVolumeSource{}:
		return nil
	case s.CSI != nil:
		return []string{"volumes.csi"}
	case s.NFS != nil:
		return []string{"volumes.nfs"}
	case s.ISCSI != nil:
		return []string{"volumes.iscsi"}
	case s.FC != nil:
		return []string{"volumes.fc"}
	}
	return []string{codeInTree}
}

// CodesOfInTree are those of the volumes that provisioners in Kubernetes itself made, and CSI drivers now make in their
// stead.
func CodesOfInTree() []string { return []string{codeInTree} }
