package eviction

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
)

// all has, for every signal, a threshold that is met whatever is available.
func all() (out []eviction.Threshold) {
	for _, s := range allocatable.Signals() {
		out = append(out, eviction.Threshold{Signal: s, Value: allocatable.Threshold{Share: 1}})
	}
	return out
}

// A file system that does not exist has no signals: its thresholds are not evaluated, and no pod is evicted for them.
func TestASignalWithoutAFileSystemIsNotJudged(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	o := b.options(t.TempDir())
	gone := filepath.Join(t.TempDir(), "gone")
	for _, c := range []struct {
		node, images string
		want         []allocatable.Signal
	}{
		{gone, gone, nil},
		{o.NodeFS, gone, []allocatable.Signal{allocatable.NodeFSAvailable, allocatable.NodeFSInodesFree}},
		{o.NodeFS, "", []allocatable.Signal{allocatable.NodeFSAvailable, allocatable.NodeFSInodesFree}},
		{o.NodeFS, o.NodeFS, []allocatable.Signal{allocatable.NodeFSAvailable, allocatable.NodeFSInodesFree,
			allocatable.ImageFSAvailable, allocatable.ImageFSInodesFree, allocatable.ContainerFSAvailable,
			allocatable.ContainerFSInodesFree}},
	} {
		o.NodeFS, o.ImageFS = c.node, c.images
		g, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		var facts eviction.Facts
		g.observe(&facts, 1)
		seen := facts.Signals
		for _, s := range []allocatable.Signal{allocatable.MemoryAvailable, allocatable.AllocatableMemory,
			allocatable.PIDAvailable} {
			if _, ok := seen[s]; !ok {
				t.Errorf("nodefs %q, imagefs %q: %s was not read", c.node, c.images, s)
			}
			delete(seen, s)
		}
		for _, s := range c.want {
			if _, ok := seen[s]; !ok {
				t.Errorf("nodefs %q, imagefs %q: %s was not read", c.node, c.images, s)
			}
			delete(seen, s)
		}
		if len(seen) > 0 {
			t.Errorf("nodefs %q, imagefs %q: read %v, too", c.node, c.images, seen)
		}
	}
}

// On a node where nothing can be read except the memory of pods that have ended there is no victim, whatever the
// thresholds.
func TestNothingReadIsNoReasonToKill(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	o := b.options(t.TempDir(), all()...)
	o.NodeFS = filepath.Join(t.TempDir(), "gone")
	o.ImageFS = ""
	o.Group = "/plimsoll-no-such-group"
	b.pods = append(b.pods, podentry.Present{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
		Name: "ghost", UID: "ghost"}}})
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		g.check(t.Context(), nil)
	}
	g.recording.Wait() // before the journal is closed
	if v := b.victims(); len(v) != 0 {
		t.Errorf("evicted %v", v)
	}
}

// If the kernel never notifies, evictions are not late: the periodic checks find the shortage.
func TestThePollAloneIsInTime(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	g, err := New(b.options(t.TempDir(), hard(48*unit.MiB)))
	if err != nil {
		t.Fatal(err)
	}
	g.sources = func() []epoll.Source { return nil }
	b.run(g)
	b.pod("grower", 0, 128*unit.MiB, 60*unit.MiB)
	b.until("the grower is gone", func() bool { return !b.present("grower") })
	if v := b.victims(); len(v) != 1 || b.oomKills() != 0 {
		t.Errorf("evicted %v, killed by the kernel %d", v, b.oomKills())
	}
	if name, err := os.ReadFile("/proc/self/comm"); err != nil || strings.TrimSpace(string(name)) == "eviction" {
		t.Errorf("the thread's name became the process's: %s, %v", name, err)
	}
}
