package process

import (
	"errors"
	"fmt"
	"syscall"
)

// SetOpenFilesMax sets how many files this process, and those that it starts from now on, may have open
// (RLIMIT_NOFILE). Without the right to raise the hard limit it sets what that allows, and returns an error.
func SetOpenFilesMax(most uint64) error {
	limit := syscall.Rlimit{Cur: most, Max: most}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	if !errors.Is(err, syscall.EPERM) {
		return named(most, err)
	}
	var has syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has); err != nil {
		return named(most, err)
	}
	limit = syscall.Rlimit{Cur: min(most, has.Max), Max: has.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return named(most, err)
	}
	if has.Max < most {
		return fmt.Errorf("set the limit of open files to %d: this process may only have %d", most, has.Max)
	}
	return nil
}

func named(most uint64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("set the limit of open files to %d: %w", most, err)
}
