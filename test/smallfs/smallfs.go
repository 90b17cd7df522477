// Package smallfs gives tests file systems that are small enough to fill, and limits other resources of which a machine
// may run short.
//
//	dir := smallfs.Tmpfs(t, "size=1m,nr_inodes=40")
//	full := smallfs.Fill(t, dir)
//	... // every write that needs a block fails with ENOSPC
//	full.Free()
//
// # Model
//
// Tmpfs is fast, and its directories use no blocks: use it for tests of one package. A Disk is ext4 in a sparse file,
// like a node's: use it for whole agents and instances. Filling it uses no space of the machine, since fallocate(2)
// writes nothing. Ext4 is for other tests that need options of ext4, such as quota.
//
// # Safety
//
// Only file systems that were mounted here are filled. A Disk does not outlive its test process, even if that is
// killed: a guard process unmounts it and removes its file.
package smallfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Tmpfs mounts a file system in memory with these options (tmpfs(5): size, nr_inodes) until the test ends. It skips the
// test without root.
func Tmpfs(t testing.TB, options string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small file system")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount tmpfs: %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// ext4Size is the size of the file systems of Ext4, in bytes. Chosen: their journal fits, and they are made at once.
const ext4Size = 32 << 20

// Ext4 makes a file system with arguments of mkfs.ext4, and mounts it with options until the test ends. It skips the
// test without root, without mkfs.ext4, and where the kernel lacks an option.
func Ext4(t testing.TB, options string, mkfs ...string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	base := t.TempDir()
	file, dir := filepath.Join(base, "disk"), filepath.Join(base, "m")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, ext4Size), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	made := exec.Command("mkfs.ext4", append(append([]string{"-q"}, mkfs...), file)...)
	if out, err := made.CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", options, file, dir).CombinedOutput(); err != nil {
		t.Skipf("needs a loop device and %s: %v: %s", options, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Remount changes a mount's flags: unix.MS_RDONLY, or 0 for a writable one.
func Remount(t testing.TB, dir string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatalf("remount %s: %v", dir, err)
	}
}

// remountWithin bounds the wait until the files of a killed process are closed (chosen).
const remountWithin = 10 * time.Second

// RemountIdle is Remount for a disk whose last writer was just killed: it waits until the kernel has closed its files.
func RemountIdle(t testing.TB, dir string, flags uintptr) {
	t.Helper()
	for began := time.Now(); time.Since(began) < remountWithin; time.Sleep(10 * time.Millisecond) {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err == nil {
			return
		}
	}
	Remount(t, dir, flags)
}

// Filler is the files that fill a file system.
type Filler struct {
	t     testing.TB
	files []string
}

// Fill uses every block of dir's file system.
func Fill(t testing.TB, dir string) *Filler {
	t.Helper()
	return &Filler{t: t, files: fillBlocks(t, dir, "filler")}
}

// fillTries bounds the attempts to use the last blocks (chosen; two were needed on ext4, whose journal frees some
// late).
const fillTries = 10

func fillBlocks(t testing.TB, dir, name string) (files []string) {
	t.Helper()
	for try := range fillTries {
		path := filepath.Join(dir, fmt.Sprint(name, try))
		free, err := fillFile(path)
		files = append(files, path)
		if err != nil {
			t.Fatalf("fill %s: %v", dir, err)
		}
		if free == 0 {
			return files
		}
	}
	t.Fatalf("fill %s: blocks are free after %d tries", dir, fillTries)
	return nil
}

// fillFile uses all available blocks for one file, in ever smaller pieces, and returns how many blocks are free then.
func fillFile(path string) (free uint64, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, err
	}
	end := int64(0)
	for piece := max(int64(fs.Bavail), 1) * fs.Bsize; piece >= fs.Bsize; {
		switch err := unix.Fallocate(int(f.Fd()), 0, end, piece); {
		case err == nil:
			end += piece
		case errors.Is(err, unix.ENOSPC):
			piece = piece / 2 / fs.Bsize * fs.Bsize
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	err = unix.Fstatfs(int(f.Fd()), &fs)
	return fs.Bavail, err
}

// FillInodes uses inodes of dir's file system for empty files until only leave are free.
func FillInodes(t testing.TB, dir string, leave uint64) *Filler {
	t.Helper()
	f := &Filler{t: t}
	// The number is read each time: the kernel may still be freeing inodes of files that others removed.
	for free := inodesFree(t, dir); free > leave; free = inodesFree(t, dir) {
		path := filepath.Join(dir, fmt.Sprint("inode", len(f.files)))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatalf("take inodes: %d free: %v", free, err)
		}
		f.files = append(f.files, path)
	}
	return f
}

func inodesFree(t testing.TB, dir string) uint64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatalf("statfs %s: %v", dir, err)
	}
	return fs.Ffree
}

// Free frees everything.
func (f *Filler) Free() {
	f.t.Helper()
	for len(f.files) > 0 {
		f.FreeOne()
	}
}

// Shrink frees that many bytes of the first file.
func (f *Filler) Shrink(bytes int64) {
	f.t.Helper()
	info, err := os.Stat(f.files[0])
	if err == nil {
		err = os.Truncate(f.files[0], max(0, info.Size()-bytes))
	}
	if err != nil {
		f.t.Fatalf("free %d bytes: %v", bytes, err)
	}
}

// FreeOne removes one file; after FillInodes that is one inode.
func (f *Filler) FreeOne() {
	f.t.Helper()
	if len(f.files) == 0 {
		f.t.Fatal("free room: nothing is taken")
	}
	last := len(f.files) - 1
	if err := os.Remove(f.files[last]); err != nil {
		f.t.Fatalf("free room: %v", err)
	}
	f.files = f.files[:last]
}

// NoDescriptors prevents this process from opening file descriptors until restore is called.
func NoDescriptors(t testing.TB) (restore func()) {
	t.Helper()
	return limitDescriptors(t, 0, 3) // at least the three standard ones are open
}

// NoDescriptorsOf prevents a process from having more file descriptors than now until restore is called. If it closes
// some, it may open as many.
func NoDescriptorsOf(t testing.TB, pid int) (restore func()) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatalf("count the file descriptors of process %d: %v", pid, err)
	}
	return limitDescriptors(t, pid, uint64(len(open)))
}

func limitDescriptors(t testing.TB, pid int, most uint64) (restore func()) {
	t.Helper()
	var had unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had); err != nil {
		t.Fatalf("read RLIMIT_NOFILE of process %d: %v", pid, err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: had.Max}, nil); err != nil {
		t.Fatalf("set RLIMIT_NOFILE of process %d: %d: %v", pid, most, err)
	}
	return func() {
		t.Helper()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &had, nil); err != nil {
			t.Fatalf("restore RLIMIT_NOFILE of process %d: %v", pid, err)
		}
	}
}
