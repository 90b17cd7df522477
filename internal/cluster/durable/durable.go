// Package durable replaces files so that a crash at any instant, of the process or of the machine, leaves either the
// old content or the new one.
//
// The new content goes to a sibling with a fixed name, is flushed, renamed over the old file, and the directory is
// flushed. The name is fixed so that crashes cannot pile up leftovers; it follows that one file has one writer at a
// time, which the instance's lock sees to. Every file is readable by its owner only.
package durable

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// fileMode is the mode of every file: the state directory holds keys, and nothing in it is for others.
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
		err = f.Chmod(fileMode) // a leftover keeps the mode it was created with
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
		_ = os.Remove(next) // best effort: the fixed name is reused by the next try
		return err
	}
	return syncDir(filepath.Clean(dir))
}

// WriteIfChanged replaces the content of path unless it has that content already, and reports whether it wrote.
func WriteIfChanged(path string, content []byte) (bool, error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == fileMode {
			return false, nil
		}
	}
	return true, Write(path, content)
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
