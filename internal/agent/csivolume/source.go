package csivolume

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
)

// id identifies a volume.
type id struct {
	Driver string
	Handle string
	Spec   string // the persistent volume's name, or that of an inline volume in its pod
	Inline bool
	Block  bool // pods have it as a device
	NFS    bool // it has no driver (nfs.go)
}

// plugin is the name of what mounts the volume in metrics, as in the kubelet.
func (i id) plugin() string {
	if i.NFS {
		return "kubernetes.io/nfs"
	}
	return "kubernetes.io/csi:" + i.Driver
}

// name returns the volume's unique name on the node (upstream's GetUniqueVolumeName).
func (i id) name(uid types.UID) core.Name {
	switch {
	case i.NFS:
		return core.Name(fmt.Sprintf("kubernetes.io/nfs/%s-%s", uid, i.Spec))
	case i.Inline:
		return core.Name(fmt.Sprintf("kubernetes.io/csi/%s-%s", uid, i.Spec))
	}
	return core.Name(fmt.Sprintf("kubernetes.io/csi/%s^%s", i.Driver, i.Handle))
}

// staging returns the path where a volume is staged.
func (k *Manager) staging(i id) string {
	if i.Block {
		return k.blockDir("staging", i.Spec)
	}
	return filepath.Join(k.RootDir, StagingDir, i.Driver, fmt.Sprintf("%x", sha256.Sum256([]byte(i.Handle))),
		"globalmount")
}

// target returns the path where a volume is published to a pod.
func (k *Manager) target(i id, uid types.UID) string {
	switch {
	case i.Block:
		return k.blockDir("publish", i.Spec, string(uid))
	case i.NFS:
		return filepath.Join(poddir.Of(k.RootDir, uid), poddir.Volumes, poddir.NFS, i.Spec)
	}
	return filepath.Join(poddir.Of(k.RootDir, uid), poddir.Volumes, poddir.CSI, i.Spec, "mount")
}

// StagingDir is the directory of staged volumes below the root directory.
const StagingDir = "plugins/kubernetes.io/csi"

// Source is what the API says about a volume that its driver needs.
type Source struct {
	id
	fsType       string
	readOnly     bool
	attributes   map[string]string
	mountOptions []string
	modes        []corev1.PersistentVolumeAccessMode // nil: inline
	stageSecret  *corev1.SecretReference
	publish      *corev1.SecretReference
	expandSecret *corev1.SecretReference
	claim        types.NamespacedName // of a persistent volume; empty: it has none, and does not grow
	size, has    unit.Bytes           // of a persistent volume: its capacity, and what the claim's status says
	migrated     bool                 // of a kind that was once part of Kubernetes
	export       string               // of NFS: server:/path
	label        string               // SELinux label with which it is mounted; set by Want
}

// FromMigrated returns the source of a volume in a pod's specification whose kind was migrated to CSI drivers. pv is
// the translation of the volume. Its name may have slashes, which become tildes in paths, as in the kubelet.
func FromMigrated(pv *corev1.PersistentVolume) (*Source, error) {
	pv = pv.DeepCopy()
	pv.Name = strings.ReplaceAll(pv.Name, "/", "~")
	s, err := FromVolume(pv, &corev1.PersistentVolumeClaim{}, false, true)
	if err != nil {
		return nil, err
	}
	s.claim = types.NamespacedName{}
	return s, nil
}

// FromVolume returns the source of a persistent volume of kind csi, by the pod's volume and its claim. If migrated is
// set, pv is the translation of a volume of another kind.
func FromVolume(
	pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, readOnly, migrated bool,
) (*Source, error) {
	s := pv.Spec.CSI
	err := checkNames(s.Driver, s.VolumeHandle)
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch {
	case err != nil:
	case pv.Name == "" || pv.Name[0] == '.' || filepath.Base(pv.Name) != pv.Name:
		err = errors.New("its name is not one path element")
	case block && blockNames[pv.Name]:
		err = errors.New("a block volume of this name cannot be told from the directories of others")
	}
	if err != nil {
		return nil, fmt.Errorf("persistent volume %s: %w", pv.Name, err)
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	has := claim.Status.Capacity[corev1.ResourceStorage]
	return &Source{
		id:           id{Driver: s.Driver, Handle: s.VolumeHandle, Spec: pv.Name, Block: block},
		fsType:       s.FSType,
		readOnly:     readOnly || s.ReadOnly,
		attributes:   s.VolumeAttributes,
		mountOptions: pv.Spec.MountOptions,
		modes:        pv.Spec.AccessModes,
		stageSecret:  s.NodeStageSecretRef,
		publish:      s.NodePublishSecretRef,
		expandSecret: s.NodeExpandSecretRef,
		migrated:     migrated,
		claim:        types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
		size:         unit.Bytes(size.Value()),
		has:          unit.Bytes(has.Value()),
	}, nil
}

// FromPod returns the source of an inline volume of a pod.
func FromPod(pod *corev1.Pod, v *corev1.Volume) (*Source, error) {
	s := v.CSI
	handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+v.Name))) // upstream's makeVolumeHandle
	if err := checkNames(s.Driver, handle); err != nil {
		return nil, err
	}
	out := &Source{
		id:         id{Driver: s.Driver, Handle: handle, Spec: v.Name, Inline: true},
		readOnly:   s.ReadOnly != nil && *s.ReadOnly,
		attributes: s.VolumeAttributes,
	}
	if s.FSType != nil {
		out.fsType = *s.FSType
	}
	if s.NodePublishSecretRef != nil {
		out.publish = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.NodePublishSecretRef.Name}
	}
	return out, nil
}

// checkNames returns an error for a driver whose name is not one path element, and for an empty handle. The API server
// admits neither, but a static pod's manifest may contain anything.
func checkNames(driver, handle string) error {
	switch {
	case driver == "" || driver[0] == '.' || filepath.Base(driver) != driver || driver == volumeDevices:
		return fmt.Errorf("CSI driver name %q: want a DNS name like ebs.csi.example.com", driver)
	case handle == "":
		return fmt.Errorf("CSI driver %s: the volume handle is empty", driver)
	}
	return nil
}

// volumeDevices is the kubelet's directory of block volumes, beside the directories of drivers.
const volumeDevices = "volumeDevices"

// object returns a driver's CSIDriver; if there is none, upstream's defaults.
func (k *Manager) object(ctx context.Context, driver string) (*storagev1.CSIDriver, error) {
	object, err := k.API.CSIDriver(ctx, driver)
	if apierrors.IsNotFound(err) {
		return &storagev1.CSIDriver{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CSIDriver %s: %w", driver, err)
	}
	return object, nil
}

// specOf returns what the core must know of a pod's volume, and sets the label of s.
func (k *Manager) specOf(ctx context.Context, pod *corev1.Pod, outer string, s *Source) (core.Spec, error) {
	if s.NFS {
		return core.Spec{}, nil
	}
	object, err := k.object(ctx, s.Driver)
	if err != nil {
		return core.Spec{}, err
	}
	mode := storagev1.VolumeLifecyclePersistent
	if s.Inline {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	modes := object.Spec.VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if !slices.Contains(modes, mode) {
		const text = "volume mode %q not supported by driver %s (only supports %q)"
		return core.Spec{}, fmt.Errorf(text, mode, s.Driver, modes)
	}
	if s.label, err = k.labelOf(object, pod, outer, s); err != nil {
		return core.Spec{}, err
	}
	return core.Spec{
		Driver:    s.Driver,
		Attaches:  !s.Inline && (object.Spec.AttachRequired == nil || *object.Spec.AttachRequired),
		Exclusive: s.isExclusive(),
		Republish: object.Spec.RequiresRepublish != nil && *object.Spec.RequiresRepublish,
	}, nil
}

// withDriver adds the driver's capabilities to what the core knows of a volume. If the driver is not registered, they
// are not known, and its volumes wait.
func (k *Manager) withDriver(spec core.Spec, s *Source) core.Spec {
	if s.NFS {
		return spec
	}
	driver, _ := k.Drivers.Driver(s.Driver)
	spec.Label = s.label
	spec.Stages = !s.Inline && driver.Can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
	spec.Grows = driver.Can[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] && !s.readOnly && s.claim.Name != ""
	if spec.Grows && s.has > 0 && s.size > s.has {
		spec.Expand = s.size
	}
	return spec
}

// isExclusive reports whether one pod at a time may have the volume.
func (s *Source) isExclusive() bool {
	return len(s.modes) == 1 && s.modes[0] == corev1.ReadWriteOncePod
}

// mode returns the access mode for the driver.
func (s *Source) mode() corev1.PersistentVolumeAccessMode {
	if len(s.modes) > 0 {
		return s.modes[0]
	}
	return corev1.ReadWriteOnce // as upstream's for inline volumes
}

// attachment returns the name of the VolumeAttachment of a volume (upstream's getAttachmentName).
func (k *Manager) attachment(i id) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(i.Handle+i.Driver+k.Node)))
}
