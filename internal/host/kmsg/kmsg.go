// Package kmsg reads the kernel's log, and in it the reports of the out-of-memory killer.
//
// # Model
//
// A Log is /dev/kmsg, opened for reading: every record that the kernel still has, then new ones. Follow passes them to
// one function, in order. Sync passes on all present records before it returns. The kernel logs a kill before the
// killed process ends, so after an exit was noticed and Sync was called, the kill has been passed on.
//
// A Parser turns records into kills (core/oom). It knows the texts of Linux 4.14 to 6.18. A report is several records,
// and other records may be between them.
//
// # Invariants
//
//   - Records that the kernel did not write itself are ignored: a program that may write to /dev/kmsg cannot fake a
//     kill.
//   - Of the kernel's own records only lines that begin like a kill count: the name of a command, a firewall rule or a
//     disk cannot fake one.
//   - The kernel's buffer is a ring. When records were overwritten before they were read, reading continues with the
//     next one.
//
// It needs CAP_SYSLOG if kernel.dmesg_restrict is set; Open's error says so. It interprets only kills.
package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Record is one entry of the kernel's log.
type Record struct {
	Facility int // 0: the kernel itself; otherwise another writer
	Sequence uint64
	Since    time.Duration // since boot, by the kernel log's own clock
	Text     string        // unprintable bytes are written like \x0a
}

// parseRecord reads a record as described in Documentation/ABI/testing/dev-kmsg:
//
//	PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT\n[ KEY=VALUE\n]...
//
// where PRIORITY is 8 * facility + level.
func parseRecord(raw string) (Record, error) {
	head, text, ok := strings.Cut(raw, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 4 {
		return Record{}, fmt.Errorf("read kernel log: %.80q: want PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT", raw)
	}
	var numbers [3]uint64
	for i := range numbers {
		n, err := strconv.ParseUint(fields[i], 10, 63)
		if err != nil {
			return Record{}, fmt.Errorf("read kernel log: %.80q: field %d: %.20q: not a number", raw, i+1, fields[i])
		}
		numbers[i] = n
	}
	text, _, _ = strings.Cut(text, "\n")
	micros := min(numbers[2], uint64(1<<62/time.Microsecond))
	return Record{Facility: int(min(numbers[0]>>3, 1<<20)), Sequence: numbers[1],
		Since: time.Duration(micros) * time.Microsecond, Text: text}, nil
}

// Log is an open /dev/kmsg.
type Log struct {
	file *os.File
	raw  syscall.RawConn

	mu     sync.Mutex   // locked while records are read and passed on
	handle func(Record) // gets each record
	buffer []byte       // of recordMax bytes
}

// recordMax is the kernel's own bound of a record for readers (CONSOLE_EXT_LOG_MAX, 8 KiB); with a shorter buffer
// reading fails.
const recordMax = 8192

// Open opens the log at path (/dev/kmsg). handle is called with one record at a time, from Follow and Sync.
func Open(path string, handle func(Record)) (*Log, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("open kernel log: %w; run with CAP_SYSLOG or set kernel.dmesg_restrict=0", err)
	} else if err != nil {
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	return &Log{file: file, raw: raw, handle: handle, buffer: make([]byte, recordMax)}, nil
}

// Follow passes on every record until ctx ends, and then closes the log.
func (l *Log) Follow(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.file.Close() })
	defer stop()
	var failed error
	err := l.raw.Read(func(fd uintptr) bool {
		failed = l.drain(int(fd))
		return failed != nil || ctx.Err() != nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err = errors.Join(err, failed); err != nil {
		l.file.Close()
		return fmt.Errorf("follow kernel log: %w", err)
	}
	return nil
}

// Sync passes on the present records.
func (l *Log) Sync() error {
	var failed error
	if err := l.raw.Control(func(fd uintptr) { failed = l.drain(int(fd)) }); err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	return failed
}

// drain reads until there are no more records. Each read returns one record.
func (l *Log) drain(fd int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		n, err := unix.Read(fd, l.buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // records were overwritten before they were read; the next read continues after them
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		case n == 0:
			return errors.New("read kernel log: unexpected end")
		}
		// a record that cannot be parsed does not report a kill
		if record, err := parseRecord(string(l.buffer[:n])); err == nil {
			l.handle(record)
		}
	}
}

// Wall returns the calendar time of a record, computed with the present clocks.
func (r Record) Wall() unit.Wall {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return unit.WallOf(time.Now())
	}
	return unit.WallOf(time.Now().Add(r.Since - time.Duration(now.Nano())))
}
