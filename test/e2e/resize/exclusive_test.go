//go:build e2e

package resize

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A pod gets a CPU of its own on cgroup v1: nobody else runs on it from the container's first instruction on, whoever comes,
// goes or is resized, and an agent that is killed and finds a broken checkpoint moves nothing.
func TestExclusiveCPU(t *testing.T) {
	b := at(t)
	all := b.allowed("")
	if all.Len() < 2 {
		t.Skip("needs two CPUs")
	}
	w := b.watch()
	shared := b.create("shared", container("c", "50m,16Mi", "100m,64Mi", "sleep", "infinity"))
	b.runsOn(shared, "c", all)

	own := w.create("own", container("own", "1,32Mi", "1,32Mi", "sleep", ownSleep), container("beside", "100m,16Mi", "100m,16Mi", "sleep", "infinity"))
	mine := b.allowedTo(own, "own")
	rest := all.Minus(mine)
	if mine.Len() != 1 {
		t.Fatalf("a container that asks for one CPU runs on %v", mine)
	}
	b.runsOn(own, "beside", rest)
	b.runsOn(shared, "c", rest)
	b.kernel(own, "own", map[string]int64{"cpu.cfs_quota_us": -1})
	b.kernel(own, "beside", map[string]int64{"cpu.cfs_quota_us": 10000})
	b.kernel(own, "", map[string]int64{"cpu.cfs_quota_us": -1})
	b.published(own, mine, rest)

	// Another one asks for more than is left: it is told what there is.
	b.refused("more", fmt.Sprintf("%d", all.Len()), "requested: ", "available: ")

	// The runtime does not write an old cpuset back with other resources, neither here nor there.
	b.resize("own", "beside", "100m,32Mi", "100m,32Mi")
	b.resized("own", "beside", "100m,32Mi", "100m,32Mi")
	b.resize("shared", "c", "60m,16Mi", "100m,64Mi")
	b.resized("shared", "c", "60m,16Mi", "100m,64Mi")
	b.runsOn(own, "beside", rest)
	b.runsOn(shared, "c", rest)

	was := b.first(own, "own")
	for _, file := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.WriteFile(filepath.Join(b.AgentRoot(), file), []byte(`{"policyName":"none","defaultCpuSet":"0-1023","entries":{`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.killAgent()
	rig.Eventually(t, soon, "the new agent serves", func(ctx context.Context) error { return b.serves(ctx) })
	late := b.create("late", container("c", "50m,16Mi", "100m,64Mi", "sleep", "infinity"))
	b.runsOn(late, "c", rest)
	b.runsOn(shared, "c", rest)
	b.runsOn(own, "own", mine)
	if now := b.first(own, "own"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}
	b.published(own, mine, rest)

	b.delete("own")
	for _, p := range []*corev1.Pod{shared, late} {
		rig.Eventually(t, soon, p.Name+" runs on all CPUs again", func(context.Context) error {
			if has := b.allowedTo(p, "c"); !has.Equal(all) {
				return fmt.Errorf("it runs on %v of %v", has, all)
			}
			return nil
		})
	}
	w.end()
}

// allowed returns the CPUs of a process, this one without a pid.
func (b bench) allowed(pid string) idset.Set {
	b.t.Helper()
	if pid == "" {
		pid = "self"
	}
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			cpus, err := idset.Parse(list)
			if err != nil {
				b.t.Fatal(err)
			}
			return cpus
		}
	}
	b.t.Fatalf("/proc/%s/status names no CPUs", pid)
	return idset.Set{}
}

func (b bench) allowedTo(p *corev1.Pod, container string) idset.Set {
	b.t.Helper()
	_, pid, _ := strings.Cut(b.first(p, container), " ")
	return b.allowed(pid)
}

func (b bench) runsOn(p *corev1.Pod, container string, want idset.Set) {
	b.t.Helper()
	if has := b.allowedTo(p, container); !has.Equal(want) {
		b.t.Errorf("%s/%s runs on CPUs %v, want %v", p.Name, container, has, want)
	}
}

// refused sends a Guaranteed pod past the scheduler.
func (b bench) refused(name, cpu string, texts ...string) {
	b.t.Helper()
	spec := corev1.PodSpec{NodeName: b.NodeName, Containers: []corev1.Container{container("c", cpu+",16Mi", cpu+",16Mi", "sleep", "infinity")}}
	if _, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	p := b.until(name, "refused", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
	if p.Status.Reason != "UnexpectedAdmissionError" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request") {
		b.t.Errorf("refused as %s: %s", p.Status.Reason, p.Status.Message)
	}
	b.t.Logf("refused: %s", p.Status.Message)
}

// published waits until the node's object says that the pod has those CPUs, and a scheduler that reads it would find the rest.
func (b bench) published(p *corev1.Pod, own, shared idset.Set) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "the node's topology is published", func(ctx context.Context) error {
		body, err := b.API.CoreV1().RESTClient().Get().AbsPath("/apis", topology.GroupVersion.String(), topology.Resource, b.NodeName).DoRaw(ctx)
		if err != nil {
			return err
		}
		object := &topology.Object{}
		if err := json.Unmarshal(body, object); err != nil {
			return err
		}
		node, err := topology.Decode(object, nil)
		if err != nil {
			return err
		}
		a, known := node.State.Assignment(string(p.UID))
		if !known || !node.State.SharedCPUs().Equal(shared) {
			return fmt.Errorf("it has %+v, shared %v", a, node.State.SharedCPUs())
		}
		for _, h := range a.Containers {
			if h.Container == "own" && h.CPUs.Equal(own) {
				return nil
			}
		}
		return fmt.Errorf("it has %+v", a)
	})
}

// watch looks all the time whether a container with CPUs of its own runs anywhere where another one may run.
func (b bench) watch() *watcher {
	w := &watcher{b: b, root: filepath.Join("/sys/fs/cgroup/cpuset", b.CgroupRoot()), owners: map[types.UID]bool{}, stop: make(chan struct{})}
	w.done.Go(func() {
		pace := time.NewTicker(time.Millisecond) // it shares the machine with what it watches
		defer pace.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-pace.C:
				w.look()
			}
		}
	})
	b.t.Cleanup(w.end)
	return w
}

type watcher struct {
	b    bench
	root string
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup

	looks, overlaps int

	mu     sync.Mutex
	owners map[types.UID]bool // pods whose container "own" has CPUs of its own
}

// create makes a pod of whose containers the first has CPUs of its own; it is watched before the agent knows of it.
func (w *watcher) create(name string, containers ...corev1.Container) *corev1.Pod {
	w.b.t.Helper()
	w.mu.Lock()
	grace := int64(1)
	p, err := w.b.API.CoreV1().Pods(w.b.ns).Create(w.b.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: containers}}, metav1.CreateOptions{})
	if err == nil {
		w.owners[p.UID] = true
	}
	w.mu.Unlock()
	if err != nil {
		w.b.t.Fatal(err)
	}
	return w.b.until(name, "Ready", func(p *corev1.Pod) error {
		if c := condition(p, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("phase %s, %+v", p.Status.Phase, c)
		}
		return nil
	})
}

// look compares once. What has CPUs of its own is read first, and again when something overlaps: only what was there before and
// after counts.
func (w *watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	own := map[string]idset.Set{}
	w.groups(func(dir string, owner bool, cpus idset.Set) {
		if owner {
			own[dir] = cpus
		}
	})
	if len(own) == 0 {
		return
	}
	w.groups(func(dir string, owner bool, cpus idset.Set) {
		for ownDir, ownCPUs := range own {
			if _, has := own[dir]; dir == ownDir || has || cpus.Intersect(ownCPUs).IsEmpty() {
				continue
			}
			if again, ok := groupCPUs(ownDir); ok && again.Equal(ownCPUs) {
				if w.overlaps++; w.overlaps > 3 {
					continue // it is the same over and over
				}
				w.b.t.Errorf("%s runs on %v, and %s has %v for itself", dir, cpus, ownDir, ownCPUs)
			}
		}
	})
}

// groups visits the groups of containers in which something runs. Of a pod that owns CPUs, the container that does is the one
// that sleeps for ownSleep.
func (w *watcher) groups(visit func(dir string, owner bool, cpus idset.Set)) {
	for _, pattern := range []string{"kubepods/pod*/*", "kubepods/*/pod*/*"} {
		dirs, err := filepath.Glob(filepath.Join(w.root, pattern))
		if err != nil {
			w.b.t.Error(err)
		}
		for _, dir := range dirs {
			cpus, runs := groupCPUs(dir)
			if !runs {
				continue
			}
			uid := types.UID(strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "pod"))
			visit(dir, w.owners[uid] && runsForever(dir), cpus)
		}
	}
}

// ownSleep tells the containers with CPUs of their own from others, by the first process's arguments.
const ownSleep = "86400s"

func runsForever(dir string) bool {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		return false
	}
	command, err := os.ReadFile("/proc/" + strings.Fields(string(procs))[0] + "/cmdline")
	return err == nil && strings.Contains(string(command), ownSleep)
}

// groupCPUs returns the CPUs of a group that has processes.
func groupCPUs(dir string) (idset.Set, bool) {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return idset.Set{}, false
	}
	text, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
	if err != nil {
		return idset.Set{}, false
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		return idset.Set{}, false
	}
	cpus, err := idset.Parse(string(text))
	return cpus, err == nil
}

func (w *watcher) end() {
	w.once.Do(func() {
		close(w.stop)
		w.done.Wait()
		w.b.t.Logf("looked %d times, %d overlaps", w.looks, w.overlaps)
	})
}
