package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is what e2e.test --list-tests prints, shortened.
const listed = `The following spec names can be used with 'ginkgo run --focus/skip':
    ../apps/daemon_set.go:176: [sig-apps] Daemon set [Serial] should run: simple [Conformance]
    ../network/far.go:12: [sig-network] Far away [Conformance]
    ../node/pods.go:1: [sig-node] Pods [NodeConformance] start
    ../node/pods.go:2: [sig-node] Pods [Feature:Odd] [NodeConformance] are odd
    ../node/probe.go:3: [sig-node] Probing container [NodeConformance] waits
    ../node/taints.go:4: [sig-node] Taints [Serial] [Disruptive] [Conformance] evict
    ../node/slow.go:5: [sig-node] Pods [Slow] [Conformance] creep
    ../storage/csi.go:7: [sig-storage] Volumes [Disruptive] outlive the kubelet
    ../node/other.go:6: [sig-node] Pods do something that nobody asks for

`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tests.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func planned(t *testing.T, args ...string) (plan, error) {
	t.Helper()
	c, err := parseFlags(args)
	if err != nil {
		t.Fatal(err)
	}
	return newPlan(c, testNames(listed), nil)
}

// TestSplit: probes and slow tests run beside the rest, serial ones after both; what is marked [Conformance] is never
// skipped for another mark, only by its name.
func TestSplit(t *testing.T) {
	p, err := planned(t, "--procs", "2", "--left-out", write(t, "Far away  # no road\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, stage := range p.stages {
		for _, part := range stage {
			for _, test := range part.tests {
				got = append(got, strings.Repeat(">", i)+part.name+": "+test)
			}
		}
	}
	want := []string{
		"rest: [sig-node] Pods [NodeConformance] start",
		"waiting: [sig-node] Probing container [NodeConformance] waits",
		"waiting: [sig-node] Pods [Slow] [Conformance] creep",
		">serial: [sig-apps] Daemon set [Serial] should run: simple [Conformance]",
		">serial: [sig-node] Taints [Serial] [Disruptive] [Conformance] evict",
	}
	if !slices.Equal(got, want) {
		t.Errorf("plan is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if reason := p.leftOut["[sig-network] Far away [Conformance]"]; reason != "no road" || len(p.leftOut) != 1 {
		t.Errorf("left out are %q", p.leftOut)
	}
}

// TestDisruptive: what harms other tests runs if it is asked for, and alone.
func TestDisruptive(t *testing.T) {
	p, err := planned(t, "--focus", "Volumes", "--skip", "", "--left-out", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.stages) != 1 || len(p.stages[0]) != 1 || p.stages[0][0].name != "serial" || p.stages[0][0].procs != 1 {
		t.Errorf("plan is %+v", p.stages)
	}
}

// TestTwoNodes: what needs two nodes runs where there are two, and only there.
func TestTwoNodes(t *testing.T) {
	file := write(t, "Far away  # needs two nodes\n")
	for nodes, leftOut := range map[string]int{"1": 1, "2": 0} {
		p, err := planned(t, "--nodes", nodes, "--left-out", file)
		if err != nil || len(p.leftOut) != leftOut {
			t.Errorf("with %s nodes %d tests are left out, want %d, %v", nodes, len(p.leftOut), leftOut, err)
		}
	}
	if _, err := parseFlags([]string{"--nodes", "0"}); err == nil {
		t.Error("no node is accepted")
	}
}

// TestNamed: tests that are named run in one part, the slow ones too, and a name that fits none is an error.
func TestNamed(t *testing.T) {
	p, err := planned(t, "--left-out", "", "--tests", write(t, "# a comment\n\n  should run: simple  \nwaits\n"))
	want := []string{
		"[sig-apps] Daemon set [Serial] should run: simple [Conformance]",
		"[sig-node] Probing container [NodeConformance] waits",
	}
	if err != nil || len(p.stages) != 1 || !slices.Equal(p.tests(), want) {
		t.Errorf("%d stages of %q, %v; want one of %q", len(p.stages), p.tests(), err, want)
	}
	if _, err := planned(t, "--left-out", "", "--tests", write(t, "waits\nrenamed\n")); err == nil ||
		!strings.Contains(err.Error(), `"renamed" is in the name of no test`) {
		t.Errorf("a name that fits no test: %v", err)
	}
	if _, err := planned(t, "--left-out", "", "--focus", "gone"); err == nil {
		t.Error("a plan without tests is taken")
	}
}

// TestResume: what passed in an earlier run is not run again, what failed is.
func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run-1", "rest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const report = `[{"SpecReports": [
		{"LeafNodeType": "It", "LeafNodeText": "[sig-node] Pods [NodeConformance] start", "State": "passed"},
		{"LeafNodeType": "It", "LeafNodeText": "[sig-node] Pods [Slow] [Conformance] creep", "State": "failed"}]}]`
	if err := os.WriteFile(filepath.Join(dir, reportFile), []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Dir(filepath.Dir(dir))
	passed, err := passedEarlier([]string{logs})
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseFlags([]string{"--left-out", "", "--focus", "start|creep", "--resume", logs})
	if err != nil || !slices.Equal(c.earlier, []string{logs}) {
		t.Fatalf("earlier runs %q, %v", c.earlier, err)
	}
	p, err := newPlan(c, testNames(listed), passed)
	want := []string{"[sig-node] Pods [Slow] [Conformance] creep"}
	if err != nil || !slices.Equal(p.tests(), want) || len(p.passed) != 1 {
		t.Errorf("%q run, %d passed, %v; want %q and 1", p.tests(), len(p.passed), err, want)
	}
	if _, err := passedEarlier([]string{t.TempDir()}); err == nil {
		t.Error("a directory without reports is taken")
	}
}

// TestFocuses: of many tests, the expressions match each, and none whose name only contains another's.
func TestFocuses(t *testing.T) {
	var tests []string
	for i := range 3000 {
		tests = append(tests, fmt.Sprintf("[sig-node] Pods (twice) %d should be long enough to need two expressions", i))
	}
	expressions := focuses(tests)
	if len(expressions) < 2 {
		t.Errorf("%d expressions of at most %d bytes", len(expressions), focusMax)
	}
	for _, e := range expressions {
		if len(e) >= 128<<10 {
			t.Errorf("an expression of %d bytes", len(e))
		}
	}
	all := regexp.MustCompile(strings.Join(expressions, "|")) // as ginkgo joins them
	for _, test := range tests {
		if !all.MatchString(suiteName + " " + test) {
			t.Fatalf("no expression for %s", test)
		}
	}
	for _, other := range []string{tests[7] + " [Slow]", "More " + tests[7]} {
		if all.MatchString(suiteName + " " + other) {
			t.Errorf("an expression for %s", other)
		}
	}
}

// TestFlags: what cannot be meant is an error; an empty file of names is no request to run everything.
func TestFlags(t *testing.T) {
	empty := write(t, "# nothing\n")
	for _, args := range [][]string{
		{"--tests", empty}, {"--tests", "no/such/file"}, {"--tests", write(t, "x"), "--focus", "x"},
		{"--procs", "0"}, {"--waiting", "0"}, {"--repeat", "0"}, {"--focus", "("}, {"--skip", "("},
		{"--left-out", "no/such/file"}, {"--left-out", write(t, "Far away\n")},
	} {
		if !slices.Contains(args, "--left-out") {
			args = append(args, "--left-out", "")
		}
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// TestLeftOut reads the repository's own list.
func TestLeftOut(t *testing.T) {
	if _, err := parseFlags([]string{"--left-out", "../left-out.txt"}); err != nil {
		t.Error(err)
	}
}
