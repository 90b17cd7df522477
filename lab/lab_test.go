package lab

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestDriversComeAfterWhatTheyNeed(t *testing.T) {
	const deps = "kernel/a.ko: kernel/b.ko kernel/c.ko\nkernel/b.ko: kernel/c.ko\nkernel/c.ko:\nkernel/other.ko:\n"
	order, err := driverOrder(deps, []string{"b", "a"})
	if got := strings.Join(order, " "); err != nil || got != "kernel/c.ko kernel/b.ko kernel/a.ko" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := driverOrder(deps, []string{"d"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a module that is not there: %v", err)
	}
	if _, err := driverOrder("nonsense", nil); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("not modules.dep: %v", err)
	}
}

func FuzzDriverOrder(f *testing.F) {
	cost.Attack(f, "a.ko: b.ko\nb.ko:\n")
	f.Fuzz(func(t *testing.T, deps string) {
		defer cost.Spend(t, len(deps))()
		if order, err := driverOrder(deps, []string{"a"}); err == nil && len(order) == 0 {
			t.Errorf("%q: no module, and no error", deps)
		}
	})
}

func TestCounterRate(t *testing.T) {
	for text, want := range map[string]int{
		"flags\t\t: fpu\nbogomips\t: 4600.00\nclflush size\t: 64\n": 2300000, "bogomips: x\n": 0, "bogomips: -1": 0, "": 0,
	} {
		if got := counterRate(text); got != want {
			t.Errorf("%q: %d kHz, want %d", text, got, want)
		}
	}
}

func FuzzCounterRate(f *testing.F) {
	cost.Attack(f, "bogomips\t: 4600.00\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if khz := counterRate(text); khz < 0 || khz > 1e8 {
			t.Errorf("%q: %d", text, khz)
		}
	})
}

// archiveOf is a tar archive of entries.
func archiveOf(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, header := range entries {
		header.Uid, header.Gid = os.Getuid(), os.Getgid()
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, header.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestUnpackFollowsMergedDirectories(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755), os.Symlink("usr/lib", filepath.Join(root,
		"lib"))); err != nil {
		t.Fatal(err)
	}
	archive := archiveOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/x", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 3},
		tar.Header{Name: "./lib/y", Typeflag: tar.TypeLink, Linkname: "./lib/x"},
		tar.Header{Name: "./usr/share/doc/x", Typeflag: tar.TypeReg, Size: 1},
	)
	if err := unpackTar(archive, root, func(name string) bool {
		return strings.HasPrefix(name,
			"usr/share/doc/")
	}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(root, "usr/lib/x"))
	if err != nil || info.Mode() != 0o755|fs.ModeSetuid || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
	if other, err := os.Stat(filepath.Join(root, "lib/y")); err != nil || !os.SameFile(info, other) {
		t.Errorf("hard link: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/share/doc")); err == nil {
		t.Error("what was to be left out is there")
	}
}

func TestUnpackStaysInside(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"up":     {{Name: "../evil", Typeflag: tar.TypeReg}},
		"link":   {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "out/evil", Typeflag: tar.TypeReg}},
		"device": {{Name: "null", Typeflag: tar.TypeChar}},
	} {
		root := filepath.Join(t.TempDir(), "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unpackTar(archiveOf(t, entries...), root, func(string) bool { return false }); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(filepath.Join(root, "../evil")); err == nil {
			t.Errorf("%s: it got out", name)
		}
	}
}

func TestStoreMakesOnce(t *testing.T) {
	s := store{t.TempDir()}
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			dir, err := s.get("thing", "1", func(dir string) error {
				made.Add(1)
				return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)
			})
			if _, statErr := os.Stat(filepath.Join(dir, "x")); err != nil || statErr != nil {
				t.Errorf("%v, %v", err, statErr)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
	broken := errors.New("broken")
	if _, err := s.get("thing", "2", func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a maker's error: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "thing*")); len(left) != 2 { // thing-1 and the lock
		t.Errorf("left: %v", left)
	}
}

func TestStorePrunesWhatIsOldAndNotAmongTheNewest(t *testing.T) {
	s := store{t.TempDir()}
	for i, age := range []time.Duration{0, time.Hour, 48 * time.Hour, 72 * time.Hour, 12 * time.Hour} {
		dir := filepath.Join(s.dir, "thing-"+string(rune('a'+i)))
		then := time.Now().Add(-age)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chtimes(dir, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.prune("thing"); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(s.dir, "*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if got := strings.Join(left, " "); got != "thing-a thing-b thing-e" {
		t.Errorf("left: %s", got)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	k := &tail{max: 4}
	for _, text := range []string{"0123456789", "ab", "", "c"} {
		if _, err := k.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if got := k.String(); got != "9abc" {
		t.Errorf("kept %q", got)
	}
}

func TestThreadsOf(t *testing.T) {
	for version, want := range map[string]string{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)\nCopyright (c) 2003-2022\n": "single",
		"QEMU emulator version 8.0.5\n":           "single",
		"QEMU emulator version 8.1.0\n":           "multi",
		"QEMU emulator version 10.0.3 (Debian)\n": "multi",
	} {
		if got, err := threadsOf(version); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %s", version, got, err, want)
		}
	}
	if got, err := threadsOf("QEMU version 9"); err == nil {
		t.Errorf("no version: %s", got)
	}
}

// TestMonitor plays QEMU's side of the protocol.
func TestMonitor(t *testing.T) {
	here, there := net.Pipe()
	go func() {
		buffer := make([]byte, 1<<10)
		say := func(text string) { _, _ = there.Write([]byte(text + "\r\n")) }
		say(`{"QMP": {"version": {}}}`)
		for _, answer := range []string{
			`{"return": {}}`,
			`{"event": "STOP"}` + "\r\n" + `{"return": {}}`,
			`{"error": {"class": "GenericError", "desc": "no such device"}}`,
			`{"return": "already in use\r\n"}`,
		} {
			_, _ = there.Read(buffer)
			say(answer)
		}
		say(`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}`)
		there.Close()
	}()
	reason := make(chan string, 1)
	m, err := newMonitor(here, func(why string) { reason <- why })
	if err != nil {
		t.Fatal(err)
	}
	if err := m.do("stop", nil, nil); err != nil {
		t.Errorf("a command that works: %v", err)
	}
	if err := m.do("set_link", map[string]any{"name": "x"}, nil); err == nil ||
		!strings.Contains(err.Error(), "no such device") {
		t.Errorf("a command that fails: %v", err)
	}
	if err := m.human("hostfwd_add x"); err == nil || !strings.Contains(err.Error(), "already in use") {
		t.Errorf("a command for people that complains: %v", err)
	}
	if why := <-reason; why != "guest-shutdown" {
		t.Errorf("it ended because of %q", why)
	}
	if err := m.do("stop", nil, nil); err == nil {
		t.Error("a command to nobody works")
	}
}
