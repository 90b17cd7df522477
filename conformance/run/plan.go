package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// A part is a set of tests that run in one run of the suite's program.
type part struct {
	name  string
	tests []string // full names
	procs int      // how many run at a time
}

// An omission names tests that are not run, with the reason.
type omission struct {
	test   string // a part of their names
	reason string
}

// needsTwoNodes is the reason, in left-out.txt, of tests that run with --nodes 2.
const needsTwoNodes = "needs two nodes"

// A plan is what runs: the parts of a stage at the same time, the stages one after the other.
type plan struct {
	stages  [][]part
	leftOut map[string]string  // reason by the test's name
	passed  []types.SpecReport // of the tests that were asked for: in an earlier run
}

// conformance marks the tests that a certified distribution must pass. They run whatever other marks they have.
const conformance = "[Conformance]"

// waits matches tests that mostly wait. They run beside the others: 62 such tests take 167 minutes, one of them 26,
// and the 460 others take 114 (measured 2026-11-24). alone matches tests that run one at a time, with no others beside
// them: ginkgo's mark for that, and upstream's for what harms other tests.
var (
	waits = regexp.MustCompile(`Prob(e|ing) |\[Slow\]`)
	alone = regexp.MustCompile(`\[(Serial|Disruptive)\]`)
)

// newPlan chooses from the names of all tests. Those that passed earlier are not run again.
func newPlan(c config, names []string, passed map[string]types.SpecReport) (plan, error) {
	p := plan{leftOut: map[string]string{}}
	asked, err := c.asked(names)
	if err != nil {
		return p, err
	}
	for _, o := range c.leftOut {
		if o.reason == needsTwoNodes && c.nodes > 1 {
			continue
		}
		for _, name := range asked {
			if strings.Contains(name, o.test) {
				p.leftOut[name] = o.reason
			}
		}
	}
	asked = slices.DeleteFunc(asked, func(name string) bool { return p.leftOut[name] != "" })
	asked = slices.DeleteFunc(asked, func(name string) bool {
		spec, ok := passed[name]
		if ok {
			p.passed = append(p.passed, spec)
		}
		return ok
	})
	if len(asked) == 0 {
		return p, fmt.Errorf("no test of %d is left to run: %d are left out, %d passed earlier",
			len(names), len(p.leftOut), len(p.passed))
	}
	if len(c.tests) > 0 { // few tests: a second set of processes would cost more than it saves
		p.stages = [][]part{{{name: "named", tests: asked, procs: c.procs}}}
		return p, nil
	}
	rest := part{name: "rest", procs: c.procs}
	waiting := part{name: "waiting", procs: c.waiting}
	serial := part{name: "serial", procs: 1}
	for _, name := range asked {
		switch {
		case alone.MatchString(name):
			serial.tests = append(serial.tests, name)
		case waits.MatchString(name):
			waiting.tests = append(waiting.tests, name)
		default:
			rest.tests = append(rest.tests, name)
		}
	}
	none := func(p part) bool { return len(p.tests) == 0 }
	for _, stage := range [][]part{{rest, waiting}, {serial}} {
		if stage = slices.DeleteFunc(stage, none); len(stage) > 0 {
			p.stages = append(p.stages, stage)
		}
	}
	return p, nil
}

// asked returns the names of the tests that the command line asks for.
func (c config) asked(names []string) (asked []string, err error) {
	for _, test := range c.tests {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, test) }) {
			return nil, fmt.Errorf("--tests: %q is in the name of no test: its name has changed, or it is gone", test)
		}
	}
	for _, name := range names {
		chosen := c.focus.MatchString(name)
		if len(c.tests) > 0 {
			chosen = slices.ContainsFunc(c.tests, func(test string) bool { return strings.Contains(name, test) })
		}
		skipped := c.skip.String() != "" && c.skip.MatchString(name) && !strings.Contains(name, conformance)
		if chosen && !skipped {
			asked = append(asked, name)
		}
	}
	return asked, nil
}

// tests returns the names of all tests that run.
func (p plan) tests() (names []string) {
	for _, stage := range p.stages {
		for _, part := range stage {
			names = append(names, part.tests...)
		}
	}
	return names
}

// passedEarlier reads the reports of earlier runs, and returns those of the tests that passed.
func passedEarlier(dirs []string) (map[string]types.SpecReport, error) {
	passed := map[string]types.SpecReport{}
	for _, dir := range dirs {
		specs, err := readReports(dir)
		if err != nil {
			return nil, fmt.Errorf("--resume %s: %w", dir, err)
		}
		for _, spec := range specs {
			if spec.State.Is(types.SpecStatePassed) {
				passed[nameOf(spec)] = spec
			}
		}
	}
	return passed, nil
}

// readReports returns the tests that ran in a run, which wrote its logs into dir.
func readReports(dir string) (specs []types.SpecReport, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "run-*", "*", reportFile))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no run-N/PART/%s in it", reportFile)
	}
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		more, err := readReport(file)
		if err != nil {
			return nil, err
		}
		specs = append(specs, more...)
	}
	return specs, nil
}

// driverFlags are the suite's flags that define its tests of a CSI driver.
func (c *config) driverFlags() []string {
	if c.driver == "" {
		return nil
	}
	return []string{"--storage.testdriver=" + c.driver}
}

// listTests returns the names of all tests of the suite.
func listTests(ctx context.Context, c config) ([]string, error) {
	list := exec.CommandContext(ctx, filepath.Join(c.programs, "e2e.test"),
		append(c.driverFlags(), "--list-tests", "--provider=skeleton")...)
	var complaint bytes.Buffer
	list.Stderr = &complaint
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the suite's tests: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	names := testNames(string(out))
	if len(names) == 0 {
		return nil, fmt.Errorf("list the suite's tests: %s --list-tests printed none", list.Path)
	}
	return names, nil
}

// testNames reads what e2e.test --list-tests prints: a heading, then for each test four spaces, the file and line where
// it is written, a colon, and its name.
func testNames(text string) (names []string) {
	for line := range strings.Lines(text) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.HasPrefix(line, "    ") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return slices.Compact(names) // they are sorted
}

// readTests reads parts of tests' names, one per line.
func readTests(path string) (tests []string, err error) {
	lines, err := readLines(path)
	if err == nil && len(lines) == 0 {
		err = fmt.Errorf("read %s: no test in it", path)
	}
	return lines, err
}

// readOmissions reads which tests are left out: a part of a name, two spaces, # and the reason, on each line.
func readOmissions(path string) (omissions []omission, err error) {
	lines, err := readLines(path)
	for _, line := range lines {
		test, reason, _ := strings.Cut(line, "  #")
		o := omission{test: strings.TrimSpace(test), reason: strings.TrimSpace(reason)}
		if o.test == "" || o.reason == "" {
			return nil, fmt.Errorf("read %s: %q: want a part of a test's name, two spaces, # and why it is left out", path, line)
		}
		omissions = append(omissions, o)
	}
	return omissions, err
}

// readLines returns the lines of a file that are neither empty nor begin with #.
func readLines(path string) (lines []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	for in.Scan() {
		if line := strings.TrimSpace(in.Text()); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return lines, nil
}
