package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const liveMount = "/sys/fs/cgroup"

// enterLive returns the machine's tree and a group of the test's own in it, which is removed when the test ends; or it
// skips.
func enterLive(t *testing.T) (*Tree, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	tree, err := Open(liveMount)
	if err != nil {
		t.Skipf("needs cgroups: %v", err)
	}
	group := fmt.Sprintf("/plimsoll-test-%d", os.Getpid())
	if err := tree.Apply(group, qos.Values{}); errors.Is(err, os.ErrPermission) {
		t.Skipf("needs writable cgroups: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(group); err != nil {
			t.Errorf("leave nothing behind: %v", err)
		}
	})
	return tree, group
}

func TestLiveApplyIsWhatTheKernelHolds(t *testing.T) {
	tree, root := enterLive(t)
	group := root + "/burstable/pod7"
	pod := qos.Pod{
		Containers: []qos.Container{
			{Resources: qos.Resources{Limits: qos.Amounts{CPU: unit.Of(unit.MilliCPU(500)), Memory: unit.Of(128 * unit.MiB)}}},
		},
	}
	v := qos.PodValues(pod, qos.Policy{CFSQuota: true, CFSPeriod: qos.CFSPeriodDefault, PodPIDs: 100})
	for range 2 {
		if err := tree.Apply(group, v); err != nil {
			t.Fatal(err)
		}
	}
	got, err := tree.Values(group)
	if err != nil {
		t.Fatal(err)
	}
	quota, _ := got.CPUQuota.Get()
	memory, _ := got.Memory.Get()
	if quota != 50*time.Millisecond || got.CPUPeriod != 100*time.Millisecond || memory != 134217728 {
		t.Errorf("kernel holds quota %v of %v and %d bytes, want 50ms of 100ms and 134217728", quota, got.CPUPeriod, memory)
	}
	if pids, ok := got.PIDs.Get(); tree.of["pids"] != nil && (!ok || pids != 100) {
		t.Errorf("kernel holds pids.max %v, want 100", got.PIDs)
	}
	if tree.Mode() != V2 && got.CPUShares.OrZero() != v.CPUShares.OrZero() {
		t.Errorf("kernel holds shares %v, want %v", got.CPUShares, v.CPUShares)
	}
	if !tree.Exists(group) || tree.Exists(root+"/besteffort") {
		t.Error("Exists is wrong")
	}
	if err := tree.Apply(group, qos.Values{CPUQuota: unit.Unlimited[time.Duration](), Memory: unit.Unlimited[unit.Bytes](),
		PIDs: unit.Unlimited[int64]()}); err != nil {
		t.Fatal(err)
	}
	if got, err = tree.Values(group); err != nil || !got.CPUQuota.IsUnlimited() || !got.Memory.IsUnlimited() {
		t.Errorf("after lifting: %+v, %v", got, err)
	}
}

func TestLiveUsageAndRemove(t *testing.T) {
	tree, root := enterLive(t)
	group := root + "/pod8"
	if err := tree.Apply(group+"/c1", qos.Values{}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, h := range tree.hierarchies {
		if h.passive {
			continue
		}
		if err := write(filepath.Join(h.dir, group, "c1", procsFile), fmt.Sprint(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	pids, err := tree.PIDs(group)
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	u, err := tree.Usage(group)
	if err != nil || !u.CPU.IsSet() || !u.Memory.IsSet() || u.WorkingSet.OrZero() > u.Memory.OrZero() {
		t.Errorf("usage %+v, %v", u, err)
	}
	if n, ok := u.PIDs.Get(); ok && n != 1 {
		t.Errorf("%d processes counted, want 1", n)
	}
	if err := tree.Remove(group); !errors.Is(err, ErrBusy) {
		t.Errorf("remove a busy group: %v, want %v", err, ErrBusy)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 2 { // the second time there is nothing to remove
		if err := tree.Remove(group); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if children, err := tree.Children(root); err != nil || len(children) != 0 {
		t.Errorf("left %v, %v", children, err)
	}
	if _, err := tree.Usage("/"); err != nil {
		t.Errorf("usage of the root: %v", err)
	}
}

func BenchmarkApplyAndRemove(b *testing.B) {
	tree, group := benchGroup(b)
	v := qos.PodValues(qos.Pod{Containers: []qos.Container{{}}}, qos.DefaultPolicy())
	for b.Loop() {
		if err := tree.Apply(group+"/burstable/pod1", v); err != nil {
			b.Fatal(err)
		}
		if err := tree.Remove(group + "/burstable/pod1"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUsage(b *testing.B) {
	tree, group := benchGroup(b)
	if err := tree.Apply(group, qos.Values{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tree.Usage(group); err != nil {
			b.Fatal(err)
		}
	}
}

// benchGroup opens this machine's tree and names a group of the benchmark's own in it, which is removed at the end.
func benchGroup(b *testing.B) (*Tree, string) {
	b.Helper()
	if os.Getuid() != 0 {
		b.Skip("needs root to create cgroups")
	}
	tree, err := Open(liveMount)
	if err != nil {
		b.Skip(err)
	}
	group := fmt.Sprintf("/plimsoll-bench-%d", os.Getpid())
	b.Cleanup(func() { _ = tree.Remove(group) })
	return tree, group
}

// TestLiveMove moves a process into a group and out of it again.
func TestLiveMove(t *testing.T) {
	tree, root := enterLive(t)
	one, other := root+"/one", root+"/other"
	for _, group := range []string{one, other} {
		if err := tree.Create(group); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	in := func(group string) bool {
		t.Helper()
		has, err := tree.Has(group, pid)
		if err != nil {
			t.Fatal(err)
		}
		return has
	}
	if in(one) || in(root+"/missing") {
		t.Error("a process is in a group that it was not moved into")
	}
	for i, group := range []string{one, other, other} {
		if err := tree.Move(group, pid); err != nil || in(one) != (i == 0) || in(other) != (i > 0) {
			t.Errorf("move %d: %v; in one: %v, in the other: %v", i, err, in(one), in(other))
		}
	}
	for _, bad := range []string{"/", "one", root + "/missing"} {
		if err := tree.Move(bad, pid); err == nil || !in(other) {
			t.Errorf("moved into %s", bad)
		}
	}
}
