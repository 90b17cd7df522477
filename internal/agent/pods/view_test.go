package pods

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// A container of a few milliseconds has ended before containerd notes its start (seen 2026-11-20, a second apart once
// rounded for the API). Nobody reports an end before a start.
func TestNoEndBeforeItsStart(t *testing.T) {
	r := &Runner{}
	c := r.containerOf(&runtimeapi.ContainerStatus{
		Id: "c", State: runtimeapi.ContainerState_CONTAINER_EXITED, StartedAt: 1_000_000_005, FinishedAt: 999_999_998,
	}, podlife.Container{})
	if c.StartedAt != 999_999_998 || c.FinishedAt != 999_999_998 {
		t.Errorf("started at %d, finished at %d, want both 999999998", c.StartedAt, c.FinishedAt)
	}
	running := r.containerOf(&runtimeapi.ContainerStatus{Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, StartedAt: 5}, podlife.Container{})
	if running.StartedAt != 5 {
		t.Errorf("a running container's start became %d", running.StartedAt)
	}
}
