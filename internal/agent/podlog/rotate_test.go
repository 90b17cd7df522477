package podlog

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// runtimeLog stands for the runtime's side of a log: it creates the file again when asked to re-open it.
type runtimeLog struct {
	path    string
	reopens int
	fail    error
}

func (l *runtimeLog) reopen(context.Context, string) error {
	l.reopens++
	if l.fail != nil {
		return l.fail
	}
	f, err := os.Create(l.path)
	if err != nil {
		return err
	}
	return f.Close()
}

func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// Five passes over a log that is always too large, with three files allowed: the newest rotated file stays plain, the
// one before is compressed, older ones are removed.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	log := &runtimeLog{path: filepath.Join(dir, "0.log")}
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	r := &Rotator{
		MaxBytes: 10, MaxFiles: 3, Workers: 1, Interval: time.Second,
		Logs: func() []Log { return []Log{{"c", log.path}} }, Reopen: log.reopen, Now: func() time.Time { return now },
	}
	for i, want := range []string{
		"0.log 0.log.20261120-100000",
		"0.log 0.log.20261120-100000.gz 0.log.20261120-100001",
		"0.log 0.log.20261120-100001.gz 0.log.20261120-100002",
		"0.log 0.log.20261120-100002.gz 0.log.20261120-100003",
	} {
		write(t, log.path, strings.Repeat(string(rune('a'+i)), 10))
		write(t, filepath.Join(dir, "0.log.20200101-000000.tmp"), "left by a crash")
		r.Pass(t.Context())
		write(t, log.path, strings.Repeat("x", 10))
		r.Pass(t.Context()) // too large again within the second: no rotated file may be lost
		r.Pass(t.Context())
		if got := names(t, dir); got != want {
			t.Errorf("pass %d: %s, want %s", i, got, want)
		}
		now = now.Add(time.Second)
	}
	f, err := os.Open(filepath.Join(dir, "0.log.20261120-100002.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || string(got) != "cccccccccc" {
		t.Errorf("archive holds %q, %v", got, err)
	}
	if log.reopens != 4 {
		t.Errorf("%d re-opens, want 4", log.reopens)
	}
}

func TestRotateLeavesAlone(t *testing.T) {
	dir := t.TempDir()
	log := &runtimeLog{path: filepath.Join(dir, "0.log"), fail: errors.New("runtime is away")}
	r := &Rotator{MaxBytes: 10, MaxFiles: 2, Logs: func() []Log { return []Log{{"c", log.path}} }, Reopen: log.reopen}

	write(t, log.path, "123456789") // too small
	r.Pass(t.Context())
	if log.reopens != 0 {
		t.Error("a small log was rotated")
	}
	write(t, log.path, "1234567890") // the runtime fails: the log must be back under its name
	r.Pass(t.Context())
	if got, _ := os.ReadFile(log.path); string(got) != "1234567890" || names(t, dir) != "0.log" {
		t.Errorf("after a failed rotation: %s holds %q", names(t, dir), got)
	}
	log.fail = nil
	os.Remove(log.path) // the agent was killed between the rename and the call to the runtime
	r.Pass(t.Context())
	if names(t, dir) != "0.log" {
		t.Errorf("a missing log was not re-opened: %s", names(t, dir))
	}
	os.RemoveAll(dir) // the pod is going away
	reopens := log.reopens
	r.Pass(t.Context())
	if log.reopens != reopens {
		t.Error("the runtime was asked to re-open a log whose directory is gone")
	}
}

func TestRotatorRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		looks := 0
		r := &Rotator{MaxFiles: 2, Interval: 10 * time.Second, Logs: func() []Log { looks++; return nil }}
		go r.Run(ctx)
		time.Sleep(35 * time.Second) // of the bubble's clock
		cancel()
		synctest.Wait()
		if looks != 3 {
			t.Errorf("%d looks in 35 s, want 3", looks)
		}
	})
	if err := (&Rotator{MaxFiles: 1, Interval: 1}).Run(t.Context()); err == nil {
		t.Error("containerLogMaxFiles 1 was taken")
	}
	if err := (&Rotator{MaxBytes: -1}).Run(t.Context()); err != nil {
		t.Errorf("rotation switched off: %v", err)
	}
}
