// Package record evaluates the results of a side-by-side measurement and writes a report.
//
// A Measurement is the results of one side in one round, by name. A Report has a Line for each name that matters:
// medians over the rounds, their ratio, and a Bar for the number. A bar whose number was not measured is missed. The
// report warns of rounds that differ much and of quantiles of few samples.
//
// The package also describes the machine, reads the CPU time of processes (proc.go), and contains what all measuring
// programs share: rounds, alternating sides, Ctrl-C, exit codes (run.go). It measures nothing itself.
package record

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// Bar is a bound on a number. Zero fields: no such bound.
type Bar struct {
	RatioMax float64 // ours / upstream's
	RatioMin float64 // the same, where more is better
	Max      float64 // ours, in the line's unit
	Min      float64 // the same, where more is better
	Goal     float64 // ours; reported, without effect on the verdict
	// Or names another value of ours that replaces RatioMin if it reaches OrMin.
	Or    string
	OrMin float64
}

// Line is one line of a report.
type Line struct {
	Name  string // of the measured value
	Title string
	Unit  string
	Bar   Bar
	Group string
}

// Measurement is the results of one side in one round.
type Measurement struct {
	Side    string
	Round   int
	Values  map[string]float64 // by the names of lines
	Samples map[string]int     // how many observations each value is made of
}

// NewMeasurement returns an empty Measurement.
func NewMeasurement(side string, round int) *Measurement {
	return &Measurement{Side: side, Round: round, Values: map[string]float64{}, Samples: map[string]int{}}
}

// Put stores a value.
func (m *Measurement) Put(name string, value float64, samples int) {
	m.Values[name], m.Samples[name] = value, samples
}

// Report is the report of a run.
type Report struct {
	Title        string
	Program      string    // directory in bench
	Ours, Theirs string    // sides
	Heads        [2]string // of the columns of theirs and ours; empty: upstream and ours
	Lines        []Line
	Rounds       int
	Args         []string
	Began        time.Time
	Machine      []Fact
	Notes        []string // lines after the machine's
	Measurements []*Measurement
	Problems     []string
	Warnings     []string // in addition to those that the report itself finds
}

// spreadMax is how much rounds may differ, as a share of their median, before the report warns.
const spreadMax = 0.2

// of returns the values of one side in all rounds that have one, and the number of observations behind them.
func (r *Report) of(side, name string) (values []float64, samples int) {
	for _, m := range r.Measurements {
		if v, ok := m.Values[name]; ok && m.Side == side {
			values = append(values, v)
			samples += m.Samples[name]
		}
	}
	return values, samples
}

// row is a line with its numbers.
type row struct {
	Line
	ours, theirs float64 // medians over rounds; NaN: not measured
	or           float64 // the same, of Bar.Or
	ratio        float64
	verdict      string
	missed       bool
	warnings     []string
}

func (r *Report) row(l Line) row {
	ours, n := r.of(r.Ours, l.Name)
	theirs, _ := r.of(r.Theirs, l.Name)
	out := row{Line: l, ours: stats.Median(ours), theirs: stats.Median(theirs)}
	out.ratio, out.or = stats.Ratio(out.ours, out.theirs), math.NaN()
	if l.Bar.Or != "" {
		or, _ := r.of(r.Ours, l.Bar.Or)
		out.or = stats.Median(or)
	}
	out.judge()
	if out.verdict == "" {
		return out // a line without a bar: warnings do not matter
	}
	for _, s := range []struct {
		side   string
		values []float64
	}{{r.Ours, ours}, {r.Theirs, theirs}} {
		if spread := stats.Spread(s.values); spread > spreadMax {
			out.warn("%s: rounds lie %.0f%% of their median apart", s.side, 100*spread)
		}
	}
	if strings.HasPrefix(l.Name, "p99_") && len(ours) > 0 && !stats.Resolves(n/len(ours), 0.99) {
		out.warn("p99 of %d samples a round is their maximum", n/len(ours))
	}
	return out
}

func (w *row) warn(format string, args ...any) {
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// judge compares the numbers with the bars. A bar whose number was not measured is missed.
func (w *row) judge() {
	b := w.Bar
	var text []string
	limit := func(value float64, held bool, what string) {
		switch {
		case math.IsNaN(value):
			text, w.missed = append(text, "not measured ("+what+")"), true
		case !held:
			text, w.missed = append(text, "MISSED: "+what), true
		default:
			text = append(text, "pass: "+what)
		}
	}
	if b.RatioMax > 0 {
		limit(w.ratio, w.ratio <= b.RatioMax, fmt.Sprintf("at most %.2f of upstream's", b.RatioMax))
	}
	if what := fmt.Sprintf("at least %.2f of upstream's", b.RatioMin); b.RatioMin > 0 && b.Or == "" {
		limit(w.ratio, w.ratio >= b.RatioMin, what)
	} else if b.RatioMin > 0 {
		either := w.ratio
		if math.IsNaN(either) {
			either = w.or
		}
		limit(either, w.ratio >= b.RatioMin || w.or >= b.OrMin, fmt.Sprintf("%s, or %.2f of the limit", what, b.OrMin))
	}
	if b.Max > 0 {
		limit(w.ours, w.ours <= b.Max, strings.TrimSpace(fmt.Sprintf("at most %v %s", b.Max, w.Unit)))
	}
	if b.Min > 0 {
		limit(w.ours, w.ours >= b.Min, strings.TrimSpace(fmt.Sprintf("at least %v %s", b.Min, w.Unit)))
	}
	if b.Goal > 0 {
		reached := "reached"
		if !(w.ours <= b.Goal) {
			reached = "not reached"
		}
		text = append(text, fmt.Sprintf("goal %v %s %s", b.Goal, w.Unit, reached))
	}
	w.verdict = strings.Join(text, "; ")
}

// Render returns the report as Markdown, and whether every bar was met.
func (r *Report) Render() (string, bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", r.Title)
	fmt.Fprintf(&b, "Written by `bench/%s`; README.md beside it says how to read it. Medians over %d rounds.\n\n",
		r.Program, r.Rounds)
	fmt.Fprintf(&b, "    go run ./%s %s\n\n", r.Program, strings.ReplaceAll(strings.Join(r.Args, " "), "  ", " '' "))
	fmt.Fprintf(&b, "- began: %s, took %s\n", r.Began.UTC().Format(time.DateTime+" UTC"),
		time.Since(r.Began).Round(time.Second))
	for _, f := range r.Machine {
		fmt.Fprintf(&b, "- %s: %s\n", f.Name, f.Value)
	}
	fmt.Fprintf(&b, "- load after the run: %s\n", read("/proc/loadavg"))
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", note)
	}
	b.WriteString("\n")
	ok := true
	warnings := r.Warnings
	var cells [][]string
	group := ""
	for _, l := range r.Lines {
		w := r.row(l)
		ok = ok && !w.missed
		if l.Group != group {
			group = l.Group
			cells = append(cells, []string{"**" + group + "**", "", "", "", "", ""})
		}
		cells = append(cells, []string{l.Title, l.Unit, number(w.theirs), number(w.ours), number(w.ratio), w.verdict})
		for _, text := range w.warnings {
			warnings = append(warnings, fmt.Sprintf("%s, %s: %s", l.Group, l.Title, text))
		}
	}
	theirs, ours := cmp.Or(r.Heads[0], "upstream"), cmp.Or(r.Heads[1], "ours")
	writeTable(&b, []string{"", "unit", theirs, ours, "ratio", "bar"}, cells)
	writeList(&b, "Problems", r.Problems)
	writeList(&b, "Warnings", warnings)
	fmt.Fprintf(&b, "\n## Every round\n\n")
	r.writeRounds(&b)
	return b.String(), ok
}

// writeRounds writes the values behind the medians.
func (r *Report) writeRounds(b *strings.Builder) {
	head := []string{"", "unit"}
	for _, m := range r.Measurements {
		head = append(head, fmt.Sprintf("%s %d", m.Side, m.Round))
	}
	var cells [][]string
	for _, l := range r.Lines {
		row := []string{l.Group + ": " + l.Title, l.Unit}
		for _, m := range r.Measurements {
			v, ok := m.Values[l.Name]
			if !ok {
				v = math.NaN()
			}
			row = append(row, number(v))
		}
		cells = append(cells, row)
	}
	writeTable(b, head, cells)
}

// writeTable writes a Markdown table that is also readable as text.
func writeTable(b *strings.Builder, head []string, rows [][]string) {
	t := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	write := func(cells []string) { fmt.Fprintln(t, "| "+strings.Join(cells, "\t| ")+"\t|") }
	write(head)
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---"
	}
	write(rule)
	for _, row := range rows {
		write(row)
	}
	t.Flush()
}

func writeList(b *strings.Builder, title string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", title)
	for _, item := range items {
		line, _, _ := strings.Cut(item, "\n")
		fmt.Fprintf(b, "- %s\n", line)
	}
}

// number prints three significant digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v == 0:
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return fmt.Sprintf("%.*f", max(digits, 0), v)
}

// Save replaces the report file; an empty path means that there is none.
func (r *Report) Save(path string) error {
	if path == "" {
		return nil
	}
	text, _ := r.Render()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
