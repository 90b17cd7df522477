package volume

import (
	"fmt"
	"hash/fnv"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

const (
	etcHosts = "/etc/hosts"

	// logsKept is how many termination logs of a container are kept, the latest ones; the newest is read when the
	// container ends. Chosen: more than the number of dead containers that are kept. Without a bound, a container that
	// crashes forever fills the disk.
	logsKept = 8
)

// ContainerFacts are the inputs of Mounts for the container that is about to be created.
type ContainerFacts struct {
	Attempt uint32                 // how often it was created before
	Env     []*runtimeapi.KeyValue // its environment, for subPathExpr
	PodIPs  []string               // of its sandbox, primary first

	// RecursiveReadOnly means that the pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly bool

	// Images are those of the image volumes that the container mounts, by volume: the runtime has them.
	Images map[string]*runtimeapi.ImageSpec
	// ImageDirectories means that the runtime mounts single directories of images.
	ImageDirectories bool
}

// Mounts returns the mounts of container c: those of its specification, in order, then the hosts file and the
// termination log, which it creates. It bind-mounts subPaths. It must be called when the container is created. An error
// is a configuration error of the container and may be shown to the pod's author: it contains no host path that the pod
// does not name.
func (k *Manager) Mounts(pod *corev1.Pod, c *corev1.Container, facts ContainerFacts) ([]*runtimeapi.Mount, error) {
	if err := checkElement("container name", c.Name); err != nil {
		return nil, err
	}
	s := k.lockPod(pod.UID)
	defer s.mu.Unlock()
	mounts := make([]*runtimeapi.Mount, 0, len(c.VolumeMounts)+2)
	ownHosts := true
	for i := range c.VolumeMounts {
		m, err := k.mount(s, pod, c, i, facts)
		if err != nil {
			return nil, err
		}
		ownHosts = ownHosts && c.VolumeMounts[i].MountPath != etcHosts
		mounts = append(mounts, m)
	}
	if ownHosts && (len(facts.PodIPs) > 0 || pod.Spec.HostNetwork) {
		file, err := k.writeHosts(pod, facts.PodIPs)
		if err != nil {
			return nil, fmt.Errorf("write hosts file: %w", err)
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: etcHosts, HostPath: file, SelinuxRelabel: k.selinux})
	}
	if c.TerminationMessagePath != "" {
		file, err := k.makeTerminationLog(pod.UID, c.Name, facts.Attempt)
		if err != nil {
			return nil, fmt.Errorf("create termination log: %w", err)
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: absolute(c.TerminationMessagePath), HostPath: file,
			SelinuxRelabel: k.selinux})
	}
	return mounts, nil
}

// BlockDevices returns the block volumes of container c.
func (k *Manager) BlockDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error) {
	if len(c.VolumeDevices) == 0 {
		return nil, nil
	}
	s := k.lockPod(pod.UID)
	defer s.mu.Unlock()
	var devices []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		behind := s.claims[d.Name]
		if !s.ready[d.Name] || !behind.block {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		permissions := "mrw"
		if behind.readOnly {
			permissions = "r"
		}
		devices = append(devices, &runtimeapi.Device{
			ContainerPath: d.DevicePath, HostPath: behind.path, Permissions: permissions,
		})
	}
	return devices, nil
}

// mount returns container c's i-th volume mount.
func (k *Manager) mount(s *podState, pod *corev1.Pod, c *corev1.Container, i int,
	facts ContainerFacts) (*runtimeapi.Mount, error) {
	vm := &c.VolumeMounts[i]
	v := volumeNamed(pod, vm.Name)
	if v == nil || !s.ready[vm.Name] {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	if v.Image != nil {
		return imageMount(vm, c.Name, facts)
	}
	source := k.pathOf(s, pod.UID, v)
	behind, isClaim := s.claims[v.Name]
	if isClaim {
		source = behind.path
	}
	subPath, err := subPathOf(vm, c.Name, facts)
	if err != nil {
		return nil, err
	}
	if subPath != "" {
		target := filepath.Join(k.podDir(pod.UID), poddir.SubPaths, vm.Name, c.Name, strconv.Itoa(i))
		if err := bindSubPath(source, subPath, target); err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
		}
		source = target
	}
	propagation, err := propagationOf(vm)
	if err != nil {
		return nil, err
	}
	recursive, err := RecursiveReadOnly(vm, facts.RecursiveReadOnly)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	return &runtimeapi.Mount{
		ContainerPath:     absolute(vm.MountPath),
		HostPath:          source,
		Readonly:          vm.ReadOnly || readOnly(v) || behind.readOnly,
		RecursiveReadOnly: recursive,
		Propagation:       propagation,
		SelinuxRelabel:    k.selinux && v.HostPath == nil && (!isClaim || behind.byCSI) && !behind.labelled,
	}, nil
}

// subPathOf returns the path within the volume that a mount is about; empty: the volume.
func subPathOf(vm *corev1.VolumeMount, container string, facts ContainerFacts) (string, error) {
	subPath := vm.SubPath
	if vm.SubPathExpr != "" {
		path, missing, err := env.ExpandPath(vm.SubPathExpr, lookupIn(facts.Env))
		switch {
		case len(missing) > 0:
			return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
		case err != nil:
			return "", fmt.Errorf("subPathExpr of volumeMount %q of container %q: %w", vm.Name, container, err)
		}
		subPath = path
	}
	if subPath == "" {
		return "", nil
	}
	return subPath, checkSubPath(subPath)
}

// imageMount returns the mount of an image volume, which the runtime makes. It is read-only, and the runtime looks up
// the subPath in it.
func imageMount(vm *corev1.VolumeMount, container string, facts ContainerFacts) (*runtimeapi.Mount, error) {
	image := facts.Images[vm.Name]
	if image == nil {
		return nil, fmt.Errorf("image of volume %q is not there to mount into container %q", vm.Name, container)
	}
	subPath, err := subPathOf(vm, container, facts)
	if err != nil {
		return nil, err
	}
	if subPath != "" && !facts.ImageDirectories {
		return nil, fmt.Errorf("subPath %q of volumeMount %q of container %q: this container runtime mounts whole images "+
			"only; containerd 2.2 and CRI-O 1.33 mount directories of them", subPath, vm.Name, container)
	}
	recursive, err := RecursiveReadOnly(vm, facts.RecursiveReadOnly)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	propagation, err := propagationOf(vm)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.Mount{
		ContainerPath:     absolute(vm.MountPath),
		Image:             image,
		ImageSubPath:      subPath,
		Readonly:          true,
		RecursiveReadOnly: recursive,
		Propagation:       propagation,
	}, nil
}

func lookupIn(vars []*runtimeapi.KeyValue) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if v.Key == name {
				return string(v.Value), true
			}
		}
		return "", false
	}
}

func absolute(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return "/" + p
}

func propagationOf(vm *corev1.VolumeMount) (runtimeapi.MountPropagation, error) {
	if vm.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *vm.MountPropagation {
	case corev1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *vm.MountPropagation)
}

// RecursiveReadOnly returns whether the mount must be recursively read-only. It returns an error for the combinations
// that the API refuses.
func RecursiveReadOnly(vm *corev1.VolumeMount, runtimeCan bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	switch {
	case !vm.ReadOnly:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", vm.Name)
	case vm.MountPropagation != nil && *vm.MountPropagation != corev1.MountPropagationNone:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q",
			vm.Name, *vm.MountPropagation)
	case *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible:
		return runtimeCan, nil
	case *vm.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("unknown recursive read-only mode %q", *vm.RecursiveReadOnly)
	case !runtimeCan:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime",
			vm.Name)
	}
	return true, nil
}

// writeHosts writes the pod's hosts file and returns its path. All containers of the pod mount this one file, so it is
// overwritten in place, and only if it differs: a container that reads it at this moment does not find it empty.
func (k *Manager) writeHosts(pod *corev1.Pod, ips []string) (string, error) {
	var text []byte
	if pod.Spec.HostNetwork {
		host, err := readHostsOfHost(etcHosts)
		if err != nil {
			return "", err
		}
		text = dns.HostNetworkHostsFile(host, pod.Spec.HostAliases)
	} else {
		hostname, domain, err := dns.Of(pod, k.ClusterDomain)
		if err != nil {
			return "", err
		}
		text = dns.HostsFile(ips, hostname, domain, pod.Spec.HostAliases)
	}
	file := filepath.Join(k.podDir(pod.UID), "etc-hosts")
	if untrusted.HasContent(file, text) { // containers can write to it, and make it as long as they like
		return file, nil
	}
	return file, overwrite(file, text, 0o644)
}

// hostsMax bounds the host's own hosts file, in bytes. Chosen: a large one that blocks advertisements has 6 MB. A pod
// with a hostPath of /etc can make it longer than the machine's memory.
const hostsMax = 16 << 20

// readHostsOfHost returns the host's hosts file, which is a link in some distributions; nothing if there is none.
func readHostsOfHost(path string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return untrusted.Read(real, hostsMax)
}

// makeTerminationLog creates the empty file for a container's termination message.
func (k *Manager) makeTerminationLog(uid types.UID, container string, attempt uint32) (string, error) {
	dir := filepath.Join(k.podDir(uid), "containers", container)
	file := filepath.Join(dir, attemptHash(container, attempt))
	err := overwrite(file, nil, 0o666)
	if os.IsNotExist(err) {
		if err = os.MkdirAll(dir, dirMode); err == nil {
			err = overwrite(file, nil, 0o666)
		}
	}
	if err == nil && attempt >= logsKept {
		err = os.Remove(filepath.Join(dir, attemptHash(container, attempt-logsKept)))
		if os.IsNotExist(err) {
			err = nil
		}
	}
	return file, err
}

// attemptHash returns the name of one attempt's termination log: eight hex digits, like the kubelet's random ones.
func attemptHash(container string, attempt uint32) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%d", container, attempt)
	return fmt.Sprintf("%08x", h.Sum32())
}

// overwrite makes file contain text with exactly mode; an existing file is kept. If the disk is full, the file keeps
// its content, since space is allocated before anything is written. It does not wait for a process that has the file
// open (O_NONBLOCK: a container may have a lease).
func overwrite(file string, text []byte, mode uint32) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	if len(text) > 0 {
		err := unix.Fallocate(fd, 0, 0, int64(len(text)))
		if err != nil && err != unix.EOPNOTSUPP && err != unix.ENOSYS {
			return &os.PathError{Op: "take room for", Path: file, Err: err}
		}
		if _, err := f.WriteAt(text, 0); err != nil {
			return err
		}
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode)
}
