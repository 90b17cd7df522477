package staticpods

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// told waits for a notification.
func told[T any](t *testing.T, from <-chan T, what string) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(2 * time.Minute): // a machine may have other work
		t.Fatalf("not told of %s", what)
	}
}

// warnings is a log that notifies of new entries, once until the notification is received.
type warnings struct {
	slog.Handler
	said chan struct{}
}

func (w warnings) Handle(context.Context, slog.Record) error {
	select {
	case w.said <- struct{}{}:
	default:
	}
	return nil
}

// A directory is still watched after more changes than fit into the kernel's queue. The queue of a real watcher
// overflows here while nothing reads it.
func TestDirectoryIsFollowedAfterOverflow(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip("no inotify here: ", err)
	}
	queue, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	const kernelDefault = 16_384 // fs/notify/inotify/inotify_user.c
	if queue > 8*kernelDefault {
		t.Skipf("the queue of this machine holds %d changes, which takes long to fill", queue)
	}
	dir, watcher := t.TempDir(), newWatcher(t)
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	const held = 4096 + 1                // what the watcher reads at once before it waits for its reader
	for i := range (queue+held)/2 + 10 { // the kernel merges equal consecutive events
		makeDir(t, dir, fmt.Sprint("a", i))
		if err := os.Remove(filepath.Join(dir, fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.Default()
	out := log.Writer()
	flags := log.Flags()
	defer func() {
		slog.SetDefault(logger)
		log.SetOutput(out) // which slog.SetDefault has led to the other
		log.SetFlags(flags)
	}()
	overflowed := make(chan struct{}, 1)
	slog.SetDefault(slog.New(warnings{slog.NewTextHandler(io.Discard, nil), overflowed}))
	changed, over := make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(over)
		forward(ctx, watcher, dir, changed)
	}()
	defer func() {
		cancel()
		<-over
	}()
	told(t, overflowed, "changes that were lost")
	for i := range 4 { // at most two earlier ones are left
		makeDir(t, dir, fmt.Sprint("b", i))
		told(t, changed, "a change after the overflow")
	}
}

func makeDir(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
}

func newWatcher(t *testing.T) *fsnotify.Watcher {
	t.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	return watcher
}
