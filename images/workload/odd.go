package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sparse gives files a size without writing anything to them.
func sparse(_ context.Context, _ process, flags *flag.FlagSet, args []string) error {
	var bytes size
	flags.Var(&bytes, "size", "bytes")
	files, err := parse(flags, args)
	if err != nil {
		return err
	}
	for _, name := range files {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		err = file.Truncate(int64(bytes))
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// unlinked writes a file, deletes it and keeps it open: its blocks stay in use, though the file has no name.
func unlinked(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	path := flags.String("path", "", "file to write")
	var bytes size
	flags.Var(&bytes, "size", "bytes")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	file, err := os.Create(*path)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, diskBlockBytes)
	for written := size(0); written < bytes; written += diskBlockBytes {
		if _, err := file.Write(block); err != nil {
			return err
		}
	}
	if err := os.Remove(*path); err != nil {
		return err
	}
	p.printf("holding %d bytes without a name\n", bytes)
	<-ctx.Done()
	return nil
}

// link makes a symbolic link, replacing whatever has its name.
func link(_ context.Context, _ process, flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 2 {
		return usagef("want where it leads and its name, got %d arguments", len(rest))
	}
	if err := os.RemoveAll(rest[1]); err != nil {
		return err
	}
	return os.Symlink(rest[0], rest[1])
}

// mode sets a file's mode, in octal, including set-user-ID, set-group-ID and sticky bits.
func mode(_ context.Context, _ process, flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) < 2 {
		return usagef("want a mode and files")
	}
	bits, err := strconv.ParseUint(rest[0], 8, 12)
	if err != nil {
		return usagef("mode %q: want octal digits", rest[0])
	}
	for _, name := range rest[1:] {
		if err := syscall.Chmod(name, uint32(bits)); err != nil {
			return &os.PathError{Op: "chmod", Path: name, Err: err}
		}
	}
	return nil
}

// odd fills a directory with things that may confuse a reader: a FIFO, device nodes, links that lead out, in circles
// and nowhere, names with control characters, and directories without permissions. It prints what the kernel did not
// allow.
func odd(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one directory, got %d arguments", len(rest))
	}
	dir := rest[0]
	said := func(what string, err error) {
		if err != nil {
			p.printf("%s: %v\n", what, err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	said("FIFO", syscall.Mkfifo(at("fifo"), 0o666))
	// numbers: admin-guide/devices.txt in the kernel's documentation
	said("memory device", syscall.Mknod(at("mem"), syscall.S_IFCHR|0o666, 1<<8|1))
	said("full device", syscall.Mknod(at("full"), syscall.S_IFCHR|0o666, 1<<8|7))
	said("disk", syscall.Mknod(at("disk"), syscall.S_IFBLK|0o666, 7<<8))
	for name, target := range map[string]string{
		"root": "/", "up": "../../../../../../../../..", "self": "self", "nowhere": "/no/such/file", "proc": "/proc/1/root",
		"stdin": "/dev/stdin",
	} {
		said("link "+name, os.Symlink(target, at(name)))
	}
	for _, name := range []string{"line\nfeed", "\x1b[2Jescape", "\xff\xfe", "*", "[", "\\", "-rf", strings.Repeat("n",
		255)} {
		said(fmt.Sprintf("name %q", name), os.WriteFile(at(name), nil, 0o000))
	}
	said("closed directory", os.MkdirAll(at("closed/inner"), 0o700))
	said("close it", syscall.Chmod(at("closed"), 0))
	return nil
}

// deep makes a chain of nested directories, and in the last one further directories and a file of a given size.
func deep(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	depth := flags.Int("depth", 1000, "directories below each other")
	wide := flags.Int("wide", 0, "directories in the last")
	var bytes size
	flags.Var(&bytes, "size", "bytes of a file in the last")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one directory, got %d arguments", len(rest))
	}
	// The path is longer than the kernel accepts at once: each directory is made relative to its parent.
	at, err := syscall.Open(rest[0], syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: rest[0], Err: err}
	}
	for level := range *depth {
		next, err := inside(at)
		if err != nil {
			return fmt.Errorf("level %d: %w", level, err)
		}
		at = next
	}
	for i := range *wide {
		if err := syscall.Mkdirat(at, strconv.Itoa(i), 0o755); err != nil {
			return fmt.Errorf("directory %d of the last: %w", i, err)
		}
	}
	file, err := syscall.Openat(at, "file", syscall.O_CREAT|syscall.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(file), "file")
	_, err = io.CopyN(out, zeros{}, int64(bytes))
	if err := errors.Join(err, out.Close(), syscall.Close(at)); err != nil {
		return err
	}
	p.printf("%d directories deep, %d wide\n", *depth, *wide)
	return nil
}

type zeros struct{}

func (zeros) Read(block []byte) (int, error) { return len(block), nil }

// inside makes a directory in an open one, closes that one and opens the new one.
func inside(dir int) (int, error) {
	defer syscall.Close(dir)
	if err := syscall.Mkdirat(dir, "x", 0o755); err != nil && !errors.Is(err, syscall.EEXIST) {
		return 0, err
	}
	return syscall.Openat(dir, "x", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
}

// churn makes, renames and removes directories as fast as it can, so that a program that walks the tree finds entries
// gone that it has just read.
func churn(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one directory, got %d arguments", len(rest))
	}
	here, there := filepath.Join(rest[0], "here"), filepath.Join(rest[0], "there")
	turns := 0
	for ; ctx.Err() == nil; turns++ {
		for i := range 20 {
			if err := os.MkdirAll(filepath.Join(here, strconv.Itoa(i), "a", "b"), 0o755); err != nil {
				return err
			}
		}
		if err := os.Rename(here, there); err != nil {
			return err
		}
		if err := os.Symlink("/", here); err != nil {
			return err
		}
		if err := errors.Join(os.Remove(here), os.RemoveAll(there)); err != nil {
			return err
		}
	}
	p.printf("moved away %d times\n", turns)
	return nil
}

// flood prints bytes, with a newline only after every --width bytes.
func flood(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	var bytes, width size
	var speed rate
	flags.Var(&bytes, "bytes", "bytes to print (0: for ever)")
	flags.Var(&width, "width", "bytes of each line (0: no newline ever)")
	flags.Var(&speed, "rate", "bytes per second (0: as fast as it goes)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	block := make([]byte, diskBlockBytes)
	start := time.Now()
	for written := size(0); (bytes == 0 || written < bytes) && ctx.Err() == nil; {
		for i := range block {
			block[i] = byte(' ' + i%95)
			if width > 0 && (written+size(i)+1)%width == 0 {
				block[i] = '\n'
			}
		}
		n := len(block)
		if bytes > 0 {
			n = int(min(bytes-written, diskBlockBytes))
		}
		if _, err := p.stdout.Write(block[:n]); err != nil {
			return err
		}
		written += size(n)
		if speed.size > 0 {
			pause(ctx, time.Until(start.Add(time.Duration(float64(written)/float64(speed.size)*float64(time.Second)))))
		}
	}
	return ctx.Err()
}
