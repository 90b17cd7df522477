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
	os.Exit(rig.Main(m, "lab", rig.Options{NoNode: true, UpFlags: []string{"--hollow", "2"}}))
}
