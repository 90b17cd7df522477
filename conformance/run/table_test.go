package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

func spec(name string, state types.SpecState, reason string) types.SpecReport {
	return types.SpecReport{
		LeafNodeType: types.NodeTypeIt,
		LeafNodeText: name,
		State:        state,
		RunTime:      time.Second,
		Failure:      types.Failure{Message: reason},
	}
}

// oneStage is a plan that runs tests together.
func oneStage(tests ...string) plan {
	return plan{stages: [][]part{{{tests: tests}}}}
}

// TestPassed: a test that did not run must not look like a pass.
func TestPassed(t *testing.T) {
	good, bad := spec("good", types.SpecStatePassed, ""), spec("bad", types.SpecStateFailed, "no")
	for _, c := range []struct {
		name  string
		tests []string
		runs  [][]types.SpecReport
		want  bool
	}{
		{"nothing ran", nil, nil, false},
		{"one passed", nil, [][]types.SpecReport{{good}}, true},
		{"one failed beside it", nil, [][]types.SpecReport{{good, bad}}, false},
		{"failed once of twice", nil, [][]types.SpecReport{{good}, {spec("good", types.SpecStateFailed, "race")}}, false},
		{"timed out", nil, [][]types.SpecReport{{good, spec("slow", types.SpecStateTimedout, "")}}, false},
		{"all skipped themselves", nil, [][]types.SpecReport{{spec("odd", types.SpecStateSkipped, "no such device")}}, false},
		{"asked for and found", []string{"oo"}, [][]types.SpecReport{{good}}, true},
		{"asked for and skipped itself", []string{"oo", "odd"},
			[][]types.SpecReport{{good, spec("odd", types.SpecStateSkipped, "no such device")}}, false},
		{"chosen and did not run", nil, [][]types.SpecReport{{good}}, false},
	} {
		chosen := []string{"good"}
		if len(c.tests) > 0 {
			chosen = []string{"good", "odd"}[:len(c.tests)]
		}
		if c.name == "chosen and did not run" {
			chosen = append(chosen, "cut off")
		}
		tab := newTable(config{tests: c.tests}, oneStage(chosen...))
		for _, run := range c.runs {
			tab.add(run)
		}
		if got := tab.failures(); c.want && len(got) > 0 {
			t.Errorf("%s: failures %q of tests that passed", c.name, got)
		}
		if got := tab.passed(); got != c.want {
			t.Errorf("%s: passed is %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRender reads the table as a Markdown reader does.
func TestRender(t *testing.T) {
	p := oneStage("good", "racy", "cut off")
	p.leftOut = map[string]string{"far": "the internet"}
	tab := newTable(config{repeat: 2, procs: 3}, p)
	good := spec("good", types.SpecStatePassed, "")
	reason := "expected\n  a | b " + strings.Repeat("ö", 200)
	certified := spec("kept [Conformance]", types.SpecStatePassed, "")
	tab.add([]types.SpecReport{good, certified, spec("racy", types.SpecStatePassed, "")})
	tab.add([]types.SpecReport{good, spec("racy", types.SpecStateFailed, reason)})
	text := tab.render()
	for _, want := range []string{
		"3 tests: 2 passed, 1 failed, 0 skipped themselves",
		"- **did not run**: cut off\n",
		"marked [Conformance]: 1 tests: 1 passed,",
		"| far | left out |  | the internet |\n",
		"| good | passed 2 times | 1.0 |  |\n",
		`| racy | **failed 1 of 2** | 1.0 | failed: expected a \| b ö`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Index(text, "| racy") > strings.Index(text, "| good") {
		t.Errorf("what failed is not first:\n%s", text)
	}
	if strings.ContainsRune(text, '\uFFFD') {
		t.Error("a letter is cut in two")
	}
}

// TestReadReport: tests that the focus excluded are not in the report; a failed step before all tests is.
func TestReadReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	const report = `[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node"}},
		{"LeafNodeType": "ReportAfterSuite", "State": "passed"},
		{"LeafNodeType": "It", "LeafNodeText": "left out", "State": "skipped"},
		{"LeafNodeType": "It", "LeafNodeText": "skipped itself", "State": "skipped", "Failure": {"Message": "no device"}},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "run", "State": "passed"}]}]`
	if err := os.WriteFile(path, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	specs, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range specs {
		names = append(names, nameOf(s))
	}
	if want := []string{"[SynchronizedBeforeSuite]", "skipped itself", "[sig-node] Pods run"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// TestBeside: a table with --beside has what each test did with upstream's kubelet.
func TestBeside(t *testing.T) {
	tab := newTable(config{repeat: 1, procs: 1}, oneStage("good", "bad", "new"))
	tab.other = map[string]*row{}
	addTo(tab.other, []types.SpecReport{
		spec("good", types.SpecStatePassed, ""), spec("bad", types.SpecStatePassed, ""),
	})
	tab.add([]types.SpecReport{
		spec("good", types.SpecStatePassed, ""), spec("bad", types.SpecStateFailed, "no"),
		spec("new", types.SpecStatePassed, ""),
	})
	text := tab.render()
	for _, want := range []string{
		"- in other runs on upstream's kubelet: 2 tests: 2 passed, 0 failed, 0 skipped themselves\n",
		"- with the same result there: 1 tests: 1 passed, 0 failed, 0 skipped themselves\n",
		"| test | result | seconds | with the kubelet | seconds | reason |\n",
		"| good | passed | 1.0 | passed | 1.0 |  |\n",
		"| bad | **failed** | 1.0 | passed | 1.0 | failed: no |\n",
		"| new | passed | 1.0 | did not run |  |  |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	tab.beside = []string{t.TempDir()}
	if err := tab.readBeside(); err == nil || !strings.Contains(err.Error(), "--beside "+tab.beside[0]) {
		t.Errorf("logs of no run: %v", err)
	}
}

// TestFailures: what failed and what did not run is named, nothing else.
func TestFailures(t *testing.T) {
	tab := newTable(config{}, oneStage("good", "bad", "cut off"))
	tab.add([]types.SpecReport{spec("good", types.SpecStatePassed, ""), spec("bad", types.SpecStateFailed, "no\nroom")})
	want := []string{"failed: bad: failed: no room", "did not run: cut off"}
	if got := tab.failures(); !slices.Equal(got, want) {
		t.Errorf("failures %q, want %q", got, want)
	}
}

// TestForgiven: a test that failed counts as passed only if it passed when it ran again, and is named all the same.
func TestForgiven(t *testing.T) {
	for _, again := range []types.SpecState{types.SpecStatePassed, types.SpecStateFailed, types.SpecStateSkipped} {
		tab := newTable(config{forgive: 1}, oneStage("good", "late"))
		tab.add([]types.SpecReport{spec("good", types.SpecStatePassed, ""), spec("late", types.SpecStateFailed, "too slow")})
		if got := tab.failed(); !slices.Equal(got, []string{"late"}) {
			t.Fatalf("failed: %q", got)
		}
		tab.addAgain([]types.SpecReport{spec("late", again, "")})
		if got, want := tab.passed(), again.Is(types.SpecStatePassed); got != want {
			t.Errorf("it %v when it ran again: passed %v, want %v", again, got, want)
		}
		want := "failed: late: failed: too slow"
		if again.Is(types.SpecStatePassed) {
			want = "failed 1 of 1, passed alone: late: failed: too slow"
		}
		if got := tab.failures(); !slices.Equal(got, []string{want}) {
			t.Errorf("failures %q, want %q", got, want)
		}
	}
}
