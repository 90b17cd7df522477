// Package progress shows long work as named steps: what runs, its result and how long it took.
//
// The work reports Events to a Sink. There are three kinds: Terminal rewrites one line and prints a line per finished
// step above it; Plain only prints lines, for logs and pipes; Wire sends the events to another process, whose Relay
// passes them to its own Sink. Steps may overlap. A sink that cannot write drops the event, so that a broken display
// does not stop the work.
package progress

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Phase of a step.
type Phase string

const (
	Begun  Phase = "begun"
	Done   Phase = "done"
	Failed Phase = "failed"
	Note   Phase = "note" // not a step: one line for the user
)

// Event is one thing to show.
type Event struct {
	Step   string        `json:"step"`
	Phase  Phase         `json:"phase"`
	Detail string        `json:"detail,omitempty"` // the result, or the note
	Took   time.Duration `json:"took,omitempty"`
}

// Sink shows events. Implementations are safe for concurrent use.
type Sink interface {
	Show(Event)
	Close() // nothing is shown afterwards; the terminal is left clean
}

// Step runs work as one step. The detail that work returns is shown behind the step's name.
func Step(sink Sink, name string, work func() (detail string, err error)) error {
	sink.Show(Event{Step: name, Phase: Begun})
	began := time.Now()
	detail, err := work()
	e := Event{Step: name, Phase: Done, Detail: detail, Took: time.Since(began)}
	if err != nil {
		e.Phase, e.Detail = Failed, "" // the caller reports the error
	}
	sink.Show(e)
	return err
}

// seconds prints the duration of a step for a person.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// describe returns a step's name with its detail.
func describe(e Event) string {
	switch {
	case e.Detail == "":
		return e.Step
	case e.Step == "":
		return e.Detail
	}
	return e.Step + ": " + e.Detail
}

// Plain returns a sink that prints a line when a step ends.
func Plain(w io.Writer) Sink { return &plain{w: w} }

type plain struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (p *plain) Show(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Phase {
	case Done:
		fmt.Fprintf(p.w, "done    %s (%s)\n", describe(e), seconds(e.Took))
	case Failed:
		fmt.Fprintf(p.w, "failed  %s (%s)\n", describe(e), seconds(e.Took))
	case Note:
		fmt.Fprintf(p.w, "note    %s\n", describe(e))
	}
}

func (p *plain) Close() {}

// Wire returns a sink that writes events as JSON lines for a Relay.
func Wire(w io.WriteCloser) Sink { return &wire{w: w, enc: json.NewEncoder(w)} }

type wire struct {
	mu  sync.Mutex // guards w and enc
	w   io.WriteCloser
	enc *json.Encoder
}

func (p *wire) Show(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.enc.Encode(e) // the reader may have ended; the work continues
}

func (p *wire) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.w.Close()
}

// Relay passes the events that a Wire sent to sink until the other end closes.
func Relay(r io.Reader, sink Sink) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read progress: %.100q: %w", lines.Text(), err)
		}
		sink.Show(e)
	}
	return lines.Err()
}
