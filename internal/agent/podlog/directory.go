package podlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// Directory is where the runtime writes the logs of a node's containers:
// <Directory>/<namespace>_<pod>_<uid>/<container>/<attempt>.log. Beside it is a flat directory of symbolic links to the
// logs, which log collectors follow. It is laid out as upstream's:
// <Directory>/../containers/<pod>_<namespace>_<container>-<id>.log.
//
// Pods may write there (a hostPath), so nothing behind a link is read, written or removed.
type Directory string

// Link creates the symbolic link to the log of a run. An error is only logged, since the pod does not need the link.
func (d Directory) Link(namespace, pod, container, id, target string) {
	if err := os.Mkdir(d.links(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		slog.Warn("log link not made", "err", err)
		return
	}
	dir, err := d.openLinks()
	if err != nil {
		slog.Warn("log link not made", "err", err)
		return
	}
	defer dir.Close()
	name := fmt.Sprintf("%s_%s_%s-%s.log", pod, namespace, container, id)
	if err := dir.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
		slog.Warn("log link not made", "err", err)
	}
}

func (d Directory) links() string { return filepath.Join(filepath.Dir(string(d)), "containers") }

// openLinks opens the directory of links. The path of its parent is trusted; if the directory itself is a symbolic
// link, that is not followed.
func (d Directory) openLinks() (*untrusted.Dir, error) {
	return untrusted.OpenDir(filepath.Dir(string(d)), d.links())
}

// RemoveRun removes the log of one run, with its rotated files and its link. logs is the directory of the container's
// logs; empty: it is not known, and only the link is removed.
func (d Directory) RemoveRun(logs, id string, attempt uint32) {
	d.removeLinks(func(_ *untrusted.Dir, name string) bool { return strings.HasSuffix(name, "-"+id+".log") })
	if logs == "" {
		return
	}
	dir, err := untrusted.OpenDir(string(d), logs)
	removeNames(dir, err, func(_ *untrusted.Dir, name string) bool {
		return strings.HasPrefix(name, fmt.Sprintf("%d.log", attempt))
	})
}

func (d Directory) removeLinks(which func(*untrusted.Dir, string) bool) {
	dir, err := d.openLinks()
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
	names, _, err := dir.Names(namesMax)
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

// RemovePod removes the logs of a pod that is gone, and the links to them. It finds the directory by the UID alone. The
// UID makes the directory's name unique, and nothing else is known of a pod that an earlier agent left.
func (d Directory) RemovePod(uid string) {
	if err := d.removeDirs(uid); err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Warn("logs not removed", "uid", uid, "err", err)
	}
	d.removeLinks(func(dir *untrusted.Dir, name string) bool {
		target, err := dir.Readlink(name)
		return err == nil && strings.Contains(target, "_"+uid+"/")
	})
}

func (d Directory) removeDirs(uid string) error {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return err
	}
	defer root.Close()
	dirs, err := fs.ReadDir(root.FS(), ".")
	problems := []error{err}
	for _, dir := range dirs {
		if strings.HasSuffix(dir.Name(), "_"+uid) {
			problems = append(problems, root.RemoveAll(dir.Name()))
		}
	}
	return errors.Join(problems...)
}

// podDir is <namespace>_<name>_<uid>; only the uid matters here.
var podDir = regexp.MustCompile(`^[^_]+_[^_]+_([0-9a-f-]+)$`)

// Pods returns the UIDs of the pods that have logs. It skips names that are not those of pods' directories: they belong
// to other programs.
func (d Directory) Pods() (uids []string) {
	dirs, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Warn("left-over log directories not read", "err", err)
	}
	for _, dir := range dirs {
		if parts := podDir.FindStringSubmatch(dir.Name()); parts != nil && dir.IsDir() {
			uids = append(uids, parts[1])
		}
	}
	return uids
}
