//go:build e2e && lab

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestProjectQuota runs the tests of project quota on a kernel that has it: many, like this machine's, have not.
func TestProjectQuota(t *testing.T) {
	g := lab.Boot(t, "tiny", lab.Options{Name: "quota"})
	for _, of := range []struct{ name, pkg, run string }{{"quota", "internal/host/quota", "TestCounts"}, {"stats", "internal/agent/stats", "TestVolumeByQuota"}} {
		binary := filepath.Join(t.TempDir(), of.name+".test")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "./"+of.pkg)
		build.Dir = "../../.."
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v: %s", of.pkg, err, out)
		}
		g.CopyIn(t, binary, "/tmp/"+of.name+".test")
		g.Run(t, "sh", "-c", "modprobe loop; modprobe quota_v2; true")
		out := g.Run(t, "sh", "-c", "chmod +x /tmp/"+of.name+".test; cd /tmp; TMPDIR=/tmp /tmp/"+of.name+".test -test.v -test.run '^"+of.run+"$'")
		if !strings.Contains(out, "--- PASS: "+of.run) {
			t.Errorf("%s:\n%s", of.pkg, out)
		}
	}
}
