package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// ClaimSource reads claims and volumes. The API server allows a node to read those of the pods that are bound to it.
type ClaimSource interface {
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
}

// KubeClaims returns a ClaimSource that reads from c's API server.
func KubeClaims(c *kube.Client) ClaimSource { return kubeClaims{c} }

type kubeClaims struct{ client *kube.Client }

func (k kubeClaims) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	out := &corev1.PersistentVolumeClaim{}
	return out, admitted(ctx, func() error { return k.client.Get(ctx, kube.VolumeClaims, namespace, name, out) })
}

func (k kubeClaims) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	out := &corev1.PersistentVolume{}
	return out, admitted(ctx, func() error { return k.client.Get(ctx, kube.Volumes, "", name, out) })
}

// claimed is the volume behind a claim, or a volume of a driver. The path of one that is not ready is empty.
type claimed struct {
	path     string
	plugin   string // for metrics, without pluginPrefix
	readOnly bool   // by the pod's volume, for all its containers
	byCSI    bool   // csivolume mounts it
	block    bool   // path is a device
	labelled bool   // the runtime must not change the SELinux labels of its files
	usage    usage
}

// usage is how it is asked how full a volume is.
type usage struct {
	source string // who answers (volumestats.Volume)
	kind   string
	ask    func(context.Context) (core.Usage, error)
}

func isBlock(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// checkMode returns an error, in the kubelet's words, if a container mounts a block device, or wants a file system as a
// device.
func checkMode(pod *corev1.Pod, volume string, block bool) error {
	mounted, device := false, false
	for _, c := range containersOf(pod) {
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		device = device || slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
	}
	switch {
	case block && mounted:
		return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", volume)
	case !block && device:
		return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", volume)
	}
	return nil
}

func containersOf(pod *corev1.Pod) (all []corev1.Container) {
	all = slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, e := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(e.EphemeralContainerCommon))
	}
	return all
}

func checkDevice(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return fmt.Errorf("path %s is no block device", path)
	}
	return nil
}

// usesClaim returns the name of v's claim, if v is one.
func usesClaim(pod *corev1.Pod, v *corev1.Volume) (name string, ok bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, true
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v), true
	}
	return "", false
}

// readClaim is a claim and its volume as they were read, or why they were not.
type readClaim struct {
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	at     time.Time
	err    error
}

const (
	// readLife is how long a claim that waits for a driver is not read again. A pod is tried again when a volume was
	// mounted, so that a pod with ten claims would read each of them several times, and a hundred such pods would wait
	// for kubeAPIQPS and not for their driver. Upstream reads with each periodic sync of the pod, every 60 to 90 s.
	readLife = time.Minute

	// readersMax is how many pods read their claims at the same time; the others wait in the order in which they came,
	// and namespaces take turns. Otherwise kubeAPIQPS is shared by all pods, and all of them have their claims at the
	// same late time. Chosen: with an API server that answers within 40 ms, two read as fast as the kubelet's default of
	// kubeAPIQPS allows. (The kubelet reads one claim at a time.) Raising it, the first pods start later.
	readersMax = 2
)

func (f readClaim) fresh() bool { return f.volume != nil && time.Since(f.at) < readLife }

// readClaims reads the claims of a pod whose volumes are not there yet, when it is the pod's turn. It holds the turn
// for nothing else: to look at a volume may take long, or hang.
func (k *Manager) readClaims(ctx context.Context, pod *corev1.Pod) error {
	unread := k.unread(pod)
	if len(unread) == 0 {
		return nil
	}
	turn := k.readers.Slot()
	if err := turn.Take(ctx, pod.Namespace); err != nil {
		return fmt.Errorf("wait for pods that read their claims: %w", err)
	}
	defer turn.Release()
	ctx, cancel := context.WithTimeout(ctx, setUpMax)
	defer cancel()
	read := map[string]readClaim{}
	for _, v := range unread {
		name, _ := usesClaim(pod, v)
		f := readClaim{at: time.Now()}
		f.volume, f.claim, f.err = k.boundVolume(ctx, pod, v, name)
		read[v.Name] = f
	}
	s := k.lockPod(pod.UID)
	defer s.mu.Unlock()
	maps.Copy(s.read, read)
	return nil
}

// unread returns the volumes of a pod whose claims are to be read.
func (k *Manager) unread(pod *corev1.Pod) (volumes []*corev1.Volume) {
	k.mu.Lock()
	s := k.byPod[pod.UID]
	k.mu.Unlock()
	if s == nil {
		s = &podState{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, isClaim := usesClaim(pod, v); isClaim && (s.gone || !s.ready[v.Name] && !s.read[v.Name].fresh()) {
			volumes = append(volumes, v)
		}
	}
	return volumes
}

// setUpClaim sets up the volume behind a claim, as it was read. What was read is kept while a driver works on the
// volume.
func (k *Manager) setUpClaim(ctx context.Context, s *podState, v *corev1.Volume, name string) error {
	f := s.read[v.Name]
	if f.volume == nil && f.err == nil { // the pod's state was removed after readClaims
		f.at = time.Now()
		f.volume, f.claim, f.err = k.boundVolume(ctx, s.pod, v, name)
	}
	err := f.err
	if err == nil {
		err = k.setUpRead(ctx, s, v, f)
	}
	if isWaiting(err) {
		s.read[v.Name] = f
	} else {
		delete(s.read, v.Name)
	}
	return err
}

// setUpRead checks that the volume behind a claim may be used here. Volumes of kind hostPath and local are existing
// directories or devices; containers get them as they are.
func (k *Manager) setUpRead(ctx context.Context, s *podState, v *corev1.Volume, f readClaim) error {
	claim := f.claim
	pv, moved, err := migrated(f.volume)
	if err != nil {
		return err
	}
	if err := reachable(pv, k.NodeLabels()); err != nil {
		const text = "persistent volume %s cannot be reached from this node: " +
			"its node affinity does not match the node's labels: %w"
		return fmt.Errorf(text, pv.Name, err)
	}
	found := claimed{readOnly: v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly}
	switch {
	case pv.Spec.HostPath != nil && isBlock(pv):
		const why = "persistent volume %s is a block device of kind hostPath; those of kind csi and local are attached"
		return &UnsupportedError{"persistentVolumeClaim", fmt.Sprintf(why, pv.Name)}
	case pv.Spec.HostPath != nil:
		found.plugin = pluginHostPath
		found.path, err = pv.Spec.HostPath.Path, checkHostPath(pv.Spec.HostPath)
	case pv.Spec.Local != nil && isBlock(pv):
		found.plugin = pluginLocal
		found.block = true
		found.path, err = pv.Spec.Local.Path, checkDevice(pv.Spec.Local.Path)
	case pv.Spec.Local != nil:
		found.plugin = pluginLocal
		found.path, err = pv.Spec.Local.Path, checkLocal(pv.Spec.Local.Path)
		if err == nil && !found.readOnly {
			err = ShareWithGroup(pv.Spec.Local.Path, s.pod)
		}
	case pv.Spec.NFS != nil && !isBlock(pv):
		return k.setUpNFS(ctx, s, v, pv.Name, pv.Spec.NFS, found.readOnly, pv.Spec.MountOptions)
	case pv.Spec.CSI != nil && k.CSI != nil:
		source, err := csivolume.FromVolume(pv, claim, found.readOnly, moved)
		if err != nil {
			return err
		}
		return k.setUpCSI(ctx, s, v, source)
	default:
		const why = "persistent volume %s is of kind %s: %s"
		instead := podfields.Instead(kindOfSource(pv.Spec.PersistentVolumeSource))
		return &UnsupportedError{
			Kind: "persistentVolumeClaim",
			Why:  fmt.Sprintf(why, pv.Name, volumeKind(pv), instead),
		}
	}
	if err != nil {
		return err
	}
	found.usage = usageAt(found.path, found.block)
	s.claims[v.Name] = found
	return nil
}

// setUpInline has a driver mount a volume that is part of a pod.
func (k *Manager) setUpInline(ctx context.Context, s *podState, v *corev1.Volume) error {
	if k.CSI == nil {
		return &UnsupportedError{"csi", "it has no CSI drivers"}
	}
	source, err := csivolume.FromPod(s.pod, v)
	if err != nil {
		return err
	}
	return k.setUpCSI(ctx, s, v, source)
}

// setUpCSI has a driver mount a volume, or returns why it is not there yet.
func (k *Manager) setUpCSI(ctx context.Context, s *podState, v *corev1.Volume, source *csivolume.Source) error {
	uid := s.pod.UID
	place, err := k.CSI.Want(ctx, s.pod, v.Name, source)
	s.claims[v.Name] = claimed{
		path: place.Path, plugin: pluginCSI + source.Driver, readOnly: place.ReadOnly, byCSI: true,
		block:    place.Block,
		labelled: place.Labelled,
		usage: usage{
			source: "csi/" + source.Driver,
			kind:   source.Driver,
			ask: func(ctx context.Context) (core.Usage, error) {
				return k.CSI.Usage(ctx, uid, source)
			},
		},
	}
	return err
}

// setUpNFS has an export of a server mounted, or returns why it is not there yet.
func (k *Manager) setUpNFS(
	ctx context.Context, s *podState, v *corev1.Volume,
	name string, nfs *corev1.NFSVolumeSource, readOnly bool, options []string,
) error {
	if k.CSI == nil {
		return &UnsupportedError{"nfs", podfields.Instead("nfs")}
	}
	source, err := csivolume.FromNFS(name, nfs, readOnly, options)
	if err != nil {
		return err
	}
	place, err := k.CSI.Want(ctx, s.pod, v.Name, source)
	found := claimed{path: place.Path, plugin: pluginNFS, readOnly: place.ReadOnly, byCSI: true}
	found.labelled = true // an export has one label, by its mount options or the policy
	if err == nil {
		found.usage = usageAt(place.Path, false)
		found.usage.source = "nfs server " + nfs.Server // if it is away, that is so for all its exports
	}
	s.claims[v.Name] = found
	return err
}

// boundVolume returns the volume that a claim is bound to, and the claim. The error is in the kubelet's words.
func (k *Manager) boundVolume(
	ctx context.Context, pod *corev1.Pod, v *corev1.Volume, name string,
) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
	claim, err := k.Claims.Claim(ctx, pod.Namespace, name)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, nil, err
		}
	}
	if claim.DeletionTimestamp != nil {
		return nil, nil, errors.New("PVC is being deleted")
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, nil, errors.New("PVC is not bound")
	}
	pv, err := k.Claims.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		const text = "PV %s is not bound to PVC %s/%s (UID %s)"
		return nil, nil, fmt.Errorf(text, pv.Name, claim.Namespace, claim.Name, claim.UID)
	}
	if err := checkMode(pod, v.Name, isBlock(pv)); err != nil {
		return nil, nil, err
	}
	return pv, claim, nil
}

// reachable returns an error if a volume's node affinity does not match these labels.
func reachable(pv *corev1.PersistentVolume, labels map[string]string) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	matches, err := schedulinghelpers.MatchNodeSelectorTerms(node, pv.Spec.NodeAffinity.Required)
	if err == nil && !matches {
		err = errors.New("no matching NodeSelectorTerms")
	}
	return err
}

// volumeKind returns the kind of a volume that this agent does not mount.
func volumeKind(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI != nil {
		return "csi (driver " + pv.Spec.CSI.Driver + ")"
	}
	return kindOfSource(pv.Spec.PersistentVolumeSource)
}

func checkLocal(path string) error {
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("invalid path: %s: must be absolute and must not contain '..'", path)
	}
	switch st, err := os.Stat(path); {
	case err != nil:
		return fmt.Errorf("path %q does not exist: %w", path, errors.Unwrap(err))
	case !st.IsDir():
		return &UnsupportedError{"persistentVolumeClaim",
			fmt.Sprintf("local path %s is not a directory; devices are not formatted or mounted", path)}
	}
	return nil
}

// ShareWithGroup gives a volume to the pod's fsGroup: everything below it belongs to the group, which may read and
// write it. With fsGroupChangePolicy OnRootMismatch nothing is changed if the volume's root belongs to the group
// already. Containers of other pods may be using the volume at the same time: nothing outside the volume is changed,
// whatever links they create.
func ShareWithGroup(path string, pod *corev1.Pod) error {
	own := ownerOf(pod)
	if own.group == nil {
		return nil
	}
	gid := int(*own.group)
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch && isShared(path, gid) {
		return nil
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		return shareOne(root, name, d, gid)
	})
}

func shareOne(root *os.Root, name string, d fs.DirEntry, gid int) error {
	if err := root.Lchown(name, -1, gid); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !d.Type().IsRegular() && !d.IsDir() {
		return nil
	}
	st, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	mode := st.Mode() | 0o660
	if d.IsDir() {
		mode |= 0o110 | os.ModeSetgid
	}
	if err := root.Chmod(name, mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isShared reports whether the root of a volume is as ShareWithGroup leaves it.
func isShared(path string, gid int) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && int(st.Gid) == gid && st.Mode&(unix.S_ISGID|0o770) == unix.S_ISGID|0o770
}
