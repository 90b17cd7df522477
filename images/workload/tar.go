package main

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tarCall is one call of tar, in the forms that kubectl cp uses:
//
//	tar cf - PATH...                                               files to stdout
//	tar [--no-same-permissions --no-same-owner] -xmf - [-C DIR]    files from stdin
type tarCall struct {
	create, extract bool
	modeAsIs        bool // keep the modes of the archive, without the umask
	touch           bool // -m: do not restore modification times
	verbose         bool
	dir             string
	paths           []string
}

func tarVerb(ctx context.Context, p process, _ *flag.FlagSet, args []string) error {
	call, err := parseTar(args)
	if err != nil {
		return err
	}
	if call.create {
		return pack(ctx, p, call)
	}
	return unpack(ctx, p, call)
}

func parseTar(args []string) (tarCall, error) {
	call := tarCall{dir: ".", modeAsIs: true}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--no-same-permissions":
			call.modeAsIs = false
		case arg == "--no-same-owner", arg == "--":
		case strings.HasPrefix(arg, "--"):
			return call, usagef("option %q: not one that kubectl cp uses", arg)
		case arg == "-C":
			if i++; i == len(args) {
				return call, usagef("-C: want a directory")
			}
			call.dir = args[i]
		case i == 0 || strings.HasPrefix(arg, "-") && arg != "-":
			takesFile, err := call.letters(strings.TrimPrefix(arg, "-"))
			if err != nil {
				return call, err
			}
			if takesFile {
				if i++; i == len(args) || args[i] != "-" {
					return call, usagef("f: only - (stdin or stdout) is known")
				}
			}
		default:
			call.paths = append(call.paths, arg)
		}
	}
	if call.create == call.extract {
		return call, usagef("want one of c (create) and x (extract)")
	}
	return call, nil
}

func (c *tarCall) letters(text string) (takesFile bool, err error) {
	for _, letter := range text {
		switch letter {
		case 'c':
			c.create = true
		case 'x':
			c.extract = true
		case 'm':
			c.touch = true
		case 'v':
			c.verbose = true
		case 'f':
			takesFile = true
		case 'p', 'o':
		default:
			return false, usagef("option letter %q: want c, x, f, m, p, o, v or C", letter)
		}
	}
	return takesFile, nil
}

func pack(ctx context.Context, p process, call tarCall) error {
	out := tar.NewWriter(p.stdout)
	for _, path := range call.paths {
		full := path
		if !filepath.IsAbs(path) {
			full = filepath.Join(call.dir, path)
		}
		err := filepath.WalkDir(full, func(file string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			below, err := filepath.Rel(full, file)
			if err != nil {
				return err
			}
			return packOne(p, out, file, strings.TrimLeft(filepath.Join(path, below), "/"), entry, call.verbose)
		})
		if err != nil {
			return err
		}
	}
	return out.Close()
}

func packOne(p process, out *tar.Writer, file, name string, entry fs.DirEntry, verbose bool) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if info.Mode()&(fs.ModeSocket|fs.ModeDevice|fs.ModeCharDevice) != 0 {
		return nil // a copy could not contain it
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	if verbose {
		fmt.Fprintln(p.stderr, name)
	}
	if err := out.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	// A file that grows meanwhile is truncated to the size in its header.
	_, err = io.CopyN(out, content, header.Size)
	return err
}

// unpack never writes outside its directory: os.Root rejects names and links that lead out of it.
func unpack(ctx context.Context, p process, call tarCall) error {
	root, err := os.OpenRoot(call.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(p.stdin)
	for ctx.Err() == nil {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimLeft(filepath.Clean(header.Name), "/")
		if name == "." || name == "" {
			continue
		}
		if call.verbose {
			fmt.Fprintln(p.stderr, name)
		}
		if err := unpackOne(root, in, header, name, call); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func unpackOne(root *os.Root, in io.Reader, header *tar.Header, name string, call tarCall) error {
	mode := header.FileInfo().Mode().Perm()
	if parent := filepath.Dir(name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, mode); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, in); err != nil {
			file.Close()
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	default:
		return nil // kubectl cp sends no other types
	}
	if call.modeAsIs {
		if err := root.Chmod(name, mode); err != nil {
			return err
		}
	}
	if call.touch {
		return nil
	}
	return root.Chtimes(name, time.Time{}, header.ModTime)
}
