package progress

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// frame is the time between two pictures of the spinner. Chosen: it looks smooth and costs hardly any CPU.
const frame = 100 * time.Millisecond

var spinner = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// For returns a sink for f: Terminal if f is a terminal with control codes, else Plain.
func For(f *os.File) Sink {
	if !IsTerminal(f) {
		return Plain(f)
	}
	return Terminal(f, func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 {
			return 80
		}
		return int(size.Col)
	}, os.Getenv("NO_COLOR") == "")
}

// IsTerminal reports whether f is a terminal with control codes.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
}

// Terminal returns a sink that shows the running steps in one line that it rewrites, shortened to the width of the
// terminal.
func Terminal(w io.Writer, width func() int, color bool) Sink {
	t := &terminal{w: w, width: width, color: color, stop: make(chan struct{}), stopped: make(chan struct{})}
	go t.spin()
	return t
}

type terminal struct {
	w     io.Writer
	width func() int // columns of the terminal now
	color bool

	stop, stopped chan struct{}
	once          sync.Once

	mu      sync.Mutex    // guards what follows
	running []runningStep // in the order of their beginnings
	picture int           // how many pictures were shown
	dirty   bool          // the line of running steps is on the screen
}

type runningStep struct {
	name  string
	since time.Time
}

func (t *terminal) Show(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Phase == Begun {
		t.running = append(t.running, runningStep{e.Step, time.Now()})
		t.redraw()
		return
	}
	t.running = slices.DeleteFunc(t.running, func(r runningStep) bool { return e.Phase != Note && r.name == e.Step })
	t.clear()
	switch e.Phase {
	case Done:
		fmt.Fprintf(t.w, "%s %s  %s\n", t.paint("32", "✓"), describe(e), t.paint("2", seconds(e.Took)))
	case Failed:
		fmt.Fprintf(t.w, "%s %s  %s\n", t.paint("31", "✗"), describe(e), t.paint("2", seconds(e.Took)))
	case Note:
		fmt.Fprintf(t.w, "%s %s\n", t.paint("33", "·"), describe(e))
	}
	t.redraw()
}

// Close erases the line and stops the spinner.
func (t *terminal) Close() {
	t.once.Do(func() { close(t.stop) })
	<-t.stopped
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = nil
	t.clear()
}

func (t *terminal) spin() {
	defer close(t.stopped)
	ticker := time.NewTicker(frame)
	defer ticker.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-ticker.C:
			t.mu.Lock()
			t.picture++
			t.redraw()
			t.mu.Unlock()
		}
	}
}

// redraw rewrites the line of running steps.
func (t *terminal) redraw() {
	t.clear()
	if len(t.running) == 0 {
		return
	}
	parts := make([]string, len(t.running))
	for i, r := range t.running {
		parts[i] = fmt.Sprintf("%s %s", r.name, seconds(time.Since(r.since).Truncate(frame)))
	}
	line := spinner[t.picture%len(spinner)] + " " + strings.Join(parts, ", ")
	fmt.Fprint(t.w, cut(line, t.width()-1))
	t.dirty = true
}

// clear returns to the beginning of the line and erases it (ECMA-48 EL).
func (t *terminal) clear() {
	if t.dirty {
		fmt.Fprint(t.w, "\r\x1b[K")
		t.dirty = false
	}
}

func (t *terminal) paint(code, text string) string {
	if !t.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// cut shortens s to n characters, since a line that wraps cannot be rewritten.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:max(0, n-1)]) + "…"
}
