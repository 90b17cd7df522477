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
	"internal/core/garbage/garbage_test.go FuzzGoal":   true,
}

var fuzzTarget = regexp.MustCompile(`(?ms)^func (Fuzz\w+)\(f \*testing\.F\) \{.*?^\}`)

// TestFuzzTargetsHaveBudgets: a parser of text that others bring is held to a budget of memory and CPU by its fuzz target.
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
		for _, m := range fuzzTarget.FindAllStringSubmatch(string(text), -1) {
			found++
			if !strings.Contains(m[0], "cost.Spend(") && !strings.Contains(m[0], "cost.Under(") && !numbers[path+" "+m[1]] {
				t.Errorf("%s: %s has no budget: begin its function with `defer cost.Spend(t, len(text))()`, and give cost.Attack its seeds", path, m[1])
			}
		}
		return nil
	})
	if err != nil || found < 50 {
		t.Errorf("%d fuzz targets found, %v", found, err)
	}
}
