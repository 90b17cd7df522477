// Package journal records decisions with their inputs, so that they can be examined later: in an audit, by a user whose
// pod was evicted or waits, in a test that repeats the decision.
//
// # Model
//
// A Record is one decision: the pods and the node that it was about, one line for people, and Detail, with the inputs
// and results. Records are numbered and never changed.
//
// There are two writers. A Journal is on disk; the agent has one of its evictions. It writes records as lines to two
// files in a directory. The newer file grows up to half of the bound and then replaces the older one, so that at least
// the last half is always available.
//
//	1f8b2c0d {"number":17,"time":"...","kind":"eviction","pods":[{"namespace":"default","name":"grower","uid":"..."}],...}
//
// The first word is the CRC-32C of the rest of the line, in hexadecimal. A line that does not match it, such as the
// last one of a machine that lost power, is skipped and counted.
//
// A Log is in memory; the scheduler and the lifecycle controller have one each, and the agent has one of its pods. It
// takes Notes, which become Records
// when somebody asks, and copies them to a Journal in the background if it was given one.
//
// Both give an Answer to a Query. A copied file, a copied directory and a saved Answer are read by Read.
//
// # Invariants
//
//   - When Append has returned without an error, the record survives any end of this process: the kernel has it. It is
//     written to the disk within moments, in the background.
//   - AppendWithin waits for a bounded time only; the record is written when that is possible.
//   - What cannot be written, because the disk is full for example, waits in memory, is part of every Answer, and is
//     written in its order when that is possible. Only the newest 2 MiB wait: what is older is lost, and an Answer
//     counts it. What waits when the process ends is lost, too.
//   - Log.Note waits for nothing but a lock that is never held during I/O or encoding. A Log's records on disk are
//     complete up to a quarter of a second before a crash, or the Answer says how many are missing.
//   - Neither files nor a Log exceed their bound, whatever is recorded.
//   - A record that was cut off by a full disk is removed, or a newline ends it before the next record, so that it
//     never damages another one. If a file cannot be opened or written, that is tried again with each record, and each
//     second.
//   - No decision depends on the journal: if it cannot be written, that is logged, and the work continues.
//
// The package decides nothing and interprets nothing. It declares the format of each kind's Detail for its writers and
// readers. It does not replace the log, which is for operators, nor Events, which expire.
package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

const (
	newer, older = "decisions", "decisions.old"

	// BytesMax is the default bound, in bytes. Chosen: it has room for some hundred decisions about a hundred pods each.
	// Raising it keeps them for longer.
	BytesMax = 8 << 20

	// lineMax bounds one record, so that one record cannot replace all others. Chosen: a decision about 110 pods has about
	// 60 KiB.
	lineMax = 1 << 20
)

// ErrLater is returned by Append and AppendWithin if the record was not written, or not in time. It is written when
// that is possible.
var ErrLater = errors.New("not written yet")

// Journal is a journal on disk. It is safe for concurrent use. A directory must have only one Journal at a time.
type Journal struct {
	dir      string
	bytesMax int64          // bound of both files together
	pause    time.Duration  // between two syncs to the disk; zero: none
	wake     chan struct{}  // has a value when there is something to write
	synced   chan struct{}  // has a value when there is something to sync to the disk; closed by Close
	closing  chan struct{}  // closed by Close
	ended    sync.WaitGroup // the goroutine of write; the Journal of a Log has none: the Log's own writes
	flushed  sync.WaitGroup // the goroutine of flush
	began    uint64         // the number of the last record of earlier Journals
	lost     atomic.Uint64  // records that are not in the files, and do not wait
	replaced atomic.Bool    // the older file may have what was not synced

	mu     sync.Mutex // guards what follows; locked while a record gets its number and its place
	number uint64     // of the last record
	queue  queue

	// Only the goroutine that writes uses these, and then Close. file is nil while it cannot be opened; size is its
	// length; torn means that its last line is incomplete.
	file *os.File
	size int64
	torn bool
}

// Open opens the journal in dir, which is created if necessary. A full or read-only disk is no error, since the agent
// that may free the disk must start. Until the disk can be written, the records wait in memory.
func Open(dir string, bytesMax int64) (*Journal, error) {
	j, err := openDir(dir, bytesMax)
	if err == nil {
		j.ended.Go(j.write)
	}
	return j, err
}

// openDir is Open without a goroutine that writes.
func openDir(dir string, bytesMax int64) (*Journal, error) {
	j := &Journal{
		dir:      dir,
		bytesMax: max(bytesMax, 2*lineMax),
		wake:     make(chan struct{}, 1),
		synced:   make(chan struct{}, 1),
		closing:  make(chan struct{}),
	}
	damaged, err := eachIn(dir, func(r Record) { j.number = max(j.number, r.Number) })
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if damaged > 0 {
		slog.Warn("journal has damaged lines, which are skipped", "dir", dir, "lines", damaged)
	}
	j.began = j.number
	j.replaced.Store(true) // an earlier process may not have synced it
	if err := j.openNewer(); err != nil && !shortage.Is(err) {
		return nil, fmt.Errorf("open journal: %w", err)
	} else if err != nil {
		slog.Warn("journal cannot be written; trying again with each record", "dir", dir, "err", err)
	}
	j.flushed.Go(j.flush)
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
	text, err := encode(nil, r)
	if err != nil {
		j.mu.Unlock()
		j.lost.Add(1)
		return r.Number, fmt.Errorf("write journal: record %d: %w", r.Number, err)
	}
	done := j.add(text, r.Number)
	j.mu.Unlock()
	select {
	case err = <-done:
	case <-late:
		err = ErrLater
	}
	if err != nil {
		return r.Number, fmt.Errorf("write journal: record %d: %w", r.Number, err)
	}
	return r.Number, nil
}

// appendLines writes lines of a Log that have their numbers, first to last, from the Log's own goroutine.
func (j *Journal) appendLines(text []byte, first, last uint64) error {
	j.mu.Lock()
	j.number = max(j.number, last)
	done := j.add(text, first)
	j.mu.Unlock()
	j.writeQueue()
	return <-done
}

// write writes what is queued, until Close.
func (j *Journal) write() {
	var again <-chan time.Time
	for {
		select {
		case <-j.wake:
		case <-again:
		case <-j.closing:
			return
		}
		again = j.retry()
	}
}

func (j *Journal) writeLine(text []byte) error {
	if j.size > 0 && j.size+int64(len(text)) > j.bytesMax/2 {
		if err := os.Rename(filepath.Join(j.dir, newer), filepath.Join(j.dir, older)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return err
		}
		j.replaced.Store(true)
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
		names := []string{older, newer}
		if !j.replaced.Swap(false) {
			names = names[1:]
		}
		for _, name := range names {
			f, err := os.Open(filepath.Join(j.dir, name))
			if err != nil {
				continue
			}
			if err := f.Sync(); err != nil {
				slog.Warn("journal not synced to the disk", "file", f.Name(), "err", err)
			}
			f.Close()
		}
		select {
		case <-time.After(j.pause):
		case <-j.closing:
		}
	}
}

// Find answers a question.
func (j *Journal) Find(q Query) (Answer, error) {
	a := Answer{Records: []Record{}}
	last, err := j.collect(&a, a.collector(q))
	if err != nil {
		return Answer{}, err
	}
	a.fromFirst(j.dir)
	if a.Last < last { // what is neither in the files nor waits is lost
		a.Missing += last - a.Last
		a.Last = last
	}
	return a, nil
}

// collect visits every record, oldest first, says in a how many lines are damaged and how many records wait, and
// returns the number of the last record.
func (j *Journal) collect(a *Answer, visit func(Record)) (last uint64, err error) {
	waiting, last := j.waiting(a)
	a.Damaged, err = eachIn(j.dir, func(r Record) {
		if len(waiting) == 0 || r.Number < waiting[0].first { // what waited may have been written meanwhile
			visit(r)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read journal: %w", err)
	}
	for _, b := range waiting {
		if _, err := eachOf(bytes.NewReader(b.text), visit); err != nil {
			return 0, fmt.Errorf("read journal: what waits for the disk: %w", err)
		}
	}
	return last, nil
}

// Close ends the journal when everything appended is on the disk, or cannot be written. Nothing may be appended
// afterwards.
func (j *Journal) Close() error {
	close(j.closing)
	j.ended.Wait()
	j.writeQueue()
	close(j.synced)
	j.flushed.Wait()
	err := j.drop()
	if j.file != nil {
		err = errors.Join(err, j.file.Close())
	}
	return err
}
