package record

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestJudge: a bar without a measured value must never look like a pass.
func TestJudge(t *testing.T) {
	unknown := math.NaN()
	for _, c := range []struct {
		name         string
		bar          Bar
		ours, theirs float64
		verdict      string
		missed       bool
	}{
		{"no bar", Bar{}, 1, 2, "", false},
		{"at the bar", Bar{RatioMax: 0.25}, 1, 4, "pass: at most 0.25 of upstream's", false},
		{"above the bar", Bar{RatioMax: 0.25}, 1.01, 4, "MISSED: at most 0.25 of upstream's", true},
		{"upstream not measured", Bar{RatioMax: 1}, 1, unknown, "not measured (at most 1.00 of upstream's)", true},
		{"ours not measured", Bar{Max: 20}, unknown, 4, "not measured (at most 20 s)", true},
		{"absolute", Bar{Max: 20}, 20.1, 30, "MISSED: at most 20 s", true},
		{"times upstream's", Bar{RatioMin: 3}, 12, 4, "pass: at least 3.00 of upstream's", false},
		{"not times upstream's", Bar{RatioMin: 3}, 11, 4, "MISSED: at least 3.00 of upstream's", true},
		{"at least, not measured", Bar{Min: 0.8}, unknown, 4, "not measured (at least 0.8 s)", true},
		{"at least", Bar{Min: 0.8}, 0.79, 4, "MISSED: at least 0.8 s", true},
		{"a missed goal is no miss", Bar{RatioMax: 1. / 3, Goal: 48}, 50, 160,
			"pass: at most 0.33 of upstream's; goal 48 s not reached", false},
		{"goal reached", Bar{RatioMax: 1. / 3, Goal: 48}, 48, 160, "pass: at most 0.33 of upstream's; goal 48 s reached",
			false},
	} {
		w := row{Line: Line{Unit: "s", Bar: c.bar}, ours: c.ours, theirs: c.theirs, ratio: c.ours / c.theirs}
		w.judge()
		if w.verdict != c.verdict || w.missed != c.missed {
			t.Errorf("%s: %q, missed %v; want %q, %v", c.name, w.verdict, w.missed, c.verdict, c.missed)
		}
	}
}

// TestJudgeEither: a share of the possible maximum can replace a ratio to upstream's value.
func TestJudgeEither(t *testing.T) {
	unknown := math.NaN()
	bar := Bar{RatioMin: 3, Or: "share", OrMin: 0.8}
	for _, c := range []struct {
		name      string
		ratio, or float64
		verdict   string
	}{
		{"by the ratio", 3, 0.5, "pass: "},
		{"by the share", 2, 0.8, "pass: "},
		{"by neither", 2, 0.79, "MISSED: "},
		{"by the ratio alone", 3, unknown, "pass: "},
		{"neither measured", unknown, unknown, "not measured ("},
	} {
		w := row{Line: Line{Bar: bar}, ratio: c.ratio, or: c.or}
		w.judge()
		if !strings.HasPrefix(w.verdict, c.verdict) || w.missed != (c.verdict != "pass: ") {
			t.Errorf("%s: %q, missed %v", c.name, w.verdict, w.missed)
		}
	}
	m := NewMeasurement("ours", 1)
	m.Put("rate", 10, 1)
	m.Put("share", 0.9, 1)
	r := &Report{Ours: "ours", Theirs: "theirs", Measurements: []*Measurement{m}}
	if w := r.row(Line{Name: "rate", Bar: bar}); w.or != 0.9 {
		t.Errorf("the report takes %v for the share", w.or)
	}
}

func TestReportWarns(t *testing.T) {
	m := func(side string, round int, p99 float64) *Measurement {
		m := NewMeasurement(side, round)
		m.Put("p99_start", p99, 30)
		return m
	}
	r := &Report{
		Ours: "ours", Theirs: "theirs", Rounds: 2, Problems: []string{"round 2: ours: broke\nits log"},
		Warnings: []string{"somebody else"},
		Lines: []Line{
			{"p99_start", "start, p99", "s", Bar{RatioMax: 1}, "30 pods"},
			{"lost", "not measured", "s", Bar{Max: 1}, "30 pods"},
		},
		Measurements: []*Measurement{m("theirs", 1, 5), m("ours", 1, 4), m("ours", 2, 2)},
	}
	text, ok := r.Render()
	if ok {
		t.Error("a report without a number that has a bar passed")
	}
	for _, want := range []string{
		"round 2: ours: broke\n",
		"- somebody else\n",
		"30 pods, start, p99: ours: rounds lie 67% of their median apart",
		"30 pods, start, p99: p99 of 30 samples a round is their maximum",
		"| 0.600 ", // the ratio of the medians 3 and 5
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// TestPlay: sides alternate, a failure is recorded and the run continues, and the report is written after each round.
func TestPlay(t *testing.T) {
	r := &Report{Program: "test", Ours: "a", Theirs: "b", Rounds: 2}
	file := filepath.Join(t.TempDir(), "results", "r.md")
	var order []string
	err := r.Play(t.Context(), file, []string{"a", "b"}, func(_ context.Context, m *Measurement) error {
		if _, err := os.Stat(file); (err == nil) != (m.Round == 2) {
			t.Errorf("round %d: report: %v", m.Round, err)
		}
		if order = append(order, m.Side); len(order) == 2 {
			return errors.New("broke")
		}
		return nil
	})
	if err != nil || !slices.Equal(order, []string{"a", "b", "b", "a"}) ||
		!slices.Equal(r.Problems, []string{"round 1: b: broke"}) || len(r.Measurements) != 4 {
		t.Errorf("%v: played %q, problems %q", err, order, r.Problems)
	}
	if ok, err := r.Finish(file); ok || err != nil {
		t.Errorf("a report with problems passed: %v", err)
	}
}

// TestProc reads the CPU time of this process: a busy loop uses some, and the machine uses at least as much.
func TestProc(t *testing.T) {
	before, err := CPUSeconds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	all, err := MachineSeconds()
	if err != nil {
		t.Fatal(err)
	}
	used := 0.0
	for used < 0.05 {
		if now, err := CPUSeconds(os.Getpid()); err != nil {
			t.Fatal(err)
		} else {
			used = now - before
		}
	}
	if after, err := MachineSeconds(); err != nil || after-all < 0.03 {
		t.Errorf("this process used %v s, the machine %v s, %v", used, after-all, err)
	}
	if mib, err := StatusMiB(os.Getpid(), "VmRSS"); err != nil || mib < 1 {
		t.Errorf("resident: %v MiB, %v", mib, err)
	}
	if _, err := CPUSeconds(1 << 30); err == nil {
		t.Error("a process that is not there used CPU")
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", math.NaN(): "-", 0.004512: "0.00451", 1.234: "1.23", 15.66: "15.7",
		144.4: "144", 12345: "12345"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
