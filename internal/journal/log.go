package journal

import (
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A Note is a decision to be recorded. Nothing that it refers to may be changed afterwards.
type Note struct {
	Time   time.Time
	Kind   Kind
	Node   string
	Pods   []Pod
	Detail Detail
}

// Detail is what a Record has in Record.Detail, before it is encoded.
type Detail interface {
	Text() string // one line for people
	Size() int    // about how many bytes it keeps in memory
}

const (
	// chunkLength is how many Notes are kept together, and dropped together. Chosen: a chunk is allocated once for so many
	// decisions that it does not count, and the oldest is a small part of the whole.
	chunkLength = 256
	// noteBytes is what a Note takes without its Detail and the texts of its pods, in bytes: its own fields, and one pod.
	noteBytes = 240
	// blockMax is about how many bytes are encoded before they are written. Chosen: they are still in the CPU's cache
	// when the kernel copies them, and one more write costs little beside encoding so many.
	blockMax = 32 << 10
	// syncPause is the pause between two syncs of a Log's Journal to the disk. Chosen: a machine that loses power loses a
	// second of decisions; each sync delays others on the same disk, such as those of etcd.
	syncPause = time.Second
	// writePause is the pause after a write to the disk. Chosen: at 800 decisions a second, each would need a write and
	// wake several threads, which costs 20 us of CPU (measured 2026-11-26); 200 share that. A process that is killed loses
	// as much. After a pause without decisions, the next one is written at once. When half of what is kept in memory is
	// not written, there is no pause.
	writePause = 250 * time.Millisecond
)

// A Log keeps the newest decisions of one component in memory, and on disk too if it has a Journal. It is safe for
// concurrent use. A nil Log records nothing.
type Log struct {
	by       string
	bytesMax int
	disk     *Journal // nil: none
	began    uint64   // the number of the first Note of this Log
	beganAt  time.Time
	wake     chan struct{} // has a value when there is something to write to the disk
	hurry    chan struct{} // has a value when half of what is kept is not written
	closing  chan struct{} // closed by Close
	ended    sync.WaitGroup
	lost     atomic.Uint64 // Notes that did not reach the Journal

	mu     sync.Mutex // guards what follows; locked for some assignments only
	chunks []*chunk   // oldest first; only the last has room
	bytes  int        // about what the chunks keep in memory
	next   uint64     // the number of the next Note
	taken  uint64     // the number of the last Note that write has written, or is about to write
	closed bool

	// Only write uses these, and then Close. written is the number of the last Note that was written to the disk, or
	// missed it; missed is how many missed it since that was logged.
	written uint64
	missed  uint64
	saidSo  time.Time
	text    []byte // the lines of a write; kept for the next
}

// chunk has Notes in order. Those below count never change.
type chunk struct {
	first uint64 // the number of notes[0]
	count int
	bytes int
	notes [chunkLength]Note
}

// NewLog returns a Log of the component by that keeps about bytesMax bytes. disk is the directory of its Journal;
// empty: there is none.
func NewLog(by string, bytesMax int, disk string) (*Log, error) {
	l := &Log{
		by:       by,
		bytesMax: bytesMax,
		beganAt:  time.Now(),
		next:     1,
		wake:     make(chan struct{}, 1),
		hurry:    make(chan struct{}, 1),
		closing:  make(chan struct{}),
	}
	if disk != "" {
		var err error
		if l.disk, err = openDir(disk, BytesMax); err != nil {
			return nil, err
		}
		l.disk.pause = syncPause
		l.next = l.disk.number + 1
		l.written, l.taken = l.disk.number, l.disk.number
		l.ended.Go(l.write)
	}
	l.began = l.next
	return l, nil
}

// Note records a decision.
func (l *Log) Note(n Note) {
	if l == nil {
		return
	}
	bytes := noteBytes
	if n.Detail != nil {
		bytes += n.Detail.Size()
	}
	for i := range n.Pods {
		p := &n.Pods[i]
		bytes += len(p.Namespace) + len(p.Name) + len(p.UID) + len(p.Message)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	last := len(l.chunks) - 1
	if last < 0 || l.chunks[last].count == chunkLength {
		l.chunks = append(l.chunks, &chunk{first: l.next})
		last++
		if first := l.chunks[0].first; l.next-l.taken > (l.next-first)/2 {
			signal(l.hurry)
		}
	}
	c := l.chunks[last]
	c.notes[c.count] = n
	c.count++
	c.bytes += bytes
	l.bytes += bytes
	l.next++
	for l.bytes > l.bytesMax && len(l.chunks) > 1 {
		l.bytes -= l.chunks[0].bytes
		l.chunks[0] = nil
		l.chunks = l.chunks[1:]
	}
	l.mu.Unlock()
	if l.disk != nil {
		signal(l.wake)
	}
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// kept is a part of a chunk that does not change any more.
type kept struct {
	first uint64
	notes []Note
}

// keptFrom returns the Notes from a number on, at most max chunks of them.
func (l *Log) keptFrom(number uint64, max int) (out []kept) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.chunks {
		skip := 0
		if number > c.first {
			skip = int(min(number-c.first, uint64(c.count)))
		}
		if skip < c.count && len(out) < max {
			out = append(out, kept{c.first + uint64(skip), c.notes[skip:c.count]})
		}
	}
	return out
}

// record encodes a Note. An encoding that fails leaves the Detail out: the text says what happened.
func (l *Log) record(number uint64, n *Note) Record {
	r := Record{Number: number, Time: n.Time, Kind: n.Kind, By: l.by, Node: n.Node, Pods: n.Pods}
	if n.Detail == nil {
		return r
	}
	r.Text = n.Detail.Text()
	detail, err := json.Marshal(n.Detail)
	if err != nil {
		slog.Warn("journal: detail of a decision left out", "number", number, "err", err)
		return r
	}
	r.Detail = detail
	return r
}

// Find answers a question, from memory and from what is on disk.
func (l *Log) Find(q Query) (Answer, error) {
	a := Answer{By: l.by, Records: []Record{}}
	memory := l.keptFrom(0, 1<<30)
	first := l.began
	if len(memory) > 0 {
		first = memory[0].first
	}
	collect := a.collector(q)
	if l.disk != nil {
		_, err := l.disk.collect(&a, func(r Record) {
			if r.Number < first {
				collect(r)
			}
		})
		if err != nil {
			return Answer{}, err
		}
	}
	for _, k := range memory {
		for i := range k.notes {
			n, number := &k.notes[i], k.first+uint64(i)
			if q.matches(n.Node, n.Pods) {
				collect(l.record(number, n))
			} else {
				collect(Record{Number: number, Time: n.Time, By: l.by, Node: n.Node, Pods: n.Pods})
			}
		}
	}
	switch a.By = l.by; {
	case l.disk != nil:
		a.fromFirst(l.disk.dir)
	case a.First <= 1:
		a.Since = l.beganAt
	}
	return a, nil
}

// write copies Notes to the disk until the Log is closed. It is the only goroutine that does: handing over to another
// one costs more than the write.
func (l *Log) write() {
	var again <-chan time.Time
	for {
		select {
		case <-l.wake:
		case <-again:
		case <-l.closing:
			return // Close writes the rest
		}
		for l.writeSome() {
		}
		again = l.disk.retry()
		select {
		case <-time.After(writePause):
		case <-l.hurry:
		case <-l.closing:
		}
	}
}

// writeSome writes the next Notes, a chunk at most. It returns false if there are none.
func (l *Log) writeSome() bool {
	next := l.keptFrom(l.written+1, 1)
	if len(next) == 0 {
		return false
	}
	k := next[0]
	l.mu.Lock()
	l.taken = k.first + uint64(len(k.notes)) - 1
	l.mu.Unlock()
	l.missed += k.first - l.written - 1
	l.lost.Add(k.first - l.written - 1)
	if l.missed > 0 && time.Since(l.saidSo) > time.Minute {
		slog.Warn("journal: the disk is too slow; decisions are not on it", "decisions", l.missed)
		l.missed, l.saidSo = 0, time.Now()
	}
	text, first := l.text[:0], k.first
	for i := range k.notes {
		number := k.first + uint64(i)
		longer, err := l.encode(text, number, &k.notes[i])
		if err != nil {
			slog.Warn("journal: decision left out", "number", number, "err", err)
			l.lost.Add(1)
			continue
		}
		if text = longer; len(text) > blockMax || i == len(k.notes)-1 {
			l.writeBlock(text, first, number)
			text, first = text[:0], number+1
		}
	}
	l.writeBlock(text, first, k.first+uint64(len(k.notes))-1)
	l.text = text
	l.written = k.first + uint64(len(k.notes)) - 1
	return true
}

// encode appends a Note as a line to text.
func (l *Log) encode(text []byte, number uint64, n *Note) ([]byte, error) {
	if detail, is := n.Detail.(appender); is {
		r := Record{Number: number, Time: n.Time, Kind: n.Kind, By: l.by, Node: n.Node, Pods: n.Pods}
		if longer, err := encodeNote(text, &r, detail); err == nil {
			return longer, nil
		}
	}
	r := l.record(number, n)
	longer, err := encode(text, r)
	if err != nil { // it is too long
		r.Detail = nil
		longer, err = encode(text, r)
	}
	return longer, err
}

func (l *Log) writeBlock(text []byte, first, last uint64) {
	if len(text) == 0 {
		return
	}
	err := l.disk.appendLines(text, first, last)
	if err != nil && !errors.Is(err, ErrLater) { // the Journal says that it waits
		slog.Warn("journal: decisions are lost", "first", first, "last", last, "err", err)
	}
}

// Close writes what is not written yet, and closes the Journal. Notes that come later are dropped.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errors.New("close journal: it is closed")
	}
	l.closed = true
	l.mu.Unlock()
	if l.disk == nil {
		return nil
	}
	close(l.closing)
	l.ended.Wait()
	for l.writeSome() {
	}
	return l.disk.Close()
}
