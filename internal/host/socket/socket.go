// Package socket makes unix sockets in directories that other programs watch (Dir), and connects to sockets that other
// programs made (Connect).
//
// # Model
//
// A Dir is an open directory. Files in it are named through the open handle, for two reasons: a socket's path has at
// most 108 bytes (unix(7)), which an instance's directory may exceed; and a later mount or rename changes nothing.
//
// # Invariants
//
//   - A socket that Listen makes accepts connections, with its final mode, as soon as it has its name.
//   - Nothing outside the directory is created, removed or read, whatever links are in it.
//
// The package serves nothing, and sets no SELinux labels.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Modes of the directory, as the kubelet's, and of its sockets: a program that can connect is trusted with the whole
// node.
const (
	dirMode    = 0o750
	socketMode = 0o600
)

// Dir is a directory of sockets.
type Dir struct {
	Path   string
	root   *os.Root
	handle *os.File
}

// Open opens a directory; it creates the directory if it does not exist.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	handle, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &Dir{path, root, handle}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return errors.Join(d.handle.Close(), d.root.Close()) }

// In returns a path of a file in the directory for system calls.
func (d *Dir) In(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.handle.Fd(), name) }

// Check returns an error unless name is a socket, not a link to one.
func (d *Dir) Check(name string) error {
	info, err := d.root.Lstat(name)
	if err == nil && info.Mode()&os.ModeSocket == 0 {
		err = fmt.Errorf("not a socket but %v", info.Mode().Type())
	}
	return err
}

// Clear removes every socket.
func (d *Dir) Clear() error {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := d.Remove(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file, if it exists.
func (d *Dir) Remove(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Listen makes a socket, replacing an existing file of that name. The socket is made under another name first.
// Otherwise a program that watches for it could find a socket that is bound but does not listen yet, be refused, and
// wait for a change that does not come. It gets its name by a link, not by a rename, since some programs watch only for
// the creation of a file. Closing the listener leaves the name: see Remove.
func (d *Dir) Listen(name string) (net.Listener, error) {
	before := UnfinishedName(name)
	for _, old := range []string{before, name} {
		if err := d.Remove(old); err != nil {
			return nil, err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.In(before), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %s: %w", filepath.Join(d.Path, name), err)
	}
	listener.SetUnlinkOnClose(false)
	err = d.root.Chmod(before, socketMode)
	if err == nil {
		err = d.root.Link(before, name)
	}
	if err == nil {
		err = d.root.Remove(before)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %s: %w", filepath.Join(d.Path, name), err), listener.Close())
	}
	return listener, nil
}

// UnfinishedName returns the name that a socket has until it listens.
func UnfinishedName(name string) string { return "." + name + ".new" }
