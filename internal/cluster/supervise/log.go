package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// LogBytesMax bounds a child's log, in bytes; there is one older file of the same size (chosen). At the default
// verbosity of upstream's programs that is the log of some days.
const LogBytesMax = 16 << 20

// openLog opens a log for appending. If it is full, it is renamed first. If the disk has no space for a log, the child
// writes to the older log or to /dev/null, because it may be the process that frees the disk.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() >= LogBytesMax {
		if err := os.Rename(path, path+older); err != nil && !shortage.Is(err) {
			return nil, err
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if !shortage.Is(err) {
		return file, err
	}
	if file, err := os.OpenFile(path+older, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		return file, nil
	}
	nowhere, failed := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if failed != nil {
		return nil, err
	}
	return nowhere, nil
}

// older is the suffix of the name of the previous log.
const older = ".1"

// keptBytesMax is how much of the end of a log is kept, in bytes, if there is not enough space for all of it. Chosen:
// these are some hundred lines, and the last ones say what happened to the child on the full disk.
const keptBytesMax = 64 << 10

// TrimLog bounds a log that a running process writes to: when it is full, its content is copied to PATH.1 and it is
// truncated. The writer appends (O_APPEND), so it continues at the new end. What it writes between copy and truncation
// is lost, because the child writes its log itself, so that logging does not depend on the supervisor. On a full disk
// only the end of the log is copied, as much as fits. The log is truncated even then, so that it does not keep the disk
// full.
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
	err = copyLog(in, 0, info.Size(), path+older)
	if shortage.Is(err) {
		err = copyLog(in, info.Size()-keptBytesMax, keptBytesMax, path+older)
	}
	if err != nil && !shortage.Is(err) {
		return fmt.Errorf("trim %s: %w", path, err)
	}
	if cut := os.Truncate(path, 0); cut != nil {
		return fmt.Errorf("trim %s: %w", path, cut)
	}
	if err != nil {
		return fmt.Errorf("trim %s: its content is lost: %w", path, err)
	}
	return nil
}

// copyLog replaces a file by a part of in. After an error, the file has only the beginning of that part.
func copyLog(in io.ReaderAt, from, size int64, path string) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.NewSectionReader(in, from, size))
	return errors.Join(err, out.Close())
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
		lines = lines[1:] // the first line is incomplete
	}
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > lineBytesMax {
			lines[i] = line[:lineBytesMax] + "..."
		}
	}
	return strings.Join(lines, "\n")
}
