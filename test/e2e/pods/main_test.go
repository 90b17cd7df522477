//go:build e2e

// Package pods tests the lives of pods on a real node: the control plane, runtime, agent and kernel that `plimsoll up`
// starts. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/pods
package pods

import (
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, "pods", rig.Options{Services: true})) }
