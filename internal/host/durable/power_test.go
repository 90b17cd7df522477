package durable

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// The power fails right after a file was written, on a file system that flushes nothing by itself. The file has the
// complete new content, whether it is new or was replaced.
func TestPowerCutAfterWrite(t *testing.T) {
	disk := smallfs.ForTest(t, "", 32*unit.MiB)
	path := filepath.Join(disk.Dir, "file")
	for _, content := range []string{"first", "another", strings.Repeat("long ", 10_000)} {
		disk.Lazy(t)
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		disk.CutPower(t)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, []byte(content)) {
			t.Errorf("%d bytes %.20q, %v after a power cut: want %d bytes", len(got), got, err, len(content))
		}
	}
}
