package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// printLog prints numbered lines, all at once or at a rate.
func printLog(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	lines := flags.Int("lines", 0, "lines to print (0: for ever)")
	perSecond := flags.Float64("rate", 0, "lines per second (0: as fast as it goes)")
	stderrEvery := flags.Int("stderr-every", 0, "every so many lines one goes to stderr (0: none)")
	var width size
	flags.Var(&width, "size", "bytes of each line, filled up with dots (0: as they come)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	out := bufio.NewWriter(p.stdout)
	start := time.Now()
	for n := 1; *lines == 0 || n <= *lines; n++ {
		to := io.Writer(out)
		if *stderrEvery > 0 && n%*stderrEvery == 0 {
			to = p.stderr
		}
		line := fmt.Sprintf("line %d", n)
		if missing := int(width) - len(line) - 1; missing > 0 {
			line += strings.Repeat(".", missing)
		}
		if _, err := fmt.Fprintln(to, line); err != nil {
			return err
		}
		if *perSecond > 0 {
			if err := out.Flush(); err != nil {
				return err
			}
			pause(ctx, time.Until(start.Add(time.Duration(float64(n)/(*perSecond)*float64(time.Second)))))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return out.Flush()
}

// copyStdin copies stdin to stdout until the end of either.
func copyStdin(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	if err := noArgs(flags, args); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(p.stdout, p.stdin)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return nil
	}
}
