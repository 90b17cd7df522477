package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTrimLogKeepsOneOlderFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	writer, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := TrimLog(path); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.Repeat("a", LogBytesMax), "b"} {
		if _, err := writer.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := TrimLog(path); err != nil {
			t.Fatal(err)
		}
	}
	// The writer did not reopen its file and continued at the new end.
	if text, err := os.ReadFile(path); err != nil || string(text) != "b" {
		t.Errorf("log holds %d bytes, %v, want the last one", len(text), err)
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != LogBytesMax {
		t.Errorf("older log: %v, %v", info, err)
	}
	if err := TrimLog(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, c := range []struct{ text, want string }{
		{"", ""}, {"a", "a"}, {"a\n", "a"}, {"a\nb\nc\n", "b\nc"}, {strings.Repeat("x", 9000) + "\nb", "b"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path, 2); got != c.want {
			t.Errorf("Tail(%.20q) = %.20q, want %q", c.text, got, c.want)
		}
	}
}
