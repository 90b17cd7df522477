package lab

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// unpackTar unpacks an archive below root, with owners and modes, except what leaveOut names. It follows existing
// symbolic links to directories, as dpkg does: a package's lib/x belongs in usr/lib/x.
func unpackTar(archive io.Reader, root string, leaveOut func(name string) bool) error {
	in, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer in.Close()
	entries := tar.NewReader(archive)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(strings.TrimPrefix(header.Name, "./"))
		if name == "." || leaveOut(name+"/") {
			continue
		}
		if err := unpackEntry(in, name, header, entries); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// unpackEntry writes only below root: os.Root rejects paths that lead out of it.
func unpackEntry(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	mode := header.FileInfo().Mode()
	switch header.Typeflag {
	case tar.TypeDir:
		err := root.Mkdir(name, mode.Perm())
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err != nil {
			return err
		}
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, content); err != nil {
			return errors.Join(err, file.Close())
		}
		if err := file.Close(); err != nil {
			return err
		}
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(strings.TrimPrefix(header.Linkname, "./")), name)
	default:
		return fmt.Errorf("kind %q: want a file, a directory or a link", header.Typeflag)
	}
	if os.Geteuid() == 0 {
		if err := root.Lchown(name, header.Uid, header.Gid); err != nil {
			return err
		}
	}
	if err := root.Chmod(name, mode); err != nil {
		return err
	}
	return root.Chtimes(name, time.Unix(0, 0), header.ModTime)
}
