package main

import (
	"context"
	"fmt"
	"os"
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
	if r.claims > 0 {
		record.Progress("%s: making volumes", r.side.name)
		if err := r.provide(ctx); err != nil {
			return err
		}
	}
	if err := r.measureSingles(ctx, m, t); err != nil {
		return fmt.Errorf("pods one by one: %w", err)
	}
	for _, n := range r.batches {
		if n == 1 && !windows {
			continue // its times are those of the pods one by one
		}
		if err := r.measureBatch(ctx, m, t, n, windows); err != nil {
			return fmt.Errorf("%d pods at once: %w", n, err)
		}
	}
	putGrowth(m, r.batches)
	t.mu.Lock()
	m.Put("resumed", float64(t.resumed), 1)
	t.mu.Unlock()
	return r.checkSameAgent(ctx)
}

// singlePause gives a container's program time to install its SIGTERM handler before its pod is deleted. The kernel
// drops signals that the first process of a pid namespace does not handle (pid_namespaces(7)), and the pod would use up
// its grace period. Busy machines need a part of this second.
const singlePause = time.Second

// measureSingles starts pods one by one, each when the previous one is gone. The node's very first pod counts
// separately.
func (r *rig) measureSingles(ctx context.Context, m *record.Measurement, t *tracker) error {
	var total, start, end []float64
	for i := range r.singles + 1 {
		names := []string{singleName(i)}
		if _, err := r.create(ctx, t, names); err != nil {
			return err
		}
		if err := t.await(ctx, "running", names, isRunning); err != nil {
			return err
		}
		if err := record.Pause(ctx, singlePause); err != nil {
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
		putStarts(m, 1, stats.Median(total), start)
		putRemovals(m, 1, stats.Median(end), end)
		record.Progress("%s: 1 pod: bind to running p50 %.2f s, p99 %.2f s", r.side.name, m.Values["p50_1"],
			m.Values["p99_1"])
	}
	return nil
}

// singleName returns the name of a pod of those that start one by one.
func singleName(i int) string { return fmt.Sprintf("single-%02d", i) }

// batchNames returns the names of the pods of a batch.
func batchNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("batch%d-%03d", n, i)
	}
	return names
}

// measureBatch starts n pods at once, measures the steady window if requested, and deletes them at once.
func (r *rig) measureBatch(ctx context.Context, m *record.Measurement, t *tracker, n int, steady bool) error {
	names := batchNames(n)
	if err := resetPeak(r.pids[roleAgent]); err != nil {
		return err
	}
	if err := r.measureStarts(ctx, m, t, names); err != nil {
		return err
	}
	if steady {
		if err := r.window(ctx, m, sized("steady", n), r.steady); err != nil {
			return fmt.Errorf("steady window: %w", err)
		}
	} else if err := record.Pause(ctx, singlePause); err != nil {
		return err
	}
	if err := r.measureRemoval(ctx, m, t, names); err != nil {
		return err
	}
	peak, err := record.StatusMiB(r.pids[roleAgent], "VmHWM")
	if err != nil {
		return err
	}
	m.Put(sized("peak", n), peak, 1)
	return r.checkSameAgent(ctx)
}

// resetPeak sets a process's highest resident memory, VmHWM, to what it has now (5 in proc_pid_clear_refs(5)).
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// measureStarts starts the pods of a batch at once.
func (r *rig) measureStarts(ctx context.Context, m *record.Measurement, t *tracker, names []string) error {
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
	putStartCPU(m, len(names), after.since(before))
	if len(names) > 1 { // otherwise the pods one by one say it
		r.noteStarts(m, t, names, began)
	}
	return r.printProfile(ctx, profile)
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
	var end []float64
	for _, name := range names {
		l := t.get(name)
		end = append(end, l.gone.Sub(l.deleted).Seconds())
	}
	if len(names) > 1 {
		putRemovals(m, len(names), removed.Seconds(), end)
	}
	record.Progress("%s: %d pods: all deleted in %.1f s", r.side.name, len(names), removed.Seconds())
	return r.printProfile(ctx, profile)
}

// sized is the name of a value of n pods.
func sized(name string, n int) string { return fmt.Sprintf("%s_%d", name, n) }

// putStarts stores the times of n pods that started at once: until the last ran, and each pod's own, in seconds.
func putStarts(m *record.Measurement, n int, total float64, each []float64) {
	m.Put(sized("total", n), total, 1)
	m.Put(sized("p50", n), stats.Quantile(each, 0.5), len(each))
	m.Put(sized("p99", n), stats.Quantile(each, 0.99), len(each))
}

// putRemovals stores the times of n pods that were removed at once, as putStarts does.
func putRemovals(m *record.Measurement, n int, total float64, each []float64) {
	m.Put(sized("delete", n), total, 1)
	m.Put(sized("p50_gone", n), stats.Quantile(each, 0.5), len(each))
	m.Put(sized("p99_gone", n), stats.Quantile(each, 0.99), len(each))
}

// putStartCPU stores the CPU seconds of each role while n pods started.
func putStartCPU(m *record.Measurement, n int, used usage) {
	for role, seconds := range used {
		m.Put(sized("startcpu_"+role, n), seconds, 1)
	}
	m.Put(sized("startcpu_runtime", n), used[roleContainerd]+used[roleShims], 1)
}

// putGrowth stores how much faster than the number of pods the agent's use grew from the second largest batch to the
// largest: 1 is as fast. Memory is what pods add to that of the idle agent. Batches of one pod are too small for it.
func putGrowth(m *record.Measurement, batches []int) {
	large := atOnce(batches)
	if len(large) < 2 {
		return
	}
	few, many := large[len(large)-2], large[len(large)-1]
	more := float64(many) / float64(few)
	above := func(name string, n int) float64 {
		return m.Values[sized(name+"_steady", n)] - m.Values[name+"_idle"]
	}
	for _, name := range []string{"rss", "cores_agent"} {
		if less := above(name, few); less > 0 {
			m.Put("growth_"+name, above(name, many)/less/more, 1)
		}
	}
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
	putStarts(m, n, last.Sub(began).Seconds(), start)
	m.Put(sized("spread", n), last.Sub(first).Seconds(), 1)
	record.Progress("%s: %d pods: all running in %.1f s, bind to running p50 %.2f s, p99 %.2f s", r.side.name, n,
		last.Sub(began).Seconds(), stats.Quantile(start, 0.5), stats.Quantile(start, 0.99))
}

// removeAll deletes pods with their own grace period and returns how long it took until the last was gone.
func (r *rig) removeAll(ctx context.Context, t *tracker, names []string) (time.Duration, error) {
	began, err := r.remove(ctx, t, names)
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
