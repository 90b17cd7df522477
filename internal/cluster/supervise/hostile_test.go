package supervise

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestForgedChildren starts processes with a child's mark and command line, which any process may have: another
// program, another user, a process in a container. Only the process for which the kernel confirms all properties of a
// child is recognized.
func TestForgedChildren(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: becomes another user, and makes a mount namespace")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	if sleep, err = filepath.EvalSymlinks(sleep); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program") // a copy: another file, which another user may run
	copyFile(t, sleep, program)
	for _, c := range []struct {
		what string
		path string // the program that really runs
		attr *syscall.SysProcAttr
		ours bool
	}{
		{"the child itself", program, nil, true},
		{"another program", sleep, nil, false},
		{"another user", program, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, false},
		{"root of a container", program, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, false},
	} {
		argv := []string{program, "60"}
		m := mark{name: "a", digest: "d", argv: hashArgv(argv)}
		cmd := &exec.Cmd{Path: c.path, Args: argv, Env: []string{m.variable(dir)}, SysProcAttr: c.attr}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(c.what, err)
		}
		got := len(scanMarks(dir)) == 1
		if c.ours && got { // an upgrade replaces the program of a running child
			copyFile(t, sleep, program+".new")
			if err := os.Rename(program+".new", program); err != nil {
				t.Fatal(err)
			}
			if len(scanMarks(dir)) != 1 {
				t.Errorf("%s is not found when its program has been replaced", c.what)
			}
		}
		_, _ = cmd.Process.Kill(), cmd.Wait()
		if got != c.ours {
			t.Errorf("%s: taken for a child: %v, want %v", c.what, got, c.ours)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunsAs(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nUid:\t0\t0\t0\t0\n": true, "Name:\tUid:\nUid:\t1000\t0\t0\t0\n": false, "Uid:\t0\t0\t0\t65534\n": false,
		"Uid:\t0\n": false, "": false, "Gid:\t0\t0\t0\t0\n": false,
	} {
		if runsAs(status, 0) != want {
			t.Errorf("%q: want %v", status, want)
		}
	}
}

// On a full disk a log is still truncated, because it may be what filled the disk. Its end is kept if it fits.
func TestTrimLogOnAFullDisk(t *testing.T) {
	for _, left := range []int64{0, 1 << 20} {
		dir := smallfs.Tmpfs(t, "size=24m")
		path := filepath.Join(dir, "log")
		writer, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		if _, err := writer.WriteString(strings.Repeat("a", LogBytesMax) + "the last words"); err != nil {
			t.Fatal(err)
		}
		full := smallfs.Fill(t, dir)
		if left > 0 {
			full.Shrink(left)
		}
		err = TrimLog(path)
		if left == 0 && !errors.Is(err, unix.ENOSPC) || left > 0 && err != nil {
			t.Errorf("%d bytes free: %v", left, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 0 {
			t.Errorf("%d bytes free: the log was not cut: %v, %v", left, info.Size(), err)
		}
		if text, err := os.ReadFile(path + older); left > 0 && (err != nil || len(text) != keptBytesMax ||
			!strings.HasSuffix(string(text), "the last words")) {
			t.Errorf("kept %d bytes, %v", len(text), err)
		}
		if _, err := writer.WriteString("and on"); err != nil {
			t.Errorf("the child cannot go on writing: %v", err)
		}
	}
}

// A child starts on a disk without inodes and on a read-only one, with the older log or none, because it may be the
// process that frees the disk. The record of children stays complete.
func TestChildStartsWithoutALog(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=1m,nr_inodes=6")
	s, err := Open(Options{Record: filepath.Join(dir, "record"), Owner: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(t.Context(), "a", 0); s.Stop(t.Context(), "b", 0); s.Stop(t.Context(), "c", 0) })
	apply := func(name, log string) { // log: relative to dir, or absolute
		t.Helper()
		spec := childSpec(dir, name, "polite")
		if spec.Dir, spec.Log = "/", log; !filepath.IsAbs(log) {
			spec.Log = filepath.Join(dir, log)
		}
		if _, err := s.Apply(t.Context(), spec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "b.log.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	apply("a", "a.log")
	smallfs.FillInodes(t, dir, 0)
	apply("b", "b.log")
	awaitLog(t, filepath.Join(dir, "b.log.1"), "ready")
	if status, err := Read(filepath.Join(dir, "record")); err != nil || len(status) != 1 || status[0].Name != "a" {
		t.Errorf("the record of before the disk was full: %+v, %v", status, err)
	}
	readOnly := t.TempDir()
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
		if err := unix.Mount(dir, readOnly, "", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(readOnly, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	apply("c", filepath.Join(readOnly, "c.log"))
	again, err := Open(Options{Record: filepath.Join(dir, "record"), Owner: dir}) // found by their marks
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(again.Survivors(), " "); got != "a b c" {
		t.Errorf("another supervisor finds %q", got)
	}
}
