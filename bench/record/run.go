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

// Main is the life of a measuring program, but for what it measures: flags, Ctrl-C, errors and the exit code, which is 0
// only if run says that every bar was met.
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

// Progress tells the person who waits; the report is on standard output.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// Play measures every side once a round; the order turns around every round, so that a machine that gets slower does not
// favour one. It writes the report to the file out after each round, so that an interrupted run still has one. What could not
// be measured is noted, and the run goes on.
func (r *Report) Play(ctx context.Context, out string, sides []string, measure func(context.Context, *Measurement) error) error {
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

// Fail notes that something could not be measured. A report with such a note passes nothing.
func (r *Report) Fail(err error) {
	r.Problems = append(r.Problems, err.Error())
	fmt.Fprintf(os.Stderr, "%s: %v\n", r.Program, err)
}

// Finish saves and prints the report, and says whether every bar was met and everything measured.
func (r *Report) Finish(out string) (bool, error) {
	if err := r.Save(out); err != nil {
		return false, err
	}
	text, ok := r.Render()
	fmt.Print(text)
	return ok && len(r.Problems) == 0, nil
}
