// Package shortage tells errors that say what a machine is short of from all others, and tries again what met one.
//
// A full disk, one that became read-only, or a process without file descriptors is no reason to end: whoever is to free
// the disk must come up and go on. What failed so may work later with nothing changed here; other errors would be the
// same.
package shortage

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// Is reports whether err says that room, inodes, file descriptors or memory are short, or that a disk cannot be written
// now.
func Is(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// The waits between two tries, doubled each time. Chosen: what frees a disk takes some seconds; a minute later than it
// could be is no harm to a part that others go on without.
const (
	waitMin = time.Second
	waitMax = time.Minute
)

// Again calls do until it returns without such an error, or ctx ends. what names it in the log.
func Again(ctx context.Context, what string, do func(context.Context) error) error {
	for wait := waitMin; ; wait = min(2*wait, waitMax) {
		began := time.Now()
		err := do(ctx)
		if !Is(err) || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > waitMax {
			wait = waitMin // it worked for long: this is a new trouble
		}
		slog.Warn("the machine is short of something; trying again", "what", what, "in", wait, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
