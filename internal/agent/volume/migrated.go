package volume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
)

// csiTranslator knows which CSI driver has the volumes of a kind that was once mounted by Kubernetes itself, and what
// the driver is to be told. Controllers that attach and provision such volumes use the same library.
var csiTranslator = csitranslation.New()

// migrated returns a persistent volume as the CSI driver has it to which its kind was migrated. Others are returned as
// they are.
func migrated(pv *corev1.PersistentVolume) (out *corev1.PersistentVolume, moved bool, err error) {
	if !csiTranslator.IsPVMigratable(pv) {
		return pv, false, nil
	}
	out, err = csiTranslator.TranslateInTreePVToCSI(klog.Background(), pv)
	if err == nil && out.Spec.CSI == nil {
		err = fmt.Errorf("the translation names no driver")
	}
	if err != nil {
		return nil, false, fmt.Errorf("persistent volume %s: translate %s to a volume of a CSI driver: %w",
			pv.Name, kindOfSource(pv.Spec.PersistentVolumeSource), err)
	}
	return out, true, nil
}

// setUpMigrated has a CSI driver mount a volume that a pod's specification names in the words of an earlier kind. To
// the driver it is like a volume behind a claim: a controller attaches it.
func (k *Manager) setUpMigrated(ctx context.Context, s *podState, v *corev1.Volume) error {
	if k.CSI == nil {
		return &UnsupportedError{nameOfKind(v), "it has no CSI drivers"}
	}
	pv, err := csiTranslator.TranslateInTreeInlineVolumeToCSI(klog.Background(), v, s.pod.Namespace)
	if err == nil && pv.Spec.CSI == nil {
		err = fmt.Errorf("the translation names no driver")
	}
	if err != nil {
		return fmt.Errorf("translate %s to a volume of a CSI driver: %w", nameOfKind(v), err)
	}
	source, err := csivolume.FromMigrated(pv)
	if err != nil {
		return err
	}
	return k.setUpCSI(ctx, s, v, source)
}
