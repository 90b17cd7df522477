package oomwatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/oom"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/kmsg"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestMemoryGroup(t *testing.T) {
	for content, want := range map[string]string{
		"12:pids:/a\n5:memory:/kubepods/pod1/c1\n0::/\n":         "/kubepods/pod1/c1",
		"4:cpu,cpuacct:/x\n3:memory,hugetlb:/y\n":                "/y",
		"0::/kubepods.slice/cri-containerd-c1.scope (deleted)\n": "/kubepods.slice/cri-containerd-c1.scope",
		"5:memory:/\n0::/\n":                                     "", // it is exiting
		"5:memory:/with:colon\n":                                 "/with:colon",
		"":                                                       "",
		"garbage":                                                "",
	} {
		if got := memoryGroup(content); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}

// TestFound: a kill without a report of its own gets its cgroup and its process from /proc, if they are still there.
func TestFound(t *testing.T) {
	proc := t.TempDir()
	for _, p := range []struct{ id, group, status string }{
		{"7", "0::/k/c1\n", "Name:\thog\nTgid:\t5\nPid:\t7\n"},
		{"8", "0::/k/c2 (deleted)\n", "Tgid:\t8\n"},
		{"9", "5:memory:/\n", "Tgid:\tnone\n"},
	} {
		for name, text := range map[string]string{"cgroup": p.group, "status": p.status} {
			file := filepath.Join(proc, p.id, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name      string
		kill      oom.Kill
		wantPID   int
		wantGroup string
		whole     bool
	}{
		{"without a report", oom.Kill{PID: 8}, 8, "/k/c2", false},
		{"a thread of the whole", oom.Kill{PID: 7, Group: "/k/c1", Whole: "/k/c1"}, 5, "/k/c1", true},
		{"of another group", oom.Kill{PID: 8, Group: "/k/c1", Whole: "/k/c1"}, 8, "/k/c2", false},
		{"it has left its cgroup", oom.Kill{PID: 9, Group: "/k/c1", Whole: "/k/c1"}, 9, "/k/c1", true},
		{"it is gone", oom.Kill{PID: 10, Group: "/k/c1", Whole: "/k/c1"}, 10, "/k/c1", true},
		{"with a report", oom.Kill{PID: 7, Group: "/k/c9"}, 7, "/k/c9", false},
	} {
		got := found(proc, c.kill)
		if got.PID != c.wantPID || got.Group != c.wantGroup || (got.Whole != "") != c.whole {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func FuzzMemoryGroup(f *testing.F) {
	cost.Attack(f, "5:memory:/kubepods/pod1/c1\n0::/\n")
	f.Fuzz(func(t *testing.T, content string) {
		defer cost.Spend(t, len(content))()
		if got := memoryGroup(content); strings.Contains(got, "\n") {
			t.Fatalf("%q", got)
		}
	})
}

// onePod is the only pod of its node.
type onePod struct{ pod *corev1.Pod }

func (o onePod) Pod(uid types.UID) *corev1.Pod {
	if uid != o.pod.UID {
		return nil
	}
	return o.pod
}

func (onePod) Killed(*corev1.Pod, string) (int64, error) { return 0, errors.New("not counted") }

// testWatch has one pod, and knows of a container c1 whose first process is 100.
func testWatch(t *testing.T) (*Watch, *record.FakeRecorder) {
	t.Helper()
	recorder := record.NewFakeRecorder(10)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	w := &Watch{
		node: "n1", pods: onePod{pod}, recorder: recorder, begun: unit.WallOf(time.Now().Add(-time.Minute)),
		counts: map[string]int64{},
	}
	w.Know("uid-1", podlife.Container{ID: "c1", Name: "c", State: podlife.Running}, 100)
	return w, recorder
}

func said(r *record.FakeRecorder) string {
	select {
	case e := <-r.Events:
		return e
	default:
		return ""
	}
}

// play reports a kill that happens now, as the kernel does. The parser has its own tests.
func (w *Watch) play(constraint, how string, pid int) {
	since := unit.WallOf(time.Now()).Sub(kmsg.Record{}.Wall()) // boot
	for i, text := range []string{
		"hog invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999",
		"memory: usage 32768kB, limit 32768kB, failcnt 32",
		fmt.Sprintf("oom-kill:constraint=%s,task=hog,pid=%d,uid=0", constraint, pid),
		fmt.Sprintf("%s: Killed process %d (hog) total-vm:1kB, anon-rss:1024kB, file-rss:0kB, shmem-rss:0kB, UID:0 "+
			"pgtables:4kB oom_score_adj:999", how, pid),
	} {
		w.record(kmsg.Record{Sequence: uint64(i), Since: since, Text: text})
	}
}

func TestOOMIsTold(t *testing.T) {
	w, recorder := testWatch(t)
	const inContainer = "CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/k/c1,task_memcg=/k/c1"
	w.play(inContainer, "Memory cgroup out of memory", 101)
	if got := said(recorder); !strings.HasPrefix(got, "Warning OOMKilled Process 101 (hog) of container c was killed") ||
		!strings.Contains(got, "32Mi of the container's limit (32Mi)") {
		t.Errorf("a child: %q", got)
	}
	w.play(inContainer, "Memory cgroup out of memory", 100)
	if got := said(recorder); !strings.Contains(got, "Process 100 (hog), the first of container c,") {
		t.Errorf("the first process: %q", got)
	}
	w.play("CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/k/c1", "Out of memory", 102)
	if got := said(recorder); got != "Warning SystemOOM System OOM encountered, victim process: hog, pid: 102" {
		t.Errorf("the machine: %q", got)
	}
	if got := said(recorder); !strings.Contains(got, "the memory of the machine was used up") {
		t.Errorf("the machine, to the pod: %q", got)
	}
	w.play("CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/other,task_memcg=/other",
		"Memory cgroup out of memory", 103)
	if got := said(recorder); got != "" {
		t.Errorf("somebody else's: %q", got)
	}
	w.begun = unit.WallOf(time.Now().Add(time.Hour))
	w.play(inContainer, "Memory cgroup out of memory", 104)
	if got := said(recorder); got != "" {
		t.Errorf("of before this agent: %q", got)
	}
}

// A kill from before the agent's start is reported when its container is adopted, with the Event name that every agent
// uses. A kill of long ago is not reported.
func TestOOMOfBeforeIsTold(t *testing.T) {
	w, recorder := testWatch(t)
	log := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.log, err = kmsg.Open(log, w.record); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    string
		begun time.Duration
		told  bool
	}{{"c2", time.Minute, true}, {"c3", 2 * time.Hour, false}} {
		w.begun = unit.WallOf(time.Now().Add(c.begun))
		w.play("CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/k/"+c.id+",task_memcg=/k/"+c.id,
			"Memory cgroup out of memory", 300)
		if got := said(recorder); got != "" {
			t.Errorf("%s: told before anybody knows whose it is: %q", c.id, got)
		}
		w.Know("uid-1", podlife.Container{ID: c.id, Name: "c", State: podlife.Running}, 299)
		if got := said(recorder); strings.Contains(got, "Process 300 (hog) of container c") != c.told ||
			c.told && !strings.Contains(got, "plimsoll.dev/once:oom-") {
			t.Errorf("%s: %q", c.id, got)
		}
		w.Know("uid-1", podlife.Container{ID: c.id, Name: "c", State: podlife.Running}, 299)
		if got := said(recorder); got != "" {
			t.Errorf("%s: told again: %q", c.id, got)
		}
		w.Drop(c.id)
	}
}

func TestOOMExplainsAnEnd(t *testing.T) {
	w, _ := testWatch(t)
	log := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.play("CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/k/c1,task_memcg=/k/c1",
		"Memory cgroup out of memory", 100)
	ended := podlife.Container{ID: "c1", Name: "c", State: podlife.Exited, ExitCode: 137, Reason: "Error",
		FinishedAt: unit.WallOf(time.Now())}
	if got := w.Explain(ended); got != ended {
		t.Errorf("without a log, the runtime's word stands: %+v", got)
	}
	var err error
	if w.log, err = kmsg.Open(log, w.record); err != nil { // its end is an error that is only logged
		t.Fatal(err)
	}
	got := w.Explain(ended)
	if got.Reason != "OOMKilled" || !strings.Contains(got.Message, "the first of container c, was killed by the kernel") {
		t.Errorf("%+v", got)
	}
	ended.Message = "my last words"
	if got := w.Explain(ended); got.Reason != "OOMKilled" || got.Message != "my last words" {
		t.Errorf("the container's own words: %+v", got)
	}
	ended.ExitCode = 1
	if got := w.Explain(ended); got != ended {
		t.Errorf("not killed: %+v", got)
	}
}
