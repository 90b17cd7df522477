package podlog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// bufferBytes has room for an entry of the usual 16 KiB; longer entries pass in pieces.
const bufferBytes = 32 << 10

// outputTime is the format of printed timestamps: RFC 3339 with all nine digits, as in the kubelet.
const outputTime = "2006-01-02T15:04:05.000000000Z07:00"

// Options select what to read. The zero Options read the whole file once.
type Options struct {
	Tail       *int64    // lines from the end; nil: from the start
	Since      time.Time // entries before it are left out
	LimitBytes int64     // stop after this much output; 0: no limit
	Stream     Stream
	Timestamps bool

	// Follow continues at the end of the file until Running returns false (the container has ended), or ctx ends.
	Follow  bool
	Running func() bool // required with Follow; called often, must be cheap

	// Flush is called when all available entries have been written; nil: not needed.
	Flush func() error
	// Root is a directory above path whose own path is trusted. Below it no link is followed. Empty: the directory of
	// path.
	Root string
}

// errEnough ends a read that has reached LimitBytes.
var errEnough = errors.New("limit reached")

// Read writes the log at path to w, as o selects. It returns nil at the end of the file or of the container, at the
// limit, or when ctx ends. It returns w's error if w fails.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	if o.Follow && o.Running == nil {
		return fmt.Errorf("read log: %s: follow: Running is required", path)
	}
	f, err := o.open(path)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	r := &reader{o: o, path: path, out: w, remain: o.LimitBytes}
	defer func() { r.file.Close(); r.report() }()
	if err := r.use(f); err != nil {
		return fmt.Errorf("read log: %s: %w", path, err)
	}
	if o.Tail != nil {
		if r.offset, err = tailStart(f, r.end, *o.Tail); err != nil {
			return fmt.Errorf("read log: %s: %w", path, err)
		}
	}
	if o.Follow {
		err = r.follow(ctx)
	} else {
		err = r.drain(r.end)
		if err == nil {
			err = r.flush()
		}
	}
	if errors.Is(err, errEnough) {
		return r.flush()
	}
	return err
}

// open opens a log: a regular file below Root, without following a link.
func (o Options) open(path string) (*os.File, error) {
	in := filepath.Dir(path)
	dir, err := untrusted.OpenDir(cmp.Or(o.Root, in), in)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Open(filepath.Base(path))
}

// reader is one read of a log, possibly across rotations.
type reader struct {
	o      Options
	path   string
	out    io.Writer
	remain int64 // bytes left of LimitBytes; unused if that is 0

	file    *os.File
	end     int64 // size when the file was opened
	offset  int64 // everything before it has been processed
	buf     *bufio.Reader
	midline [3]bool // by stream: the last entry was partial, so the next one gets no timestamp
	inside  bool    // offset is within an entry longer than buf, whose fields are entry and skip
	entry   Entry
	skip    bool
	broken  int // entries that could not be parsed
}

// use makes f the file to read, from its start.
func (r *reader) use(f *os.File) error {
	if r.file != nil {
		r.file.Close()
	}
	r.file = f
	r.offset = 0
	r.end = 0
	r.inside = false
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", info.Mode().Type())
	}
	r.end = info.Size()
	return nil
}

// drain processes the entries from offset to limit. An entry without its newline is left for later, except at the end
// of a file that is read once.
func (r *reader) drain(limit int64) error {
	section := io.NewSectionReader(r.file, r.offset, limit-r.offset)
	if r.buf == nil {
		r.buf = bufio.NewReaderSize(section, bufferBytes)
	} else {
		r.buf.Reset(section)
	}
	for {
		piece, err := r.buf.ReadSlice('\n')
		atEnd := errors.Is(err, io.EOF)
		switch {
		case atEnd && (len(piece) == 0 || r.o.Follow && !r.inside):
			return nil
		case err != nil && !atEnd && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read log: %s: at %d: %w", r.path, r.offset, err)
		}
		r.offset += int64(len(piece))
		if err := r.handle(piece, err == nil); err != nil {
			return err
		}
		if atEnd {
			return nil
		}
	}
}

// handle writes one entry or, of an entry that does not fit the buffer, one piece; ends means that it is the last
// piece.
func (r *reader) handle(piece []byte, ends bool) error {
	first := !r.inside
	if first {
		var err error
		r.entry, err = Parse(piece)
		if r.skip = err != nil; r.skip {
			r.broken++
		} else if r.entry.Time.Before(r.o.Since) || r.o.Stream != Both && r.o.Stream != r.entry.Stream {
			r.skip = true
		}
	} else {
		r.entry.Text = piece
		if r.entry.Partial && ends {
			r.entry.Text = bytes.TrimSuffix(piece, []byte{'\n'})
		}
	}
	r.inside = !ends
	if r.skip {
		return nil
	}
	if first && r.o.Timestamps && !r.midline[r.entry.Stream] {
		if err := r.write(r.entry.Time.AppendFormat(make([]byte, 0, 40), outputTime+" ")); err != nil {
			return err
		}
	}
	r.midline[r.entry.Stream] = r.entry.Partial
	return r.write(r.entry.Text)
}

func (r *reader) write(p []byte) error {
	if r.o.LimitBytes > 0 && int64(len(p)) > r.remain {
		p = p[:r.remain]
	}
	if len(p) > 0 {
		if _, err := r.out.Write(p); err != nil {
			return fmt.Errorf("read log: %s: write: %w", r.path, err)
		}
	}
	r.remain -= int64(len(p))
	if r.o.LimitBytes > 0 && r.remain <= 0 {
		return errEnough
	}
	return nil
}

func (r *reader) flush() error {
	if r.o.Flush == nil {
		return nil
	}
	return r.o.Flush()
}

// report logs once how many entries could not be parsed.
func (r *reader) report() {
	if r.broken > 0 {
		slog.Warn("log entries left out: not in CRI format", "path", r.path, "entries", r.broken)
	}
}
