package record

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Main runs a measuring program: it handles flags, Ctrl-C, errors and the exit code, which is 0 only if run says that
// every bar was met.
func Main[C any](program string, parse func([]string) (C, error), run func(context.Context, C) (bool, error)) {
	c, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, c)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// Progress prints progress to standard error; the report is on standard output.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// Play measures every side once per round; the order is reversed every round, so that a machine that becomes slower
// favours none. It writes the report to the file out after each round, so that an interrupted run has one too. A failed
// measurement is recorded, and the run continues.
func (r *Report) Play(ctx context.Context, out string, sides []string,
	measure func(context.Context, *Measurement) error) error {
	for round := range r.Rounds {
		order := slices.Clone(sides)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			m := NewMeasurement(side, round+1)
			r.Measurements = append(r.Measurements, m)
			if err := measure(ctx, m); err != nil {
				r.Fail(fmt.Errorf("round %d: %s: %w", round+1, side, err))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if err := r.Save(out); err != nil {
			return err
		}
	}
	return nil
}

// Fail records that something could not be measured. A report with such a problem does not pass.
func (r *Report) Fail(err error) {
	r.Problems = append(r.Problems, err.Error())
	fmt.Fprintf(os.Stderr, "%s: %v\n", r.Program, err)
}

// Finish saves and prints the report, and returns whether every bar was met and everything was measured.
func (r *Report) Finish(out string) (bool, error) {
	if err := r.Save(out); err != nil {
		return false, err
	}
	text, ok := r.Render()
	fmt.Print(text)
	return ok && len(r.Problems) == 0, nil
}

// Pause waits for d. Only measuring programs may sleep like this: they measure what happens as time passes.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
