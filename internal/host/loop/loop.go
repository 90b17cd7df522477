// Package loop presents files as block devices (loop(4)).
//
// # Model
//
// A device is found by its file, whose path the kernel has in /sys/block/loopN/loop/backing_file. Nothing is stored. A
// program that crashed before it detached its devices finds them by the directory of their files.
//
// # Invariants
//
//   - A device that is attached with Autoclear stays attached only while a descriptor or a mount has it open. So a
//     crash cannot leave it behind.
//   - Files are compared by path as the kernel sees it: directories must be given without symbolic links.
//
// It needs Linux 5.8 (LOOP_CONFIGURE) and a /dev of type devtmpfs, where devices appear by themselves.
package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Life says when a device is detached.
type Life uint32

const (
	Autoclear Life = unix.LO_FLAGS_AUTOCLEAR // the kernel detaches it when nothing has it open any more
	Lasting   Life = 0                       // only Detach detaches it
)

// attempts is how often Attach asks the kernel for a free device. Another program may take the device before it is
// attached (chosen).
const attempts = 64

// Attach attaches a file to a free device and returns the device, open.
func Attach(path string, life Life) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("attach loop device: %w", err)
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach loop device to %s: %w", path, err)
	}
	defer control.Close()
	for range attempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach loop device to %s: find a free one: %w", path, err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("attach loop device to %s: %w", path, err)
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		config.Info.Flags = uint32(life)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to %s: %w", device.Name(), path, err)
		}
	}
	return nil, fmt.Errorf("attach loop device to %s: %d devices were taken by others meanwhile", path, attempts)
}

// Of returns the devices of a file; none if it has none.
func Of(path string) ([]string, error) {
	return find(func(file string) bool { return file == path })
}

// Below returns the devices of all files below a directory.
func Below(dir string) ([]string, error) {
	return find(func(file string) bool { return strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/") })
}

// deleted is what the kernel appends to the path of a file that was deleted.
const deleted = " (deleted)"

// sysBlock has a directory for each block device. That of a loop device has loop/backing_file while the device has a
// file (Documentation/ABI/testing/sysfs-block-loop).
const sysBlock = "/sys/block"

// find reads what each loop device has, with three system calls for each: a node with a thousand volumes has a thousand
// devices, and mounting one volume must not take much longer there.
func find(wanted func(file string) bool) (devices []string, err error) {
	all, err := os.ReadDir(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("find loop devices: %w", err)
	}
	dir, err := unix.Open(sysBlock, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("find loop devices: open %s: %w", sysBlock, err)
	}
	defer unix.Close(dir)
	text := make([]byte, unix.PathMax+len(deleted)+1)
	for _, entry := range all {
		if !strings.HasPrefix(entry.Name(), "loop") {
			continue
		}
		n, err := read(dir, filepath.Join(entry.Name(), "loop/backing_file"), text)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
			continue // it has no file, or is detached meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("find loop devices: %w", err)
		}
		if wanted(strings.TrimSuffix(strings.TrimSuffix(string(text[:n]), "\n"), deleted)) {
			devices = append(devices, filepath.Join("/dev", entry.Name()))
		}
	}
	return devices, nil
}

// read reads a file of sysfs, which answers one read with the whole.
func read(dir int, path string, into []byte) (int, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: filepath.Join(sysBlock, path), Err: err}
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, into)
	if err != nil {
		return 0, &os.PathError{Op: "read", Path: filepath.Join(sysBlock, path), Err: err}
	}
	return n, nil
}

// Detach detaches a device. If something has it open, the kernel does so when that closes it.
func Detach(device string) error {
	err := control(device, unix.LOOP_CLR_FD)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil // it is detached already
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}

// DetachBelow detaches the devices of all files below a directory.
func DetachBelow(dir string) error {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	devices, err := Below(dir)
	for _, device := range devices {
		err = errors.Join(err, Detach(device))
	}
	return err
}

// Grow makes a device as large as its file has become.
func Grow(device string) error {
	if err := control(device, unix.LOOP_SET_CAPACITY); err != nil {
		return fmt.Errorf("grow %s: %w", device, err)
	}
	return nil
}

func control(device string, request uint) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}
