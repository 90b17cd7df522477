package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// pause waits for d and reports whether ctx did not end meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func sleep(ctx context.Context, _ process, flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one duration or infinity, got %d arguments", len(rest))
	}
	if rest[0] == "infinity" {
		<-ctx.Done()
		return nil
	}
	d, err := duration(rest[0])
	if err != nil {
		return err
	}
	pause(ctx, d)
	return nil
}

// duration also accepts plain seconds, as sleep(1) does.
func duration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	if d, err := time.ParseDuration(text + "s"); err == nil {
		return d, nil
	}
	return 0, usagef("duration %q: want 1.5, 300ms, 2s or infinity", text)
}

// ignoreTerm prints a line for each SIGTERM and continues: only SIGKILL (or --for) ends it.
func ignoreTerm(_ context.Context, p process, flags *flag.FlagSet, args []string) error {
	limit := flags.Duration("for", 0, "end by itself after this time (0: never)")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	defer signal.Stop(term)
	var end <-chan time.Time
	if *limit > 0 {
		end = time.After(*limit)
	}
	p.printf("ignoring SIGTERM\n")
	for {
		select {
		case <-end:
			return nil
		case <-term:
			p.printf("SIGTERM ignored\n")
		}
	}
}
