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
	// settle is how long the writer of a log may still write to it after it was rotated (the runtime opens the new file
	// first and changes over then) or after the container ended. Chosen: a hundred times what containerd takes.
	// Raising it delays the first lines after a rotation; lowering it may lose lines.
	settle = 100 * time.Millisecond
	// lookMin and lookMax bound how often Running is asked without news from the kernel: soon after the last event,
	// then half as often each time. Upstream asks the runtime itself every second per follower.
	lookMin = 100 * time.Millisecond
	lookMax = 5 * time.Second
	// pollInterval is how often the file is looked at where the kernel gives no inotify.
	pollInterval = time.Second
)

// follow reads on until the container ends.
//
// Rotation races with the writer:
//
//  1. The rotator renames <n>.log; the runtime still writes to that file, and so do we read it.
//  2. The runtime creates a new <n>.log, and a moment later changes over to it.
//  3. We see that <n>.log is another file than ours.
//
// Going over at 3 could miss what was written between 2 and the change-over. So we wait settle, read the old file to
// its end once more, and only then open the next one. That is not the newest if the log was rotated twice while our
// client was slow, but the rotated file after ours; a file that has been compressed by then is not shown.
func (r *reader) follow(ctx context.Context) error {
	dir := filepath.Dir(r.path)
	news, leave := watches.join(dir)
	defer leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	look := lookMin
	for {
		running := r.o.Running()
		if !running && !pause(ctx, settle) {
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
			look = pollInterval
		}
		timer.Reset(look)
		select {
		case <-ctx.Done():
			return nil
		case <-news:
			look = lookMin
		case <-timer.C:
			look = min(2*look, lookMax)
		}
	}
}

// drainAll reads the current file to its end, and whatever has taken its place.
func (r *reader) drainAll(ctx context.Context) error {
	for {
		if err := r.drainOpen(); err != nil {
			return err
		}
		next, err := r.successor()
		if next == nil || err != nil {
			return err
		}
		if !pause(ctx, settle) {
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

// drainOpen reads the open file to what is its end now. A file that became shorter was truncated in place: start over.
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

// successor returns the file that was written after the open one, nil if there is none.
func (r *reader) successor() (*os.File, error) {
	old, err := r.file.Stat()
	if err != nil {
		return nil, fmt.Errorf("follow log: %s: %w", r.path, err)
	}
	now, err := os.Lstat(r.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && os.SameFile(old, now) {
		return nil, nil // between rename and re-open, or nothing happened
	}
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	f, err := r.o.open(r.after(old))
	if errors.Is(err, fs.ErrNotExist) { // compressed or re-created just now: the next look will tell
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	return f, nil
}

// after names the file that follows old: among the rotated ones that are still plain, oldest first, and the current one.
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
	if len(plain) > 0 { // ours has been compressed: the oldest plain one comes after it
		return plain[0]
	}
	return r.path
}

// globEscape makes path match only itself.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// pause waits d and reports whether ctx is still alive.
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
