//go:build e2e

package lab

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The tests that need a control plane share one. Its nodes are guests and two hollow nodes: if all nodes were silent,
// the lifecycle controller would evict no pod, because its own watch may be broken.
func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, "lab", rig.Options{NoNode: true, UpFlags: []string{"--hollow", "2"}, Parallel: guestsAtOnce}))
}

// guestsAtOnce is how many tests run at once. Chosen: an emulated guest that boots in 9 s alone took four minutes
// beside eleven others on two CPUs, and a process in it got no CPU for the 10 s after which it loses its Lease
// (measured 2026-11-28).
const guestsAtOnce = 4
