package allocatable

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// kernel simulates a memory cgroup: the processes in it use hot memory, and fill cold cache up to the limit.
type kernel struct {
	unified        bool
	limit, high    unit.Limit[unit.Bytes]
	hot, cold      unit.Bytes
	kills          int
	squeezed, most unit.Bytes // reclaimed by writes: in total, and the most by one write
	refused        bool
}

func (k *kernel) usage() unit.Bytes { return k.hot + k.cold }

// reclaim is the lowest usage that the kernel can limit the group to without killing.
func (k *kernel) reclaim(to unit.Bytes) bool {
	drop := min(k.cold, max(0, k.usage()-to))
	k.cold -= drop
	k.squeezed += drop
	k.most = max(k.most, drop)
	return k.usage() <= to
}

func (k *kernel) write(w Write) (refused bool) {
	to, bounded := w.To.Get()
	switch {
	case w.File == High:
		k.high = w.To
		if bounded {
			k.reclaim(to)
		}
	case k.unified:
		k.limit = w.To
		if bounded && !k.reclaim(to) {
			k.kills++
			k.hot = to - k.cold
		}
	default:
		if bounded && !k.reclaim(to) {
			return true // EBUSY; what was reclaimed before stays reclaimed
		}
		k.limit = w.To
	}
	return false
}

// charge adds memory as processes do: hot memory displaces cache, and beyond the limit a process is killed.
func (k *kernel) charge(hot, cold unit.Bytes) {
	k.hot, k.cold = max(0, k.hot+hot), max(0, k.cold+cold)
	for _, l := range []unit.Limit[unit.Bytes]{k.high, k.limit} {
		if bound, ok := l.Get(); ok && k.usage() > bound {
			k.cold -= min(k.cold, k.usage()-bound)
		}
	}
	if bound, ok := k.limit.Get(); ok && k.usage() > bound {
		k.kills++
		k.hot = bound - k.cold
	}
}

// look calls l.Step once, and performs the LoweringDecision on the simulated kernel; it returns the LoweringDecision.
func (k *kernel) look(l *Lowering, now unit.Instant) LoweringDecision {
	m := l.Step(now, GroupMemory{Limit: k.limit, Usage: k.usage(), Cold: k.cold, Refused: k.refused})
	k.refused = false
	for _, w := range m.Writes {
		if k.refused = k.write(w); k.refused {
			m.Done = false
			m.Wake = now.Add(lowerEvery)
			break
		}
	}
	return m
}

// TestScenarios lowers limits of a simulated group. Commands:
//
//	group v1|v2 limit=SIZE hot=SIZE cold=SIZE    a group as the agent finds it
//	lower to=SIZE                                a new target
//	look [seconds=N]                             N steps, one second apart; prints what was written
//	run seconds=N [hot=SIZE] [cold=SIZE]         the same while the pods grow by so much each second; prints only the end
//	pods [hot=SIZE] [cold=SIZE]                  pods take memory, or give it back (-SIZE)
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/lowering", func(t *testing.T, path string) {
		var k *kernel
		var l *Lowering
		now := unit.Instant(time.Hour)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			size := func(name string) unit.Bytes {
				text := "0"
				if d.HasArg(name) {
					d.ScanArgs(t, name, &text)
				}
				return parseSize(t, text)
			}
			seconds := 1
			if d.HasArg("seconds") {
				d.ScanArgs(t, "seconds", &seconds)
			}
			var out strings.Builder
			switch d.Cmd {
			case "group":
				k = &kernel{
					unified: d.CmdArgs[0].Key == "v2",
					limit:   unit.LimitTo(size("limit")),
					hot:     size("hot"),
					cold:    size("cold"),
				}
				if k.limit == unit.LimitTo(unit.Bytes(0)) {
					k.limit = unit.Unlimited[unit.Bytes]()
				}
			case "lower":
				l = NewLowering(size("to"), k.unified)
			case "pods":
				k.charge(size("hot"), size("cold"))
			case "look", "run":
				var m LoweringDecision
				for range seconds {
					m = k.look(l, now)
					if d.Cmd == "look" {
						fmt.Fprintf(&out, "%s: %s\n", m.Reason, writes(m))
					}
					if m.Done {
						break
					}
					now = now.Add(lowerEvery)
					k.charge(size("hot"), size("cold"))
				}
				if d.Cmd == "run" {
					fmt.Fprintf(&out,
						"done %v, usage %v: hot %v, cold %v; limit %v, high %v; squeezed %v, at most %v at once; %d kills\n",
						m.Done, k.usage(), k.hot, k.cold, k.limit, k.high, k.squeezed, k.most, k.kills)
				}
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return out.String()
		})
	})
}

func writes(m LoweringDecision) string {
	var out []string
	for _, w := range m.Writes {
		out = append(out, fmt.Sprintf("%s=%v", w.File, w.To))
	}
	if m.Done {
		out = append(out, "done")
	}
	return strings.Join(out, " ")
}

func parseSize(t *testing.T, text string) unit.Bytes {
	t.Helper()
	var n int64
	var suffix string
	if _, err := fmt.Sscanf(text+" ", "%d%s", &n, &suffix); err != nil && n != 0 {
		t.Fatalf("size %q: %v", text, err)
	}
	return unit.Bytes(n) * map[string]unit.Bytes{"": 1, "Mi": unit.MiB, "Gi": unit.GiB}[suffix]
}

// TestLoweringIsSafeAndEnds simulates random pods. While they grow by less than the room below a ceiling, no process is
// killed that would not have been killed under the old limit, and no dip reclaims too much at once. Once the hot memory
// fits the target, the target is reached.
func TestLoweringIsSafeAndEnds(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		size := func(most unit.Bytes) unit.Bytes { return unit.Bytes(random.Int64N(int64(most))) }
		limit := 128*unit.MiB + size(16*unit.GiB)
		k := &kernel{unified: random.IntN(2) == 0, limit: unit.LimitTo(limit)}
		k.charge(size(limit), 0)
		k.charge(0, size(limit-k.hot))
		target := 64*unit.MiB + size(limit)
		l := NewLowering(target, k.unified)
		now := unit.Instant(time.Hour)
		fits := false
		for second := range 2000 {
			if second > 1000 && k.hot > target/2 {
				k.charge(target/2-k.hot, 0) // the pods that used most have ended
			}
			usage := k.usage()
			if k.look(l, now).Done {
				fits = true
				break
			}
			if dip := max(usage/dipShare, dipMin); k.most > max(dip, limit/dipShare) {
				t.Fatalf("seed %d: second %d: a dip took %v of %v", seed, second, k.most, usage)
			}
			now = now.Add(lowerEvery)
			if second > 1000 {
				continue
			}
			room := min(ceilingMin/2, limit-k.usage()-1) // below the old limit no process was killed
			k.charge(min(room, size(ceilingMin/8))-size(ceilingMin/8), 0)
			k.charge(0, min(max(0, limit-k.usage()-1), size(ceilingMin/8)))
		}
		if k.kills > 0 || !fits {
			t.Fatalf("seed %d: unified %v, target %v of %v: %d kills, done %v, hot %v, cold %v, limit %v", seed, k.unified,
				target, limit, k.kills, fits, k.hot, k.cold, k.limit)
		}
		if got, _ := k.limit.Get(); got != target || !k.high.IsUnlimited() && k.unified {
			t.Fatalf("seed %d: limit %v, high %v, want %v and unlimited", seed, k.limit, k.high, target)
		}
	}
}
