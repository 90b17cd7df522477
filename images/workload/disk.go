package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// diskBlockBytes is how much is written at once: enough to be cheap, and little enough for a steady rate.
const diskBlockBytes = 64 << 10

// fillDisk writes --size bytes to --path at --rate, or with --files that many files of --size in the directory --path
// (to use inodes), and then waits until it is stopped.
func fillDisk(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	path := flags.String("path", "", "file to write, or with --files directory to write into")
	files := flags.Int("files", 0, "number of files (0: --path is one file)")
	exitWhenDone := flags.Bool("exit", false, "exit when written")
	var bytes size
	var speed rate
	flags.Var(&bytes, "size", "bytes of each file")
	flags.Var(&speed, "rate", "bytes per second (0: as fast as it goes)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	if *path == "" {
		return usagef("--path is missing")
	}
	names := []string{*path}
	if *files > 0 {
		names = names[:0]
		for i := range *files {
			names = append(names, filepath.Join(*path, fmt.Sprintf("file-%06d", i)))
		}
	}
	pen := pen{speed: speed.size, start: time.Now()}
	for _, name := range names {
		if err := pen.write(ctx, name, bytes); err != nil {
			return err
		}
	}
	p.printf("wrote %d bytes in %d files\n", pen.written, len(names))
	if !*exitWhenDone {
		<-ctx.Done()
	}
	return nil
}

// A pen writes at a rate that applies to all its files together.
type pen struct {
	speed   size // bytes per second, 0 unlimited
	start   time.Time
	written size
}

func (p *pen) write(ctx context.Context, name string, bytes size) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, diskBlockBytes)
	for i := range block {
		block[i] = byte(i)
	}
	for bytes > 0 {
		n, err := file.Write(block[:min(int(bytes), len(block))])
		if err != nil {
			return fmt.Errorf("after %d bytes in all: %w", p.written, err)
		}
		bytes -= size(n)
		p.written += size(n)
		if p.speed > 0 {
			due := time.Duration(float64(p.written) / float64(p.speed) * float64(time.Second))
			pause(ctx, time.Until(p.start.Add(due)))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return file.Close()
}
