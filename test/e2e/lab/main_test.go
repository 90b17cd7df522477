//go:build e2e

package lab

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The control plane of the tests that need one: it has no node but guests.
func TestMain(m *testing.M) { os.Exit(rig.Main(m, "lab", rig.Options{NoNode: true})) }
