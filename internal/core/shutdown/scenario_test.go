package shutdown

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// begin is an arbitrary moment.
const begin = unit.Instant(1000 * time.Second)

// stages are the words of a scenario for them.
var stages = map[string]Stage{"runs": Runs, "ended": Ended, "reported": Reported}

// TestScenarios plays testdata/*.txt: one shutdown, all times since its begin. "shutdown all=D critical=D" or "shutdown
// PRIORITY=D..." says the configuration. Lines of the input:
//
//	pod NAME priority=N grace=D [sidecars=N]    a pod of the node
//	begin                                       the machine is to shut down
//	at TIME [NAME is STAGE]...                  the time, and how far pods have come since; then Step is asked
//
// Printed are the orders, the notes, and when Step is to be asked again.
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "shutdown", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		periods := periodsOf(t, d)
		for _, p := range periods {
			fmt.Fprintf(&out, "period %d: %v\n", p.Priority, p.Budget)
		}
		var pods []Pod
		var s *Shutdown
		seen := map[string]Stage{}
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			now := begin
			switch words[0] {
			case "pod":
				pods = append(pods, podOf(t, d, words))
				seen[words[1]] = Runs
				continue
			case "begin":
				s = Begin(now, periods, pods)
			case "at":
				now = begin.Add(scenario.Duration(t, d, words[1]))
				for i := 2; i+2 < len(words); i += 3 {
					seen[words[i]] = stages[words[i+2]]
				}
			default:
				d.Fatalf(t, "unknown line %q", line)
			}
			writeDecision(&out, now, s.Step(now, seen))
		}
		return out.String()
	})
}

func periodsOf(t *testing.T, d *datadriven.TestData) []Period {
	var all, critical time.Duration
	var given []Period
	for _, arg := range d.CmdArgs {
		length := scenario.Duration(t, d, arg.Vals[0])
		switch arg.Key {
		case "all":
			all = length
		case "critical":
			critical = length
		default:
			priority, err := strconv.Atoi(arg.Key)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			given = append(given, Period{int32(priority), length})
		}
	}
	return Periods(all, critical, given)
}

func podOf(t *testing.T, d *datadriven.TestData, words []string) Pod {
	pod := Pod{ID: words[1]}
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		if key == "grace" {
			pod.Grace = scenario.Duration(t, d, value)
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			d.Fatalf(t, "%s: %v", word, err)
		}
		if key == "priority" {
			pod.Priority = int32(n)
		} else {
			pod.Sidecars = n
		}
	}
	return pod
}

func writeDecision(out *strings.Builder, now unit.Instant, d Decision) {
	fmt.Fprintf(out, "%v:", now.Sub(begin))
	for _, n := range d.Notes {
		fmt.Fprintf(out, " %s (priority %d, pods %d);", n.What, n.Priority, n.Pods)
	}
	if d.Done {
		fmt.Fprint(out, " done")
	} else {
		fmt.Fprintf(out, " asks again at %v", d.Wake.Sub(begin))
	}
	fmt.Fprintln(out)
	for _, stop := range d.Stops {
		fmt.Fprintf(out, "  end %s within %v\n", stop.ID, stop.Grace)
	}
}

// TestBudget: over random pods that end whenever they like, or never, and steps that come late, the machine goes within
// the budget, no order lasts longer, and a pod is not ended before those of a lower period are over.
func TestBudget(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 3))
		if err := playRandom(func(n int) int { return r.IntN(n) }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// playRandom plays one random shutdown, and returns what is wrong with it.
func playRandom(draw func(n int) int) error {
	var periods []Period
	for range 1 + draw(4) {
		periods = append(periods, Period{int32(draw(5) * 1000), time.Duration(draw(30)) * time.Second})
	}
	periods = Periods(0, 0, periods)
	var pods []Pod
	ends, seen := map[string]unit.Instant{}, map[string]Stage{}
	for i := range draw(12) {
		p := Pod{
			ID: strconv.Itoa(i), Priority: int32(draw(6000) - 500), Sidecars: draw(3),
			Grace: time.Duration(draw(60)) * time.Second,
		}
		pods = append(pods, p)
		seen[p.ID] = Runs
	}
	s := Begin(begin, periods, pods)
	limit := begin.Add(Total(periods))
	ordered := map[string]bool{}
	for now := begin; ; {
		d := s.Step(now, seen)
		for _, stop := range d.Stops {
			pod := pods[slices.IndexFunc(pods, func(p Pod) bool { return p.ID == stop.ID })]
			if stop.Grace < 0 || stop.Grace > pod.Grace || now.Add(stop.Grace) > max(limit, now) {
				return fmt.Errorf("%+v at %v has %v, and the limit is %v", pod, now.Sub(begin), stop.Grace, limit.Sub(begin))
			}
			ordered[pod.ID] = true
			ends[pod.ID] = now.Add(time.Duration(draw(90_000)) * time.Millisecond)
			for _, other := range pods { // of lower periods
				if placeOf(periods, other.Priority) < placeOf(periods, pod.Priority) && !ordered[other.ID] {
					return fmt.Errorf("pod %s ends before pod %s", pod.ID, other.ID)
				}
			}
		}
		if d.Done {
			if now > limit {
				return fmt.Errorf("done %v after the begin, limit %v", now.Sub(begin), limit.Sub(begin))
			}
			return nil
		}
		if d.Wake <= now || d.Wake > limit {
			return fmt.Errorf("at %v asks again at %v, limit %v", now.Sub(begin), d.Wake.Sub(begin), limit.Sub(begin))
		}
		now = now.Add(time.Duration(1 + draw(int(d.Wake.Sub(now))))).Earlier(d.Wake)
		for _, p := range pods {
			if end, ordered := ends[p.ID]; ordered && end <= now {
				seen[p.ID] = max(seen[p.ID], Ended+Stage(draw(2)))
			}
		}
	}
}

// TestLateSteps: a caller that comes late does not lengthen the shutdown.
func TestLateSteps(t *testing.T) {
	periods := Periods(30*time.Second, 10*time.Second, nil)
	s := Begin(begin, periods, []Pod{
		{ID: "a", Grace: time.Minute},
		{ID: "b", Priority: SystemCritical, Grace: time.Minute},
	})
	seen := map[string]Stage{"a": Runs, "b": Runs}
	s.Step(begin, seen)
	d := s.Step(begin.Add(28*time.Second), seen)
	if len(d.Stops) != 1 || d.Stops[0].Grace > 2*time.Second || d.Wake != begin.Add(30*time.Second) {
		t.Errorf("8 s late: %+v", d)
	}
	if d := s.Step(begin.Add(40*time.Second), seen); !d.Done {
		t.Errorf("after the budget: %+v", d)
	}
	if d := (&Shutdown{}).Step(begin, nil); !d.Done {
		t.Errorf("without a pod: %+v", d)
	}
}
