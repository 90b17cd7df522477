package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// TestRemoveFinishesWhatWasBegun: a removal that failed half-way leaves the pod's cgroup in some hierarchies only, and
// the next removal must finish it.
func TestRemoveFinishesWhatWasBegun(t *testing.T) {
	g := testGroups(t)
	group := g.layout.Pod(qos.BestEffort, "u1")
	if err := g.tree.Apply(group, qos.Values{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range hierarchies(t, group)[1:] { // v2 has one hierarchy, so none can differ
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if uids, err := g.Pods(); err != nil || !slices.Equal(uids, []types.UID{"u1"}) {
		t.Errorf("pods with a group: %v, %v", uids, err)
	}
	for range 2 { // a second removal finds nothing to do
		if err := g.Remove(t.Context(), "u1"); err != nil {
			t.Error(err)
		}
	}
	if left := hierarchies(t, group); left != nil {
		t.Errorf("left: %v", left)
	}
	if uids, err := g.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("pods with a group: %v, %v", uids, err)
	}
}

// TestRemoveKillsWhatIsLeft: a runtime that was killed at the wrong moment may leave a process that it does not know.
func TestRemoveKillsWhatIsLeft(t *testing.T) {
	g := testGroups(t)
	group := g.layout.Pod(qos.BestEffort, "u1") + "/sandbox"
	if err := g.tree.Apply(group, qos.Values{}); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "infinity")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	t.Cleanup(func() { _ = stray.Process.Kill() }) // it has ended already if the test passes
	for _, dir := range hierarchies(t, group) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(stray.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Remove(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
	if left := hierarchies(t, filepath.Dir(group)); left != nil {
		t.Errorf("left: %v", left)
	}
}

// testGroups returns groups below a cgroup that belongs to the test.
func testGroups(t *testing.T) *groups {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil || tree.Require() != nil {
		t.Skipf("needs cgroups: %v, %v", err, tree.Require())
	}
	layout, err := qos.NewLayout(qos.Cgroupfs, fmt.Sprintf("/plimsoll-groups-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(layout.Node())
	t.Cleanup(func() {
		if err := tree.Remove(root); err != nil {
			t.Error(err)
		}
	})
	return &groups{tree: tree, layout: layout, assignments: nobodysAssignments(t, tree),
		holders: func() []*corev1.Pod { return nil }, created: map[types.UID]string{}, written: map[string]qos.Values{}}
}

// nobodysAssignments returns the assignments of a node on which nothing is assigned.
func nobodysAssignments(t *testing.T, tree *cgroup.Tree) *numa.Manager {
	t.Helper()
	m := machine.Machine{NUMANodes: []machine.NUMANode{{CPUs: idset.Of(0), Memory: unit.GiB}},
		NodeFS: machine.Filesystem{Capacity: unit.GiB}}
	k, err := numa.New(numa.Options{Node: "n", Machine: m.Complete(), Cgroups: tree, Metrics: metrics.New("n")})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// hierarchies returns the directories of a group.
func hierarchies(t *testing.T, group string) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		mounts, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, mount := range mounts {
			info, err := os.Lstat(mount + group)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if link, err := os.Readlink(mount); err == nil && link != "" {
				continue // cpu -> cpu,cpuacct: the same hierarchy again
			}
			if err == nil && info.IsDir() {
				dirs = append(dirs, mount+group)
			}
		}
	}
	return dirs
}
