//go:build e2e

package lab

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The control plane of the tests that need one. Its nodes are guests, and two that only pretend: where every node is
// silent no pod is told to go, as it may be the controller that is deaf.
func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, "lab", rig.Options{NoNode: true, UpFlags: []string{"--hollow", "2"}}))
}
