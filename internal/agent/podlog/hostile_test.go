package podlog

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// A pod that may write to the directory of all logs puts links in place of logs, of rotated logs and of directories.
// Nothing that they lead to is read, written, renamed or removed, and the real log is rotated.
func TestLinksAmongLogs(t *testing.T) {
	base := t.TempDir()
	root, outside := filepath.Join(base, "logs"), filepath.Join(base, "outside")
	own := filepath.Join(root, "ns_pod_uid/c")
	for _, dir := range []string{own, outside, filepath.Join(root, "ns_linked_uid")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(outside, "secret"), "a secret")
	write(t, filepath.Join(outside, "0.log"), strings.Repeat("x", 100))
	link(filepath.Join(outside, "secret"), filepath.Join(own, "0.log.20200101-000000"))     // to be compressed
	write(t, filepath.Join(own, "0.log.20200102-000000"), "rotated")                        // to be compressed into
	link(filepath.Join(outside, "secret"), filepath.Join(own, "0.log.20200102-000000.tmp")) // ... this
	link(outside, filepath.Join(root, "ns_linked_uid/c"))
	link(filepath.Join(outside, "0.log"), filepath.Join(own, "1.log"))
	if err := unix.Mkfifo(filepath.Join(own, "2.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(own, "0.log"), strings.Repeat("y", 100))
	log := &runtimeLog{path: filepath.Join(own, "0.log")}
	paths := []string{log.path, filepath.Join(own, "1.log"), filepath.Join(own, "2.log"), filepath.Join(root,
		"ns_linked_uid/c/0.log")}
	r := &Rotator{
		Root: root, MaxBytes: 10, MaxFiles: 4, Workers: 1, Reopen: log.reopen, Now: func() time.Time {
			return time.Date(2026,
				1, 1, 0, 0, 0, 0, time.UTC)
		},
		Logs: func() (logs []Log) {
			for _, p := range paths {
				logs = append(logs, Log{"c", p})
			}
			return logs
		},
	}
	r.Pass(t.Context())
	if got := names(t, outside); got != "0.log secret" {
		t.Errorf("outside: %s", got)
	}
	for name, want := range map[string]string{"secret": "a secret", "0.log": strings.Repeat("x", 100)} {
		if text, err := os.ReadFile(filepath.Join(outside, name)); err != nil || string(text) != want {
			t.Errorf("outside/%s holds %q, %v", name, text, err)
		}
	}
	if got, want := names(t, own),
		"0.log 0.log.20200101-000000 0.log.20200102-000000.gz 0.log.20260101-000000 1.log 2.log"; got != want {
		t.Errorf("logs: %s, want %s", got, want)
	}
	if log.reopens != 1 {
		t.Errorf("%d logs were re-opened, want the one that is a log", log.reopens)
	}
	for _, path := range paths[1:] {
		for _, o := range []Options{{Root: root}, {Root: root, Follow: true, Running: func() bool { return false }}} {
			if err := Read(t.Context(), path, o, io.Discard); err == nil {
				t.Errorf("%s was read", path)
			}
		}
	}
	if _, err := Tail("", filepath.Join(own, "1.log"), 1, 10); !errors.Is(err, untrusted.ErrNotRegular) {
		t.Errorf("a link as last words: %v", err)
	}
}

// On a full disk a log is rotated although there is no space for the archive of the one before, so that it does not
// grow without end. A file that stays plain is removed when it is the oldest.
func TestRotateOnAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=64k,nr_inodes=8")
	for _, short := range []string{"blocks", "inodes"} {
		log := &runtimeLog{path: filepath.Join(dir, short+".log")}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		r := &Rotator{MaxBytes: 4096, MaxFiles: 3, Workers: 1, Logs: func() []Log { return []Log{{"c", log.path}} },
			Reopen: log.reopen, Now: func() time.Time { return now }}
		for range 4 {
			write(t, log.path, strings.Repeat("x", 4096))
			var full *smallfs.Filler
			if short == "blocks" {
				full = smallfs.Fill(t, dir)
			} else {
				full = smallfs.FillInodes(t, dir, 1) // for the runtime's new log
			}
			r.Pass(t.Context())
			if info, err := os.Stat(log.path); err != nil || info.Size() != 0 {
				t.Errorf("short of %s: not rotated: %v, %v", short, info, err)
			}
			full.Free()
			now = now.Add(time.Second)
		}
		if n := strings.Count(names(t, dir), short+".log"); n > 3 {
			t.Errorf("short of %s: %s: want 3 files of %s", short, names(t, dir), short)
		}
		for _, name := range strings.Fields(names(t, dir)) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
