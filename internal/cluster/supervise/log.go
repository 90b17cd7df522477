package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// LogBytesMax bounds a child's log; there is one older file of the same size. At the upstream programs' default verbosity
// it is some days' worth (chosen). Raise it to look back further.
const LogBytesMax = 16 << 20

// openLog opens a log for appending, first moving it aside if it is full.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() >= LogBytesMax {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// TrimLog bounds a log that a running process writes to: when it is full, its content is copied to PATH.1 and it is cut
// to nothing. The writer appends (O_APPEND), so it goes on at the new end. What it writes between copy and cut is lost:
// the price of not standing between a child and its log, so that logging does not depend on the supervisor living.
func TrimLog(path string) error {
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || info.Size() < LogBytesMax {
		return err
	}
	out, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("trim %s: %w", path, err)
	}
	return os.Truncate(path, 0)
}

// Tail returns the last lines of a log, at most n and at most 4 KiB, for an error message.
func Tail(path string, n int) string {
	const (
		tailBytesMax = 4 << 10
		lineBytesMax = 240
	)
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	at := max(0, info.Size()-tailBytesMax)
	text, err := io.ReadAll(io.NewSectionReader(f, at, tailBytesMax))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if at > 0 && len(lines) > 1 {
		lines = lines[1:] // begins in the middle
	}
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > lineBytesMax {
			lines[i] = line[:lineBytesMax] + "..."
		}
	}
	return strings.Join(lines, "\n")
}
