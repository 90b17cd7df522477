package replay

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// notesOf returns decisions as each component records them.
func notesOf(b *testing.B) map[string][]journal.Note {
	rng := rand.New(rand.NewPCG(9, 10))
	web := []journal.Pod{{Namespace: "default", Name: "web-7c9f", UID: "6ff0f3a5-43a5-4d5c-a1f5-3b0a3a0f7c11"}}
	requests := []journal.Room{
		{Resource: "cpu", Requested: 500, Free: 1200, Allocatable: 4000},
		{Resource: "memory", Requested: 1 << 30, Free: 3 << 30, Allocatable: 8 << 30},
		{Resource: "pods", Requested: 1, Free: 78, Allocatable: 110},
	}
	try := journal.Try{Attempt: 2, Waited: 3 * time.Second, Took: 80 * time.Microsecond, Nodes: 5000}
	reasons := map[string]int{"Insufficient cpu": 4500, "node(s) had untolerated taint(s)": 500}
	out := map[string][]journal.Note{
		"scheduler/placement": {{Kind: journal.Placed, Node: "n1", Pods: web, Detail: &journal.Placement{
			Try:      try,
			Node:     "n1",
			Feasible: 12,
			Score:    187,
			Room:     requests,
		}}},
		"scheduler/unschedulable": {{Kind: journal.Unschedulable, Pods: web, Detail: &journal.Refusal{
			Try:      try,
			Requests: requests[:2],
			Reasons:  reasons,
			Plugins:  []string{"NodeResourcesFit", "TaintToleration"},
			Why:      "0/5000 nodes are available: 4500 Insufficient cpu, 500 node(s) had untolerated taint(s).",
		}}},
		"agent/start": {{Kind: journal.Started, Pods: web, Detail: &journal.Start{
			Container: "app",
			Run:       1,
			ID:        "containerd://6ff0f3a543a54d5ca1f53b0a3a0f7c116ff0f3a543a54d5ca1f53b0a3a0f7c11",
		}}},
	}
	nodeActions(rng, func(n journal.Note) { out["lifecycle"] = append(out["lifecycle"], n) }, 1000)
	p := newPlace(b, rng)
	for range 100 {
		n := journal.Note{Kind: journal.Admitted, Pods: web, Detail: p.come("uid")}
		if len(p.here) > 4 {
			p.state.Release(p.here[0])
			p.node.Remove("uid")
			p.here = p.here[:0]
		}
		out["agent/admission-with-cpus"] = append(out["agent/admission-with-cpus"], n)
	}
	return out
}

// used is the CPU time of this process.
func used(b *testing.B) time.Duration { return usedBy(b, syscall.RUSAGE_SELF) }

func usedBy(b *testing.B, who int) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// batch is how many records an iteration of BenchmarkCost has: a Log keeps so many in memory until they are written.
const batch = 2000

// BenchmarkCost is all that a record costs, in CPU time: to hand it over, and in the background to encode it and write
// it to the disk; and its bytes there. What hands it over waits for ns/note. Evictions are written before pods are
// killed: nothing of theirs is in the background.
func BenchmarkCost(b *testing.B) {
	all := notesOf(b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		notes := all[name]
		b.Run(name, func(b *testing.B) {
			var took time.Duration
			n := measure(b, func(dir string) {
				l, err := journal.NewLog("bench", 64<<20, dir)
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				for i := range batch {
					l.Note(notes[i%len(notes)])
				}
				took += time.Since(began)
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
			})
			b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/note")
		})
	}
	b.Run("agent/eviction", func(b *testing.B) {
		var all []*journal.Decision
		evictions(rand.New(rand.NewPCG(11, 12)), func(of *journal.Decision) { all = append(all, of) }, 200)
		measure(b, func(dir string) {
			j, err := journal.Open(dir, journal.BytesMax)
			if err != nil {
				b.Fatal(err)
			}
			for i := range batch {
				appendTo(b, j, all[i%len(all)])
			}
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// measure reports what the records of batches cost that write writes to new directories, and returns how many.
func measure(b *testing.B, write func(dir string)) (records int) {
	bytes, kept := 0, 0
	var cpu time.Duration
	for b.Loop() {
		dir := b.TempDir()
		before := used(b)
		write(dir)
		cpu += used(b) - before
		records += batch
		a, err := journal.Read(dir, journal.Query{})
		if err != nil || a.Missing > 0 || a.Last != batch {
			b.Fatal(a.Missing, a.Last, err)
		}
		kept += len(a.Records)
		files, err := filepath.Glob(filepath.Join(dir, "decisions*"))
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range files {
			info, err := os.Stat(name)
			if err != nil {
				b.Fatal(err)
			}
			bytes += int(info.Size())
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(records), "cpu-ns/record")
	b.ReportMetric(float64(bytes)/float64(kept), "bytes/record")
	return records
}

// BenchmarkPace is what a record of a busy scheduler costs in the background when it is written to the disk, with one
// each 1.25 ms, as fast as binds are made (bench/results/binds.md): where records come one by one, each might need a
// write. The goroutine that hands them over never sleeps, and its own CPU time does not count. base-ns/record is what
// the process uses meanwhile with a journal in memory, which has nothing in the background: the Go runtime watches that
// goroutine. It is not in cpu-ns/record. Both take turns of two seconds, so that what else runs meets both.
func BenchmarkPace(b *testing.B) {
	const turn = 1600
	note := notesOf(b)["scheduler/placement"][0]
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pace := func(dir string) time.Duration {
		l, err := journal.NewLog("bench", journal.BytesMax, dir)
		if err != nil {
			b.Fatal(err)
		}
		before := used(b) - usedBy(b, syscall.RUSAGE_THREAD)
		next := time.Now()
		for range turn {
			for next = next.Add(1250 * time.Microsecond); time.Now().Before(next); {
			}
			l.Note(note)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		return used(b) - usedBy(b, syscall.RUSAGE_THREAD) - before
	}
	var disk, memory time.Duration
	turns := 0
	for b.Loop() {
		disk += pace(b.TempDir())
		memory += pace("")
		turns++
	}
	records := float64(turns * turn)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64((disk-memory).Nanoseconds())/records, "cpu-ns/record")
	b.ReportMetric(float64(memory.Nanoseconds())/records, "base-ns/record")
}
