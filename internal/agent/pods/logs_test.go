package pods

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
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

// A pod that may write to the log directory (a hostPath) puts links in the place of directories: nothing behind them is read, written
// or removed.
func TestLinksInPlaceOfLogDirectories(t *testing.T) {
	r := testRunner()
	base := t.TempDir()
	r.LogDir = filepath.Join(base, "log", "pods")
	pod, outside := testPod(), filepath.Join(base, "outside")
	own := r.requests().LogDirectory(pod)
	kept := []string{"0.log", "0.log.20260101-000000", "web_ns_zeta-id.log"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(errors.Join(os.MkdirAll(own, 0o700), os.Mkdir(outside, 0o700)))
	for _, name := range kept {
		must(os.WriteFile(filepath.Join(outside, name), []byte("2026-01-01T00:00:00Z stdout F secret\n"), 0o600))
	}
	must(os.Symlink(outside, filepath.Join(own, "zeta")))
	must(os.Symlink(outside, r.linkDir()))

	said := r.terminationMessage(&runtimeapi.ContainerStatus{
		LogPath: filepath.Join(own, "zeta", "0.log"), ExitCode: 1, Annotations: map[string]string{criconfig.AnnotationMessagePolicy: "FallbackToLogsOnError"},
	})
	if said != "" {
		t.Errorf("the pod's last words are another's: %q", said)
	}
	r.linkLog(pod, &pod.Spec.Containers[0], "new", filepath.Join(own, "zeta", "0.log"))
	r.removeLog(&entry{uid: pod.UID, pod: pod}, podlife.Action{ID: "id", Container: "zeta"})
	must(os.Remove(filepath.Join(own, "zeta")))
	must(os.Remove(own))
	must(os.Symlink(outside, own))
	r.removeLogs(pod.UID)
	entries, err := os.ReadDir(outside)
	must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, kept) {
		t.Errorf("outside is %q, want %q", names, kept)
	}
	if _, err := os.Lstat(own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link in the place of the pod's directory stays: %v", err)
	}
}

// A run's log goes with its rotated parts and its link; the logs of other runs stay, also where the number begins alike.
func TestRemoveLog(t *testing.T) {
	r := testRunner()
	r.LogDir = filepath.Join(t.TempDir(), "pods")
	pod := testPod()
	dir := filepath.Join(r.requests().LogDirectory(pod), "zeta")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.log", "1.log.20260101-000000", "1.log.20260101-000000.gz", "11.log", "2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.linkLog(pod, &pod.Spec.Containers[0], "id-1", filepath.Join(dir, "1.log"))
	r.linkLog(pod, &pod.Spec.Containers[0], "id-2", filepath.Join(dir, "2.log"))
	r.removeLog(&entry{uid: pod.UID, pod: pod}, podlife.Action{ID: "id-1", Container: "zeta", Attempt: 1})
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "11.log"), filepath.Join(dir, "2.log")}; err != nil || !slices.Equal(left, want) {
		t.Errorf("logs left %q (%v), want %q", left, err, want)
	}
	links, err := filepath.Glob(filepath.Join(r.linkDir(), "*"))
	if err != nil || len(links) != 1 || filepath.Base(links[0]) != "web_ns_zeta-id-2.log" {
		t.Errorf("links left %q (%v), want that of id-2", links, err)
	}
}
