package progress

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPlainPrintsOneLinePerEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		sink := Plain(&out)
		ok := Step(sink, "keys", func() (string, error) { time.Sleep(16 * time.Millisecond); return "15 made", nil })
		why := errors.New("no space left")
		failed := Step(sink, "etcd", func() (string, error) {
			time.Sleep(1500 * time.Millisecond)
			return "never shown", why
		})
		sink.Show(Event{Step: "agent", Phase: Note, Detail: "exit code 1"})
		sink.Show(Event{Phase: Note, Detail: "up in 2.5 s"})
		sink.Close()
		if ok != nil || failed != why {
			t.Errorf("errors %v and %v", ok, failed)
		}
		const want = "done    keys: 15 made (16 ms)\nfailed  etcd (1.5 s)\nnote    agent: exit code 1\nnote    up in 2.5 s\n"
		if out.String() != want {
			t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
		}
	})
}

// screen returns what a terminal would show: lines, of which carriage return and EL erase the last.
func screen(text string) (lines []string) {
	line := ""
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\r\x1b[K"):
			line, text = "", text[len("\r\x1b[K"):]
		case text[0] == '\n':
			lines = append(lines, line)
			line = ""
			text = text[1:]
		default:
			line, text = line+text[:1], text[1:]
		}
	}
	return append(lines, line)
}

func TestTerminalRewritesOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		sink := Terminal(&out, func() int { return 40 }, false)
		show := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := screen(out.String()); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("screen %q, want %q", got, want)
			}
		}
		sink.Show(Event{Step: "etcd", Phase: Begun})
		show("⠋ etcd 0 ms")
		sink.Show(Event{Step: "containerd", Phase: Begun})
		time.Sleep(2*frame + frame/2)
		show("⠹ etcd 200 ms, containerd 200 ms")
		sink.Show(Event{Step: "etcd", Phase: Done, Detail: "ready", Took: time.Second})
		show("✓ etcd: ready  1.0 s", "⠹ containerd 200 ms")
		sink.Show(Event{Step: "containerd", Phase: Note, Detail: "slow"})
		sink.Show(Event{Step: "a step with a name that is too long for this terminal", Phase: Begun})
		show("✓ etcd: ready  1.0 s", "· containerd: slow", "⠹ containerd 200 ms, a step with a nam…")
		sink.Show(Event{Step: "containerd", Phase: Failed, Took: 3 * time.Millisecond})
		sink.Close()
		show("✓ etcd: ready  1.0 s", "· containerd: slow", "✗ containerd  3 ms", "")
		sink.Close() // a second call has no effect
	})
}

func TestWireCarriesEventsToRelay(t *testing.T) {
	r, w := io.Pipe()
	sent := []Event{
		{Step: "a", Phase: Begun},
		{Step: "a", Phase: Done, Detail: "line\nbreak", Took: time.Second},
		{Phase: Note, Detail: "x"},
	}
	go func() {
		sink := Wire(w)
		for _, e := range sent {
			sink.Show(e)
		}
		sink.Close()
	}()
	var got recorder
	if err := Relay(r, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.events) != len(sent) {
		t.Fatalf("got %v", got.events)
	}
	for i := range sent {
		if got.events[i] != sent[i] {
			t.Errorf("event %d: %+v, want %+v", i, got.events[i], sent[i])
		}
	}
	if err := Relay(strings.NewReader("{\n"), &got); err == nil {
		t.Error("half an event is no error")
	}
}

// A reader that has ended must not stop the work.
func TestWireOutlivesItsReader(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	sink := Wire(w)
	if err := Step(sink, "a", func() (string, error) { return "", nil }); err != nil {
		t.Error(err)
	}
	sink.Close()
}

type recorder struct{ events []Event }

func (r *recorder) Show(e Event) { r.events = append(r.events, e) }
func (r *recorder) Close()       {}
