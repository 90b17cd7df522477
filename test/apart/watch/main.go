// Command watch is test/apart as a program: it prints overlaps, and at the end of its standard input the number of
// checks.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/apart"
)

func main() {
	var w apart.Watch
	flag.StringVar(&w.Root, "root", "/sys/fs/cgroup/kubepods", "group of the node's pods")
	flag.StringVar(&w.Mark, "mark", "", "in the arguments of containers with CPUs of their own")
	every := flag.Duration("every", time.Millisecond, "pause between two looks")
	flag.Parse()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	looks, overlaps := w.Run(ctx, *every, func(text string) { fmt.Println(text) })
	fmt.Printf("looked %d times, %d overlaps\n", looks, overlaps)
}
