package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onsi/ginkgo/v2/types"
)

// table is the results of the tests, by name.
type table struct {
	config
	plan  plan
	began time.Time
	rows  map[string]*row
	other map[string]*row // of runs with upstream's kubelet; nil without --beside
}

// row is one test.
type row struct {
	name     string
	passed   int
	skipped  int
	failed   int
	forgiven bool          // it failed, and passed when it ran again alone
	took     time.Duration // duration of the longest run
	reason   string        // of the last failure, or of the skip
}

func newTable(c config, p plan) *table {
	return &table{config: c, plan: p, began: time.Now(), rows: map[string]*row{}}
}

// add counts one run of the suite.
func (t *table) add(specs []types.SpecReport) { addTo(t.rows, specs) }

// addAgain records the results of tests that failed and ran once more, alone.
func (t *table) addAgain(specs []types.SpecReport) {
	for _, spec := range specs {
		if r := t.rows[nameOf(spec)]; r != nil && spec.State.Is(types.SpecStatePassed) {
			r.forgiven = true
		}
	}
}

// failed returns the names of the tests that failed in any run, sorted.
func (t *table) failed() (names []string) {
	for name, r := range t.rows {
		if r.failed > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readBeside reads the runs with upstream's kubelet. Of a test that ran again, the later results count.
func (t *table) readBeside() error {
	for _, dir := range t.beside {
		specs, err := readReports(dir)
		if err != nil {
			return fmt.Errorf("--beside %s: %w", dir, err)
		}
		ran := map[string]*row{}
		addTo(ran, specs)
		if t.other == nil {
			t.other = map[string]*row{}
		}
		maps.Copy(t.other, ran)
	}
	return nil
}

func addTo(rows map[string]*row, specs []types.SpecReport) {
	for _, spec := range specs {
		name := nameOf(spec)
		r := rows[name]
		if r == nil {
			r = &row{name: name}
			rows[name] = r
		}
		r.took = max(r.took, spec.RunTime)
		switch {
		case spec.State.Is(types.SpecStatePassed):
			r.passed++
		case spec.State.Is(types.SpecStateSkipped):
			r.skipped++
			r.reason = spec.Failure.Message
		default:
			r.failed++
			r.reason = spec.State.String() + ": " + spec.Failure.Message
		}
	}
}

// missing returns the tests that were chosen and did not run; if they were requested by name, also those that skipped
// themselves each time.
func (t *table) missing() (names []string) {
	for _, test := range t.plan.tests() {
		r := t.rows[test]
		if r == nil || len(t.tests) > 0 && r.passed+r.failed == 0 {
			names = append(names, test)
		}
	}
	return names
}

// passed reports whether at least one test passed, all requested tests ran, and no test failed in any run, except those
// that are forgiven.
func (t *table) passed() bool {
	passed := 0
	for _, r := range t.rows {
		if r.failed > 0 && !r.forgiven {
			return false
		}
		if passed += r.passed; r.forgiven {
			passed++
		}
	}
	return passed > 0 && len(t.missing()) == 0
}

// failures returns a line for each test that failed, also if it is forgiven, or did not run: what it did, its name, and
// the beginning of the reason.
func (t *table) failures() (lines []string) {
	for _, name := range t.failed() {
		r := t.rows[name]
		lines = append(lines, fmt.Sprintf("%s: %s: %s", strings.ReplaceAll(r.result(), "**", ""), name, cell(r.reason)))
	}
	for _, name := range t.missing() {
		lines = append(lines, "did not run: "+name)
	}
	return lines
}

// reasonMax bounds the text of a failure, in bytes; the log has all of it (chosen: two lines of a wide screen).
const reasonMax = 300

// cell converts a text to the content of one cell of a Markdown table.
func cell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > reasonMax {
		cut := reasonMax
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + " ..."
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// render returns the table as Markdown, with failed tests first.
func (t *table) render() string {
	rows := slices.SortedFunc(maps.Values(t.rows), func(a, b *row) int {
		return cmp.Or(cmp.Compare(min(b.failed, 1), min(a.failed, 1)), cmp.Compare(a.name, b.name))
	})
	all := func(*row) bool { return true }
	certified := func(r *row) bool { return strings.Contains(r.name, conformance) }
	var b strings.Builder
	judged := "our agent, scheduler and lifecycle controller"
	if t.agent != "" {
		judged = "our scheduler and lifecycle controller, with " + filepath.Base(t.agent) + " as the agent"
	}
	fmt.Fprintf(&b, "# Upstream's e2e suite against %s\n\n", judged)
	fmt.Fprintf(&b, "Written by `make conformance`; README.md beside this directory says how to read it.\n\n")
	fmt.Fprintf(&b, "- %s; each ran %d times, %d at a time and %d that wait\n",
		count(rows, all), t.repeat, t.procs, t.waiting)
	if n := len(t.plan.passed); n > 0 {
		fmt.Fprintf(&b, "- %d of these passed in earlier runs, which this one resumed\n", n)
	}
	fmt.Fprintf(&b, "- of these marked %s: %s\n", conformance, count(rows, certified))
	if t.other != nil {
		same := func(r *row) bool { return t.other[r.name] != nil && t.other[r.name].result() == r.result() }
		var others []*row
		for _, r := range rows {
			if o := t.other[r.name]; o != nil {
				others = append(others, o)
			}
		}
		fmt.Fprintf(&b, "- in other runs on upstream's kubelet: %s\n", count(others, all))
		fmt.Fprintf(&b, "- with the same result there: %s\n", count(rows, same))
	}
	fmt.Fprintf(&b, "- %s, began %s, took %s; %d CPUs, %s\n\n", version(t.plimsoll), t.began.UTC().Format(time.DateTime+
		" UTC"),
		time.Since(t.began).Round(time.Second), runtime.NumCPU(), runtimeVersion())
	for _, name := range t.missing() {
		fmt.Fprintf(&b, "- **did not run**: %s\n", cell(name))
	}
	t.renderRows(&b, rows)
	return b.String()
}

// renderRows writes a row for each test, with --beside also what it did with upstream's kubelet.
func (t *table) renderRows(b *strings.Builder, rows []*row) {
	if t.other != nil {
		fmt.Fprintf(b, "| test | result | seconds | with the kubelet | seconds | reason |\n")
		fmt.Fprintf(b, "| --- | --- | ---: | --- | ---: | --- |\n")
	} else {
		fmt.Fprintf(b, "| test | result | seconds | reason |\n| --- | --- | ---: | --- |\n")
	}
	for _, r := range rows {
		fmt.Fprintf(b, "| %s | %s | %.1f |%s %s |\n", cell(r.name), r.result(), r.took.Seconds(), t.besideOf(r.name),
			cell(r.reason))
	}
	for _, name := range slices.Sorted(maps.Keys(t.plan.leftOut)) {
		fmt.Fprintf(b, "| %s | left out |  |%s %s |\n", cell(name), t.besideOf(name), cell(t.plan.leftOut[name]))
	}
}

// besideOf returns the two cells of what a test did with upstream's kubelet; nothing without --beside.
func (t *table) besideOf(name string) string {
	if t.other == nil {
		return ""
	}
	if r := t.other[name]; r != nil {
		return fmt.Sprintf(" %s | %.1f |", r.result(), r.took.Seconds())
	}
	return " did not run |  |"
}

// count says how many of the rows for which in is true passed, failed and skipped themselves.
func count(rows []*row, in func(*row) bool) string {
	var passed, failed, skipped int
	for _, r := range rows {
		switch {
		case !in(r):
		case r.failed > 0:
			failed++
		case r.passed > 0:
			passed++
		default:
			skipped++
		}
	}
	return fmt.Sprintf("%d tests: %d passed, %d failed, %d skipped themselves", passed+failed+skipped, passed, failed,
		skipped)
}

func (r *row) result() string {
	switch {
	case r.forgiven:
		return fmt.Sprintf("**failed %d of %d**, passed alone", r.failed, r.failed+r.passed)
	case r.failed > 0 && r.passed > 0:
		return fmt.Sprintf("**failed %d of %d**", r.failed, r.failed+r.passed)
	case r.failed > 0:
		return "**failed**"
	case r.passed > 1:
		return fmt.Sprintf("passed %d times", r.passed)
	case r.passed > 0:
		return "passed"
	}
	return "skipped"
}

// version returns the version that our program prints: the repository may have changed since the program was built.
func version(plimsoll string) string {
	out, err := exec.Command(plimsoll, "version").Output()
	if err != nil {
		return "unknown version: " + err.Error()
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// runtimeVersion returns the version that containerd prints.
func runtimeVersion() string {
	out, err := exec.Command("containerd", "--version").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 3 {
		return fmt.Sprintf("containerd of unknown version: %q, %v", out, err)
	}
	return "containerd " + strings.TrimPrefix(fields[2], "v")
}

func (t *table) save(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(t.render()), 0o644)
}
