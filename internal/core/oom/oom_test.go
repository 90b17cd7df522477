package oom

import (
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const at = unit.Wall(1_800_000_000_000_000_000)

func kill(pid int, group string) Kill {
	return Kill{
		PID:        pid,
		Command:    "hog",
		At:         at,
		Anon:       31 * unit.MiB,
		File:       unit.MiB,
		Group:      group,
		LimitGroup: "/kubepods/burstable/pod7-8",
		Used:       unit.Of(32 * unit.MiB),
		Limit:      unit.Of(32 * unit.MiB),
	}
}

func none(Container) (int64, bool) { return 0, false }

func known() *State {
	s := &State{}
	s.AddContainer(Container{ID: "c1", Name: "web", Pod: "7-8", PID: 100})
	s.AddContainer(Container{ID: "c2", Name: "side", Pod: "7-8", PID: 200})
	return s
}

func TestWhoseKill(t *testing.T) {
	for _, c := range []struct {
		name    string
		kill    Kill
		counter map[string]int64
		id      string
		first   bool
	}{
		{"the first process", kill(100, "/kubepods/burstable/pod7-8/c1"), nil, "c1", true},
		{"a child", kill(101, "/kubepods/burstable/pod7-8/c1"), nil, "c1", false},
		{"a child in a group of its own", kill(101, "/kubepods/burstable/pod7-8/c1/inner/job"), nil, "c1", false},
		{
			"driver systemd, containerd", kill(200, "/kubepods.slice/kubepods-pod7_8.slice/cri-containerd-c2.scope"), nil, "c2",
			true,
		},
		{"driver systemd, CRI-O", kill(201, "/kubepods.slice/kubepods-pod7_8.slice/crio-c2.scope"), nil, "c2", false},
		{"somebody else", kill(100, "/system.slice/ssh.service"), nil, "", false},
		{"no report, but the first process", kill(200, ""), nil, "c2", true},
		{"no report; a counter is ahead of what we know", kill(300, ""), map[string]int64{"c1": 0, "c2": 1}, "c2", false},
		{"no report, and no counter that knows more", kill(300, ""), map[string]int64{"c1": 0}, "", false},
	} {
		v := known().AddKill(c.kill, func(of Container) (int64, bool) { n, ok := c.counter[of.ID]; return n, ok })
		if v.Container.ID != c.id || v.First != c.first {
			t.Errorf("%s: container %q, first %v; want %q, %v", c.name, v.Container.ID, v.First, c.id, c.first)
		}
	}
}

func TestEnded(t *testing.T) {
	const ms = unit.Wall(time.Millisecond)
	for _, c := range []struct {
		name string
		kill Kill
		end  End
		want bool
	}{
		{"the first process", kill(100, "/k/c1"), End{"c1", 137, at + 20*ms}, true},
		{"the first process, and the runtime was slow to note it", kill(100, "/k/c1"), End{"c1", 137, at + 20_000*ms}, true},
		{"a supervisor that dies with its worker", kill(101, "/k/c1"), End{"c1", 137, at + 200*ms}, true},
		{"clocks that differ by a little", kill(101, "/k/c1"), End{"c1", 137, at - 2*ms}, true},
		{"stopped long after a child was taken", kill(101, "/k/c1"), End{"c1", 137, at + 5000*ms}, false},
		{"it gave up by itself", kill(101, "/k/c1"), End{"c1", 1, at + 20*ms}, false},
		{"another container", kill(101, "/k/c1"), End{"c2", 137, at + 20*ms}, false},
		{"a container that nobody knew yet", kill(900, "/k/c9"), End{"c9", 137, at + 20*ms}, true},
	} {
		s := known()
		s.AddKill(c.kill, none)
		if v, got := s.Ended(c.end); got != c.want || got && v.PID != c.kill.PID {
			t.Errorf("%s: %v (process %d), want %v", c.name, got, v.PID, c.want)
		}
	}
}

// When a whole group is killed, the first victim is named twice. Process ids are reused later.
func TestAgain(t *testing.T) {
	s := known()
	k := kill(101, "/k/c1")
	if s.AddKill(k, none).Again {
		t.Error("the first is called a repetition")
	}
	k.At += unit.Wall(time.Millisecond)
	if !s.AddKill(k, none).Again {
		t.Error("a repetition is not seen")
	}
	k.At += unit.Wall(time.Minute)
	if s.AddKill(k, none).Again {
		t.Error("another process of that number is called a repetition")
	}
}

// As seen on Linux 6.1: the process that was chosen and the container's first process are logged twice, the second time
// under the ids of other threads of theirs.
func TestAgainAsThread(t *testing.T) {
	s := known()
	for _, c := range []struct {
		pid    int
		mapped unit.Bytes
		whole  bool
		again  bool
	}{
		{658, 1469816, false, false}, {100, 1265016, true, false}, {667, 1469816, true, true}, {598, 1265016, true, true},
		{700, 1265016, false, false}, // a single process of that size
	} {
		k := kill(c.pid, "/k/c1")
		k.Mapped = c.mapped * unit.KiB
		if c.whole {
			k.Whole = k.Group
		}
		if v := s.AddKill(k, none); v.Again != c.again {
			t.Errorf("%d: again %v, want %v", c.pid, v.Again, c.again)
		}
	}
	k := kill(900, "/k/c2")
	k.Mapped, k.Whole = 1469816*unit.KiB, k.Group
	if s.AddKill(k, none).Again {
		t.Error("a process of another container is called a repetition")
	}
}

// A container that is killed as a whole ended because of the process that the kernel chose, or if that is not known
// because of the one with the most memory; not because of the last one killed.
func TestEndedAsAWhole(t *testing.T) {
	large, small, chosen := kill(101, "/k/c1"), kill(100, "/k/c1"), kill(102, "/k/c1")
	small.Anon, small.File = unit.MiB, 0
	chosen.Anon = 2 * unit.MiB
	large.Whole, small.Whole = large.Group, small.Group
	for _, c := range []struct {
		kills []Kill
		want  int
	}{{[]Kill{large, small}, 101}, {[]Kill{chosen, large, small}, 102}, {[]Kill{large, chosen, small}, 102}} {
		s := known()
		for _, k := range c.kills {
			s.AddKill(k, none)
		}
		if v, killed := s.Ended(End{ID: "c1", Code: 137, Finished: at}); !killed || v.PID != c.want || v.First {
			t.Errorf("killed %v: %+v; want %d", killed, v, c.want)
		}
	}
}

// A process that was found outside of the group that was killed as a whole died for another limit.
func TestIn(t *testing.T) {
	whole := kill(101, "/k/c1")
	whole.Whole = "/k/c1"
	for group, same := range map[string]bool{"/k/c1": true, "/k/c1/job": true, "/k/c10": false, "/k/c2": false} {
		k := whole.In(group)
		if _, known := k.Limit.Get(); k.Group != group || known != same || (k.Whole != "") != same {
			t.Errorf("%s: %+v", group, k)
		}
	}
}

// A new agent reads the log before it knows the containers.
func TestKillsOfBefore(t *testing.T) {
	s := &State{}
	s.AddKill(kill(101, "/k/c1"), none)
	s.AddKill(kill(201, "/k/c2"), none)
	if s.HasContainer("c1") || len(s.Kills("c1")) != 0 {
		t.Error("it knows a container that nobody told it of")
	}
	s.AddContainer(Container{ID: "c1", Name: "web", PID: 100})
	if got := s.Kills("c1"); len(got) != 1 || got[0].PID != 101 || got[0].Container.Name != "web" || got[0].First {
		t.Errorf("%+v", got)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	s := known()
	for i := range 10 * killsMax {
		s.AddKill(kill(1000+i, "/k/c1"), none)
	}
	if len(s.kills) != killsMax {
		t.Errorf("%d kills are remembered, want %d", len(s.kills), killsMax)
	}
	s.DropContainer("c1")
	if len(s.kills) != 0 || len(s.containers) != 1 || len(s.counted) != 0 {
		t.Errorf("after the container: %d kills, %d containers, %d counters", len(s.kills), len(s.containers), len(s.counted))
	}
}

func TestText(t *testing.T) {
	const held = " was killed by the kernel, which was out of memory: it held 32Mi (anonymous 31Mi, files 1Mi, shared 0)"
	child := kill(101, "/kubepods/burstable/pod7-8/c1")
	own := child
	own.LimitGroup = "/kubepods/burstable/pod7-8/c1"
	system := child
	system.LimitGroup, system.Used, system.Limit = "/", unit.Amount[unit.Bytes]{}, unit.Amount[unit.Bytes]{}
	tier := child
	tier.LimitGroup = "/kubepods"
	slice := child
	slice.LimitGroup = "/kubepods.slice/kubepods-pod7_8.slice"
	bare := kill(100, "")
	bare.LimitGroup, bare.Used, bare.Limit = "", unit.Amount[unit.Bytes]{}, unit.Amount[unit.Bytes]{}
	for _, c := range []struct {
		kill Kill
		want string
	}{
		{child, "Process 101 (hog) of container web" + held + "; 32Mi of the pod's limit (32Mi) were in use"},
		{slice, "Process 101 (hog) of container web" + held + "; 32Mi of the pod's limit (32Mi) were in use"},
		{own, "Process 101 (hog) of container web" + held + "; 32Mi of the container's limit (32Mi) were in use"},
		{system, "Process 101 (hog) of container web" + held + "; the memory of the machine was used up"},
		{tier, "Process 101 (hog) of container web" + held + "; 32Mi of the limit of cgroup /kubepods (32Mi) were in use"},
		{bare, "Process 100 (hog), the first of container web," + held +
			"; a limit that the kernel did not name was used up"},
	} {
		if got := known().AddKill(c.kill, none).Text(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	if got := system.SystemText(); got != "System OOM encountered, victim process: hog, pid: 101" {
		t.Error(got)
	}
	if strings.Contains(child.SystemText(), "container") {
		t.Error("upstream's text has no more")
	}
}
