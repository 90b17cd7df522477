package userns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios plays testdata/*.txt. "node" begins a node with per-pod, pods and, if pods may have certain ids only,
// first and length. "take", "record" (first, length), "unknown" and "release" name a pod.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var r *Ranges
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := "", error(nil)
			switch d.Cmd {
			case "node":
				c := nodeOf(t, d)
				if r, err = New(c); err == nil {
					out = fmt.Sprintf("%d slots\n", c.slots())
				}
			case "take":
				var got Range
				if got, _, err = r.Take(d.CmdArgs[0].Key); err == nil {
					out = got.String() + "\n"
				}
			case "record":
				var first, length uint64
				d.ScanArgs(t, "first", &first)
				d.ScanArgs(t, "length", &length)
				err = r.Record(d.CmdArgs[0].Key, Range{uint32(first), uint32(length)})
			case "unknown":
				r.Unknown(d.CmdArgs[0].Key, "its file is torn")
			case "release":
				r.Release(d.CmdArgs[0].Key)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return out
		})
	})
}

func nodeOf(t *testing.T, d *datadriven.TestData) Config {
	var perPod, first uint64
	var pods int
	d.ScanArgs(t, "per-pod", &perPod)
	d.ScanArgs(t, "pods", &pods)
	c := Default(uint32(perPod), pods)
	if d.HasArg("first") {
		d.ScanArgs(t, "first", &first)
		d.ScanArgs(t, "length", &c.Length)
		c.First = uint32(first)
	}
	return c
}

// TestHistories plays random histories of pods, crashes and changed configurations. files is what outlives a crash. A
// crash comes before, or after, a range that was taken is in its file; in the first case the pod was never told of it.
// No two pods that were told theirs ever share an id.
func TestHistories(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		files := map[string]Range{}
		r := restarted(t, random, files)
		for step := range 200 {
			pod := fmt.Sprint(random.IntN(40))
			switch random.IntN(8) {
			case 0, 1:
				r.Release(pod)
				delete(files, pod)
			case 2:
				r = restarted(t, random, files)
			default:
				got, fresh, err := r.Take(pod)
				if err != nil {
					if len(r.Pods()) < 12 { // fewer than any configuration here has slots, of four times the length
						t.Fatalf("seed %d, step %d: pod %s: %v", seed, step, pod, err)
					}
					continue
				}
				if had, ok := files[pod]; ok && (had != got || fresh) {
					t.Fatalf("seed %d, step %d: pod %s had %v and has %v", seed, step, pod, had, got)
				}
				if fresh && random.IntN(10) == 0 { // the crash comes before the file
					r = restarted(t, random, files)
					continue
				}
				files[pod] = got
			}
			if err := apart(files); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
}

// restarted is what a new process makes of the files, with a configuration that may be another one.
func restarted(t *testing.T, random *rand.Rand, files map[string]Range) *Ranges {
	c := Default(Unit*(1+uint32(random.IntN(4))), 10)
	if random.IntN(2) == 0 {
		c.First *= 1 + uint32(random.IntN(3))
		c.Length = uint64(c.PerPod) * 60
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for pod, have := range files {
		if err := r.Record(pod, have); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// apart returns an error if two pods share an id, or one has the host's root.
func apart(files map[string]Range) error {
	var problems []error
	for a, has := range files {
		if has.First == 0 {
			problems = append(problems, fmt.Errorf("pod %s has %v", a, has))
		}
		for b, other := range files {
			if a >= b {
				continue
			}
			first, second := min(has.First, other.First), max(has.First, other.First)
			length := has.Length
			if first == other.First {
				length = other.Length
			}
			if uint64(second) < uint64(first)+uint64(length) {
				problems = append(problems, fmt.Errorf("pod %s has %v, pod %s %v", a, has, b, other))
			}
		}
	}
	return errors.Join(problems...)
}
