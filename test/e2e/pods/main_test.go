//go:build e2e

package pods

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, "pods", rig.Options{Services: true})) }
