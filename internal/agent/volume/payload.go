package volume

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// payload is the content of a volume: files by relative path.
type payload map[string]file

type file struct {
	data []byte
	mode uint32 // permission bits, without those that an fsGroup adds
	user *int64 // owner; nil: root
}

// owner says who besides root may use a volume: the pod's fsGroup, and the user of its containers if all have the same.
type owner struct{ group, user *int64 }

func ownerOf(pod *corev1.Pod) owner {
	var own owner
	var podUser *int64
	if c := pod.Spec.SecurityContext; c != nil {
		own.group, podUser = c.FSGroup, c.RunAsUser
	}
	first := true
	for c := range containers(pod) {
		user := podUser
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil || !first && *user != *own.user {
			own.user = nil
			break
		}
		own.user, first = user, false
	}
	return own
}

// containers yields every container of pod, of all three kinds.
func containers(pod *corev1.Pod) func(func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(&c) {
				return
			}
		}
	}
}

// Modes of the directories of payloads, as in the kubelet.
const (
	contentDirMode = 0o777  // configMap: on the root directory's file system
	memoryDirMode  = 0o1777 // the others: the mode of a new tmpfs
	payloadDirMode = 0o755
)

// defaultMode is the mode of files in a content volume if the API server did not set one (static pods).
const defaultMode = 0o644

func modeOf(modes ...*int32) uint32 {
	for _, m := range modes {
		if m != nil {
			return uint32(*m) & 0o777
		}
	}
	return defaultMode
}

// setUpContent updates a content volume.
func (k *Manager) setUpContent(ctx context.Context, s *podState, v *corev1.Volume) error {
	content, err := k.render(ctx, s, v)
	if err != nil {
		return err
	}
	if content, err = content.clean(); err != nil {
		return err
	}
	own := ownerOf(s.pod)
	sum := content.sum(own)
	if s.wrote[v.Name] == sum {
		return nil
	}
	if err := k.fits(s, v, content); err != nil {
		return err
	}
	dir := k.pathOf(s, s.pod.UID, v)
	fresh := false
	if !s.ready[v.Name] {
		if fresh, err = k.makeContentDir(s.pod, v, dir, own); err != nil {
			return err
		}
	}
	replaced := ""
	if fresh || !holds(dir, content, own) {
		replaced, err = write(dir, content, own, fresh)
	}
	if replaced != "" && s.ready[v.Name] {
		time.AfterFunc(replacedStays, func() { k.removeReplaced(s, filepath.Join(dir, replaced)) })
	}
	if err != nil {
		return err
	}
	s.wrote[v.Name], s.uses[v.Name] = sum, content.use()
	if !fresh && (replaced == "" || !s.ready[v.Name]) {
		return removePayloads(dir) // recovered after a restart
	}
	return nil
}

// replacedStays is how long a replaced payload is kept for readers that are just opening it. Chosen: far longer than
// resolving a path or reading a few files takes, and short enough that a withdrawn secret is soon removed.
const replacedStays = time.Second

func (k *Manager) removeReplaced(s *podState, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || k.ctx.Err() != nil {
		return
	}
	if err := removeTree(dir); err != nil {
		slog.Warn("volume: a replaced payload was not removed", "error", err)
	}
}

// makeContentDir creates the volume's directory, the mount points of other volumes in it, and its visible name.
func (k *Manager) makeContentDir(pod *corev1.Pod, v *corev1.Volume, dir string, own owner) (fresh bool, err error) {
	kind, _ := kindOf(v)
	mode := uint32(contentDirMode)
	if kind.memory {
		mode = memoryDirMode
	}
	if fresh, err = mkdirAll(filepath.Dir(filepath.Dir(dir)), dir); err != nil {
		return false, err
	}
	if err := setOwnerReadOnly(dir, mode, own); err != nil {
		return false, err
	}
	if err := makeNestedMountpoints(pod, v.Name, dir); err != nil {
		return false, err
	}
	if !kind.memory {
		return fresh, nil
	}
	visible := k.visiblePath(pod.UID, kind.dir, v.Name)
	err = os.Symlink(dir, visible)
	if os.IsNotExist(err) {
		if err = os.Mkdir(filepath.Dir(visible), dirMode); err == nil {
			err = os.Symlink(dir, visible)
		}
	}
	if os.IsExist(err) && dir != visible && isDir(visible) {
		// An agent was killed while it handed the volume over, or took it back: the directory is empty and not mounted.
		if err = os.Remove(visible); err == nil {
			err = os.Symlink(dir, visible)
		}
	}
	if err != nil && !os.IsExist(err) {
		return false, err
	}
	return fresh, nil
}

func isDir(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}

// mkdirAll creates dir and its parent below base. It tries the usual case of one missing level first. It returns
// whether dir is new.
func mkdirAll(base, dir string) (fresh bool, err error) {
	for _, d := range []string{"", base, filepath.Dir(dir)} {
		if d != "" {
			if err := os.Mkdir(d, dirMode); err != nil && !os.IsExist(err) {
				return false, err
			}
		}
		switch err = os.Mkdir(dir, dirMode); {
		case err == nil:
			return true, nil
		case os.IsExist(err):
			return false, nil
		case !os.IsNotExist(err):
			return false, err
		}
	}
	return false, err
}

// makeNestedMountpoints creates directories in a volume that containers cannot write to, on which they mount other
// volumes. The runtime could not create them.
func makeNestedMountpoints(pod *corev1.Pod, volume, dir string) error {
	nested := map[string]bool{}
	for c := range containers(pod) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			base := path.Clean("/" + outer.MountPath)
			for _, inner := range c.VolumeMounts {
				if below, ok := strings.CutPrefix(path.Clean("/"+inner.MountPath), strings.TrimSuffix(base, "/")+"/"); ok &&
					below != "" {
					nested[below] = true
				}
			}
		}
	}
	if len(nested) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, n := range slices.Sorted(maps.Keys(nested)) {
		if err := root.MkdirAll(n, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make nested mount point %s: %w", n, err)
		}
	}
	return nil
}

// pathMax is the longest path of a file within a volume, in bytes: PATH_MAX of Linux (limits.h), as in the kubelet.
const pathMax = 4096

// clean normalizes the paths. It returns an error for paths that lead outside of the volume or collide with the agent's
// own names.
func (p payload) clean() (payload, error) {
	out := make(payload, len(p))
	for name, f := range p {
		cleaned := path.Clean(name)
		elements := strings.Split(name, "/")
		switch {
		case name == "" || cleaned == ".":
			return nil, fmt.Errorf("invalid path: must not be empty: %q", name)
		case name[0] == '/':
			return nil, fmt.Errorf("invalid path: must be relative path: %s", name)
		case len(name) > pathMax || strings.ContainsRune(name, 0):
			return nil, fmt.Errorf("invalid path: must be at most %d characters, without NUL", pathMax)
		case slices.Contains(elements, ".."):
			return nil, fmt.Errorf("invalid path: must not contain '..': %s", name)
		case strings.HasPrefix(cleaned, ".."):
			return nil, fmt.Errorf("invalid path: must not start with '..': %s", name)
		}
		for _, e := range elements {
			if len(e) > elementMax {
				return nil, fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", elementMax)
			}
		}
		out[cleaned] = f
	}
	for name := range out {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if _, ok := out[parent]; ok {
				return nil, fmt.Errorf("invalid path: %s is a file and cannot contain %s", parent, name)
			}
		}
	}
	return out, nil
}

func (p payload) names() []string { return slices.Sorted(maps.Keys(p)) }

// payloadSum identifies a payload with its owner.
type payloadSum [sha256.Size]byte

func (p payload) sum(own owner) (sum payloadSum) {
	h := sha256.New()
	var eight [8]byte
	number := func(n int64) { binary.LittleEndian.PutUint64(eight[:], uint64(n)); h.Write(eight[:]) }
	optional := func(n *int64) {
		if n == nil {
			number(-1)
			return
		}
		number(*n)
	}
	optional(own.group)
	for _, name := range p.names() {
		f := p[name]
		number(int64(len(name)))
		h.Write([]byte(name))
		number(int64(f.mode))
		optional(f.user)
		number(int64(len(f.data)))
		h.Write(f.data)
	}
	h.Sum(sum[:0])
	return sum
}

func isTrue(b *bool) bool { return b != nil && *b }
