package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// checkOurs refuses directories that hold what is not ours: `down --purge` removes all that is in them.
func (l layout) checkOurs() error {
	for _, d := range []struct{ flag, dir, sign string }{
		{"state-dir", l.o.StateDir, l.lock()}, {"run-dir", l.o.RunDir, l.record()},
	} {
		entries, err := os.ReadDir(d.dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("check --%s: %w", d.flag, err)
		}
		if _, err := os.Stat(d.sign); err != nil && len(entries) > 0 {
			return fmt.Errorf("check --%s %s: holds files that no plimsoll put there (%s): give a new or empty directory", d.flag, d.dir, entries[0].Name())
		}
	}
	return nil
}

func (l layout) makeDirectories() error {
	if err := l.checkOurs(); err != nil {
		return err
	}
	for _, dir := range append(l.stateDirectories(), l.o.RunDir) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directories: %w", err)
		}
		if dir == l.o.StateDir { // signed before anything else is put there, see checkOurs
			sign, err := os.OpenFile(l.lock(), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return fmt.Errorf("make directories: %w", err)
			}
			sign.Close()
		}
	}
	for _, dir := range []string{l.o.StateDir, l.o.RunDir} { // they guard all that is below them
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("make directories: %w", err)
		}
	}
	return l.checkSpace()
}

// stateBytesMin is the free space that `up` asks for: etcd's write-ahead log alone preallocates 64 MB.
const stateBytesMin = 256 << 20

func (l layout) checkSpace() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(l.o.StateDir, &fs); err != nil {
		return fmt.Errorf("check space: statfs %s: %w", l.o.StateDir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < stateBytesMin {
		return fmt.Errorf("check space: %s: %d MiB free, need %d MiB (free some, or choose another place with --state-dir)",
			l.o.StateDir, free>>20, stateBytesMin>>20)
	}
	if fs.Files > 0 && fs.Ffree < stateFilesMin {
		return fmt.Errorf("check space: %s: %d inodes free, need %d (remove files, or choose another place with --state-dir)", l.o.StateDir, fs.Ffree, stateFilesMin)
	}
	return nil
}

// stateFilesMin covers certificates, logs and etcd's files several times over.
const stateFilesMin = 256

// supervisorLog opens the log that this process writes about its children. On a full disk it goes on without one.
func (l layout) supervisorLog() (*slog.Logger, func(), error) {
	path := l.log("supervisor")
	if err := supervise.TrimLog(path); err != nil && !shortage.Is(err) {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if shortage.Is(err) {
		return slog.New(slog.DiscardHandler), func() {}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open supervisor log: %w", err)
	}
	return slog.New(slog.NewTextHandler(f, nil)).With("pid", os.Getpid()), func() { f.Close() }, nil
}
