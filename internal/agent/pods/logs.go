package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// Log files and last words of containers: made by the runtime, kept and removed by us.

// readBounded returns at most limit bytes of a file, as text; a file that is not there has nothing to say, nor has what a
// container put in its place.
func readBounded(path string, limit int64) string {
	if path == "" {
		return ""
	}
	content, err := untrusted.Head(path, limit)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(content), "?")
}

// logNamesMax is how many names of a log directory, and of the one of links, are looked at: see podlog.Rotator. What a pod that makes
// more of them keeps goes with its directory.
const logNamesMax = 10_000

// linkLog keeps the flat directory of links that log collectors follow, as upstream lays it out:
// <LogDir>/../containers/<pod>_<namespace>_<container>-<id>.log. A link that cannot be made costs the collectors, not
// the pod.
func (r *Runner) linkLog(pod *corev1.Pod, c *corev1.Container, id, target string) {
	if err := os.Mkdir(r.linkDir(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		slog.Warn("log link not made", "err", err)
		return
	}
	dir, err := r.openLinks()
	if err != nil {
		slog.Warn("log link not made", "err", err)
		return
	}
	defer dir.Close()
	name := fmt.Sprintf("%s_%s_%s-%s.log", pod.Name, pod.Namespace, c.Name, id)
	if err := dir.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
		slog.Warn("log link not made", "err", err)
	}
}

func (r *Runner) linkDir() string { return filepath.Join(filepath.Dir(r.LogDir), "containers") }

// openLinks opens the directory of links. How what it is in is reached is trusted; a link in its own place is not followed.
func (r *Runner) openLinks() (*untrusted.Dir, error) {
	return untrusted.OpenDir(filepath.Dir(r.LogDir), r.linkDir())
}

// removeLog removes the log of one run, with its rotated parts and its link.
func (r *Runner) removeLog(e *entry, a podlife.Action) {
	r.removeLinks(func(_ *untrusted.Dir, name string) bool { return strings.HasSuffix(name, "-"+a.ID+".log") })
	e.mu.Lock()
	pod := e.pod
	e.mu.Unlock()
	if pod == nil {
		return
	}
	dir, err := untrusted.OpenDir(r.LogDir, filepath.Join(r.requests().LogDirectory(pod), a.Container))
	removeNames(dir, err, func(_ *untrusted.Dir, name string) bool {
		return strings.HasPrefix(name, fmt.Sprintf("%d.log", a.Attempt))
	})
}

func (r *Runner) removeLinks(which func(*untrusted.Dir, string) bool) {
	dir, err := r.openLinks()
	removeNames(dir, err, which)
}

// removeNames removes names of a directory, as far as it could be opened, and closes it.
func removeNames(dir *untrusted.Dir, err error, which func(*untrusted.Dir, string) bool) {
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		slog.Warn("old logs not removed", "err", err)
		return
	}
	defer dir.Close()
	names, _, err := dir.Names(logNamesMax)
	if err != nil {
		slog.Warn("old logs not removed", "err", err)
	}
	for _, name := range names {
		if !which(dir, name) {
			continue
		}
		if err := dir.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("old log not removed", "err", err)
		}
	}
}

// removeLogs removes everything a pod that has gone left in the log directory, and the links to it. Only the uid is trusted: it is
// what makes the directory's name unique, and of remains of an earlier agent's pod nothing else is known.
func (r *Runner) removeLogs(uid types.UID) {
	if err := r.removeLogDirs(uid); err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Warn("logs not removed", "uid", uid, "err", err)
	}
	r.removeLinks(func(dir *untrusted.Dir, name string) bool {
		target, err := dir.Readlink(name)
		return err == nil && strings.Contains(target, "_"+string(uid)+"/")
	})
}

func (r *Runner) removeLogDirs(uid types.UID) error {
	root, err := os.OpenRoot(r.LogDir)
	if err != nil {
		return err
	}
	defer root.Close()
	dirs, err := fs.ReadDir(root.FS(), ".")
	problems := []error{err}
	for _, dir := range dirs {
		if strings.HasSuffix(dir.Name(), "_"+string(uid)) {
			problems = append(problems, root.RemoveAll(dir.Name()))
		}
	}
	return errors.Join(problems...)
}

// logDirName is <namespace>_<name>_<uid>; only the uid matters here.
var logDirName = regexp.MustCompile(`^[^_]+_[^_]+_([0-9a-f-]+)$`)

// loggedPods returns the pods that have a log directory. What is not named like one of ours is somebody else's.
func (r *Runner) loggedPods() (uids []types.UID) {
	dirs, err := os.ReadDir(r.LogDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Warn("left-over log directories not read", "err", err)
	}
	for _, dir := range dirs {
		if parts := logDirName.FindStringSubmatch(dir.Name()); parts != nil && dir.IsDir() {
			uids = append(uids, types.UID(parts[1]))
		}
	}
	return uids
}

// eventTarget is the pod, or the part of it that an event is about.
func eventTarget(pod *corev1.Pod, container string) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	if container == "" {
		return ref
	}
	ref.FieldPath = "spec.containers{" + container + "}"
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container {
			ref.FieldPath = "spec.initContainers{" + container + "}"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			ref.FieldPath = "spec.ephemeralContainers{" + container + "}"
		}
	}
	return ref
}
