package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"
)

// growPeriod is how often memory grows: often enough for a smooth rate in MiB/s.
const growPeriod = 100 * time.Millisecond

// holdMemory maps memory and writes to every page, so that it is resident and anonymous. It is outside Go's heap, whose
// garbage collector could double or free it.
func holdMemory(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	var hold, most size
	var grow rate
	flags.Var(&hold, "hold", "bytes to hold from the start")
	flags.Var(&grow, "grow", "bytes to add per second (0: none)")
	flags.Var(&most, "max", "bytes to stop growing at (0: never)")
	duration := flags.Duration("for", 0, "stop after this time (0: never)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	if *duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	held := size(0)
	take := func(n size) error {
		if n <= 0 {
			return nil
		}
		if err := mapAndTouch(int(n)); err != nil {
			return fmt.Errorf("hold %d bytes more than %d: %w", n, held, err)
		}
		held += n
		return nil
	}
	if err := take(hold); err != nil {
		return err
	}
	p.printf("holding %d bytes\n", held)
	start, reported := time.Now(), held
	for grow.size > 0 && pause(ctx, growPeriod) {
		want := hold + size(float64(grow.size)*time.Since(start).Seconds())
		if most > 0 && want > most {
			want = most
		}
		if err := take(want - held); err != nil {
			return err
		}
		if held-reported >= grow.size || held == most {
			p.printf("holding %d bytes\n", held)
			reported = held
		}
		if held == most {
			break
		}
	}
	<-ctx.Done()
	return nil
}

func mapAndTouch(bytes int) error {
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return nil
}
