package main

import (
	"context"
	"flag"
	"runtime"
	"sync"
	"time"
)

// cpuPeriod is the cycle of work and rest. It is Kubernetes' CFS bandwidth period (100 ms), so that a workload at its
// limit is throttled equally in every period.
const cpuPeriod = 100 * time.Millisecond

// burnCPU uses --milli thousandths of a CPU: one thread for each whole CPU, one more for the rest.
func burnCPU(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	milli := flags.Int("milli", 1000, "thousandths of a CPU to burn")
	duration := flags.Duration("for", 0, "stop after this time (0: never)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	if *milli < 0 {
		return usagef("--milli %d: want 0 or more", *milli)
	}
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	threads := (*milli + 999) / 1000
	runtime.GOMAXPROCS(threads + 1)
	p.printf("burning %dm CPU on %d threads\n", *milli, threads)
	var wait sync.WaitGroup
	for left := *milli; left > 0; left -= 1000 {
		wait.Go(func() { burn(ctx, cpuPeriod*time.Duration(min(left, 1000))/1000) })
	}
	<-ctx.Done()
	wait.Wait()
	return nil
}

// burn uses CPU for the given part of each period until ctx ends.
func burn(ctx context.Context, busy time.Duration) {
	runtime.LockOSThread()
	next := time.Now()
	for ctx.Err() == nil {
		next = next.Add(cpuPeriod)
		for end := next.Add(busy - cpuPeriod); time.Now().Before(end) && ctx.Err() == nil; {
		}
		pause(ctx, time.Until(next))
	}
}
