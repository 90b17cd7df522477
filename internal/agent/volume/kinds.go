package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// kind is what the agent does with the volumes of one kind. Claims are in claims.go.
type kind struct {
	// dir has the volumes of this kind of a pod (package poddir). Empty: they are elsewhere on the node.
	dir string
	// memory: the volumes are on the shared tmpfs, and a link is where the kubelet would have them.
	memory bool
	// render returns the content, of which the agent is the only writer: it is refreshed, and containers may only read
	// it. nil: containers may write.
	render func(*Manager, context.Context, *rendering, *podState, *corev1.Volume) error
	// prepare makes a volume that containers may write ready, once; nil where render is not.
	prepare func(*Manager, *corev1.Pod, *corev1.Volume) error
}

// kindNamed returns the kind with the API's name of a field of a VolumeSource, and whether the agent mounts it.
func kindNamed(name string) (k kind, mounted bool) {
	switch name {
	case "hostPath":
		check := func(_ *Manager, _ *corev1.Pod, v *corev1.Volume) error { return checkHostPath(v.HostPath) }
		return kind{prepare: check}, true
	case "image": // the runtime mounts it; see ContainerFacts.Images
		return kind{prepare: func(*Manager, *corev1.Pod, *corev1.Volume) error { return nil }}, true
	// agent/csivolume mounts these. Those before csi are translated first (migrated.go). SetUp keeps the paths
	// (podState.claims).
	case "awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume",
		"vsphereVolume", "csi":
		return kind{dir: poddir.CSI, prepare: func(*Manager, *corev1.Pod, *corev1.Volume) error { return nil }}, true
	case "nfs": // agent/csivolume mounts it, too
		return kind{dir: poddir.NFS, prepare: func(*Manager, *corev1.Pod, *corev1.Volume) error { return nil }}, true
	case "emptyDir":
		return kind{dir: poddir.EmptyDir, prepare: (*Manager).setUpEmptyDir}, true
	case "configMap":
		return kind{dir: poddir.ConfigMap, render: (*Manager).renderConfigMap}, true
	case "secret":
		return kind{dir: poddir.Secret, memory: true, render: (*Manager).renderSecret}, true
	case "projected":
		return kind{dir: poddir.Projected, memory: true, render: (*Manager).renderProjected}, true
	case "downwardAPI":
		return kind{dir: poddir.DownwardAPI, memory: true, render: (*Manager).renderDownward}, true
	}
	return kind{}, false
}

// kindOf returns the kind of v, and whether the agent mounts it.
func kindOf(v *corev1.Volume) (k kind, mounted bool) { return kindNamed(nameOfKind(v)) }

// setUpVolume sets up one volume, or updates its content.
func (k *Manager) setUpVolume(ctx context.Context, s *podState, v *corev1.Volume) error {
	name, isClaim := usesClaim(s.pod, v)
	kind, mounted := kindOf(v)
	switch {
	case isClaim && s.ready[v.Name]:
		return nil
	case isClaim:
		return k.setUpClaim(ctx, s, v, name)
	case !mounted:
		return &UnsupportedError{nameOfKind(v), podfields.Instead(nameOfKind(v))}
	case kind.render != nil:
		return k.setUpContent(ctx, s, v)
	case s.ready[v.Name]:
		return nil
	case v.CSI != nil:
		return k.setUpInline(ctx, s, v)
	case v.NFS != nil:
		return k.setUpNFS(ctx, s, v, v.Name, v.NFS, false, nil)
	case csiTranslator.IsInlineMigratable(v):
		return k.setUpMigrated(ctx, s, v)
	}
	return kind.prepare(k, s.pod, v)
}

// unfinished is the prefix of a directory that is being set up. No volume's name begins with a dot.
const unfinished = ".new-"

// setUpEmptyDir creates the directory under another name, sets its mode and owner, and renames it. Once it has its name
// it is ready, and changes of its mode by containers are never undone.
func (k *Manager) setUpEmptyDir(pod *corev1.Pod, v *corev1.Volume) error {
	source := v.EmptyDir
	if source == nil {
		source = &corev1.EmptyDirVolumeSource{}
	}
	plugin := filepath.Join(k.podDir(pod.UID), poddir.Volumes, poddir.EmptyDir)
	final := filepath.Join(plugin, v.Name)
	switch medium := source.Medium; {
	case medium == corev1.StorageMediumDefault:
		if st, err := os.Lstat(final); err == nil && st.IsDir() {
			return nil
		}
	case medium == corev1.StorageMediumMemory:
		return k.setUpTmpfs(pod, source, plugin, final)
	case isHugePages(medium):
		return k.setUpHugePages(pod, source, plugin, final)
	default:
		return &UnsupportedError{"emptyDir", fmt.Sprintf("unknown storage medium %q", medium)}
	}
	if err := os.Mkdir(plugin, dirMode); err != nil && !os.IsExist(err) {
		return err
	}
	temporary := filepath.Join(plugin, unfinished+v.Name)
	err := os.Mkdir(temporary, 0o777)
	if os.IsExist(err) { // left by an earlier try
		if err := removeTree(temporary); err != nil {
			return err
		}
		err = os.Mkdir(temporary, 0o777)
	}
	if err != nil {
		return err
	}
	if err := quota.Begin(temporary); err != nil && !errors.Is(err, quota.ErrNone) {
		slog.Warn("volume has no project quota; its files are counted instead", "pod", pod.UID, "volume", v.Name, "err", err)
	}
	if err := setOwner(temporary, 0o777, ownerOf(pod)); err != nil {
		return err
	}
	return os.Rename(temporary, final)
}

// setOwner sets the mode and, with an fsGroup, the group, group access and set-group-ID, so that the group owns files
// that are created below.
func setOwner(dir string, mode uint32, own owner) error {
	if own.group != nil {
		if err := os.Lchown(dir, -1, int(*own.group)); err != nil {
			return err
		}
		mode |= 0o770 | unix.S_ISGID
	}
	// not os.Chmod, since the mode has the kernel's bits; after chown, which clears set-ID bits
	return unix.Chmod(dir, mode)
}

// setUpTmpfs mounts a tmpfs. Its mode and owner are mount options, so it is ready as soon as it is mounted.
func (k *Manager) setUpTmpfs(pod *corev1.Pod, source *corev1.EmptyDirVolumeSource, plugin, final string) error {
	if err := os.MkdirAll(final, dirMode); err != nil {
		return err
	}
	mounted, err := crossesDevice(plugin, final)
	if err != nil || mounted {
		return err
	}
	options := []string{"mode=1777"}
	if own := ownerOf(pod); own.group != nil {
		options = []string{"mode=3777", "gid=" + strconv.FormatInt(*own.group, 10)}
	}
	if size := tmpfsSize(pod, source.SizeLimit, k.Allocatable()); size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	return mountTmpfs(final, options)
}

// tmpfsSize returns the smallest limit of a memory-backed volume: its own limit, the pod's memory limit, the node's
// allocatable memory. Zero means that there is none, and the kernel's default of half the memory applies.
func tmpfsSize(pod *corev1.Pod, own *resource.Quantity, allocatable corev1.ResourceList) int64 {
	bounds := []int64{podMemoryLimit(pod), allocatable.Memory().Value()}
	if own != nil {
		bounds = append(bounds, own.Value())
	}
	bounds = slices.DeleteFunc(bounds, func(b int64) bool { return b <= 0 })
	if len(bounds) == 0 {
		return 0
	}
	return slices.Min(bounds)
}

// podMemoryLimit returns the pod's memory limit in bytes; zero if one of its containers has none.
func podMemoryLimit(pod *corev1.Pod) int64 {
	if r := pod.Spec.Resources; r != nil && !r.Limits.Memory().IsZero() {
		return r.Limits.Memory().Value()
	}
	var together, alone, sidecars int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		limit := c.Resources.Limits.Memory().Value()
		if limit == 0 {
			return 0
		}
		if translate.IsSidecar(c) {
			sidecars += limit
		}
		alone = max(alone, sidecars+limit)
	}
	for i := range pod.Spec.Containers {
		limit := pod.Spec.Containers[i].Resources.Limits.Memory().Value()
		if limit == 0 {
			return 0
		}
		together += limit
	}
	return max(together+sidecars, alone) + pod.Spec.Overhead.Memory().Value()
}

// checkHostPath checks the type of a host path, and creates it if the type demands that. The pod's author chooses the
// path, which may lead anywhere; the API server's admission decides who may use hostPath.
func checkHostPath(source *corev1.HostPathVolumeSource) error {
	path := source.Path
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", path)
	}
	if !filepath.IsAbs(path) {
		return fmt.Errorf("invalid HostPath `%s`: must be absolute", path)
	}
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	st, err := os.Stat(path)
	is := func(mode os.FileMode) bool { return err == nil && st.Mode().Type() == mode }
	absent := os.IsNotExist(err)
	ok, want := false, ""
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if absent {
			return os.MkdirAll(path, 0o755)
		}
		ok, want = is(os.ModeDir), "directory"
	case corev1.HostPathDirectory:
		ok, want = is(os.ModeDir), "directory"
	case corev1.HostPathFileOrCreate:
		if absent {
			// O_NONBLOCK: if a FIFO is created there at this moment, opening it must not wait.
			file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o644)
			if err != nil {
				return err
			}
			return file.Close()
		}
		ok, want = is(0), "file"
	case corev1.HostPathFile:
		ok, want = is(0), "file"
	case corev1.HostPathSocket:
		ok, want = is(os.ModeSocket), "socket file"
	case corev1.HostPathCharDev:
		ok, want = is(os.ModeDevice|os.ModeCharDevice), "character device"
	case corev1.HostPathBlockDev:
		ok, want = is(os.ModeDevice), "block device"
	default:
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", path, want)
	}
	return nil
}
