//go:build e2e

package rig

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// While more processes want the CPUs than there are, less time counts than passes. The kernel adds up what it reports
// every two seconds.
func TestClockOfBusyMachine(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil {
		t.Skip("this kernel reports no pressure")
	}
	for range 3 * runtime.NumCPU() {
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer busy.Wait()
		defer busy.Process.Kill()
	}
	c := StartClock()
	time.Sleep(6 * time.Second)
	elapsed, counted := c.Elapsed(), c.Counted()
	if counted > elapsed/2 {
		t.Errorf("%v counted of %v", counted, elapsed)
	}
}
