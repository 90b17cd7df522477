package kmsg

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.want")

// kills returns the parser's kills of records, one per line; lines that begin with # are comments.
func kills(t testing.TB, text string) string {
	var p Parser
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		r, err := parseRecord(line)
		if err != nil {
			t.Fatal(err)
		}
		k, ok := p.Record(r)
		if !ok {
			continue
		}
		whole := ""
		if k.Whole != "" {
			whole = " (killed as a whole)"
		}
		fmt.Fprintf(&out,
			"#%d pid=%d command=%q uid=%d rss=%s pgtables=%s mapped=%s\n  group %s%s\n  limit of %s: used %s of %s\n",
			k.Sequence, k.PID, k.Command, k.UID, k.RSS(), k.PageTables, k.Mapped, or(k.Group), whole, or(k.LimitGroup), k.Used,
			k.Limit)
	}
	return out.String()
}

func or(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// TestKernels reads reports of several kernels. testdata/*.kmsg says where each comes from.
func TestKernels(t *testing.T) {
	files, err := filepath.Glob("testdata/*.kmsg")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, golden := kills(t, string(text)), strings.TrimSuffix(file, ".kmsg")+".want"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
		}
	}
}

// FuzzRecords feeds the parser any records. Every kill that it returns has a process, and was written by the kernel.
func FuzzRecords(f *testing.F) {
	files, err := filepath.Glob("testdata/*.kmsg")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		cost.Attack(f, string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		var p Parser
		for _, line := range strings.Split(text, "\n") {
			r, err := parseRecord(line)
			if err != nil {
				continue
			}
			k, ok := p.Record(r)
			if ok && (k.PID <= 0 || r.Facility != 0 || k.RSS() < 0 || k.Sequence != r.Sequence) {
				t.Fatalf("%q: %+v", line, k)
			}
		}
	})
}
