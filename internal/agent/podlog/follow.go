package podlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// writerDelay is how long the writer of a log may still write to it after the log was rotated (the runtime opens
	// the new file first and then switches to it) or after the container ended. Chosen: a hundred times what containerd
	// takes. Raising it delays the first lines after a rotation; lowering it may lose lines.
	writerDelay = 100 * time.Millisecond
	// runningCheckMin and runningCheckMax bound how often Running is called without a notification of the kernel: soon
	// after the last event, then half as often each time. The kubelet asks the runtime itself every second per
	// follower.
	runningCheckMin = 100 * time.Millisecond
	runningCheckMax = 5 * time.Second
	// pollInterval is how often the file is read where inotify is not available.
	pollInterval = time.Second
)

// follow reads on until the container ends.
//
// Rotation races with the writer:
//
//  1. The rotator renames <n>.log. The runtime still writes to that file, which the follower still reads.
//  2. The runtime creates a new <n>.log, and a moment later switches to it.
//  3. The follower sees that <n>.log is another file than the one it reads.
//
// Switching at 3 could miss what was written between 2 and the runtime's switch. So the follower waits writerDelay,
// reads the old file to its end once more, and only then opens the next one. If the log was rotated twice while the
// client was slow, the next one is not the newest but the rotated file after the old one. A file that has been
// compressed by then is not shown.
func (r *reader) follow(ctx context.Context) error {
	dir := filepath.Dir(r.path)
	news, leave := watches.join(dir)
	defer leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := runningCheckMin
	for {
		running := r.o.Running()
		if !running && !pause(ctx, writerDelay) {
			return nil
		}
		if err := r.drainAll(ctx); err != nil {
			return err
		}
		if err := r.flush(); err != nil {
			return err
		}
		if !running {
			return nil
		}
		if news == nil {
			wait = pollInterval
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-news:
			wait = runningCheckMin
		case <-timer.C:
			wait = min(2*wait, runningCheckMax)
		}
	}
}

// drainAll reads the current file to its end, and the files that replaced it.
func (r *reader) drainAll(ctx context.Context) error {
	for {
		if err := r.drainOpen(); err != nil {
			return err
		}
		next, err := r.successor()
		if next == nil || err != nil {
			return err
		}
		if !pause(ctx, writerDelay) {
			next.Close()
			return nil
		}
		if err := r.drainOpen(); err != nil {
			next.Close()
			return err
		}
		if err := r.use(next); err != nil {
			return fmt.Errorf("follow log: %s: %w", r.path, err)
		}
	}
}

// drainOpen reads the open file to its present end. A file that became shorter was truncated in place: it is read from
// the start.
func (r *reader) drainOpen() error {
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("follow log: %s: %w", r.path, err)
	}
	if info.Size() < r.offset {
		r.offset, r.inside = 0, false
	}
	return r.drain(info.Size())
}

// successor returns the file that was written after the open one; nil if there is none.
func (r *reader) successor() (*os.File, error) {
	old, err := r.file.Stat()
	if err != nil {
		return nil, fmt.Errorf("follow log: %s: %w", r.path, err)
	}
	now, err := os.Lstat(r.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && os.SameFile(old, now) {
		return nil, nil // between rename and re-open, or not rotated
	}
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	f, err := r.o.open(r.after(old))
	if errors.Is(err, fs.ErrNotExist) { // compressed or created again just now: the next call finds it
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	return f, nil
}

// after returns the name of the file that follows old: among the rotated files that are not compressed, oldest first,
// and the current one.
func (r *reader) after(old fs.FileInfo) string {
	plain, err := filepath.Glob(globEscape(r.path) + ".*") // sorted by name, which is by time
	if err != nil {
		return r.path
	}
	plain = slices.DeleteFunc(plain, func(p string) bool {
		return strings.HasSuffix(p, suffixGzip) || strings.HasSuffix(p, suffixUnfinish)
	})
	for i, p := range plain {
		if info, err := os.Lstat(p); err == nil && os.SameFile(info, old) {
			return append(plain, r.path)[i+1]
		}
	}
	if len(plain) > 0 { // old has been compressed: the oldest plain file comes after it
		return plain[0]
	}
	return r.path
}

// globEscape makes path match only itself.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// pause waits d and returns false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
