// Package journal records a node's decisions with their inputs, so that they can be examined later: in an audit, by a
// user whose pod was evicted, in a test that repeats the decision.
//
// # Model
//
// A Record is one decision: the pods that it was about, one line for people, and Detail, with all inputs and results in
// the types of the deciding package. Records are numbered and never changed. They are written as lines to two files in
// a directory. The newer file grows up to half of the bound and then replaces the older one, so that at least the last
// half is always available.
//
//	1f8b2c0d {"number":17,"time":"...","kind":"eviction","pods":[{"namespace":"default","name":"grower","uid":"..."}],...}
//
// The first word is the CRC-32C of the rest of the line, in hexadecimal. A line that does not match it, such as the
// last one of a machine that lost power, is skipped and counted.
//
// # Invariants
//
//   - When Append has returned, the record survives any end of this process: the kernel has it. It is written to the
//     disk within moments, in the background.
//   - AppendWithin waits for a bounded time only; the record is written when that is possible.
//   - The files never exceed the bound, whatever is written.
//   - A record that was cut off by a full disk is removed, or a newline ends it before the next record, so that it
//     never damages another one. If a file cannot be opened or written, each record tries it again.
//   - No decision depends on the journal: if it cannot be written, that is logged, and the work continues.
//
// The package decides nothing and interprets nothing. It declares the format of each kind's Detail for its writers and
// readers. It does not replace the log, which is for operators, nor Events, which expire.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// Kind is the kind of a record.
type Kind string

// Kinds. Programs read them: kinds are only added.
const (
	Intent   Kind = "intent"   // pods are about to be evicted; written before the first of them is killed
	Eviction Kind = "eviction" // a decision about pods or reclaim, its inputs and its outcome
)

// Pod is a pod that a decision was about.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Message   string `json:"message,omitempty"`  // the message in its status
	Until     int64  `json:"until,omitempty"`    // Unix nanoseconds: when its remaining processes are killed
	Disrupts  bool   `json:"disrupts,omitempty"` // it gets the condition DisruptionTarget
}

// Record is one decision.
type Record struct {
	Number uint64          `json:"number"` // set by Append
	Time   time.Time       `json:"time"`
	Kind   Kind            `json:"kind"`
	Pods   []Pod           `json:"pods,omitempty"`
	Text   string          `json:"text"`             // one line for people
	Detail json.RawMessage `json:"detail,omitempty"` // inputs and outcome
}

// about reports whether a pod of that namespace and name is in r; empty strings match all.
func (r Record) about(namespace, name string) bool {
	if namespace == "" && name == "" {
		return true
	}
	for _, p := range r.Pods {
		if (namespace == "" || p.Namespace == namespace) && (name == "" || p.Name == name) {
			return true
		}
	}
	return false
}

const (
	newer, older = "decisions", "decisions.old"

	// BytesMax is the default bound, in bytes. Chosen: it has room for some hundred decisions about a hundred pods each.
	// Raising it keeps them for longer.
	BytesMax = 8 << 20

	// lineMax bounds one record, so that one record cannot replace all others. Chosen: a decision about 110 pods has about
	// 60 KiB.
	lineMax = 1 << 20
)

// ErrLater is returned by AppendWithin if the record was not written in time; it is written when that is possible.
var ErrLater = errors.New("not written yet")

// Journal is a journal on disk. It is safe for concurrent use. A directory must have only one Journal at a time.
type Journal struct {
	dir      string
	bytesMax int64          // bound of both files together
	lines    chan line      // the queue of write
	synced   chan struct{}  // has a value when there is something to sync to the disk; closed by write
	ended    sync.WaitGroup // the goroutines of write and flush

	mu     sync.Mutex // guards number; locked while a record gets its number and its place in the queue
	number uint64     // of the last record

	// Only the goroutine of write uses these. file is nil while it cannot be opened; size is its length; torn means
	// that its last line is incomplete.
	file *os.File
	size int64
	torn bool
}

type line struct {
	text []byte
	done chan error // gets the result of the write
}

// Open opens the journal in dir, which is created if necessary. A full or read-only disk is no error, since the agent
// that may free the disk must start. Until the disk can be written, every record is lost with an error.
func Open(dir string, bytesMax int64) (*Journal, error) {
	j := &Journal{dir: dir, bytesMax: max(bytesMax, 2*lineMax), lines: make(chan line, 64), synced: make(chan struct{}, 1)}
	damaged, err := j.each(func(r Record) { j.number = max(j.number, r.Number) })
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if damaged > 0 {
		slog.Warn("journal has damaged lines, which are skipped", "dir", dir, "lines", damaged)
	}
	if err := j.openNewer(); err != nil && !shortage.Is(err) {
		return nil, fmt.Errorf("open journal: %w", err)
	} else if err != nil {
		slog.Warn("journal cannot be written; trying again with each record", "dir", dir, "err", err)
	}
	j.ended.Go(j.write)
	j.ended.Go(j.flush)
	return j, nil
}

// openNewer opens the newer file, and creates it and its directory if necessary.
func (j *Journal) openNewer() error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(j.dir, newer), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	last := []byte{'\n'}
	if err == nil && size > 0 {
		_, err = f.ReadAt(last, size-1)
	}
	if err != nil {
		f.Close()
		return err
	}
	j.file = f
	j.size = size
	j.torn = last[0] != '\n'
	return nil
}

// Append numbers r and writes it.
func (j *Journal) Append(r Record) (uint64, error) { return j.append(r, nil) }

// AppendWithin is Append with a bounded wait: after limit it returns ErrLater.
func (j *Journal) AppendWithin(limit time.Duration, r Record) (uint64, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	return j.append(r, timer.C)
}

func (j *Journal) append(r Record, late <-chan time.Time) (uint64, error) {
	j.mu.Lock()
	j.number++
	r.Number = j.number
	text, err := encode(r)
	if err != nil {
		j.mu.Unlock()
		return r.Number, fmt.Errorf("write journal: record %d: %w", r.Number, err)
	}
	l := line{text, make(chan error, 1)}
	select {
	case j.lines <- l:
		j.mu.Unlock()
	default: // 64 records already wait for the disk
		j.mu.Unlock()
		return r.Number, fmt.Errorf("write journal: record %d: %w: the disk is too slow; the record is lost", r.Number,
			ErrLater)
	}
	select {
	case err = <-l.done:
	case <-late:
		err = ErrLater
	}
	if err != nil {
		return r.Number, fmt.Errorf("write journal: record %d: %w", r.Number, err)
	}
	return r.Number, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encode(r Record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > lineMax-10 {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(body), lineMax-10)
	}
	text := make([]byte, 0, len(body)+10)
	text = fmt.Appendf(text, "%08x ", crc32.Checksum(body, castagnoli))
	return append(append(text, body...), '\n'), nil
}

// decode reads a line without its newline.
func decode(text []byte) (Record, error) {
	sum, body, ok := bytes.Cut(text, []byte{' '})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || len(sum) != 8 {
		return Record{}, fmt.Errorf("%.40q: want a checksum of 8 hexadecimal digits, and a record", text)
	}
	if have := crc32.Checksum(body, castagnoli); have != uint32(want) {
		return Record{}, fmt.Errorf("checksum %08x: the record has %08x", want, have)
	}
	var r Record
	if err := json.Unmarshal(body, &r); err != nil {
		return Record{}, err
	}
	return r, nil
}

// write writes the queued lines.
func (j *Journal) write() {
	defer close(j.synced)
	for l := range j.lines {
		l.done <- j.writeLine(l.text)
		select {
		case j.synced <- struct{}{}:
		default:
		}
	}
}

func (j *Journal) writeLine(text []byte) error {
	if j.size > 0 && j.size+int64(len(text)) > j.bytesMax/2 {
		if err := os.Rename(filepath.Join(j.dir, newer), filepath.Join(j.dir, older)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return err
		}
		j.file.Close()
		j.file, j.size = nil, 0
	}
	if j.file == nil {
		if err := j.openNewer(); err != nil {
			return err
		}
	}
	if j.torn {
		text = append([]byte{'\n'}, text...)
	}
	n, err := j.file.Write(text)
	if err == nil {
		j.size, j.torn = j.size+int64(n), false
		return nil
	}
	// The part that was written is truncated, which needs no space. If that fails, the next line is preceded by a
	// newline.
	if n > 0 && j.file.Truncate(j.size) != nil {
		j.size, j.torn = j.size+int64(n), true
	}
	return err
}

// flush syncs what was written to the disk, in parallel with the writing.
func (j *Journal) flush() {
	for range j.synced {
		for _, name := range []string{older, newer} {
			f, err := os.Open(filepath.Join(j.dir, name))
			if err != nil {
				continue
			}
			if err := f.Sync(); err != nil {
				slog.Warn("journal not synced to the disk", "file", f.Name(), "err", err)
			}
			f.Close()
		}
	}
}

// Find returns the records about pods of that namespace and name, oldest first; empty strings match all.
func (j *Journal) Find(namespace, name string) ([]Record, error) {
	var found []Record
	_, err := j.each(func(r Record) {
		if r.about(namespace, name) {
			found = append(found, r)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return found, nil
}

// each reads every record, oldest first, and counts damaged lines.
func (j *Journal) each(visit func(Record)) (damaged int, err error) {
	for _, name := range []string{older, newer} {
		f, err := os.Open(filepath.Join(j.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return damaged, err
		}
		n, err := eachOf(f, visit)
		f.Close()
		if damaged += n; err != nil {
			return damaged, err
		}
	}
	return damaged, nil
}

func eachOf(from io.Reader, visit func(Record)) (damaged int, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineMax+1)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		r, err := decode(lines.Bytes())
		if err != nil {
			damaged++
			continue
		}
		visit(r)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return damaged + 1, nil // not a line of a journal: the rest cannot be separated into lines
	}
	return damaged, lines.Err()
}

// Close ends the journal when everything appended is on the disk. Nothing may be appended afterwards.
func (j *Journal) Close() error {
	close(j.lines)
	j.ended.Wait()
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}
