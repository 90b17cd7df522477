//go:build e2e

package pods

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func TestSmoke(t *testing.T) {
	c := rig.Shared(t)
	ns := c.Namespace(t)
	t.Log(c.Kubectl(t, "run", "a", "-n", ns, "--image=plimsoll.dev/workload:dev", "--", "sleep", "infinity"))
	t.Log(c.Kubectl(t, "wait", "-n", ns, "pod/a", "--for=condition=Ready"))
	t.Log(c.Kubectl(t, "get", "pods", "-A", "-o", "wide"))
	t.Log(c.Kubectl(t, "get", "nodes", "-o", "wide"))
}
