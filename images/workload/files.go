package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func cat(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	files, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		if err := catOne(p, name); err != nil {
			return err
		}
	}
	return nil
}

func catOne(p process, name string) error {
	if name == "-" {
		_, err := io.Copy(p.stdout, p.stdin)
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(p.stdout, file)
	return err
}

// list prints names, or with -l mode, owner, group, size and where a link leads.
func list(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	long := flags.Bool("l", false, "mode, uid:gid, bytes, name")
	deep := flags.Bool("R", false, "everything below")
	paths, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path == root && entry.IsDir() {
				return nil
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if path == root {
				name = root
			}
			if err := listOne(p, path, name, entry, *long); err != nil {
				return err
			}
			if entry.IsDir() && !*deep {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func listOne(p process, path, name string, entry fs.DirEntry, long bool) error {
	if !long {
		p.printf("%s\n", name)
		return nil
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	owner := ""
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = fmt.Sprintf("%d:%d", stat.Uid, stat.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		name += " -> " + target
	}
	p.printf("%s %s %d %s\n", info.Mode(), owner, info.Size(), name)
	return nil
}

func write(_ context.Context, _ process, flags *flag.FlagSet, args []string) error {
	grow := flags.Bool("append", false, "append")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return usagef("want a file and text")
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if *grow {
		mode = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	file, err := os.OpenFile(rest[0], mode, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(file, strings.Join(rest[1:], " ")+"\n"); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// testPath implements the part of test(1) that kubectl cp uses, and a little more. If the condition is false, it exits
// with 1 and prints nothing.
func testPath(_ context.Context, _ process, _ *flag.FlagSet, args []string) error {
	if len(args) != 2 {
		return usagef("want -d, -e, -f or -s and a path")
	}
	info, err := os.Stat(args[1])
	good := err == nil
	switch args[0] {
	case "-d":
		good = good && info.IsDir()
	case "-f":
		good = good && info.Mode().IsRegular()
	case "-s":
		good = good && info.Size() > 0
	case "-e":
	default:
		return usagef("%q: want -d, -e, -f or -s", args[0])
	}
	if !good {
		return exitCode(1)
	}
	return nil
}

// printEnv prints all variables as the kernel has them, or the values of the named ones; it fails for one that is not
// set.
func printEnv(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	names, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		for _, pair := range os.Environ() {
			p.printf("%s\n", pair)
		}
	}
	for _, name := range names {
		value, ok := os.LookupEnv(name)
		if !ok {
			return fmt.Errorf("%s: not set", name)
		}
		p.printf("%s\n", value)
	}
	return nil
}
