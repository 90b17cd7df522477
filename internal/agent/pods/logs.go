package pods

import (
	"errors"
	"fmt"
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

// linkLog keeps the flat directory of links that log collectors follow, as upstream lays it out:
// <LogDir>/../containers/<pod>_<namespace>_<container>-<id>.log. A link that cannot be made costs the collectors, not
// the pod.
func (r *Runner) linkLog(pod *corev1.Pod, c *corev1.Container, id, target string) {
	dir := r.linkDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		slog.Warn("log link not made", "dir", dir, "err", err)
		return
	}
	link := filepath.Join(dir, fmt.Sprintf("%s_%s_%s-%s.log", pod.Name, pod.Namespace, c.Name, id))
	if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
		slog.Warn("log link not made", "link", link, "err", err)
	}
}

func (r *Runner) linkDir() string { return filepath.Join(filepath.Dir(r.LogDir), "containers") }

// removeLog removes the log of one run, with its rotated parts and its link.
func (r *Runner) removeLog(e *entry, a podlife.Action) {
	r.removeLinks(a.ID)
	e.mu.Lock()
	pod := e.pod
	e.mu.Unlock()
	if pod == nil {
		return
	}
	old, _ := filepath.Glob(filepath.Join(r.requests().LogDirectory(pod), a.Container, fmt.Sprintf("%d.log*", a.Attempt)))
	for _, path := range old {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("old log not removed", "path", path, "err", err)
		}
	}
}

func (r *Runner) removeLinks(id string) {
	links, _ := filepath.Glob(filepath.Join(r.linkDir(), "*-"+id+".log"))
	for _, link := range links {
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("log link not removed", "link", link, "err", err)
		}
	}
}

// removeLogs removes everything a pod that has gone left in the log directory, and the links to it. Only the uid is trusted: it is
// what makes the directory's name unique, and of remains of an earlier agent's pod nothing else is known.
func (r *Runner) removeLogs(uid types.UID) {
	dirs, _ := filepath.Glob(filepath.Join(r.LogDir, "*_"+string(uid)))
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			slog.Warn("logs not removed", "dir", dir, "err", err)
		}
	}
	links, _ := os.ReadDir(r.linkDir())
	for _, link := range links {
		path := filepath.Join(r.linkDir(), link.Name())
		if target, err := os.Readlink(path); err == nil && strings.Contains(target, "_"+string(uid)+"/") {
			_ = os.Remove(path)
		}
	}
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
