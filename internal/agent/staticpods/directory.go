package staticpods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
)

// quiet is how long a directory must not change before it is read, since an editor may still be writing (chosen).
const quiet = 100 * time.Millisecond

// quietLongest bounds the wait for quiet while changes do not end (chosen).
const quietLongest = 2 * time.Second

// watchDir returns a channel that has a value when a directory has changed, or when the kernel may have lost changes.
// It watches until ctx ends.
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

// forward passes on a watcher's notifications until ctx ends. It also reads the watcher's errors, since the watcher
// waits until each is read; one of them means that the kernel lost changes.
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

// drain waits until there was no change for quiet, but at most for quietLongest: a process may write there all the
// time.
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

// read reads the directory. If a file cannot be read or decoded, its pod stays: a half-written edit must not end a
// running pod. While the agent starts, a directory or file that cannot be read must not end one either: see Synced.
func (s *Source) read() {
	if s.Dir == "" {
		return
	}
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		if !os.IsNotExist(err) {
			slog.Error("static pods: directory not read; the running static pods stay", "dir", s.Dir, "err", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.whole = true // there are none
		return
	}
	for _, r := range s.take(files) {
		slog.Error("static pod refused", "file", r.path, "err", r.err)
		if s.Refused != nil {
			s.Refused(r.path, r.err)
		}
	}
}

// refusal is why a file is not a static pod.
type refusal struct {
	path string
	err  error
}

// take stores the pods of the directory's files in wanted. It returns the files that are newly refused.
func (s *Source) take(files []fs.DirEntry) (refused []refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := map[string]string{}
	refuse := func(path string, err error) {
		bad[path] = err.Error()
		if s.bad[path] != bad[path] {
			refused = append(refused, refusal{path, err})
		}
	}
	before, wanted := s.wanted, map[string]*corev1.Pod{}
	var good []*corev1.Pod
	whole := true
	for _, f := range files {
		path := filepath.Join(s.Dir, f.Name())
		if strings.HasPrefix(f.Name(), ".") || f.IsDir() && !isManifest(f.Name()) {
			continue
		}
		pod, err := Decode(s.Node, path)
		if err == nil {
			good = append(good, pod)
			continue
		}
		whole = whole && !unread(err)
		refuse(path, err)
		for k, old := range before {
			if old.Annotations[annotationPath] == path {
				wanted[k] = old
			}
		}
	}
	// If two files have pods of one name, the file that had the pod before keeps it; else the first file by name has it.
	had := func(pod *corev1.Pod) int {
		if old := before[key(pod)]; old != nil && old.Annotations[annotationPath] == pod.Annotations[annotationPath] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(good, func(a, b *corev1.Pod) int { return had(a) - had(b) })
	for _, pod := range good {
		if twin := wanted[key(pod)]; twin != nil {
			const text = "metadata.name: %q: the file %s has a pod of this name and namespace: want another name, or one file"
			refuse(pod.Annotations[annotationPath], fmt.Errorf(text, key(pod), twin.Annotations[annotationPath]))
			continue
		}
		wanted[key(pod)] = pod
	}
	s.bad = bad
	s.wanted = wanted
	s.whole = s.whole || whole
	return refused
}

// isManifest reports whether a file's name is that of a manifest. A directory of such a name counts as a mistake.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// unread reports whether the error means that a file exists and could not be read, as opposed to a wrong content.
func unread(err error) bool {
	var failed *fs.PathError
	return errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist)
}
