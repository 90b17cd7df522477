package podlog

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
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
type Rotator struct {
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

// due reports whether l is too large. A log that is not there is re-opened: we may have been killed between renaming it
// and telling the runtime.
func (r *Rotator) due(ctx context.Context, l Log) (bool, error) {
	info, err := os.Stat(l.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(l.Path)); err != nil {
			return false, nil // the pod is going away
		}
		return false, r.Reopen(ctx, l.Container)
	}
	return err == nil && info.Size() >= r.MaxBytes, err
}

func (r *Rotator) rotate(ctx context.Context, l Log) error {
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	to := l.Path + "." + now().Format(rotatedTime)
	for _, taken := range []string{to, to + suffixGzip} {
		if _, err := os.Lstat(taken); err == nil {
			return nil // rotated within this second; the next pass will
		}
	}
	old, err := rotated(l.Path)
	if err != nil {
		return err
	}
	// Besides the current log and the one about to be renamed, MaxFiles-2 may stay. The oldest go first.
	for len(old) > r.MaxFiles-2 {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove oldest log: %w", err)
		}
		old = old[1:]
	}
	// The one renamed last time was kept plain for collectors and for whoever follows; they had an interval.
	for _, path := range old {
		if !strings.HasSuffix(path, suffixGzip) {
			if err := compress(path); err != nil {
				return err
			}
		}
	}
	return r.rename(ctx, l, to)
}

// rename moves the current log away and has the runtime start a new one. If the runtime does not, the log is moved back.
func (r *Rotator) rename(ctx context.Context, l Log, to string) error {
	if err := os.Rename(l.Path, to); err != nil {
		return fmt.Errorf("rename log: %w", err)
	}
	if err := r.Reopen(ctx, l.Container); err != nil {
		if _, gone := os.Lstat(l.Path); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, os.Rename(to, l.Path))
		}
		return fmt.Errorf("have the runtime re-open the log: %w", err)
	}
	return nil
}

// rotated lists the rotated files of the log at path, oldest first, and removes what an interrupted rotation left: an
// unfinished compression, and a plain file that is there compressed too.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("list rotated logs: %w", err)
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
			all = append(all, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	var keep []string
	for _, p := range all {
		if strings.HasSuffix(p, suffixUnfinish) || slices.Contains(all, p+suffixGzip) {
			if err := os.Remove(p); err != nil {
				return nil, fmt.Errorf("remove left-over log: %w", err)
			}
			continue
		}
		keep = append(keep, p)
	}
	slices.Sort(keep)
	return keep, nil
}

// compress replaces path by path.gz. The archive gets its name when it is complete.
func compress(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("compress log: %w", err)
		}
	}()
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	tmp := path + suffixUnfinish
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	archive := gzip.NewWriter(out)
	_, err = io.Copy(archive, in)
	if err = errors.Join(err, archive.Close(), out.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp, path+suffixGzip); err != nil {
		return err
	}
	return os.Remove(path)
}
