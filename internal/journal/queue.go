package journal

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// waitingMax bounds what waits for the disk, in bytes. Chosen: some hundred evictions, or some thousand other
	// decisions, which a disk that is full or hangs does not take. Raising it keeps more of them, in memory.
	waitingMax = 2 << 20
	// retryPause is the pause before what waits is written again, if no record comes. Chosen: a write that fails costs
	// some microseconds, and an agent whose disk has room again may be stopped soon.
	retryPause = time.Second
)

// queue has what is not on the disk yet.
type queue struct {
	blocks  []*block // oldest first
	bytes   int      // of their texts
	writing bool     // the first one is being written
	failed  error    // why the last write failed; nil: it did not
}

// block is a text of whole lines that is written at once.
type block struct {
	text  []byte
	first uint64     // the number of its first record
	done  chan error // gets the result of the first write; nil: it has it, and waits
}

func (b *block) records() uint64 { return uint64(bytes.Count(b.text, []byte{'\n'})) }

func (b *block) tell(err error) {
	if b.done != nil {
		b.done <- err
		b.done = nil
	}
}

// add adds a block to the queue, whose text nobody changes until the result has come. If there are too many, the
// oldest are lost. j.mu is locked.
func (j *Journal) add(text []byte, first uint64) (done chan error) {
	done = make(chan error, 1)
	q := &j.queue
	q.blocks = append(q.blocks, &block{text, first, done})
	q.bytes += len(text)
	oldest := 0
	if q.writing {
		oldest = 1
	}
	for q.bytes > waitingMax && len(q.blocks) > oldest+1 {
		b := q.blocks[oldest]
		j.lost.Add(b.records())
		b.tell(fmt.Errorf("the disk takes nothing, and %d MiB wait: it is lost", waitingMax>>20))
		q.bytes -= len(b.text)
		q.blocks = slices.Delete(q.blocks, oldest, oldest+1)
	}
	signal(j.wake)
	return done
}

// writeQueue writes what is queued, until there is nothing more, or a write fails.
func (j *Journal) writeQueue() bool {
	for {
		j.mu.Lock()
		if j.queue.writing = len(j.queue.blocks) > 0; !j.queue.writing {
			j.mu.Unlock()
			return true
		}
		b := j.queue.blocks[0]
		j.mu.Unlock()
		err := j.writeLine(b.text)
		j.mu.Lock()
		j.wrote(b, err)
		j.mu.Unlock()
		if err != nil {
			return false
		}
		signal(j.synced)
	}
}

// retry writes what is queued. If that fails, the result has a value when it should be tried again.
func (j *Journal) retry() <-chan time.Time {
	if j.writeQueue() {
		return nil
	}
	return time.After(retryPause)
}

// wrote takes note of a write of the first block. j.mu is locked.
func (j *Journal) wrote(b *block, err error) {
	q := &j.queue
	q.writing = false
	before := q.failed
	if q.failed = err; err == nil {
		q.blocks[0] = nil
		q.blocks = q.blocks[1:]
		q.bytes -= len(b.text)
		b.tell(nil)
		if before != nil {
			slog.Info("journal is written again", "dir", j.dir, "lost", j.lost.Load())
		}
		return
	}
	if before == nil {
		slog.Warn("journal cannot be written; its records wait in memory", "dir", j.dir, "err", err)
	}
	for _, b := range q.blocks {
		if b.done != nil {
			b.text = bytes.Clone(b.text) // from now on, it is the queue's
			b.tell(fmt.Errorf("%w: %w", ErrLater, err))
		}
	}
}

// waiting returns what is not written, and the number of the last record. It says in a how many records wait because
// the disk cannot be written.
func (j *Journal) waiting(a *Answer) (blocks []block, last uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.queue.blocks {
		text := b.text
		if b.done != nil {
			text = bytes.Clone(text)
		} else {
			a.Waiting += b.records()
		}
		blocks = append(blocks, block{text: text, first: b.first})
	}
	return blocks, j.number
}

// drop gives up what waits when the Journal is closed.
func (j *Journal) drop() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var lost uint64
	for _, b := range j.queue.blocks {
		lost += b.records()
	}
	if lost == 0 {
		return nil
	}
	j.queue.blocks, j.queue.bytes = nil, 0
	j.lost.Add(lost)
	return fmt.Errorf("close journal: %s: lost records: %d: %w", j.dir, lost, j.queue.failed)
}
