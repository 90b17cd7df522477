//go:build e2e

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// kubeletConfig lets upstream's kubelet start wherever our agent starts.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
`

func TestMain(m *testing.M) { os.Exit(run(m)) }

// options are those of every instance here.
var options = rig.Options{Storage: true}

func run(m *testing.M) int {
	agent := os.Getenv("PLIMSOLL_E2E_AGENT")
	if agent == "" {
		return rig.Main(m, "store", options)
	}
	dir, err := os.MkdirTemp("", "pl-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // nobody reads it any more
	config := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(config, []byte(kubeletConfig), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	options.UpFlags = []string{"--agent-binary", agent, "--agent-config", config}
	return rig.Main(m, "store", options)
}
