package staticpods

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
)

// quiet is how long a directory must not change before it is read: an editor may still be writing.
const quiet = 100 * time.Millisecond

// quietLongest bounds how long changes that do not end are waited for (chosen).
const quietLongest = 2 * time.Second

// watchDir says when a directory has changed, until ctx ends. It says so, too, when the kernel lost count of changes.
func watchDir(ctx context.Context, dir string) (<-chan struct{}, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(dir); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer watcher.Close()
		forward(ctx, watcher, dir, changed)
	}()
	return changed, nil
}

// forward notifies of what a watcher sees until ctx ends. It reads errors, too, of which one is that the kernel lost
// count: a watcher that has an error to report waits for ever for a reader.
func forward(ctx context.Context, watcher *fsnotify.Watcher, dir string, changed chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
		case err := <-watcher.Errors:
			slog.Warn("static pods: changes may have gone unnoticed, reading all", "dir", dir, "err", err)
		}
		notify(changed)
	}
}

// drain waits for a quiet moment, but not for ever: a process may write there all the time.
func drain(ctx context.Context, changes <-chan struct{}) {
	longest := time.After(quietLongest)
	for {
		select {
		case <-ctx.Done():
			return
		case <-longest:
			return
		case <-changes:
		case <-time.After(quiet):
			return
		}
	}
}

// read reads the directory. A file that cannot be read or decoded keeps the pod it had: a half-written edit must not
// end a running pod. Nor may a directory or file that fails while the agent starts: see Synced.
func (s *Source) read() {
	if s.Dir == "" {
		return
	}
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		if !os.IsNotExist(err) {
			slog.Error("static pods: directory not read, keeping what runs", "dir", s.Dir, "err", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.whole = true // there are none
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.wanted
	wanted := map[string]*corev1.Pod{}
	whole := true
	for _, f := range files {
		path := filepath.Join(s.Dir, f.Name())
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		pod, err := Decode(s.Node, path)
		if err != nil {
			whole = whole && !unread(err)
			if s.bad[path] != err.Error() {
				slog.Error("static pod refused", "file", path, "err", err)
				s.bad[path] = err.Error()
			}
			for k, old := range before {
				if old.Annotations[annotationPath] == path {
					wanted[k] = old
				}
			}
			continue
		}
		delete(s.bad, path)
		if twin := wanted[key(pod)]; twin != nil {
			slog.Error(
				"static pod refused: another file has a pod of this name", "file", path, "pod", key(pod), "other",
				twin.Annotations[annotationPath],
			)
			continue
		}
		wanted[key(pod)] = pod
	}
	s.wanted = wanted
	s.whole = s.whole || whole
}

// unread reports whether the file is there and could not be read. The other case is a file whose content is wrong.
func unread(err error) bool {
	var failed *fs.PathError
	return errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist)
}
