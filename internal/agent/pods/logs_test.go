package pods

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// Only what is named like a pod's log directory is one: what others keep beside it is not ours to remove.
func TestLoggedPods(t *testing.T) {
	r := testRunner()
	if r.LogDir = filepath.Join(t.TempDir(), "none yet"); len(r.loggedPods()) != 0 {
		t.Error("no directory, yet pods")
	}
	for _, name := range []string{"ns_web_0a1b-2c", "ns_a.b-c_ff00", "kubelet", "a_b", "a_b_", "a_b_..", "a_b_c_0", "a_b_XY", "__0"} {
		if err := os.MkdirAll(filepath.Join(r.LogDir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.LogDir, "ns_file_00"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := r.loggedPods(), []types.UID{"ff00", "0a1b-2c"}; !slices.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}
