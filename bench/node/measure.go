package main

import (
	"context"
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// measureAll measures a round between up and down, with or without idle and steady windows.
func (r *rig) measureAll(ctx context.Context, m *record.Measurement, windows bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.prepareNamespace(ctx); err != nil {
		return err
	}
	t, err := track(ctx, r)
	if err != nil {
		return err
	}
	if windows {
		if err := r.window(ctx, m, "idle", r.idle); err != nil {
			return fmt.Errorf("idle window: %w", err)
		}
	}
	if err := r.measureSingles(ctx, m, t); err != nil {
		return fmt.Errorf("pods one by one: %w", err)
	}
	for i, n := range r.batches {
		last := i == len(r.batches)-1
		if err := r.measureBatch(ctx, m, t, n, last && windows); err != nil {
			return fmt.Errorf("%d pods at once: %w", n, err)
		}
	}
	peak, err := record.StatusMiB(r.pids[roleAgent], "VmHWM")
	if err != nil {
		return err
	}
	m.Put("peak", peak, 1)
	t.mu.Lock()
	m.Put("resumed", float64(t.resumed), 1)
	t.mu.Unlock()
	return r.checkSameAgent(ctx)
}

// singlePause gives the container's program time to install its SIGTERM handler before its pod is deleted. The kernel
// drops signals that the first process of a pid namespace does not handle (pid_namespaces(7)), and the pod would use up
// its grace period. Busy machines need a part of this second.
const singlePause = time.Second

// measureSingles starts pods one by one, each when the previous one is gone. The node's very first pod counts
// separately.
func (r *rig) measureSingles(ctx context.Context, m *record.Measurement, t *tracker) error {
	var total, start, end []float64
	for i := range r.singles + 1 {
		names := []string{fmt.Sprintf("single-%02d", i)}
		if _, err := r.create(ctx, t, names); err != nil {
			return err
		}
		if err := t.await(ctx, "running", names, isRunning); err != nil {
			return err
		}
		if err := pause(ctx, singlePause); err != nil {
			return err
		}
		removed, err := r.removeAll(ctx, t, names)
		if err != nil {
			return err
		}
		l := t.get(names[0])
		if i == 0 { // it creates the bridge, and reads programs from disk that later ones find in memory
			m.Put("first_1", l.running.Sub(l.bound).Seconds(), 1)
			continue
		}
		total = append(total, l.running.Sub(l.created).Seconds())
		start = append(start, l.running.Sub(l.bound).Seconds())
		end = append(end, removed.Seconds())
	}
	if r.singles > 0 {
		m.Put("total_1", stats.Median(total), len(total))
		m.Put("p50_1", stats.Quantile(start, 0.5), len(start))
		m.Put("p99_1", stats.Quantile(start, 0.99), len(start))
		m.Put("delete_1", stats.Median(end), len(end))
		record.Progress("%s: 1 pod: bind to running p50 %.2f s, p99 %.2f s", r.side.name, m.Values["p50_1"], m.Values["p99_1"])
	}
	return nil
}

// measureBatch starts n pods at once, measures the steady window if requested, and deletes them at once.
func (r *rig) measureBatch(ctx context.Context, m *record.Measurement, t *tracker, n int, steady bool) error {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("batch%d-%03d", n, i)
	}
	profile, err := r.takeProfile(ctx)
	if err != nil {
		return err
	}
	before, err := r.cpu()
	if err != nil {
		return err
	}
	began, err := r.create(ctx, t, names)
	if err != nil {
		return err
	}
	if err := t.await(ctx, "running", names, isRunning); err != nil {
		return err
	}
	after, err := r.cpu()
	if err != nil {
		return err
	}
	for role, seconds := range after.since(before) {
		m.Put(fmt.Sprintf("startcpu_%s_%d", role, n), seconds, 1)
	}
	r.noteStarts(m, t, names, began)
	if err := r.printProfile(ctx, profile); err != nil {
		return err
	}
	if steady {
		if err := r.window(ctx, m, "steady", r.steady); err != nil {
			return fmt.Errorf("steady window: %w", err)
		}
	}
	return r.measureRemoval(ctx, m, t, names)
}

func (r *rig) measureRemoval(ctx context.Context, m *record.Measurement, t *tracker, names []string) error {
	profile, err := r.takeProfile(ctx)
	if err != nil {
		return err
	}
	removed, err := r.removeAll(ctx, t, names)
	if err != nil {
		return err
	}
	m.Put(fmt.Sprintf("delete_%d", len(names)), removed.Seconds(), 1)
	record.Progress("%s: %d pods: all deleted in %.1f s", r.side.name, len(names), removed.Seconds())
	return r.printProfile(ctx, profile)
}

// noteStarts computes the numbers of a batch from what the watch saw.
func (r *rig) noteStarts(m *record.Measurement, t *tracker, names []string, began time.Time) {
	var start []float64
	var first, last time.Time
	for _, name := range names {
		l := t.get(name)
		start = append(start, l.running.Sub(l.bound).Seconds())
		if first.IsZero() || l.running.Before(first) {
			first = l.running
		}
		if l.running.After(last) {
			last = l.running
		}
	}
	n := len(names)
	put := func(name string, v float64, samples int) { m.Put(fmt.Sprintf("%s_%d", name, n), v, samples) }
	put("total", last.Sub(began).Seconds(), 1)
	put("p50", stats.Quantile(start, 0.5), n)
	put("p99", stats.Quantile(start, 0.99), n)
	put("spread", last.Sub(first).Seconds(), 1)
	record.Progress("%s: %d pods: all running in %.1f s, bind to running p50 %.2f s, p99 %.2f s", r.side.name, n,
		last.Sub(began).Seconds(), stats.Quantile(start, 0.5), stats.Quantile(start, 0.99))
}

// removeAll deletes pods with their own grace period and returns how long it took until the last was gone.
func (r *rig) removeAll(ctx context.Context, t *tracker, names []string) (time.Duration, error) {
	began, err := r.remove(ctx, names)
	if err != nil {
		return 0, err
	}
	if err := t.await(ctx, "gone", names, isGone); err != nil {
		return 0, err
	}
	var last time.Time
	for _, name := range names {
		if gone := t.get(name).gone; gone.After(last) {
			last = gone
		}
	}
	return last.Sub(began), nil
}

func isRunning(l *life) bool { return !l.running.IsZero() }
func isGone(l *life) bool    { return !l.gone.IsZero() }
