// Package shortage recognizes errors which mean that the machine is short of a resource, and retries after them.
//
// A program that may free the disk must start and continue even if the disk is full or has become read-only, or if it
// has no free file descriptors. What failed because of a shortage may succeed later without a change of the program or
// its configuration. After other errors a retry would fail the same way.
package shortage

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// Is reports whether err means that space, inodes, file descriptors or memory are short, or that a disk cannot be
// written at present.
func Is(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM,
		unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// The wait between two tries is waitMin at first and doubles each time up to waitMax. Chosen: freeing a disk takes some
// seconds, and the other parts of the program continue meanwhile, so a delay of a minute does no harm.
const (
	waitMin = time.Second
	waitMax = time.Minute
)

// Retry calls do until it returns without such an error, or ctx ends. what names it in the log.
func Retry(ctx context.Context, what string, do func(context.Context) error) error {
	for wait := waitMin; ; wait = min(2*wait, waitMax) {
		began := time.Now()
		err := do(ctx)
		if !Is(err) || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > waitMax {
			wait = waitMin // do ran for a long time, so this is a new failure
		}
		slog.Warn("the machine is short of a resource; trying again", "what", what, "in", wait, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
