package journal

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// The power fails after some records, on a file system that flushes nothing by itself. A closed journal has all of
// them; later records follow with higher numbers.
func TestPowerCut(t *testing.T) {
	disk := smallfs.ForTest(t, "", 32*unit.MiB)
	where := filepath.Join(disk.Dir, "journal")
	var want []string
	last := uint64(0)
	for cut := range 3 {
		disk.Lazy(t)
		j, err := Open(where, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := found(t, j); got != strings.Join(want, " ") {
			t.Errorf("after %d power cuts: found %q, want %q", cut, got, want)
		}
		for i := range 5 {
			name := fmt.Sprint("r", cut, "-", i)
			number, err := j.Append(record(name, 3000))
			if err != nil || number <= last {
				t.Fatalf("%s has number %d after %d, %v", name, number, last, err)
			}
			last, want = number, append(want, name)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		disk.CutPower(t)
	}
}
