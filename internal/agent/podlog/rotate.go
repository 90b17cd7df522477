package podlog

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// Names of rotated logs, as in the kubelet: <n>.log.20060102-150405 and, one rotation later, the same with .gz. A .tmp
// is an unfinished compression.
const (
	rotatedTime    = "20060102-150405"
	suffixGzip     = ".gz"
	suffixUnfinish = ".tmp"
)

// Log is the log file of a running container.
type Log struct {
	Container string // CRI container ID
	Path      string
}

// Rotator keeps container logs below a size. It costs one stat per running container and interval; the runtime is
// called only to re-open a log.
//
// A pod may be able to write to the directory of all logs (by a hostPath volume), and to put anything in place of a
// log. Below Root no link is followed and only regular files are opened; everything else is left alone.
type Rotator struct {
	Root string // above all logs, a trusted path. Empty: each log's directory
	// containerLogMaxSize; a log of this size or larger is rotated. Negative: nothing is rotated
	MaxBytes int64
	MaxFiles int // containerLogMaxFiles, including the current one; at least 2
	// containerLogMaxWorkers: rotations (a rename and a gzip) at the same time; at least 1
	Workers int
	// containerLogMonitorInterval; a log may exceed MaxBytes by what is written in it
	Interval time.Duration
	Logs     func() []Log                               // the logs of the running containers
	Reopen   func(ctx context.Context, id string) error // CRI ReopenContainerLog
	Now      func() time.Time                           // time for the names of rotated files; nil: time.Now
}

// Run checks the logs every Interval until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	if r.MaxBytes < 0 {
		return nil
	}
	if r.MaxFiles < 2 {
		return fmt.Errorf("rotate logs: containerLogMaxFiles %d: want at least 2", r.MaxFiles)
	}
	if r.Interval <= 0 {
		return fmt.Errorf("rotate logs: containerLogMonitorInterval %v: want more than 0", r.Interval)
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.Pass(ctx)
		}
	}
}

// Pass checks every log once and rotates those that are too large.
func (r *Rotator) Pass(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, r.Workers))
	for _, l := range r.Logs() {
		due, err := r.due(ctx, l)
		if err != nil {
			slog.Warn("rotate log", "container", l.Container, "path", l.Path, "err", err)
		}
		if !due {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := r.rotate(ctx, l); err != nil {
				slog.Warn("rotate log", "container", l.Container, "path", l.Path, "err", err)
			}
		})
	}
	wg.Wait()
}

// dir opens the directory of l.
func (r *Rotator) dir(l Log) (*untrusted.Dir, error) {
	dir := filepath.Dir(l.Path)
	return untrusted.OpenDir(cmp.Or(r.Root, dir), dir)
}

// due reports whether l is too large. If the log does not exist, the runtime is asked to re-open it: an agent may have
// been killed between renaming the log and that call.
func (r *Rotator) due(ctx context.Context, l Log) (bool, error) {
	dir, err := r.dir(l)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the pod's directory was removed
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	st, err := dir.Stat(filepath.Base(l.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, r.Reopen(ctx, l.Container)
	case err != nil:
		return false, err
	case !untrusted.IsRegular(st):
		return false, untrusted.ErrNotRegular
	}
	return st.Size >= r.MaxBytes, nil
}

func (r *Rotator) rotate(ctx context.Context, l Log) error {
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	dir, err := r.dir(l)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(l.Path)
	to := name + "." + now().Format(rotatedTime)
	for _, taken := range []string{to, to + suffixGzip} {
		if _, err := dir.Stat(taken); err == nil {
			return nil // rotated within this second; the next pass rotates it again
		}
	}
	old, err := rotated(dir, name)
	if err != nil {
		return err
	}
	// In addition to the current log and the one about to be renamed, MaxFiles-2 may stay. The oldest are removed
	// first.
	for len(old) > r.MaxFiles-2 {
		if err := dir.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove oldest log: %w", err)
		}
		old = old[1:]
	}
	// The file that was renamed last time was kept plain for log collectors and followers; they had one interval to
	// read it.
	for _, one := range old {
		if strings.HasSuffix(one, suffixGzip) {
			continue
		}
		// Without space for the archive it stays plain until it is the oldest: especially on a full disk the log must
		// not grow.
		if err := compress(dir, one); shortage.Is(err) {
			slog.Warn("rotated log stays as it is", "container", l.Container, "err", err)
		} else if err != nil {
			return err
		}
	}
	return r.rename(ctx, dir, l, to)
}

// rename moves the current log away and makes the runtime create a new one. If the runtime fails, the log is moved
// back.
func (r *Rotator) rename(ctx context.Context, dir *untrusted.Dir, l Log, to string) error {
	name := filepath.Base(l.Path)
	if err := dir.Rename(name, to); err != nil {
		return fmt.Errorf("rename log: %w", err)
	}
	if err := r.Reopen(ctx, l.Container); err != nil {
		if _, gone := dir.Stat(name); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, dir.Rename(to, name))
		}
		return fmt.Errorf("make the runtime re-open the log: %w", err)
	}
	return nil
}

// namesMax is how many names of a log directory are read. Chosen: a thousand times the usual number. If a pod creates
// more there, its own logs are kept for longer, and the agent needs no more memory.
const namesMax = 10_000

// rotated lists the rotated files of the log called name, oldest first. It removes what an interrupted rotation left:
// an unfinished compression, and a plain file whose archive is complete. It skips what is not a regular file.
func rotated(dir *untrusted.Dir, name string) ([]string, error) {
	entries, _, err := dir.Names(namesMax)
	if err != nil {
		return nil, fmt.Errorf("list rotated logs: %w", err)
	}
	all := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e, name+".") {
			st, err := dir.Stat(e)
			all[e] = err == nil && untrusted.IsRegular(st)
		}
	}
	var keep []string
	for _, e := range slices.Sorted(maps.Keys(all)) {
		switch {
		case !all[e]:
		case strings.HasSuffix(e, suffixUnfinish) || all[e+suffixGzip]:
			if err := dir.Remove(e); err != nil {
				return nil, fmt.Errorf("remove left-over log: %w", err)
			}
		default:
			keep = append(keep, e)
		}
	}
	return keep, nil
}

// compressMax is the largest log that is compressed, in bytes; a larger one stays plain. Chosen: it takes half a minute
// of one CPU, during which no other log is rotated.
const compressMax = 1 << 30

// compress replaces a file by its archive with .gz. The archive gets that name when it is complete.
func compress(dir *untrusted.Dir, name string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("compress log: %w", err)
		}
	}()
	in, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || info.Size() > compressMax {
		return err
	}
	tmp := name + suffixUnfinish
	out, err := dir.Create(tmp, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(tmp) // otherwise the next rotation removes it
		}
	}()
	archive := gzip.NewWriter(out)
	_, err = io.Copy(archive, io.LimitReader(in, info.Size()))
	if err = errors.Join(err, archive.Close(), out.Close()); err != nil {
		return err
	}
	if err = dir.Rename(tmp, name+suffixGzip); err != nil {
		return err
	}
	return dir.Remove(name)
}
