package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// lock is held by the one process that may change an instance: the supervisor, or `down`. It is a POSIX record lock
// (fcntl(2), F_SETLK): the kernel drops it when its holder dies, however it dies, children do not inherit it, and,
// unlike flock(2), the kernel says which process holds it, so there is no pid file to be stale. Its known trap, that
// closing any descriptor of the file in the holding process drops it, is why only takeLock opens the file there.
type lock struct{ f *os.File }

// errLocked says that another process holds the lock.
var errLocked = errors.New("another process holds the lock")

func takeLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock instance: %w", err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return &lock{f}, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock instance: %s: %w", path, err)
}

func (l *lock) release() { l.f.Close() }

// lockHolder returns the pid of the other process that holds the lock, 0 if there is none.
func lockHolder(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at lock: %w", err)
	}
	defer f.Close()
	probe := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &probe); err != nil {
		return 0, fmt.Errorf("look at lock: %s: %w", path, err)
	}
	if probe.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(probe.Pid), nil
}

// holdHolder returns a pidfd of the process that holds the lock, -1 if there is none. The lock is looked at again once
// the pidfd is open: if it still has the same holder, the pidfd cannot refer to a process that merely got its number.
func holdHolder(path string) (pidfd int, err error) {
	for {
		pid, err := lockHolder(path)
		if err != nil || pid == 0 {
			return -1, err
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("find the holder of %s: pid %d: %w", path, pid, err)
		}
		if again, err := lockHolder(path); err == nil && again == pid {
			return pidfd, nil
		}
		unix.Close(pidfd)
	}
}
