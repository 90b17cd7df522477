package podview

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// A container that runs for a few milliseconds ends before containerd records its start (seen 2026-11-20; rounded for
// the API they were a second apart). An end before the start is never reported.
func TestNoEndBeforeItsStart(t *testing.T) {
	v := New("uid-1", nil)
	c := v.containerOf(&runtimeapi.ContainerStatus{
		Id: "c", State: runtimeapi.ContainerState_CONTAINER_EXITED, StartedAt: 1_000_000_005, FinishedAt: 999_999_998,
	}, podlife.Container{})
	if c.StartedAt != 999_999_998 || c.FinishedAt != 999_999_998 {
		t.Errorf("started at %d, finished at %d, want both 999999998", c.StartedAt, c.FinishedAt)
	}
	running := v.containerOf(&runtimeapi.ContainerStatus{Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING,
		StartedAt: 5}, podlife.Container{})
	if running.StartedAt != 5 {
		t.Errorf("a running container's start became %d", running.StartedAt)
	}
}

// A pod that may write to the log directory replaces its log by a link: the target does not become its termination
// message.
func TestLastWordsBehindALink(t *testing.T) {
	v := New("uid-1", nil)
	base := t.TempDir()
	v.From.LogDir = filepath.Join(base, "log", "pods")
	own, outside := filepath.Join(v.From.LogDir, "ns_web_uid-1"), filepath.Join(base, "outside")
	err := errors.Join(
		os.MkdirAll(own, 0o700), os.Mkdir(outside, 0o700), os.Symlink(outside, filepath.Join(own, "zeta")),
		os.WriteFile(filepath.Join(outside, "0.log"), []byte("2026-01-01T00:00:00Z stdout F secret\n"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	said := v.terminationMessage(&runtimeapi.ContainerStatus{
		LogPath:     filepath.Join(own, "zeta", "0.log"),
		ExitCode:    1,
		Annotations: map[string]string{cri.AnnotationMessagePolicy: "FallbackToLogsOnError"},
	})
	if said != "" {
		t.Errorf("the pod's last words are another's: %q", said)
	}
}

// TestLastWordsOfAKubeletsContainer: a kubelet does not record where a termination log is on the host. The container's
// mount has the path.
func TestLastWordsOfAKubeletsContainer(t *testing.T) {
	v := New("uid-1", nil)
	log := filepath.Join(t.TempDir(), "0a1b2c3d")
	if err := os.WriteFile(log, []byte("out of paint"), 0o600); err != nil {
		t.Fatal(err)
	}
	status := &runtimeapi.ContainerStatus{
		ExitCode:    1,
		Annotations: map[string]string{cri.AnnotationMessagePath: "/dev/termination-log"},
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/data", HostPath: "/etc/hostname"}, {ContainerPath: "/dev/termination-log", HostPath: log},
		},
	}
	if said := v.terminationMessage(status); said != "out of paint" {
		t.Errorf("its last words are %q", said)
	}
	status.Annotations = nil
	if said := v.terminationMessage(status); said != "" {
		t.Errorf("without a path for them its last words are %q", said)
	}
}
