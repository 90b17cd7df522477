// Package durable replaces files so that a crash at any moment, of the process or of the machine, leaves either the old
// content or the new one.
//
// The new content is written to a file of a fixed name in the same directory and flushed; that file is renamed over the
// old one, and the directory is flushed. The name is fixed so that crashes cannot leave many files. Therefore a file
// must have only one writer at a time. The caller ensures that, by the instance's lock or as the only agent of a node.
// Only the owner can read the files.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// fileMode is the mode of every file: the directories contain keys and hashes of passwords, which no other user may
// read.
const fileMode = 0o600

// Write replaces the content of path.
func Write(path string, content []byte) error {
	if err := write(path, content); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func write(path string, content []byte) error {
	dir, name := filepath.Split(path)
	next := filepath.Join(dir, "."+name+".new")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(fileMode) // a file that a crash left has the mode with which it was created
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // best effort: the next attempt uses the same name
		return err
	}
	return syncDir(filepath.Clean(dir))
}

// WriteIfChanged replaces the content of path if it differs, and reports whether it wrote.
func WriteIfChanged(path string, content []byte) (bool, error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == fileMode {
			return false, nil
		}
	}
	return true, Write(path, content)
}

// Move renames a file or directory, and returns when a crash can no longer undo that. The caller must have flushed the
// content.
func Move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(to), filepath.Dir(from)} {
		if err := syncDir(dir); err != nil {
			return fmt.Errorf("move %s to %s: %w", from, to, err)
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return err
}

// Link makes path a symbolic link to target. It replaces an existing link.
func Link(target, path string) error {
	dir, name := filepath.Split(path)
	next := filepath.Join(dir, "."+name+".new")
	err := os.Remove(next) // what a crash left
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Symlink(target, next)
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err == nil {
		err = syncDir(filepath.Clean(dir))
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", path, err)
	}
	return nil
}

// Remove removes a file, a link or an empty directory, if it exists. It does not wait for the disk: after a crash of
// the machine, the file may exist again.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
