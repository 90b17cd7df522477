package podlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const t0 = "2026-11-20T10:00:0"

// entries writes "1 o F text" as an entry of second 1 on stdout.
func entries(specs ...string) string {
	var b strings.Builder
	for _, s := range specs {
		f := strings.SplitN(s, " ", 4)
		stream := map[string]string{"o": "stdout", "e": "stderr"}[f[1]]
		fmt.Fprintf(&b, "%s%s.123456789Z %s %s %s\n", t0, f[0], stream, f[2], f[3])
	}
	return b.String()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func lines(n int64) *int64 { return &n }

func TestRead(t *testing.T) {
	since, _ := time.Parse(time.RFC3339, t0+"2Z")
	log := entries("1 o F one", "1 e F err", "2 o P two-", "2 o F part", "3 o F three")
	for _, c := range []struct {
		name, log string
		o         Options
		want      string
	}{
		{"everything", log, Options{}, "one\nerr\ntwo-part\nthree\n"},
		{"one stream", log, Options{Stream: Stderr}, "err\n"},
		{"since leaves out what is older", log, Options{Since: since}, "two-part\nthree\n"},
		{"timestamps once per line", log, Options{Since: since, Timestamps: true},
			t0 + "2.123456789Z two-part\n" + t0 + "3.123456789Z three\n"},
		{"timestamps have nine digits", "2026-11-20T10:00:01.5Z stdout F x\n", Options{Timestamps: true},
			"2026-11-20T10:00:01.500000000Z x\n"},
		{"limit cuts a line", log, Options{LimitBytes: 6}, "one\ner"},
		{"limit counts timestamps", log, Options{LimitBytes: 4, Timestamps: true}, "2026"},
		{"tail 0", log, Options{Tail: lines(0)}, ""},
		{"tail 1", log, Options{Tail: lines(1)}, "three\n"},
		{"tail counts a line in parts as one", log, Options{Tail: lines(2)}, "two-part\nthree\n"},
		{"tail 3", log, Options{Tail: lines(3)}, "err\ntwo-part\nthree\n"},
		{"tail of exactly all", log, Options{Tail: lines(4)}, "one\nerr\ntwo-part\nthree\n"},
		{"tail of more than there is", log, Options{Tail: lines(40)}, "one\nerr\ntwo-part\nthree\n"},
		{"empty", "", Options{Tail: lines(3)}, ""},
		{"no newline at the end", strings.TrimSuffix(log, "\n"), Options{Tail: lines(1)}, "three"},
		{"damaged entries are left out", "garbage\n\n" + log + "x y z\n", Options{}, "one\nerr\ntwo-part\nthree\n"},
		{"empty lines stay", entries("1 o F ", "1 o F x"), Options{}, "\nx\n"},
		{"tags after the first are kept for later", "2026-11-20T10:00:01Z stdout F:new x\n", Options{}, "x\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			write(t, path, c.log)
			var out strings.Builder
			if err := Read(t.Context(), path, c.o, &out); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.want {
				t.Errorf("got %q, want %q", out.String(), c.want)
			}
		})
	}
}

// TestReadAgainstPlainTwin checks tails, long entries and block borders against reading everything and splitting it.
func TestReadAgainstPlainTwin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	for _, width := range []int{0, 1, 100, blockBytes - 46, blockBytes, 3*blockBytes + 7} {
		var log, plain strings.Builder
		for i := range 40 {
			text := fmt.Sprintf("%d-%s", i, strings.Repeat("x", (width*(i%3))/2))
			if i%4 == 1 {
				log.WriteString(entries("1 o P " + text))
				plain.WriteString(text)
				continue
			}
			log.WriteString(entries("1 o F " + text))
			plain.WriteString(text + "\n")
		}
		write(t, path, log.String())
		all := strings.SplitAfter(strings.TrimSuffix(plain.String(), "\n"), "\n")
		all[len(all)-1] += "\n"
		for _, n := range []int{0, 1, 2, 3, 7, len(all) - 1, len(all), len(all) + 1} {
			var out strings.Builder
			if err := Read(t.Context(), path, Options{Tail: lines(int64(n))}, &out); err != nil {
				t.Fatal(err)
			}
			if want := strings.Join(all[max(0, len(all)-n):], ""); out.String() != want {
				t.Errorf("width %d, tail %d: got %d bytes, want %d", width, n, out.Len(), len(want))
			}
		}
	}
}

func TestReadStaysInItsRoot(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "secret"), entries("1 o F secret"))
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "0.log")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(root, "0.log"), filepath.Join(outside, "secret"), root + "/../" +
		filepath.Base(outside) + "/secret"} {
		if err := Read(t.Context(), path, Options{Root: root}, io.Discard); err == nil {
			t.Errorf("%s was read from outside its root", path)
		}
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entries("1 o F aaaa", "2 o F bbbb", "3 e F cccc"))
	for _, c := range []struct {
		lines, bytes int
		want         string
	}{{80, 2048, "aaaa\nbbbb\ncccc\n"}, {2, 2048, "bbbb\ncccc\n"}, {80, 7, "b\ncccc\n"}, {80, 3, "cc\n"}} {
		got, err := Tail("", path, c.lines, c.bytes)
		if err != nil || string(got) != c.want {
			t.Errorf("tail of %d lines, %d bytes: %q, %v; want %q", c.lines, c.bytes, got, err, c.want)
		}
	}
	if _, err := Tail("", path+"x", 1, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("tail of a missing log: %v", err)
	}
}

// gathered is what a follower has shown so far.
type gathered struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *gathered) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		g.mu.Lock()
		got := g.text.String()
		g.mu.Unlock()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("follower shows %q, want %q", got, want)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func add(t *testing.T, f *os.File, text string) {
	t.Helper()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// A container logs, its log is rotated under the follower while the writer still has the old file open, and the
// container ends.
func TestFollowAcrossRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	add(t, f, entries("1 o F old"))
	var running atomic.Bool
	running.Store(true)
	out, done := &gathered{}, make(chan error, 1)
	go func() {
		done <- Read(t.Context(), path, Options{Follow: true, Running: running.Load, Tail: lines(10)}, out)
	}()
	out.await(t, "old\n")

	add(t, f, "2026-11-20T10:00:02Z std") // an entry in two writes is shown whole
	add(t, f, "out F half\n")
	out.await(t, "old\nhalf\n")

	if err := os.Rename(path, path+".20261120-100002"); err != nil {
		t.Fatal(err)
	}
	add(t, f, entries("3 o F after rename"))
	g, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	add(t, f, entries("4 o F before the change-over"))
	add(t, g, entries("5 o F new"))
	out.await(t, "old\nhalf\nafter rename\nbefore the change-over\nnew\n")

	long := strings.Repeat("y", 3*bufferBytes)
	add(t, g, "2026-11-20T10:00:06Z stdout F "+long)
	add(t, g, "z\n")
	add(t, g, entries("7 o F last"))
	running.Store(false)
	g.Close()
	f.Close()
	out.await(t, "old\nhalf\nafter rename\nbefore the change-over\nnew\n"+long+"z\nlast\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A log is rotated twice while the client does not read: it is shown completely nevertheless.
func TestFollowSlowlyAcrossTwoRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entries("1 o F one"))
	out, done := &gathered{}, make(chan error, 1)
	stalled, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- Read(ctx, path, Options{Follow: true, Running: func() bool { return true }},
			writerFunc(func(p []byte) (int, error) {
				once.Do(func() { close(stalled); <-goOn })
				return out.Write(p)
			}))
	}()
	<-stalled
	for i, text := range []string{"2 o F two", "3 o F three"} {
		if err := os.Rename(path, fmt.Sprintf("%s.20261120-10000%d", path, i)); err != nil {
			t.Fatal(err)
		}
		write(t, path, entries(text))
	}
	write(t, path+".20261120-090000.gz", "older")
	close(goOn)
	out.await(t, "one\ntwo\nthree\n")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Many followers come and go: no goroutine and no inotify instance remains.
func TestFollowersLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 200 { // more than fs.inotify.max_user_instances usually allows
		path := filepath.Join(dir, fmt.Sprint(i%10), "0.log")
		os.MkdirAll(filepath.Dir(path), 0o750)
		write(t, path, entries("1 o F x"))
		out := &gathered{}
		wg.Go(func() {
			Read(ctx, path, Options{Follow: true, Running: func() bool { return true }}, out)
		})
		out.await(t, "x\n")
	}
	cancel()
	wg.Wait()
	watches.mu.Lock()
	file := watches.file
	watches.mu.Unlock()
	if file != nil {
		t.Error("inotify instance is open with nobody following")
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestFollowEndsWhenTheClientDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entries("1 o F x"))
	broken := errors.New("client is gone")
	err := Read(t.Context(), path, Options{Follow: true, Running: func() bool { return true }},
		writerFunc(func([]byte) (int, error) { return 0, broken }))
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func FuzzParse(f *testing.F) {
	cost.Attack(f, []byte("2016-10-06T00:17:09.669794202Z stdout P log content 1\n"))
	cost.Attack(f, []byte("2016-10-06T00:17:09.669794203Z stderr F\n"))
	cost.Attack(f, []byte("2016-10-06T00:17:09Z stdout F:x:y \n"))
	cost.Attack(f, []byte("{\"log\":\"x\"}"))
	f.Fuzz(func(t *testing.T, line []byte) {
		defer cost.Spend(t, len(line))()
		e, err := Parse(line)
		if err != nil {
			return
		}
		if e.Stream != Stdout && e.Stream != Stderr {
			t.Errorf("stream %d", e.Stream)
		}
		if !bytes.Contains(line, e.Text) || len(e.Text) > len(line) {
			t.Errorf("text %q is not part of %q", e.Text, line)
		}
		if e.Partial && bytes.HasSuffix(e.Text, []byte("\n")) && !bytes.HasSuffix(line, []byte("\n\n")) {
			t.Errorf("partial text %q keeps its newline", e.Text)
		}
	})
}

// FuzzTail checks the walk from the end against a walk from the start.
func FuzzTail(f *testing.F) {
	cost.Attack(f, []byte(entries("1 o F a", "2 o P b", "2 o F c")), 1)
	cost.Attack(f, []byte("\n\n\n"), 2)
	cost.Attack(f, []byte("no newline"), 1)
	f.Fuzz(func(t *testing.T, log []byte, n int) {
		defer cost.Spend(t, len(log))()
		n = n & 0xff
		got, err := tailStart(bytes.NewReader(log), int64(len(log)), int64(n))
		if err != nil {
			t.Fatal(err)
		}
		// The plain implementation: find the starts of entries, then go back until n lines are complete.
		var starts []int
		for at := 0; at < len(log); {
			starts = append(starts, at)
			i := bytes.IndexByte(log[at:], '\n')
			if i < 0 {
				break
			}
			at += i + 1
		}
		want, found := len(log), 0
		for i := len(starts) - 1; i >= 0; i-- {
			end := len(log)
			if i+1 < len(starts) {
				end = starts[i+1]
			}
			if endsLine(log[starts[i]:min(end, starts[i]+headMax)]) {
				if found == n {
					break
				}
				found++
			}
			want = starts[i]
		}
		if n == 0 {
			want = len(log)
		}
		if got != int64(want) {
			t.Errorf("tail of %d lines of %q starts at %d, want %d", n, log, got, want)
		}
	})
}
