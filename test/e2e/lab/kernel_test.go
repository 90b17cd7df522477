//go:build e2e && lab

package lab

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/lab"
)

// onKernel are packages and those of their tests that need kernel features. In a guest they must run and not be
// skipped: cgroup v2, pressure stall information and project quota, which many machines lack.
var onKernel = []struct{ pkg, must string }{
	{"host/cgroup",
		"TestLiveKillEndsAForkBomb TestLiveApplyIsWhatTheKernelHolds TestLiveLimitNotifies TestLiveReclaim " +
			"TestKillWhatIsGone"},
	{"host/psi", "TestTriggerOnThisKernel"},
	{"host/epoll", "TestWaitReturnsNotifications"},
	{"host/process", "TestLockMemory"},
	{"host/quota", "TestCounts"},
	{"agent/stats", "TestVolumeByQuota"},
	{"agent/eviction",
		"TestTheGrowerGoesBeforeTheKernelKills TestPageCacheEvictsNobodyWhereItCountsAsAvailable " +
			"TestAHardThresholdDoesNotWaitForASoftEviction TestAGroupThatVanishesIsNoReasonToKill TestThePollAloneIsInTime"},
}

// kernelTestsMax bounds one package's tests, of which the guest itself ends those that take five minutes. Chosen: if
// the guest hangs, only this test fails.
const kernelTestsMax = 10 * time.Minute

// TestOnAnotherKernel runs these tests on a kernel that has what this machine's may lack.
func TestOnAnotherKernel(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", dir+"/")
	for _, p := range onKernel {
		build.Args = append(build.Args, "./internal/"+p.pkg)
	}
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tests: %v: %s", err, out)
	}
	g := lab.Boot(t, "tiny", lab.Options{Name: "kernel"})
	g.Run(t, "sh", "-c", "modprobe loop; modprobe quota_v2; true")
	hangs := false
	for _, p := range onKernel {
		if hangs {
			t.Fatalf("the guest did not answer in time: the tests from %s on are not run", p.pkg)
		}
		t.Run(p.pkg, func(t *testing.T) {
			name := path.Base(p.pkg) + ".test"
			g.CopyIn(t, filepath.Join(dir, name), "/tmp/"+name)
			ctx, cancel := context.WithTimeout(t.Context(), kernelTestsMax)
			defer cancel()
			out, err := g.Output(ctx, "sh", "-c",
				`mkdir -p /var/lib/tests && cd /tmp && TMPDIR=/var/lib/tests "./$0" -test.v -test.timeout 5m -test.run "^($1)$" 2>&1`, name, strings.ReplaceAll(p.must, " ", "|"))
			hangs = ctx.Err() != nil
			for _, test := range strings.Fields(p.must) {
				if !strings.Contains(out, "--- PASS: "+test+" ") {
					t.Errorf("%s has not passed", test)
				}
			}
			if err != nil || t.Failed() {
				t.Errorf("%v\n%s", err, out)
				return
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "SIGKILL to") || strings.Contains(line, "released") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}
