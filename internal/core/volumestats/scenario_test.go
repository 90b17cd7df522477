package volumestats

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. After each command it prints which volumes are asked about, with
// the time since the start. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	node PERIOD [always]       a node without volumes; always: volumes are asked about without a demand
//	demand                     somebody wants to know; prints for how many volumes who demands waits
//	give-up                    who demands has waited long enough
//	have POD/VOLUME... [source=NAME]   volumes came, or are there still
//	gone POD/VOLUME...         they are there no more
//	ended POD/VOLUME...        the questions about them have ended
//	run TIME                   time passes; questions are not answered
//	answer TIME                time passes; each question is answered at once
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

const start = unit.Instant(time.Second)

// player plays one scenario.
type player struct {
	s    *State
	now  unit.Instant
	wake unit.Instant
	out  strings.Builder
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	source := "s"
	var words []string
	for _, a := range d.CmdArgs {
		if a.Key == "source" {
			source = a.Vals[0]
			continue
		}
		words = append(words, a.Key)
	}
	spell := func() time.Duration {
		out, err := time.ParseDuration(words[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return out
	}
	switch d.Cmd {
	case "node":
		p.s, p.now = New(spell(), slices.Contains(words, "always")), start
	case "demand":
		stale := p.s.Demand(p.now)
		slices.SortFunc(stale, func(a, b Key) int { return strings.Compare(a.Pod+"/"+a.Volume, b.Pod+"/"+b.Volume) })
		for _, k := range stale {
			fmt.Fprintf(&p.out, "%s/%s has an old answer\n", k.Pod, k.Volume)
		}
		fmt.Fprintf(&p.out, "waits for %d\n", p.s.lacks)
	case "give-up":
		p.s.GiveUp()
	case "have":
		for _, w := range words {
			p.s.Have(p.now, keyOf(w), source)
		}
	case "gone":
		for _, w := range words {
			p.s.Gone(keyOf(w))
		}
	case "ended":
		for _, w := range words {
			if !p.s.Ended(p.now, keyOf(w)) {
				fmt.Fprintf(&p.out, "%s is not there\n", w)
			}
		}
	case "run", "answer":
		p.run(p.now.Add(spell()), d.Cmd == "answer")
	default:
		d.Fatalf(t, "no command %s", d.Cmd)
	}
	p.step(false)
	if p.out.Len() == 0 {
		return "nothing\n"
	}
	return p.out.String()
}

func (p *player) run(until unit.Instant, answers bool) {
	for p.step(answers); !p.wake.IsZero() && p.wake <= until; p.step(answers) {
		p.now = p.wake
	}
	p.now = until
}

func (p *player) step(answers bool) {
	for {
		var ask []Key
		ask, p.wake = p.s.Step(p.now)
		for _, k := range ask {
			fmt.Fprintf(&p.out, "%v: ask about %s/%s\n", p.now.Sub(start).Round(time.Second), k.Pod, k.Volume)
		}
		if !answers || len(ask) == 0 {
			return
		}
		for _, k := range ask {
			p.s.Ended(p.now, k)
		}
	}
}

func keyOf(word string) Key {
	pod, volume, _ := strings.Cut(word, "/")
	return Key{Pod: pod, Volume: volume}
}

// TestHistories: whatever comes, goes, hangs and ends, no volume is asked about twice at the same time, no source has
// more than AtOnce questions, and each volume that is there is asked about within two periods if its source answers and
// there is a demand. Who demands waits for those that there are and that have no answer, until it gives up.
func TestHistories(t *testing.T) {
	const period = time.Minute
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := New(period, seed%2 == 0)
		now := start
		under := map[Key]string{}           // questions under way, by source
		there := map[Key]string{}           // volumes, by source
		since := map[Key]unit.Instant{}     // when a volume came, or its last question ended
		hangs := map[string]bool{"h": true} // never answers
		for range 400 {
			key := Key{Pod: fmt.Sprint("p", r.IntN(6)), Volume: fmt.Sprint("v", r.IntN(3))}
			source := []string{"a", "b", "h"}[(int(key.Pod[1])+int(key.Volume[1]))%3] // a volume keeps its source
			if seed%2 == 1 {
				s.Demand(now)
			}
			switch r.IntN(6) {
			case 0, 1:
				s.Have(now, key, source)
				if there[key] == "" {
					there[key] = source
					since[key] = now
				}
			case 2:
				s.Gone(key)
				delete(there, key)
			case 3:
				now = now.Add(time.Duration(r.IntN(20)) * time.Second)
			case 4:
				for k, source := range under {
					if hangs[source] {
						continue
					}
					delete(under, k)
					if got, want := s.Ended(now, k), there[k] != ""; got != want {
						t.Fatalf("seed %d: %v ended: there %v, want %v", seed, k, got, want)
					}
					since[k] = now
				}
			case 5:
				s.GiveUp()
				if s.Lacks() {
					t.Fatalf("seed %d: lacks %d answers after it gave up", seed, s.lacks)
				}
			}
			lacks := 0
			for k, v := range s.volumes {
				if v.lacks {
					lacks++
				}
				if v.lacks && (v.late || there[k] == "") {
					t.Fatalf("seed %d: waits for %v: late %v, there %q", seed, k, v.late, there[k])
				}
			}
			if lacks != s.lacks {
				t.Fatalf("seed %d: counts %d volumes without an answer, there are %d", seed, s.lacks, lacks)
			}
			ask, _ := s.Step(now)
			for _, k := range ask {
				if under[k] != "" || there[k] == "" {
					t.Fatalf("seed %d: asked about %v: under way %q, there %q", seed, k, under[k], there[k])
				}
				under[k] = there[k]
			}
			count := map[string]int{}
			for _, source := range under {
				if count[source]++; count[source] > AtOnce {
					t.Fatalf("seed %d: %d questions to %s", seed, count[source], source)
				}
			}
			for k, source := range there {
				full := count[source] == AtOnce
				if under[k] == "" && !full && now.Sub(since[k]) > 2*period {
					t.Fatalf("seed %d: %v was not asked about for %v", seed, k, now.Sub(since[k]))
				}
			}
		}
	}
}

// TestCheck: every number that is negative is named.
func TestCheck(t *testing.T) {
	if err := (Usage{Capacity: 1, Used: 2}).Check(); err != nil {
		t.Errorf("more used than there is: %v", err) // some drivers count in another way
	}
	u := Usage{Capacity: -1, Available: -2, Used: -3, Inodes: -4, InodesFree: -5, InodesUsed: -6}
	err := u.Check()
	if err == nil {
		t.Fatal("negative numbers were accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if want := []string{
		"capacity -1: must not be negative", "available bytes -2: must not be negative",
		"used bytes -3: must not be negative", "inodes -4: must not be negative",
		"free inodes -5: must not be negative", "used inodes -6: must not be negative",
	}; !slices.Equal(lines, want) {
		t.Errorf("got %q", lines)
	}
}
