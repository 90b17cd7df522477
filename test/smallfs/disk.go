package smallfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const mountOptions = "loop,discard"

// Disk is an ext4 file system in a sparse file, without quota accounting, which nodes rarely have.
type Disk struct {
	Dir string // its mount point

	file  string
	guard *exec.Cmd
	life  io.Closer // when it is closed, the guard unmounts the disk
}

// New makes a disk of a size and mounts it at a new directory. mkfs are further arguments of mkfs.ext4, for example -N
// 2000 for that many inodes. It needs root. The caller must close the disk.
func New(size unit.Bytes, mkfs ...string) (*Disk, error) {
	dir, err := os.MkdirTemp("/tmp", "plf") // a short name: socket paths have at most 107 characters
	if err != nil {
		return nil, err
	}
	d, err := newAt(dir, dir+".img", size, mkfs)
	if err != nil {
		err = errors.Join(err, os.Remove(dir))
	}
	return d, err
}

// ForTest makes a disk that exists until the test ends. It is mounted at dir; if that is empty, at a new directory. It
// skips the test without root.
func ForTest(t testing.TB, dir string, size unit.Bytes, mkfs ...string) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	var d *Disk
	var err error
	if dir == "" {
		d, err = New(size, mkfs...)
	} else {
		d, err = newAt(dir, filepath.Join(t.TempDir(), "disk.img"), size, mkfs)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func newAt(dir, path string, size unit.Bytes, mkfs []string) (*Disk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("make a disk: needs root")
	}
	d := &Disk{Dir: dir, file: path}
	file, err := os.Create(d.file)
	if err == nil {
		err = errors.Join(file.Truncate(int64(size)), file.Close())
	}
	if err == nil {
		err = execute("mkfs.ext4", append(append([]string{"-q", "-F", "-m", "0", "-E", "lazy_itable_init=1"}, mkfs...),
			d.file)...)
	}
	if err == nil {
		err = execute("mount", "-o", mountOptions, d.file, dir)
	}
	if err == nil {
		err = d.watch()
	}
	if err != nil {
		_ = execute("umount", dir) // if it was mounted
		return nil, errors.Join(fmt.Errorf("make a disk of %v: %w", size, err), os.Remove(d.file))
	}
	return d, nil
}

// watch starts the guard. It waits until no process uses the file system, since the guards of instances must take those
// down first.
func (d *Disk) watch() error {
	// It reads the disk's path from its standard input: in its arguments the path would look like a remaining process
	// of an instance there.
	const unmount = `read -r dir; read -r file; read -r end
for i in $(seq 300); do mountpoint -q "$dir" || break; umount "$dir" && break; sleep 1; done 2>/dev/null
rmdir "$dir" 2>/dev/null; rm -f "$file"`
	d.guard = exec.Command("/bin/sh", "-c", unmount)
	d.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	life, err := d.guard.StdinPipe()
	if err != nil {
		return err
	}
	d.life = life
	if err := d.guard.Start(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(life, "%s\n%s\n", d.Dir, d.file)
	return err
}

// closeWithin bounds the wait for processes that still have files open (chosen: a killed runtime takes a moment to
// end).
const closeWithin = 10 * time.Second

// Close unmounts the file system, which must not be in use any more, and waits for that. One that is still in use is
// unmounted when its last user ends.
func (d *Disk) Close() error {
	err := unix.Unmount(d.Dir, 0)
	for began := time.Now(); errors.Is(err, unix.EBUSY) && time.Since(began) < closeWithin; err = unix.Unmount(d.Dir, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(fmt.Errorf("close disk: %s: %w", d.Dir, err), unix.Unmount(d.Dir, unix.MNT_DETACH))
	} else if err != nil {
		err = nil // an instance that was taken down has unmounted it: the checks below look for remains
	}
	if err := errors.Join(err, d.life.Close(), ignoreExit(d.guard.Wait())); err != nil {
		return err
	}
	if _, err := os.Stat(d.file); err == nil {
		return fmt.Errorf("close disk: %s is still there", d.file)
	}
	if err := execute("mountpoint", "-q", d.Dir); err == nil {
		return fmt.Errorf("close disk: %s is still mounted", d.Dir)
	}
	return nil
}

// ignoreExit ignores the guard's status, which is that of its last command: the result is checked instead.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func execute(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Lazy makes the file system keep in memory everything that is not flushed explicitly: no periodic commit, and no
// automatic flush when a file is renamed over another (ext4(5): commit, noauto_da_alloc). So CutPower always loses what
// a program forgets to flush.
func (d *Disk) Lazy(t testing.TB) {
	t.Helper()
	if err := unix.Mount("", d.Dir, "", unix.MS_REMOUNT, "noauto_da_alloc,commit=600"); err != nil {
		t.Fatalf("remount %s: %v", d.Dir, err)
	}
}

// The ioctl that stops an ext4 at once, without writing its log (fs/ext4/ext4.h: EXT4_IOC_SHUTDOWN,
// EXT4_GOING_FLAGS_NOLOGFLUSH).
const (
	ioctlShutdown  = 0x8004587d
	shutdownAtOnce = 2
)

// CutPower loses everything that was not flushed, and mounts what is left, like a machine that lost power. No file
// there may be open.
func (d *Disk) CutPower(t testing.TB) {
	t.Helper()
	dir, err := os.Open(d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.IoctlSetPointerInt(int(dir.Fd()), ioctlShutdown, shutdownAtOnce)
	dir.Close()
	if err == nil {
		err = execute("umount", d.Dir)
	}
	if err == nil {
		err = execute("mount", "-o", mountOptions, d.file, d.Dir)
	}
	if err != nil {
		t.Fatalf("cut the power of %s: %v", d.Dir, err)
	}
}
