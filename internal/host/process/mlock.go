package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// LockMemory locks the resident pages of this process in memory, and the pages of its present mappings that it touches
// later, until UnlockMemory. When memory runs out, the kernel drops the pages of programs' code first, and reads them
// again one by one, from a disk that is busy then (mlockall(2), MCL_ONFAULT: Linux 4.4). Nothing is read ahead, so
// locking itself takes no memory. Without CAP_IPC_LOCK and above RLIMIT_MEMLOCK it is an error. Trim must not be called
// meanwhile: the kernel does not drop locked pages.
func LockMemory() error {
	// Without MCL_FUTURE: with it, a limit would refuse mappings that the program needs.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("lock own memory: mlockall: %w", err)
	}
	return nil
}

// UnlockMemory unlocks the process's memory.
func UnlockMemory() error {
	if err := unix.Munlockall(); err != nil {
		return fmt.Errorf("unlock own memory: munlockall: %w", err)
	}
	return nil
}
