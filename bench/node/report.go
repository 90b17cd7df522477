package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// report is all of a run.
type report struct {
	config       config
	args         []string
	began        time.Time
	machine      []fact
	measurements []measurement
	problems     []string
}

// spreadMax is how far rounds may lie apart, as a share of their median, before the report warns.
const spreadMax = 0.2

// of collects a value of one side over the rounds that have it, and how many observations stand behind it in all.
func (r *report) of(side, name string) (values []float64, samples int) {
	for _, m := range r.measurements {
		if v, ok := m.values[name]; ok && m.side == side {
			values = append(values, v)
			samples += m.samples[name]
		}
	}
	return values, samples
}

// row is a line with its numbers.
type row struct {
	line
	ours, theirs float64 // medians over rounds; NaN: not measured
	ratio        float64
	verdict      string
	missed       bool
	warnings     []string
}

func (r *report) row(l line) row {
	ours, n := r.of(plimsoll, l.name)
	theirs, _ := r.of(kubelet, l.name)
	out := row{line: l, ours: stats.Median(ours), theirs: stats.Median(theirs)}
	out.ratio = stats.Ratio(out.ours, out.theirs)
	out.judge()
	if out.verdict == "" {
		return out // nobody decides anything by it
	}
	for _, s := range []struct {
		side   string
		values []float64
	}{{plimsoll, ours}, {kubelet, theirs}} {
		if spread := stats.Spread(s.values); spread > spreadMax {
			out.warn("%s: rounds lie %.0f%% of their median apart", s.side, 100*spread)
		}
	}
	if strings.HasPrefix(l.name, "p99_") && len(ours) > 0 && !stats.Resolves(n/len(ours), 0.99) {
		out.warn("p99 of %d samples a round is their maximum", n/len(ours))
	}
	return out
}

func (w *row) warn(format string, args ...any) {
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// judge compares with the bars. What was not measured passes nothing.
func (w *row) judge() {
	b := w.bar
	var text []string
	limit := func(value, max float64, what string) {
		switch {
		case math.IsNaN(value):
			text, w.missed = append(text, "not measured ("+what+")"), true
		case value > max:
			text, w.missed = append(text, "MISSED: "+what), true
		default:
			text = append(text, "pass: "+what)
		}
	}
	if b.ratioMax > 0 {
		limit(w.ratio, b.ratioMax, fmt.Sprintf("at most %.2f of upstream's", b.ratioMax))
	}
	if b.max > 0 {
		limit(w.ours, b.max, fmt.Sprintf("at most %v %s", b.max, w.unit))
	}
	if b.goal > 0 {
		reached := "reached"
		if !(w.ours <= b.goal) {
			reached = "not reached"
		}
		text = append(text, fmt.Sprintf("goal %v %s %s", b.goal, w.unit, reached))
	}
	w.verdict = strings.Join(text, "; ")
}

// render returns the report as Markdown, and whether every bar was met.
func (r *report) render() (string, bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Node agents side by side\n\n")
	fmt.Fprintf(&b, "Written by `bench/node`; README.md beside it says how to read it. Medians over %d rounds.\n\n", r.config.rounds)
	fmt.Fprintf(&b, "    go run ./node %s\n\n", strings.ReplaceAll(strings.Join(r.args, " "), "  ", " '' "))
	fmt.Fprintf(&b, "- began: %s, took %s\n", r.began.UTC().Format(time.DateTime+" UTC"), time.Since(r.began).Round(time.Second))
	for _, f := range r.machine {
		fmt.Fprintf(&b, "- %s: %s\n", f.name, f.value)
	}
	fmt.Fprintf(&b, "- load after the run: %s\n", read("/proc/loadavg"))
	fmt.Fprintf(&b, "- windows: idle %s, steady %s, each after %s of rest, in %d of the rounds; %d pods one by one a round\n\n",
		r.config.idle, r.config.steady, r.config.settle, min(r.config.steadyRounds, r.config.rounds), r.config.singles)
	ok := true
	warnings := r.noise()
	var cells [][]string
	group := ""
	for _, l := range lines(r.config.batches) {
		w := r.row(l)
		ok = ok && !w.missed
		if l.group != group {
			group = l.group
			cells = append(cells, []string{"**" + group + "**", "", "", "", "", ""})
		}
		cells = append(cells, []string{l.title, l.unit, number(w.theirs), number(w.ours), number(w.ratio), w.verdict})
		for _, text := range w.warnings {
			warnings = append(warnings, fmt.Sprintf("%s, %s: %s", l.group, l.title, text))
		}
	}
	writeTable(&b, []string{"", "unit", "upstream", "ours", "ratio", "bar"}, cells)
	writeList(&b, "Problems", r.problems)
	writeList(&b, "Warnings", warnings)
	fmt.Fprintf(&b, "\n## Every round\n\n")
	r.writeRounds(&b)
	return b.String(), ok
}

// What others may use of the machine before the report warns: of a core in a window, where all that is measured is a few
// hundredths; of all CPU time while a batch starts, where the kernel's own threads have up to a fifth (network and mount
// namespaces).
const (
	othersCoresMax = 0.1
	othersShareMax = 0.3
)

// noise says where somebody else used the machine.
func (r *report) noise() (warnings []string) {
	warn := func(m measurement, format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf("%s, round %d: ", m.side, m.round)+fmt.Sprintf(format, args...))
	}
	most := r.config.batches[len(r.config.batches)-1]
	for _, m := range r.measurements {
		for _, window := range []string{"idle", "steady"} {
			if cores := m.values["cores_others_"+window]; cores > othersCoresMax {
				warn(m, "%s window: others used %.2f cores of this machine", window, cores)
			}
		}
		others := m.values[fmt.Sprintf("startcpu_%s_%d", roleOthers, most)]
		all := m.values[fmt.Sprintf("startcpu_%s_%d", roleMachine, most)]
		if n := m.values["resumed"]; n > 0 {
			warn(m, "the API server ended our watch %v times: some times are too long", n)
		}
		if others > othersShareMax*all {
			warn(m, "start of %d pods: others used %.0f%% of the CPU time: times are too long", most, 100*others/all)
		}
	}
	return warnings
}

// writeRounds shows what the medians are made of.
func (r *report) writeRounds(b *strings.Builder) {
	head := []string{"", "unit"}
	for _, m := range r.measurements {
		head = append(head, fmt.Sprintf("%s %d", m.side, m.round))
	}
	var cells [][]string
	for _, l := range lines(r.config.batches) {
		row := []string{l.group + ": " + l.title, l.unit}
		for _, m := range r.measurements {
			v, ok := m.values[l.name]
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

// save replaces the report file.
func (r *report) save() error {
	text, _ := r.render()
	if err := os.MkdirAll(filepath.Dir(r.config.out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(r.config.out, []byte(text), 0o644)
}
