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

// Of remains of a pod only the uid is known: its links go with its logs, and no other's.
func TestRemoveLogs(t *testing.T) {
	r := testRunner()
	r.LogDir = filepath.Join(t.TempDir(), "pods")
	for _, name := range []string{"ns_web_0a", "ns_web_0b"} {
		if err := os.MkdirAll(filepath.Join(r.LogDir, name, "c"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	pod := testPod()
	for _, uid := range []types.UID{"0a", "0b"} {
		pod.UID = uid
		r.linkLog(pod, &pod.Spec.Containers[0], "id-"+string(uid), filepath.Join(r.LogDir, "ns_web_"+string(uid), "c", "0.log"))
	}
	r.removeLogs("0a")
	links, err := filepath.Glob(filepath.Join(r.linkDir(), "*"))
	if err != nil || len(links) != 1 || filepath.Base(links[0]) != "web_ns_zeta-id-0b.log" {
		t.Errorf("links %q (%v), want that of 0b", links, err)
	}
	if dirs := r.loggedPods(); !slices.Equal(dirs, []types.UID{"0b"}) {
		t.Errorf("log directories of %v, want of 0b", dirs)
	}
}
