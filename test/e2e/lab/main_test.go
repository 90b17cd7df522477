//go:build e2e

package lab

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The control plane of the tests that need one. Its nodes are guests, and two hollow nodes: when every node is silent,
// the lifecycle controller evicts no pod, since its own watch may be broken.
func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, "lab", rig.Options{NoNode: true, UpFlags: []string{"--hollow", "2"}}))
}
