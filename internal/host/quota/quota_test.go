package quota

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

func TestCounts(t *testing.T) {
	root := smallfs.Ext4(t, "loop,prjquota", "-O", "project,quota", "-E", "quotatype=prjquota")
	dirs := []string{filepath.Join(root, "a"), filepath.Join(root, "b")}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Of(dir); !errors.Is(err, ErrNone) {
			t.Errorf("%s counts before Begin: %v", dir, err)
		}
		if err := Begin(dir); err != nil {
			t.Fatal(err)
		}
	}
	deep := filepath.Join(dirs[0], "x", "y")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(deep, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, unit.MiB)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	expect := func(what, dir string, least, most unit.Bytes, inodes int64) {
		t.Helper()
		u, err := Of(dir)
		if err != nil || u.Bytes < least || u.Bytes > most || u.Inodes != inodes {
			t.Errorf("%s: %s holds %+v, %v; want %v to %v in %d", what, dir, u, err, least, most, inodes)
		}
	}
	expect("written", dirs[0], unit.MiB, unit.MiB+64*unit.KiB, 4)
	expect("beside it", dirs[1], 0, 64*unit.KiB, 1)
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	expect("deleted and open", dirs[0], unit.MiB, unit.MiB+64*unit.KiB, 4)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect("closed", dirs[0], 0, 64*unit.KiB, 3)
	if _, err := Of(deep); !errors.Is(err, ErrNone) {
		t.Errorf("a directory below counts as its own: %v", err)
	}
	if _, err := Of(filepath.Join(root, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(dirs[0], link); err != nil {
		t.Fatal(err)
	}
	if _, err := Of(link); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("followed a link: %v", err)
	}
}

func TestNone(t *testing.T) {
	for _, dir := range []string{smallfs.Ext4(t, "loop"), "/proc", "/sys"} {
		if err := Begin(dir); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := Of(dir); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestLimit: a process without CAP_SYS_RESOURCE gets EDQUOT at the limit, and may write again when it is raised.
func TestLimit(t *testing.T) {
	root := smallfs.Ext4(t, "loop,prjquota", "-O", "project,quota", "-E", "quotatype=prjquota")
	enforced, err := Enforced(root)
	if err != nil || !enforced {
		t.Fatalf("enforced: %v, %v", enforced, err)
	}
	dir := filepath.Join(root, "volume")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Limit(dir, unit.MiB); !errors.Is(err, ErrNone) {
		t.Errorf("a directory without a project is limited: %v", err)
	}
	if err := Begin(dir); err != nil {
		t.Fatal(err)
	}
	if err := Limit(dir, unit.MiB); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write := func() string {
		fill := exec.Command("dd", "if=/dev/zero", "of=file", "bs=64k", "count=32", "conv=fsync")
		fill.Dir = dir
		fill.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := fill.CombinedOutput()
		if err == nil {
			return ""
		}
		return string(out)
	}
	if said := write(); !strings.Contains(said, "quota exceeded") {
		t.Errorf("2 MiB within a limit of 1 MiB: %q", said)
	}
	if used, err := Of(dir); err != nil || used.Bytes > unit.MiB || used.Bytes < unit.MiB/2 {
		t.Errorf("used after that: %v, %v", used.Bytes, err)
	}
	if err := Limit(dir, 4*unit.MiB); err != nil {
		t.Fatal(err)
	}
	if said := write(); said != "" {
		t.Errorf("2 MiB within a limit of 4 MiB: %q", said)
	}
}

func TestNotEnforced(t *testing.T) {
	for _, options := range []string{"loop", "loop,prjquota"} {
		features := []string{}
		if options != "loop" {
			features = []string{"-O", "project,quota", "-E", "quotatype=prjquota"}
		}
		want := options != "loop"
		if got, err := Enforced(smallfs.Ext4(t, options, features...)); got != want || err != nil {
			t.Errorf("%s: enforced %v, %v, want %v", options, got, err, want)
		}
	}
}
