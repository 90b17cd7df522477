package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Hold keeps in memory what of this process is there, and what of its present mappings it touches from here on, until LetGo: when
// memory runs out the kernel drops programs' code first, and reads it again page by page, from a disk that then has more to do
// (mlockall(2), MCL_ONFAULT: Linux 4.4). Nothing is read ahead, so holding takes no memory by itself. Without CAP_IPC_LOCK and
// beyond RLIMIT_MEMLOCK it is an error. Trim must not be called meanwhile: the kernel does not drop what is held.
func Hold() error {
	// Without MCL_FUTURE: a limit would then have mappings refused that the program cannot do without.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("hold own memory: mlockall: %w", err)
	}
	return nil
}

// LetGo ends Hold.
func LetGo() error {
	if err := unix.Munlockall(); err != nil {
		return fmt.Errorf("let go of own memory: munlockall: %w", err)
	}
	return nil
}
