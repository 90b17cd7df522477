package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/trace"
)

// Kinds of a file of Facts.
const (
	Began Kind = "began" // with which options a scheduler began: Beginning
	Fact  Kind = "fact"  // what it was told, or what it answered: trace.Fact, with Object
)

// Beginning is the Detail of a Began record.
type Beginning struct {
	Options scheduler.Options `json:"options"`
	Version string            `json:"version"` // of the program
}

// Told is the Detail of a Fact record.
type Told struct {
	trace.Fact
	// Object is the NodeResourceTopology of a ReportSeen, whose report is not plain data.
	Object any `json:"object,omitempty"`
}

const (
	// FactsBytesMax bounds a file of Facts, in bytes. Chosen: some ten thousand pods come, are placed and go in it.
	FactsBytesMax = 48 << 20
	// factsQueue is how many Facts may wait for the disk. Chosen: the first lists of a large cluster come at once.
	factsQueue = 1 << 17
)

// Facts is a file with everything that a scheduler was told from its beginning, so that all its decisions can be
// repeated. It ends when it is full, because later Facts mean nothing without those before them: what does not fit is
// left out, not what is old. A nil Facts records nothing.
type Facts struct {
	file  *os.File
	queue chan Told
	done  chan struct{}
	ended atomic.Bool // nothing more is recorded
	once  sync.Once
}

// NewFacts creates the file at path, which must not exist.
func NewFacts(path string, b Beginning) (*Facts, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s: it exists: name a file that does not, or remove it", path)
	} else if err != nil {
		return nil, err
	}
	out := &Facts{file: f, queue: make(chan Told, factsQueue), done: make(chan struct{})}
	go out.write(b)
	return out, nil
}

// Note records a Fact. It never waits.
func (f *Facts) Note(t Told) {
	if f == nil || f.ended.Load() {
		return
	}
	select {
	case f.queue <- t:
	default:
		f.end("the disk is too slow")
	}
}

func (f *Facts) end(why string) {
	if f.ended.CompareAndSwap(false, true) {
		slog.Warn("facts are not recorded any more", "file", f.file.Name(), "why", why)
	}
}

func (f *Facts) write(b Beginning) {
	defer close(f.done)
	out := bufio.NewWriterSize(f.file, blockMax)
	size, number := 0, uint64(0)
	line := func(kind Kind, detail any) error {
		number++
		r := Record{Number: number, Time: time.Now(), Kind: kind, By: "scheduler"}
		var err error
		if r.Detail, err = json.Marshal(detail); err != nil {
			return err
		}
		text, err := encode(nil, r)
		if err != nil {
			return err
		}
		if size += len(text); size > FactsBytesMax {
			return fmt.Errorf("it is full: %d MiB", FactsBytesMax>>20)
		}
		_, err = out.Write(text)
		return err
	}
	err := line(Began, b)
	for t := range f.queue {
		if err == nil {
			err = line(Fact, t)
		}
		if err == nil && len(f.queue) == 0 {
			err = out.Flush()
		}
		if err != nil { // what comes now means nothing without this one
			f.end(err.Error())
		}
	}
	if err := errors.Join(out.Flush(), f.file.Sync(), f.file.Close()); err != nil {
		slog.Warn("facts are not all on the disk", "file", f.file.Name(), "err", err)
	}
}

// Close writes what is not written yet. Nothing may be noted afterwards.
func (f *Facts) Close() {
	if f == nil {
		return
	}
	f.once.Do(func() { f.ended.Store(true); close(f.queue) })
	<-f.done
}
