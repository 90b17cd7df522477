package plimsoll

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// numbers are the fuzz targets that read no text: what they cost does not depend on a length.
var numbers = map[string]bool{
	"internal/core/eviction/property_test.go FuzzStep": true,
	"internal/core/imagegc/imagegc_test.go FuzzGoal":   true,
}

var fuzzTarget = regexp.MustCompile(`(?ms)^func (Fuzz\w+)\((\w+) \*testing\.F\) \{.*?^\}`)

// wantsBudget returns the fuzz targets in a test file, and what is wrong with those that are not held to a budget, one
// line each.
func wantsBudget(path, text string) (targets int, problems []string) {
	for _, m := range fuzzTarget.FindAllStringSubmatch(text, -1) {
		targets++
		body, name := m[0], m[1]
		if numbers[path+" "+name] {
			continue
		}
		if !strings.Contains(body, "defer cost.Spend(") && !strings.Contains(body, "cost.Under(") {
			problems = append(problems, name+" has no budget: begin its function with `defer cost.Spend(t, len(text))()`")
		}
		if !strings.Contains(body, "cost.Attack(") {
			problems = append(problems, name+" reads no long hostile text: give its seeds to cost.Attack instead of F.Add")
		}
	}
	return targets, problems
}

// TestFuzzTargetsHaveBudgets: a parser of text that others bring is held to a budget of memory and CPU by its fuzz
// target, with long hostile texts whenever tests run.
func TestFuzzTargetsHaveBudgets(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		targets, problems := wantsBudget(path, string(text))
		if named := strings.Count("\n"+string(text), "\nfunc Fuzz"); named != targets {
			t.Errorf("%s: %d functions are named Fuzz..., %d of them were understood", path, named, targets)
		}
		found += targets
		for _, p := range problems {
			t.Errorf("%s: %s", path, p)
		}
		return nil
	})
	if err != nil || found < 50 {
		t.Errorf("%d fuzz targets found, %v", found, err)
	}
}

// TestMissingBudgetIsFound: the test above finds a target without a budget, and one that is never attacked.
func TestMissingBudgetIsFound(t *testing.T) {
	target := func(lines string) string { return "func FuzzX(f *testing.F) {\n" + lines + "}\n" }
	for _, c := range []struct {
		text string
		want int
	}{
		{target("\tcost.Attack(f, \"a\")\n\tf.Fuzz(func(t *testing.T, s string) {\n" +
			"\t\tdefer cost.Spend(t, len(s))()\n\t})\n"), 0},
		{target("\tcost.Attack(f, \"a\")\n\tf.Fuzz(func(t *testing.T, s string) {\n\t\tcost.Spend(t, len(s))\n\t})\n"), 1},
		{target("\tcost.Attack(f, \"a\")\n"), 1},
		{target("\tf.Add(\"a\")\n\tcost.Under(t, cost.Budget{}, 1, nil)\n"), 1},
		{target("\tf.Add(\"a\")\n"), 2},
		{strings.ReplaceAll(target("\tf.Add(\"a\")\n"), "f ", "fuzz "), 2},
	} {
		if targets, problems := wantsBudget("x_test.go", c.text); targets != 1 || len(problems) != c.want {
			t.Errorf("%q: %d targets, %q, want %d problems", c.text, targets, problems, c.want)
		}
	}
}

var (
	parserName = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?((?:[pP]arse|[dD]ecode)\w*)\(\w+ (?:string|\[\]byte)[,)]`)
	fuzzName   = regexp.MustCompile(`(?m)^func Fuzz\w+\(`)
)

// flagsAlone are packages whose parsers read what stands on a command line, which its writer pays for, with why each is
// small.
var flagsAlone = map[string]string{
	"cmd/plimsoll": "the simulator's --policy, split at commas",
}

// TestParsersAreFuzzed: a package that parses or decodes text has a fuzz target; TestFuzzTargetsHaveBudgets holds it to
// a budget.
func TestParsersAreFuzzed(t *testing.T) {
	parsers, fuzzed := map[string][]string{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (path == "bench" || path == "test") {
			return fs.SkipDir // they read what they wrote
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") {
			fuzzed[dir] = fuzzed[dir] || fuzzName.Match(text)
			return nil
		}
		for _, m := range parserName.FindAllSubmatch(text, -1) {
			parsers[dir] = append(parsers[dir], string(m[1]))
		}
		return nil
	})
	if err != nil || len(parsers) < 20 {
		t.Fatalf("%d packages with parsers found, %v", len(parsers), err)
	}
	for dir, names := range parsers {
		if !fuzzed[dir] && flagsAlone[dir] == "" {
			t.Errorf("%s: %s: no fuzz target in the package: write one, with cost.Attack and cost.Spend", dir,
				strings.Join(names, ", "))
		}
	}
	for dir := range flagsAlone {
		if fuzzed[dir] || parsers[dir] == nil {
			t.Errorf("%s: has a fuzz target or no parser: take it out of flagsAlone", dir)
		}
	}
}
