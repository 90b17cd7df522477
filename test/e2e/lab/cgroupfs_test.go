//go:build e2e && lab

package lab

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/lab"
)

var cgroupfsNames = names{"kubepods", "kubepods/burstable", "kubepods/besteffort", "podUID", "ID", "max"}

// TestCgroup2WithCgroupfs compares the same values as TestCgroup2WithSystemd, of groups that the agent and the runtime
// create without systemd.
func TestCgroup2WithCgroupfs(t *testing.T) { cgroup2(t, lab.Tiny, "cgroupfs", cgroupfsNames) }
