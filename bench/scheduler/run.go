package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// chunk is how many pods are made at a time: making them is not measured, and their objects are not kept.
const chunk = 200

// meter sums what is used while it runs.
type meter struct {
	wall, cpu time.Duration
	mallocs   uint64
	bytes     uint64

	began time.Time
	used  time.Duration
	then  runtime.MemStats
}

func (m *meter) start() {
	runtime.ReadMemStats(&m.then)
	m.used, m.began = cpuTime(), time.Now()
}

func (m *meter) stop() {
	m.wall += time.Since(m.began)
	m.cpu += cpuTime() - m.used
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	m.mallocs += now.Mallocs - m.then.Mallocs
	m.bytes += now.TotalAlloc - m.then.TotalAlloc
}

// One in warmShare of the pods is placed before the clock starts, so that neither the first snapshot nor the first
// tables are measured. That takes at most as long as the measured pods may take.
const warmShare = 5

// run measures a side with n pods of a scenario, or with as many as it places within the budget.
func run(x side, s *scenario, n int, budget time.Duration) sample {
	defer x.close()
	ctx := context.Background()
	one := *s
	if one.begin != nil {
		one.begin(&one)
	}
	one.load(ctx, x)
	warm := max(20, n/warmShare)
	warmed := one.place(ctx, x, 0, warm, budget/2, &meter{})
	runtime.GC()
	m := &meter{}
	got := one.place(ctx, x, warmed.Pods, n, budget, m)
	pods := time.Duration(got.Pods)
	got.Wall, got.CPU = m.wall/pods, m.cpu/pods
	got.Allocs, got.KB = float64(m.mallocs)/float64(pods), float64(m.bytes)/1024/float64(pods)
	return got
}

// place places n pods, starting with the number first, or as many as fit the budget, but at least one.
func (s *scenario) place(ctx context.Context, x side, first, n int, budget time.Duration, m *meter) (out sample) {
	latencies := make([]float64, 0, n)
	for out.Pods < n && (out.Pods == 0 || m.wall < budget) {
		ahead, steps := s.steps(x, first+out.Pods, min(chunk, n-out.Pods))
		m.start()
		for _, happens := range ahead {
			happens()
		}
		if len(ahead) > 0 {
			x.heard()
		}
		for _, step := range steps {
			began := time.Now()
			for _, happens := range step.before {
				happens()
			}
			if x.place(ctx, step.pod) {
				out.Placed++
			}
			latencies = append(latencies, float64(time.Since(began)))
			if out.Pods++; m.wall+time.Since(m.began) > budget {
				break
			}
		}
		x.wait()
		m.stop()
	}
	out.P50, out.P99 = time.Duration(stats.Quantile(latencies, 0.5)), time.Duration(stats.Quantile(latencies, 0.99))
	return out
}

// measure returns both sides' medians over rounds. The sides alternate, and the order is reversed every round.
func measure(s scenario, rounds, pods int, budget time.Duration) (theirs, ours sample) {
	var their, our []sample
	for round := range rounds {
		sides := []func(){
			func() {
				if s.upstreamPods > 0 {
					their = append(their, run(newUpstream(), &s, choose(pods, s.upstreamPods), budget))
				}
			},
			func() { our = append(our, run(newOurs(), &s, choose(pods, s.ourPods), budget)) },
		}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		for _, measure := range sides {
			measure()
			debug.FreeOSMemory()
		}
	}
	return medianOf(their), medianOf(our)
}

func choose(asked, own int) int {
	if asked > 0 {
		return asked
	}
	return own
}

func medianOf(samples []sample) (m sample) {
	pick := func(of func(sample) float64) float64 {
		var list []float64
		for _, s := range samples {
			list = append(list, of(s))
		}
		return stats.Median(list)
	}
	if len(samples) == 0 {
		return m
	}
	m.Wall = time.Duration(pick(func(s sample) float64 { return float64(s.Wall) }))
	m.CPU = time.Duration(pick(func(s sample) float64 { return float64(s.CPU) }))
	m.P50 = time.Duration(pick(func(s sample) float64 { return float64(s.P50) }))
	m.P99 = time.Duration(pick(func(s sample) float64 { return float64(s.P99) }))
	m.Allocs = pick(func(s sample) float64 { return s.Allocs })
	m.KB = pick(func(s sample) float64 { return s.KB })
	m.Pods = int(pick(func(s sample) float64 { return float64(s.Pods) }))
	m.Placed = int(pick(func(s sample) float64 { return float64(s.Placed) }))
	return m
}

// cpuTime returns the CPU time of the process so far, of all threads, with the kernel.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
