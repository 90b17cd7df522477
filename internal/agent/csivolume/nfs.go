package csivolume

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// Volumes of kind nfs have no driver. The program mount mounts them, with its helper mount.nfs. Each pod has a mount of
// its own, at the kubelet's path. There is no record beside it: the mount table says what is mounted.
//
//	<root>/pods/<uid>/volumes/kubernetes.io~nfs/<name>
//
// core.CallMax does not bound a mount that hangs because its server does not answer: after the agent gave up, the mount
// could still succeed, unnoticed. It delays its own pod only.

// nfsType is the type of file system that the program mount is given.
const nfsType = "nfs"

// unmountMax is how long umount may take until it is told to use force (upstream's unMountTimeout, 1 min).
const unmountMax = time.Minute

// FromNFS returns the source of a volume of kind nfs. name is that of the persistent volume, or of the volume in its
// pod. options are the persistent volume's.
func FromNFS(name string, s *corev1.NFSVolumeSource, readOnly bool, options []string) (*Source, error) {
	switch {
	case name == "" || name[0] == '.' || filepath.Base(name) != name:
		return nil, fmt.Errorf("volume name %q: want one path element", name)
	case s.Server == "" || s.Server[0] == '-':
		return nil, fmt.Errorf("nfs server %q: want a host name or an IP address", s.Server)
	case !filepath.IsAbs(s.Path):
		return nil, fmt.Errorf("nfs path %q: want an absolute path on the server", s.Path)
	}
	server := s.Server
	if net.ParseIP(server) != nil && strings.Contains(server, ":") {
		server = "[" + server + "]"
	}
	return &Source{
		id:           id{Spec: name, NFS: true},
		readOnly:     readOnly || s.ReadOnly,
		mountOptions: options,
		export:       server + ":" + s.Path,
	}, nil
}

// mountNFS mounts an export for a pod, unless it is mounted.
func (k *Manager) mountNFS(j job) (core.Outcome, error) {
	target := k.target(j.id, podOf(j))
	mounted, err := isMounted(target)
	if err != nil {
		return core.Unsent, err
	}
	if mounted {
		return core.Done, nil // mounted by an earlier call or an earlier agent
	}
	if err := os.MkdirAll(target, dirMode); err != nil {
		return core.Unsent, err
	}
	options := slices.Clone(j.source.mountOptions)
	if j.source.readOnly {
		options = append(options, "ro")
	}
	err = k.mounter.MountSensitiveWithoutSystemd(j.source.export, target, k.nfsType, options, nil)
	if err == nil {
		return core.Done, nil
	}
	mounted, problem := isMounted(target)
	if mounted || problem != nil {
		return core.Unclear, errors.Join(err, problem)
	}
	if problem := durable.Remove(target); problem != nil {
		return core.Unclear, errors.Join(err, problem)
	}
	return core.Failed, err
}

// unmountNFS unmounts a pod's volume, with force if the server does not answer.
func (k *Manager) unmountNFS(j job) (core.Outcome, error) {
	target := k.target(j.id, podOf(j))
	mounted, err := isMounted(target)
	if err == nil && mounted {
		err = k.mounter.UnmountWithForce(target, unmountMax)
		mounted, _ = isMounted(target)
	}
	switch {
	case err != nil:
		return core.Unclear, err
	case mounted:
		return core.Unclear, fmt.Errorf("%s is mounted more than once", target)
	}
	if err := durable.Remove(target); err != nil {
		return core.Unclear, err
	}
	return core.Done, nil
}

func isMounted(path string) (bool, error) {
	points, err := mount.Below(path)
	return slices.Contains(points, path), err
}

// findNFS passes to the core the exports that earlier agents or a kubelet mounted for pods. If nothing is mounted at a
// directory, a mount may still be running.
func (k *Manager) findNFS(points []string) {
	dirs, _ := filepath.Glob(filepath.Join(k.RootDir, poddir.Pods, "*", poddir.Volumes, poddir.NFS, "*"))
	for _, dir := range dirs {
		i := id{Spec: filepath.Base(dir), NFS: true}
		uid := types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir)))))
		state := core.Uncertain
		if slices.Contains(points, dir) {
			state = core.Yes
		}
		slog.Debug("nfs volume found", "volume", i.Spec, "uid", uid, "mounted", state == core.Yes)
		name := i.name(uid)
		k.known(name, i).pods[uid] = &want{id: i}
		k.r.FoundPublished(name, core.Pod(uid), core.Spec{}, state)
	}
}
