package whatif

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// addStorage passes an object about volumes to the scheduler. It returns false if the object is not about volumes. It
// sets what the API server or a controller would have set.
func (s *scene) addStorage(o runtime.Object) bool {
	switch o := o.(type) {
	case *storagev1.StorageClass:
		if s.once("storage class", "", o.Name) {
			if o.VolumeBindingMode == nil {
				mode := storagev1.VolumeBindingImmediate
				o.VolumeBindingMode = &mode
			}
			if o.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
				s.defaultClasses = append(s.defaultClasses, o.Name)
			}
			s.placer.StorageClassSeen(1, translate.SchedulerStorageClass(o))
		}
	case *corev1.PersistentVolume:
		if s.once("persistent volume", "", o.Name) {
			if o.Status.Phase == "" && o.Spec.ClaimRef == nil {
				o.Status.Phase = corev1.VolumeAvailable
			}
			s.placer.VolumeSeen(1, translate.SchedulerVolume(o))
		}
	case *corev1.PersistentVolumeClaim:
		o.Namespace = orElse(o.Namespace, corev1.NamespaceDefault)
		if s.once("persistent volume claim", o.Namespace, o.Name) {
			o.UID = types.UID(orElse(string(o.UID), o.Namespace+"/"+o.Name))
			s.claims = append(s.claims, o)
		}
	case *storagev1.CSINode:
		if s.once("CSI node", "", o.Name) {
			s.placer.NodeStorageSeen(1, translate.SchedulerNodeStorage(o))
		}
	case *storagev1.CSIDriver:
		if s.once("CSI driver", "", o.Name) {
			s.placer.DriverSeen(1, o.Name, translate.PublishesCapacities(o))
		}
	case *storagev1.CSIStorageCapacity:
		o.Namespace = orElse(o.Namespace, corev1.NamespaceDefault)
		if s.once("CSI storage capacity", o.Namespace, o.Name) {
			s.placer.CapacitySeen(1, translate.SchedulerCapacity(o))
		}
	case *storagev1.VolumeAttachment:
		if s.once("volume attachment", "", o.Name) {
			s.placer.AttachmentSeen(1, translate.SchedulerAttachment(o))
		}
	default:
		return false
	}
	return true
}

// addClaims passes the claims to the scheduler. Claims without a class get the default class, if there is one, as they
// would from the API server. The claims of generic ephemeral volumes are not in the files, because a controller creates
// them; so they are made here.
func (s *scene) addClaims() {
	slices.Sort(s.defaultClasses)
	for _, pod := range s.pods {
		s.makeClaims(pod)
	}
	for _, c := range s.claims {
		if _, named := translate.ClaimClass(c); !named && len(s.defaultClasses) > 0 && c.Spec.VolumeName == "" {
			c.Spec.StorageClassName = &s.defaultClasses[0]
		}
		s.placer.ClaimSeen(1, translate.SchedulerClaim(c))
	}
}

func (s *scene) makeClaims(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		c := translate.EphemeralClaim(pod, v)
		if id := c.Namespace + "/" + c.Name; s.names["persistent volume claim"+id] {
			s.warnings = append(s.warnings,
				fmt.Sprintf("pod %s/%s: volume %s: its claim %s is in the files: it is assumed to belong to the pod", pod.Namespace,
					pod.Name, v.Name, id))
			for _, known := range s.claims {
				if known.Namespace == c.Namespace && known.Name == c.Name {
					known.OwnerReferences = c.OwnerReferences
				}
			}
			continue
		}
		s.claims = append(s.claims, c)
	}
}
