package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// bombPause is how long a fork bomb pauses when a fork fails, so that the bombs of many pods leave the machine usable.
const bombPause = 100 * time.Millisecond

// bomb forks children that fork, without end: it ends only with its pod. A fork that fails is tried again.
func bomb(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	if err := noArgs(flags, args); err != nil {
		return err
	}
	p.printf("forking\n")
	for ctx.Err() == nil {
		if _, err := spawn("bomb"); err != nil {
			pause(ctx, bombPause)
		}
	}
	return nil
}

// named runs a verb as a process with another name, as the kernel shows it: at most 15 bytes.
func named(ctx context.Context, p process, _ *flag.FlagSet, args []string) error {
	if len(args) < 2 {
		return usagef("want a name and a verb")
	}
	if err := rename(args[0]); err != nil {
		return err
	}
	return do(ctx, p, args[1], args[2:])
}

// rename names the process and the calling thread, to which the caller stays locked.
func rename(name string) error {
	runtime.LockOSThread()
	for _, file := range []string{"/proc/self/comm", "/proc/thread-self/comm"} {
		if err := os.WriteFile(file, []byte(name), 0); err != nil {
			return fmt.Errorf("take the name %q: %w", name, err)
		}
	}
	return nil
}

// segfault ends with an invalid address, so that the kernel logs a line with the process's name.
func segfault(_ context.Context, _ process, flags *flag.FlagSet, args []string) error {
	if err := noArgs(flags, args); err != nil {
		return err
	}
	runtime.LockOSThread()
	// The kernel does not log a signal that the program handles, and Go's runtime handles this one. The zero structure
	// is SIG_DFL without flags or mask (struct kernel_sigaction, 8 bytes of mask).
	var byDefault [4]uint64
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGSEGV),
		uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0); errno != 0 {
		return fmt.Errorf("give SIGSEGV its default action: %w", errno)
	}
	var nowhere *int
	*nowhere = 1
	return nil
}
