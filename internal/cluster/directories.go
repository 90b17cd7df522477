package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/sparedisk"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// checkOurs returns an error for directories with files that plimsoll did not create, because `down --purge` removes
// everything in them.
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
		if len(entries) == 1 && l.isNewSocketDirectory(filepath.Join(d.dir, entries[0].Name())) {
			continue
		}
		if _, err := os.Stat(d.sign); err != nil && len(entries) > 0 {
			return fmt.Errorf("check --%s %s: contains files that plimsoll did not create (%s): choose a new or empty directory",
				d.flag, d.dir, entries[0].Name())
		}
	}
	return nil
}

// isNewSocketDirectory reports whether a path is the directory of etcd's socket and still empty. That directory is made
// before the record by which the run directory is recognized.
func (l layout) isNewSocketDirectory(path string) bool {
	entries, err := os.ReadDir(path)
	return err == nil && len(entries) == 0 && path == filepath.Dir(l.etcdSocket())
}

func (l layout) makeDirectories() error {
	if err := l.checkOurs(); err != nil {
		return err
	}
	if _, err := sparedisk.GiveIfShort(l.reserve()); err != nil {
		return fmt.Errorf("make directories: %w", err)
	}
	for _, dir := range append(l.stateDirectories(), l.o.RunDir, filepath.Dir(l.etcdSocket())) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directories: %w", err)
		}
		if dir == l.o.StateDir { // its lock file is created first: checkOurs recognizes the directory by it
			sign, err := os.OpenFile(l.lock(), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return fmt.Errorf("make directories: %w", err)
			}
			sign.Close()
		}
	}
	// The state directory's mode protects everything below it. Other users can pass through the run directory but not list
	// it: in a pod with a user namespace, root is an ordinary user of the host, and its containers' files are below that
	// directory. Each file in it is protected by its own mode.
	sockets := filepath.Dir(l.etcdSocket())
	for dir, mode := range map[string]fs.FileMode{l.o.StateDir: 0o700, l.o.RunDir: 0o711, sockets: 0o700} {
		if err := os.Chmod(dir, mode); err != nil {
			return fmt.Errorf("make directories: %w", err)
		}
	}
	return l.checkSpace()
}

// The free space that a new instance requires: bytes and inodes (chosen). etcd's write-ahead log alone preallocates 64
// MB. The inodes are several times what certificates, logs and etcd's files need.
const (
	stateBytesMin = 256 << 20
	stateFilesMin = 256
)

// checkSpace returns an error for a new instance on a disk without enough space. An instance that exists must start on
// a full disk, because its agent frees the disk.
func (l layout) checkSpace() error {
	short, err := l.shortOfSpace()
	if err != nil || short == "" || l.exists() {
		return err
	}
	return fmt.Errorf("check space: %s: %s (free some, or choose another place with --state-dir)", l.o.StateDir, short)
}

// exists reports whether the instance has been up before, so that it has keys and options.
func (l layout) exists() bool {
	_, err := os.Stat(l.options())
	return err == nil
}

// shortOfSpace says which space the disk of the state directory lacks for a new instance; empty: there is enough.
func (l layout) shortOfSpace() (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(l.o.StateDir, &fs); err != nil {
		return "", fmt.Errorf("check space: statfs %s: %w", l.o.StateDir, err)
	}
	var short []string
	if free := int64(fs.Bavail) * fs.Bsize; free < stateBytesMin {
		short = append(short, fmt.Sprintf("%d MiB free, a new instance needs %d MiB", free>>20, stateBytesMin>>20))
	}
	if fs.Files > 0 && fs.Ffree < stateFilesMin {
		short = append(short, fmt.Sprintf("%d inodes free, a new instance needs %d", fs.Ffree, stateFilesMin))
	}
	return strings.Join(short, "; "), nil
}

// warnOfSpace shows the user that the disk of an existing instance is full, and what will be done about it.
func (c *cluster) warnOfSpace() {
	short, err := c.shortOfSpace()
	if err != nil || short == "" {
		return // checkSpace has reported it
	}
	then := "starting anyway: free some space"
	if c.o.Agent {
		then = "starting anyway: the agent will remove dead containers and unused images, then evict pods, " +
			"as its configuration says; or free some space yourself"
	}
	c.sink.Show(progress.Event{Step: "full disk " + c.o.StateDir, Phase: progress.Note, Detail: short + "; " + then})
}

// keepReserve reserves some of the disk for the next start, while there is enough.
func (c *cluster) keepReserve() {
	if !c.exists() {
		return
	}
	if err := sparedisk.Keep(c.reserve()); err != nil {
		c.logger.Warn("no disk space is reserved: the instance may not start on a full disk", "err", err)
	}
}

// supervisorLog opens the log that this process writes about its children. On a full disk there is no log.
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
