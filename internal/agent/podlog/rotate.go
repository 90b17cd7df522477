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

// Names of rotated logs, as upstream spells them: <n>.log.20060102-150405 and, one rotation later, the same with .gz.
// A .tmp is a compression that did not finish.
const (
	rotatedTime    = "20060102-150405"
	suffixGzip     = ".gz"
	suffixUnfinish = ".tmp"
)

// Log is the log file of a running container.
type Log struct {
	Container string // CRI id
	Path      string
}

// Rotator keeps container logs below a size. Its cost is one stat per running container and interval; the runtime is
// spoken to only to re-open a log.
//
// A pod may be able to write to the directory of all logs (a hostPath), and put anything in the place of a log. No link is followed
// below Root, nothing but regular files is opened, and what is not one is left alone.
type Rotator struct {
	Root     string                                     // holds all logs; how it is reached is trusted. Empty: each log's directory is
	MaxBytes int64                                      // containerLogMaxSize; a log at or above it is rotated. Negative: nothing is rotated
	MaxFiles int                                        // containerLogMaxFiles, the current one included; at least 2
	Workers  int                                        // containerLogMaxWorkers: rotations (a rename and a gzip) at once; at least 1
	Interval time.Duration                              // containerLogMonitorInterval; a log may outgrow MaxBytes by what is written in it
	Logs     func() []Log                               // the logs of the containers that run now
	Reopen   func(ctx context.Context, id string) error // CRI ReopenContainerLog
	Now      func() time.Time                           // nil: time.Now; names rotated files
}

// Run looks at the logs every Interval until ctx ends.
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

// Pass looks at every log once and rotates those that are too large.
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

// dir opens the directory that l is in.
func (r *Rotator) dir(l Log) (*untrusted.Dir, error) {
	dir := filepath.Dir(l.Path)
	return untrusted.OpenDir(cmp.Or(r.Root, dir), dir)
}

// due reports whether l is too large. A log that is not there is re-opened: we may have been killed between renaming it
// and telling the runtime.
func (r *Rotator) due(ctx context.Context, l Log) (bool, error) {
	dir, err := r.dir(l)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the pod is going away
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
			return nil // rotated within this second; the next pass will
		}
	}
	old, err := rotated(dir, name)
	if err != nil {
		return err
	}
	// Besides the current log and the one about to be renamed, MaxFiles-2 may stay. The oldest go first.
	for len(old) > r.MaxFiles-2 {
		if err := dir.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove oldest log: %w", err)
		}
		old = old[1:]
	}
	// The one renamed last time was kept plain for collectors and for whoever follows; they had an interval.
	for _, one := range old {
		if strings.HasSuffix(one, suffixGzip) {
			continue
		}
		// Without room for the archive it stays plain until it is the oldest: on a full disk above all, the log must not grow.
		if err := compress(dir, one); shortage.Is(err) {
			slog.Warn("rotated log stays as it is", "container", l.Container, "err", err)
		} else if err != nil {
			return err
		}
	}
	return r.rename(ctx, dir, l, to)
}

// rename moves the current log away and has the runtime start a new one. If the runtime does not, the log is moved back.
func (r *Rotator) rename(ctx context.Context, dir *untrusted.Dir, l Log, to string) error {
	name := filepath.Base(l.Path)
	if err := dir.Rename(name, to); err != nil {
		return fmt.Errorf("rename log: %w", err)
	}
	if err := r.Reopen(ctx, l.Container); err != nil {
		if _, gone := dir.Stat(name); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, dir.Rename(to, name))
		}
		return fmt.Errorf("have the runtime re-open the log: %w", err)
	}
	return nil
}

// namesMax is how many names of a log directory are looked at. Chosen: a thousand times what is in one; a pod that makes more there
// has its own logs kept for longer, and costs no more memory.
const namesMax = 10_000

// rotated lists the rotated files of the log called name, oldest first, and removes what an interrupted rotation left: an
// unfinished compression, and a plain file that is there compressed too. What is no regular file is none of them.
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

// compressMax is the largest log that is compressed, in bytes; a larger one stays plain. Chosen: half a minute of one CPU, in which
// no other log is rotated.
const compressMax = 1 << 30

// compress replaces a file by one with .gz. The archive gets its name when it is complete.
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
			_ = dir.Remove(tmp) // else the next rotation does
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
