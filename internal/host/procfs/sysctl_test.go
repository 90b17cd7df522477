package procfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSysctl reads kernel parameters, and says of one that is missing or odd which it is.
func TestSysctl(t *testing.T) {
	fs := FS(t.TempDir())
	for name, text := range map[string]string{"vm/overcommit_memory": "1\n", "kernel/keys/root_maxkeys": "1000000\n",
		"kernel/panic": "soon\n"} {
		path := filepath.Join(string(fs), "sys", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{"vm.overcommit_memory": 1, "kernel.keys.root_maxkeys": 1_000_000} {
		if got, err := fs.Sysctl(name); got != want || err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	for _, name := range []string{"kernel.panic", "vm.panic_on_oom"} {
		if _, err := fs.Sysctl(name); err == nil || !strings.Contains(err.Error(), "kernel parameter "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
