// Package cost holds parsers to budgets of CPU and memory in proportion to what they read: no text that a pod, a node, a
// plugin or a file brings may cost its reader more than its length explains.
//
// # Model
//
// Under runs a parser on one input and fails the test when the run allocates more bytes, or keeps its thread on a CPU for
// longer, than Budget allows for an input of that length. Hostile makes long inputs of a seed: what is linear stays within
// the budget at every length, what is quadratic or expands ranges, aliases or references does not.
//
// Allocations are counted exactly (runtime.MemStats.TotalAlloc). Work that allocates nothing has no counter of its own that
// a test could read without another build; so it is the CPU time of the test's own thread, which neither a busy machine
// nor other threads lengthen. It is bounded some hundred times above what the parsers here take, and the smallest of a few
// runs counts: it finds loops of millions of steps for kilobytes of text, not slow code.
//
// # When not to use it
//
// To measure speed: that is a benchmark's. For code that starts goroutines: their time is not counted.
package cost

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Budget is what one run may cost. Zero fields are Usual's.
type Budget struct {
	Bytes        int64         // allocated for any input
	BytesPerByte int64         // allocated for each byte of input
	CPU          time.Duration // for any input
	CPUPerByte   time.Duration // for each byte of input
}

// Usual is the budget of a parser of text. Chosen: decoding JSON into Kubernetes' types takes some 20 ns and 30 bytes for
// each byte, YAML some 300 ns and 300 bytes; a loop over the numbers of a range that costs 8 bytes of text takes at least
// 8,000 ns for each byte.
var Usual = Budget{
	Bytes:        256 << 10,
	BytesPerByte: 1 << 10,
	CPU:          20 * time.Millisecond,
	CPUPerByte:   2 * time.Microsecond,
}

// runs is how often an input is tried before it counts as too dear: the first runs fill caches and pools.
const runs = 4

// Under fails t when run, which reads an input of length bytes, costs more than b allows.
func Under(t testing.TB, b Budget, length int, run func()) {
	t.Helper()
	b = b.orUsual()
	bytesMax := b.Bytes + b.BytesPerByte*int64(length)
	timeMax := b.CPU + b.CPUPerByte*time.Duration(length)
	if instrumented {
		timeMax *= 10 // the race detector's factor is 5 to 10 (go.dev/doc/articles/race_detector)
		bytesMax *= 4
	}
	var bytes int64
	var took time.Duration
	for range runs {
		if bytes, took = measure(run); bytes <= bytesMax && took <= timeMax {
			return
		}
	}
	t.Errorf("an input of %d bytes cost %d bytes of memory and %v of CPU: the budget is %d bytes and %v", length, bytes, took, bytesMax, timeMax)
}

func (b Budget) orUsual() Budget {
	if b.Bytes == 0 {
		b.Bytes = Usual.Bytes
	}
	if b.BytesPerByte == 0 {
		b.BytesPerByte = Usual.BytesPerByte
	}
	if b.CPU == 0 {
		b.CPU = Usual.CPU
	}
	if b.CPUPerByte == 0 {
		b.CPUPerByte = Usual.CPUPerByte
	}
	return b
}

func measure(run func()) (bytes int64, took time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := threadTime()
	run()
	took = threadTime() - start
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), took
}

// threadTime is how long the calling thread has had a CPU.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // Linux has had that clock since 2.6.12
	}
	return time.Duration(ts.Nano())
}

// hostileLength is how long Hostile makes an input, in bytes. Chosen: as long as the longest
// berth that is read; a square of it is a quarter of a billion.
const hostileLength = 16 << 10

// Hostile returns seed over and over, joined in the ways in which lists, lines and words are, and its parts over and over:
// what a hostile writer tries first. None is longer than 16 KiB and a seed.
func Hostile(seed string) []string {
	if seed == "" {
		return nil
	}
	var out []string
	for _, joint := range []string{"", ",", "\n", " "} {
		out = append(out, repeat(seed+joint))
	}
	for i, c := range []byte(seed) {
		// A bracket, quote, digit or sign that opens something, never closed; each kind once.
		if strings.IndexByte(seed, c) == i && len(out) < 12 {
			out = append(out, seed[:i]+repeat(seed[i:i+1])+seed[i:])
		}
	}
	return out
}

func repeat(s string) string { return strings.Repeat(s, max(1, hostileLength/len(s))) }

// whole is the budget of all that a fuzz target does with one input: it reads, often several times, and compares what it read.
var whole = Budget{Bytes: 8 << 20, BytesPerByte: 16 << 10, CPU: 100 * time.Millisecond, CPUPerByte: 5 * time.Microsecond}

// Spend holds the rest of the calling function to a budget for an input of length bytes: defer cost.Spend(t, len(text))(). It
// measures one run, so its budget is larger than Under's: a fuzz target's own comparisons count too.
func Spend(t testing.TB, length int) func() {
	runtime.LockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := threadTime()
	return func() {
		t.Helper()
		took := threadTime() - start
		runtime.ReadMemStats(&after)
		runtime.UnlockOSThread()
		bytes, bytesMax, timeMax := int64(after.TotalAlloc-before.TotalAlloc), whole.Bytes, whole.CPU
		bytesMax, timeMax = bytesMax+whole.BytesPerByte*int64(length), timeMax+whole.CPUPerByte*time.Duration(length)
		if instrumented {
			timeMax *= 10
			bytesMax *= 4
		}
		if bytes > bytesMax || took > timeMax {
			t.Errorf("an input of %d bytes cost %d bytes of memory and %v of CPU: the budget is %d bytes and %v", length, bytes, took, bytesMax, timeMax)
		}
	}
}

// Attack adds to a fuzz target what a hostile writer makes of a seed, so that the target is held to its budget on long inputs
// whenever its tests run.
func Attack[T string | []byte](f *testing.F, seed T) {
	for _, text := range Hostile(string(seed)) {
		f.Add(T(text))
	}
}
