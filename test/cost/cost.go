// Package cost checks that parsers use CPU and memory in proportion to the length of their input: a text from a pod, a
// node, a plugin or a file must not cost its reader more than its length explains.
//
// # Model
//
// Under runs a parser on one input and fails the test if the run allocates more bytes, or uses more CPU time of its
// thread, than the Budget allows for an input of that length. Hostile makes long inputs from a seed. Linear costs stay
// within the budget at every length; quadratic ones, and expansions of ranges, aliases or references, do not.
//
// Allocations are counted exactly (runtime.MemStats.TotalAlloc). A test cannot count work that allocates nothing
// without another build. So the CPU time of the test's own thread is used, which neither a busy machine nor other
// threads lengthen. Its bound is some hundred times above what our parsers take, and the smallest of a few runs counts:
// it finds loops of millions of steps for kilobytes of text, not slow code.
//
// # When not to use it
//
// Do not use it to measure speed, which benchmarks do, nor for code that starts goroutines, whose time is not counted.
package cost

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Budget is what one run may cost. A zero field stands for that of Usual.
type Budget struct {
	Bytes        int64         // allocated for any input
	BytesPerByte int64         // allocated for each byte of input
	CPU          time.Duration // for any input
	CPUPerByte   time.Duration // for each byte of input
}

// Usual is the budget of a parser of text. Chosen: decoding JSON into Kubernetes' types takes some 20 ns and 30 bytes
// per byte, YAML some 300 ns and 300 bytes; a loop over the numbers of a range that is written in 8 bytes takes at
// least 8,000 ns per byte.
var Usual = Budget{
	Bytes:        256 << 10,
	BytesPerByte: 1 << 10,
	CPU:          20 * time.Millisecond,
	CPUPerByte:   2 * time.Microsecond,
}

// runs is how often an input is tried before it counts as too expensive: the first runs fill caches and pools.
const runs = 4

// Under fails t if run, which reads an input of length bytes, costs more than b allows.
func Under(t testing.TB, b Budget, length int, run func()) {
	t.Helper()
	b = b.orUsual()
	bytesMax := b.Bytes + b.BytesPerByte*int64(length)
	timeMax := b.CPU + b.CPUPerByte*time.Duration(length)
	if instrumented {
		timeMax *= 10 // the race detector slows code down 5 to 10 times (go.dev/doc/articles/race_detector)
		bytesMax *= 4
	}
	var bytes int64
	var took time.Duration
	for range runs {
		if bytes, took = measure(run); bytes <= bytesMax && took <= timeMax {
			return
		}
	}
	t.Errorf("an input of %d bytes cost %d bytes of memory and %v of CPU: the budget is %d bytes and %v", length, bytes,
		took, bytesMax, timeMax)
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

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // impossible: Linux has had that clock since 2.6.12
	}
	return time.Duration(ts.Nano())
}

// hostileLength is the length of Hostile's inputs, in bytes. Chosen: its square is a billion, which exceeds every
// budget here; at 300 ns per byte it is still read in 10 ms.
const hostileLength = 32 << 10

// Hostile returns long inputs that a hostile writer would make from a seed: the seed repeated, joined as lists, lines
// and words are; each kind of byte repeated in its place, so that brackets are opened and never closed; and the content
// of brackets repeated, each time with another name, so that a parser that accepts the seed accepts this too. None is
// much longer than 32 KiB and a seed.
func Hostile(seed string) []string {
	if seed == "" {
		return nil
	}
	var out []string
	for _, joint := range []string{"", ",", "\n", " "} {
		out = append(out, repeat(seed+joint))
	}
	letter, digit := false, false
	for i, c := range []byte(seed) {
		switch {
		case strings.IndexByte(seed, c) < i:
			continue
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			if letter {
				continue
			}
			letter = true
		case '0' <= c && c <= '9':
			if digit {
				continue
			}
			digit = true
		}
		out = append(out, seed[:i]+repeat(seed[i:i+1])+seed[i:])
	}
	return append(out, crowds(seed)...)
}

func repeat(s string) string { return strings.Repeat(s, max(1, hostileLength/len(s))) }

// crowdsMax is how many of a seed's brackets are filled. Chosen: the outer ones of a manifest; more would only take
// longer.
const crowdsMax = 8

// crowds returns seed with the content of each pair of brackets many times instead of once, joined by commas. If the
// content begins with a quote, a number follows the quote, so that names differ.
func crowds(seed string) []string {
	var out []string
	for start := range len(seed) {
		end := closing(seed, start)
		if end <= start+1 || len(out) == crowdsMax {
			continue
		}
		content, quote := seed[start+1:end], ""
		if content[0] == '"' {
			content, quote = content[1:], `"`
		}
		var b strings.Builder
		b.WriteString(seed[:start+1])
		for i := 0; b.Len() < hostileLength; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote)
			if quote != "" {
				b.WriteString(strconv.Itoa(i))
			}
			b.WriteString(content)
		}
		b.WriteString(seed[end:])
		out = append(out, b.String())
	}
	return out
}

// closing returns where the bracket at start is closed, or -1. Brackets within quotes count like others.
func closing(seed string, start int) int {
	depth := 0
	for i := start; i < len(seed); i++ {
		switch seed[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 {
			if i == start {
				return -1 // not a bracket
			}
			return i
		}
	}
	return -1
}

// whole is the budget of everything that a fuzz target does with one input: it reads, often several times, and compares
// the results.
var whole = Budget{Bytes: 8 << 20, BytesPerByte: 16 << 10, CPU: 100 * time.Millisecond,
	CPUPerByte: 5 * time.Microsecond}

// Spend applies a budget for an input of length bytes to the rest of the calling function: defer cost.Spend(t,
// len(text))(). It measures one run, and a fuzz target's own comparisons count too, so its budget is larger than
// Under's.
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
		bytes := int64(after.TotalAlloc - before.TotalAlloc)
		bytesMax := whole.Bytes
		timeMax := whole.CPU
		bytesMax, timeMax = bytesMax+whole.BytesPerByte*int64(length), timeMax+whole.CPUPerByte*time.Duration(length)
		if instrumented {
			timeMax *= 10
			bytesMax *= 4
		}
		if bytes > bytesMax || took > timeMax {
			t.Errorf("an input of %d bytes cost %d bytes of memory and %v of CPU: the budget is %d bytes and %v", length, bytes,
				took, bytesMax, timeMax)
		}
	}
}

// Attack adds to a fuzz target a seed and Hostile's inputs from it, so that the target's budget is checked on long
// inputs whenever its tests run. seed is the arguments of the target's function after T; each text in it is made long,
// one at a time.
func Attack(f *testing.F, seed ...any) {
	f.Add(seed...)
	for i := range seed {
		add := func(long any) {
			args := slices.Clone(seed)
			args[i] = long
			f.Add(args...)
		}
		switch text := seed[i].(type) {
		case string:
			for _, long := range Hostile(text) {
				add(long)
			}
		case []byte:
			for _, long := range Hostile(string(text)) {
				add([]byte(long))
			}
		}
	}
}

// Aliases is YAML with nine lists, each of which contains the previous one nine times: some 400 bytes that expand to a
// gigabyte. It begins with head.
func Aliases(head string) string {
	var b strings.Builder
	b.WriteString(head + "a: &a [x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c <= 'i'; c++ {
		fmt.Fprintf(&b, "%[1]c: &%[1]c [%[2]s]\n", c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 9), ","))
	}
	return b.String()
}
