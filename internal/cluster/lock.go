package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lock is held by the one process that may change an instance: the supervisor, or `down`. It is a POSIX record lock
// (fcntl(2), F_SETLK). The kernel releases it when its holder ends for any reason, and children do not inherit it.
// Unlike with flock(2), the kernel reports which process holds it, so that no pid file is needed, which could be stale.
// But the lock is also released when its holder closes any descriptor of the file. So the holder must not open the file
// again; held prevents that.
type lock struct {
	f    *os.File
	path string
}

// held has the paths of the locks that this process holds.
var held sync.Map

// errLocked says that another process holds the lock.
var errLocked = errors.New("another process holds the lock")

func takeLock(path string) (*lock, error) {
	if _, ours := held.Load(path); ours {
		return nil, errLocked
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock instance: %w", err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		held.Store(path, nil)
		return &lock{f, path}, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock instance: %s: %w", path, err)
}

func (l *lock) release() {
	l.f.Close()
	held.Delete(l.path)
}

// lockHolder returns the pid of the process that holds the lock, 0 if there is none.
func lockHolder(path string) (int, error) {
	if _, ours := held.Load(path); ours {
		return os.Getpid(), nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read lock: %w", err)
	}
	defer f.Close()
	probe := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &probe); err != nil {
		return 0, fmt.Errorf("read lock: %s: %w", path, err)
	}
	if probe.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(probe.Pid), nil
}

// killedMax is how long a killed process may take to end, on a busy machine with much memory to free (chosen). It
// delays the error "already up" by as much.
const killedMax = 300 * time.Millisecond

// lockIsHeld reports whether a living process holds the lock: one that has not ended after killedMax.
func lockIsHeld(path string) (bool, error) {
	pidfd, err := openHolder(path)
	if err != nil || pidfd < 0 {
		return false, err
	}
	defer unix.Close(pidfd)
	ended, err := pollPidfd(pidfd, killedMax)
	return !ended, err
}

// pollPidfd waits for the end of a process, at most d, and reports whether it has ended.
func pollPidfd(pidfd int, d time.Duration) (bool, error) {
	deadline := time.Now().Add(d)
	for {
		ready := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, int(max(0, time.Until(deadline)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n == 1, err
		}
	}
}

// openHolder returns a pidfd of the process that holds the lock, -1 if there is none. When the pidfd is open, it reads
// the holder again. If that is the same, the pidfd does not refer to another process with a reused pid.
func openHolder(path string) (pidfd int, err error) {
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
