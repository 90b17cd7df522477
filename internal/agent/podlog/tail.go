package podlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// blockBytes is the size of the blocks that are read backwards. Chosen: two or three reads find the usual tail of 10 to
// 100 lines.
const blockBytes = 32 << 10

// tailStart returns the offset in f, of the given size, at which the last lines lines start. It counts lines, not
// entries: the parts of a long line are one line. (If lines of the other stream are between the parts of a line, its
// first parts may lie before the start.)
func tailStart(f io.ReaderAt, size, lines int64) (int64, error) {
	if lines <= 0 {
		return size, nil
	}
	var (
		block  = make([]byte, blockBytes)
		head   [headMax]byte
		found  int64  // lines that lie entirely at or after start
		start  = size // of the oldest entry found
		isLine = func(at, end int64) (bool, error) {
			n, err := f.ReadAt(head[:min(int64(len(head)), end-at)], at)
			if err != nil && !errors.Is(err, io.EOF) {
				return false, err
			}
			return endsLine(head[:n]), nil
		}
	)
	for right := size; right > 0; {
		left := max(0, right-blockBytes)
		part := block[:right-left]
		if _, err := f.ReadAt(part, left); err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("find the last %d lines: read %d bytes at %d: %w", lines, len(part), left, err)
		}
		// A newline at the very end ends the last entry and starts none, so the search begins before start-1.
		for {
			in := int64(len(part))
			if limit := start - 1 - left; limit < in {
				in = max(0, limit)
			}
			i := bytes.LastIndexByte(part[:in], '\n')
			if i < 0 {
				break
			}
			at := left + int64(i) + 1
			line, err := isLine(at, start)
			if err != nil {
				return 0, err
			}
			if line {
				if found == lines {
					return start, nil
				}
				found++
			}
			start = at
		}
		right = left
	}
	if start == 0 {
		return 0, nil
	}
	// The first entry of the file has no newline before it.
	if line, err := isLine(0, start); err != nil {
		return 0, err
	} else if line && found == lines {
		return start, nil
	}
	return 0, nil
}

// Tail returns the end of the log at path: at most lines lines, and of those at most the last bytesMax bytes. It is for
// termination messages (terminationMessagePolicy FallbackToLogsOnError: 80 lines, 2048 bytes). root is as in Options.
func Tail(root, path string, lines, bytesMax int) ([]byte, error) {
	n := int64(lines)
	ring := &lastBytes{max: bytesMax}
	if err := Read(context.Background(), path, Options{Tail: &n, Root: root}, ring); err != nil {
		return nil, err
	}
	return ring.kept, nil
}

// lastBytes keeps the last max bytes that were written to it.
type lastBytes struct {
	max  int
	kept []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	n := len(p)
	if n >= l.max {
		l.kept = append(l.kept[:0], p[n-l.max:]...)
		return n, nil
	}
	if over := len(l.kept) + n - l.max; over > 0 {
		l.kept = l.kept[:copy(l.kept, l.kept[over:])]
	}
	l.kept = append(l.kept, p...)
	return n, nil
}
