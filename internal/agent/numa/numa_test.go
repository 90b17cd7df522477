package numa

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// kernel stands for the cgroups: where each pod's cgroup may run.
type kernel struct {
	mu     sync.Mutex
	groups map[string][2]idset.Set // own, rest
	fails  map[string]bool
	writes int
	mems   idset.Set // of every group
}

func (k *kernel) Confine(group string, own, rest idset.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails[group] {
		return errors.New("the kernel says no")
	}
	if rest.IsEmpty() {
		return fmt.Errorf("%s: shared containers would run nowhere", group)
	}
	k.writes++
	k.groups[group] = [2]idset.Set{own, rest}
	return nil
}

func (k *kernel) CPUs(group string) (idset.Set, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.groups[group]
	return g[0].Union(g[1]), nil
}

func (k *kernel) MemoryNodes(string) (idset.Set, error) { return k.mems, nil }

func sixteen() machine.Machine {
	m := machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.GiB}}
	for n := range 2 {
		node := machine.NUMANode{ID: machine.NUMAID(n), Memory: 8 * unit.GiB}
		for cpu := range 8 {
			node.CPUs = node.CPUs.Union(idset.Of(n*8 + cpu))
		}
		m.NUMANodes = append(m.NUMANodes, node)
	}
	return m.Complete()
}

var static = numa.Config{
	CPU:      numa.CPUConfig{Static: true, Reserved: idset.Of(0), ReservedCount: 1},
	Memory:   numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
	Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode},
}

func keeper(t *testing.T, c numa.Config, cgroups *kernel) *Manager {
	t.Helper()
	k, err := New(Options{Node: "n", Machine: sixteen(), Config: c, Cgroups: cgroups, Metrics: metrics.New("n")})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newKernel() *kernel { return &kernel{groups: map[string][2]idset.Set{}, fails: map[string]bool{}} }

func pod(uid string, cpus ...int) numa.Pod {
	p := numa.Pod{UID: uid, Guaranteed: true}
	for i, n := range cpus {
		p.Containers = append(p.Containers, numa.Container{Name: fmt.Sprintf("c%d", i), CPU: unit.MilliCPU(n) * unit.CPU,
			Memory: []numa.MemoryRequest{{Bytes: unit.GiB}}})
	}
	return p
}

func fits() bool { return true }

// admitWithPlugins admits a pod as its pod worker does: plugins are asked in between.
func (k *Manager) admitWithPlugins(t *testing.T, p numa.Pod, fits func() bool) *numa.Rejection {
	t.Helper()
	for {
		rejection, asks := k.Admit(p, fits)
		if !asks {
			return rejection
		}
		if rejection := k.Consult(t.Context(), p.UID); rejection != nil {
			return rejection
		}
	}
}

func (k *Manager) mustAdmit(t *testing.T, p numa.Pod) {
	t.Helper()
	if r := k.admitWithPlugins(t, p, fits); r != nil {
		t.Fatal(r.Message())
	}
	if err := k.Place(p.UID, "/"+p.UID); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, k *Manager, pod, container string) *runtimeapi.LinuxContainerResources {
	t.Helper()
	r := &runtimeapi.LinuxContainerResources{}
	done, err := k.Start(pod, container, r)
	if err != nil {
		t.Fatal(err)
	}
	done()
	return r
}

// The requests to the runtime and the writes to cgroups, from a pod's admission to its end.
func TestLife(t *testing.T) {
	cgroups := newKernel()
	k := keeper(t, static, cgroups)
	shared := numa.Pod{UID: "shared", Containers: []numa.Container{{Name: "c", CPU: 100}}}
	k.mustAdmit(t, shared)
	mixed := pod("mixed", 2, 0)
	mixed.Containers[1].CPU = 500
	k.mustAdmit(t, mixed)

	own := start(t, k, "mixed", "c0")
	if own.CpusetCpus != "1-2" || own.CpusetMems != "0" {
		t.Errorf("c0 is told cpus %q mems %q", own.CpusetCpus, own.CpusetMems)
	}
	if r := start(t, k, "mixed", "c1"); r.CpusetCpus != "0,3-15" || r.CpusetMems != "0" {
		t.Errorf("c1 is told cpus %q mems %q", r.CpusetCpus, r.CpusetMems)
	}
	if r := start(t, k, "shared", "c"); r.CpusetCpus != "" || r.CpusetMems != "" {
		t.Errorf("a shared container is told cpus %q mems %q: it follows its pod's group", r.CpusetCpus, r.CpusetMems)
	}
	want := map[string]string{"/shared": "[ 0,3-15]", "/mixed": "[1-2 0,3-15]"}
	if got := cgroups.text(); !maps.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if !k.Exclusive("mixed", "") || !k.Exclusive("mixed", "c0") || k.Exclusive("mixed", "c1") ||
		k.Exclusive("shared", "") {
		t.Error("the quota is lifted from the wrong ones")
	}
	update := &runtimeapi.LinuxContainerResources{}
	k.Update("mixed", "c1", update)()
	if update.CpusetCpus != "0,3-15" {
		t.Errorf("an update of c1 has cpus %q", update.CpusetCpus)
	}
	k.Release("mixed")
	if got := cgroups.text(); got["/shared"] != "[ 0-15]" || got["/mixed"] != "[ 0-15]" {
		t.Errorf("after the release: %v", got)
	}
}

func (k *kernel) text() map[string]string {
	out := map[string]string{}
	for group, sets := range k.groups {
		out[group] = fmt.Sprint(sets)
	}
	return out
}

// A container must not start on CPUs that another container may still use.
func TestNoStartWithoutRoom(t *testing.T) {
	cgroups := newKernel()
	k := keeper(t, static, cgroups)
	k.mustAdmit(t, numa.Pod{UID: "shared", Containers: []numa.Container{{Name: "c"}}})
	cgroups.fails["/shared"] = true
	k.mustAdmit(t, pod("own", 2))
	if _, err := k.Start("own", "c0", &runtimeapi.LinuxContainerResources{}); err == nil ||
		!strings.Contains(err.Error(), "remove other containers from CPUs 1-2: the kernel says no") {
		t.Errorf("it starts: %v", err)
	}
	cgroups.fails["/shared"] = false
	start(t, k, "own", "c0")
	if got := cgroups.text()["/shared"]; got != "[ 0,3-15]" {
		t.Errorf("shared runs on %s", got)
	}
}

// A pod that is rejected by the sum of its requests has nothing assigned. A pod whose assignment fails gets the reason.
func TestRejections(t *testing.T) {
	k := keeper(t, static, newKernel())
	if r := k.admitWithPlugins(t, pod("a", 2), func() bool { return false }); r != nil {
		t.Errorf("rejected: %s", r.Message())
	}
	if _, has := k.Assignment("a"); has {
		t.Error("a pod that does not fit got CPUs")
	}
	r := k.admitWithPlugins(t, pod("b", 9), fits)
	if r == nil || r.Reason != numa.TopologyAffinity || !strings.Contains(r.Message(), "cpu 7 of 8") {
		t.Errorf("%+v", r)
	}
	k.Prefers = func(context.Context, numa.Question) ([]string, error) { return nil, errors.New("rpc failed") }
	k.SetPlugin(numa.Plugin{Resource: "example.com/gpu", Prefers: true, Devices: []numa.Device{{ID: "g0", Healthy: true},
		{ID: "g1", Healthy: true}}})
	p := pod("c", 1)
	p.Containers[0].Devices = []numa.DeviceRequest{{Resource: "example.com/gpu", Count: 1}}
	if r := k.admitWithPlugins(t, p, fits); r == nil || r.Reason != numa.UnexpectedAdmission ||
		!strings.Contains(r.Message(), "rpc failed") {
		t.Errorf("%+v", r)
	}
	k.Prefers = func(_ context.Context, q numa.Question) ([]string, error) { return q.Available[1:], nil }
	if r := k.admitWithPlugins(t, p, fits); r != nil {
		t.Fatal(r.Message())
	}
	if a, _ := k.Assignment("c"); fmt.Sprint(a.Containers[0].Devices) != "[{example.com/gpu [g1]}]" {
		t.Errorf("devices %v", a.Containers[0].Devices)
	}
}

// While a plugin is asked about one pod, another pod takes the devices that the first was offered: no device is
// assigned twice.
func TestOpinionThatComesLate(t *testing.T) {
	k := keeper(t, static, newKernel())
	k.SetPlugin(numa.Plugin{Resource: "example.com/gpu", Prefers: true, Devices: []numa.Device{{ID: "g0", Healthy: true},
		{ID: "g1", Healthy: true}}})
	one := func(uid string) numa.Pod {
		p := pod(uid, 1)
		p.Containers[0].Devices = []numa.DeviceRequest{{Resource: "example.com/gpu", Count: 1}}
		return p
	}
	thinks, goes := make(chan struct{}), make(chan struct{})
	k.Prefers = func(_ context.Context, q numa.Question) ([]string, error) {
		if slices.Equal(q.Available, []string{"g0", "g1"}) {
			close(thinks)
			<-goes
		}
		return []string{"g0"}, nil
	}
	if rejection, asks := k.Admit(one("late"), fits); rejection != nil || !asks {
		t.Fatalf("%+v, asks %v", rejection, asks)
	}
	answered := make(chan *numa.Rejection)
	go func() { answered <- k.Consult(t.Context(), "late") }()
	<-thinks
	quick := one("quick")
	k.consulted["quick"] = consultation{answers: numa.Answers{{Container: "c0", Resource: "example.com/gpu"}: {"g0"}}}
	if r := k.admitWithPlugins(t, quick, fits); r != nil {
		t.Fatalf("it waits for the other's plugin: %s", r.Message())
	}
	close(goes)
	if r := <-answered; r != nil {
		t.Fatal(r.Message())
	}
	if r := k.admitWithPlugins(t, one("late"), fits); r != nil {
		t.Fatal(r.Message())
	}
	a, _ := k.Assignment("late")
	b, _ := k.Assignment("quick")
	if got := fmt.Sprint(a.Containers[0].Devices,
		b.Containers[0].Devices); got != "[{example.com/gpu [g1]}] [{example.com/gpu [g0]}]" {
		t.Errorf("devices of both: %s", got)
	}
	if len(k.consulted) != 0 {
		t.Errorf("kept: %v", k.consulted)
	}
}

// Long random histories with agents that die: nothing is assigned twice, the cgroups' cpusets never overlap, and the
// next agent knows the assignments of the one before, whatever the configuration has become.
func TestHistories(t *testing.T) {
	const seed, histories, steps = 5, 40, 80
	configs := []numa.Config{static, {}, static, static}
	configs[2].CPU.StrictReservation = true
	configs[2].Topology.Policy = numa.PolicyBestEffort
	configs[3].CPU.Reserved, configs[3].CPU.ReservedCount = idset.Of(0, 1, 8, 9), 4
	for i := range histories {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		cgroups := newKernel()
		k := keeper(t, static, cgroups)
		live := map[string]Remains{}
		for step := range steps {
			uid := fmt.Sprintf("p%d", step)
			switch n := rng.IntN(10); {
			case n < 5:
				p := pod(uid, 1+rng.IntN(4), rng.IntN(2))
				p.Guaranteed = rng.IntN(3) > 0
				if k.admitWithPlugins(t, p, fits) != nil {
					break
				}
				if err := k.Place(uid, "/"+uid); err != nil {
					t.Fatal(err)
				}
				running := map[string]string{}
				for _, c := range p.Containers {
					start(t, k, uid, c.Name)
					running[c.Name] = "/" + uid + "/" + c.Name
				}
				live[uid] = Remains{Pod: uid, Group: "/" + uid, Note: k.Note(uid), Ready: true, Created: int64(step),
					Running: running}
			case n < 8 && len(live) > 0:
				uid := slices.Sorted(maps.Keys(live))[rng.IntN(len(live))]
				delete(live, uid)
				k.Release(uid)
				delete(cgroups.groups, "/"+uid)
				k.Gone(uid)
			default:
				k = keeper(t, configs[rng.IntN(len(configs))], cgroups)
				k.Recover(slices.Collect(maps.Values(live)))
			}
			if err := disjoint(cgroups, live); err != nil {
				t.Fatalf("seed %d history %d step %d: %v", seed, i, step, err)
			}
		}
	}
}

// disjoint compares what was assigned, by the notes that the runtime keeps, with the cpusets of the cgroups.
func disjoint(cgroups *kernel, live map[string]Remains) error {
	for uid, r := range live {
		if r.Note == "" {
			continue
		}
		own := idset.Set{}
		a, err := topology.DecodePod(r.Note)
		if err != nil {
			return err
		}
		own = cpusOf(a)
		for other := range live {
			g := cgroups.groups["/"+other]
			if both := g[1].Intersect(own); !both.IsEmpty() {
				return fmt.Errorf("shared containers of %s run on %v, which are %s's", other, both, uid)
			}
			if both := g[0].Intersect(own); other != uid && !both.IsEmpty() {
				return fmt.Errorf("%v are both %s's and %s's", both, other, uid)
			}
		}
	}
	return nil
}

// What an earlier agent left, in all the ways in which it can be wrong.
func TestRecover(t *testing.T) {
	const note = `{"uid":"a","containers":[{"name":"c0","cpus":"1-2","memory":[{"nodes":[0],"bytes":1073741824}]}]}`
	running := map[string]string{"c0": "/a/c0"}
	for _, c := range []struct {
		name    string
		config  numa.Config
		remains Remains
		own     string // in the State
		shared  string
		anew    bool
	}{
		{"as it was", static, Remains{Pod: "a", Note: note, Running: running}, "1-2", "0,3-15", false},
		{"another policy", numa.Config{}, Remains{Pod: "a", Note: note, Running: running}, "1-2", "0,3-15", false},
		{"reserved meanwhile", numa.Config{CPU: numa.CPUConfig{Static: true, Reserved: idset.Of(0, 1), ReservedCount: 2}},
			Remains{Pod: "a", Note: note, Running: running}, "2", "0,3-15", false},
		{"offline meanwhile", static, Remains{Pod: "a", Note: strings.Replace(note, "1-2", "2,99", 1), Running: running}, "2",
			"0-1,3-15", false},
		{"offline while nothing ran", static, Remains{Pod: "a", Ready: true, Note: strings.Replace(note, "1-2", "2,99", 1)},
			"", "0-15", true},
		{"between two starts", static, Remains{Pod: "a", Ready: true, Note: note}, "1-2", "0,3-15", false},
		{"after a boot", static, Remains{Pod: "a", Booted: true, Note: note}, "1-2", "0,3-15", false},
		{"ended", static, Remains{Pod: "a", Note: note}, "", "0-15", true},
		{"more memory than there is", static, Remains{Pod: "a", Note: strings.Replace(note, "1073741824", "99073741824", 1),
			Running: running}, "1-2", "0,3-15", false},
		{"a node that is gone", static, Remains{Pod: "a", Note: strings.Replace(note, `"nodes":[0]`, `"nodes":[7]`, 1),
			Running: running}, "1-2", "0,3-15", false},
		{"truncated", static, Remains{Pod: "a", Note: note[:40], Running: running}, "", "0-15", false},
		{"another pod's", static, Remains{Pod: "b", Note: note, Running: running}, "", "0-15", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cgroups := newKernel()
			k := keeper(t, c.config, cgroups)
			c.remains.Group = "/a"
			k.Recover([]Remains{c.remains, {Pod: "s", Group: "/s"}})
			a, _ := k.Assignment("a")
			if got := cpusOf(a).String(); got != c.own || k.SharedCPUs().String() != c.shared || k.MustReadmit("a") != c.anew {
				t.Errorf("owns %q, shared %v, anew %v; want %q, %s, %v", got, k.SharedCPUs(), k.MustReadmit("a"), c.own, c.shared,
					c.anew)
			}
			if g, ok := cgroups.groups["/s"]; ok && g[1].String() != c.shared {
				t.Errorf("shared containers run on %v, want %s", g[1], c.shared)
			}
			if len(c.remains.Running) > 0 && c.remains.Pod == "a" && c.name != "truncated" {
				given, err := topology.DecodePod(c.remains.Note)
				if g := cgroups.groups["/a"]; err != nil || !g[0].Equal(cpusOf(given)) {
					t.Errorf("it is confined to %v of its own, was given %v; %v", g[0], cpusOf(given), err)
				}
			}
			if c.anew { // it is admitted as a new pod
				k.mustAdmit(t, pod("a", 2))
				if k.MustReadmit("a") {
					t.Error("it is still to be admitted")
				}
			}
		})
	}
}

// Two pods have the same CPUs recorded: one of them has ended, and its CPUs were assigned to another pod. The running
// one keeps them.
func TestRecoverPrefersWhatRuns(t *testing.T) {
	k := keeper(t, static, newKernel())
	note := func(uid string) string { return `{"uid":"` + uid + `","containers":[{"name":"c0","cpus":"4-5"}]}` }
	k.Recover([]Remains{
		{Pod: "a", Note: note("a"), Created: 9},
		{Pod: "b", Note: note("b"), Created: 1, Running: map[string]string{"c0": ""}},
	})
	a, hasA := k.Assignment("a")
	b, _ := k.Assignment("b")
	if hasA || cpusOf(b).String() != "4-5" || !k.MustReadmit("a") {
		t.Errorf("a has %v, b has %v, a anew: %v", cpusOf(a), cpusOf(b), k.MustReadmit("a"))
	}
}

// Exclusive CPUs that only the kernel knows about survive any number of agents, and end with that run of the container.
func TestKept(t *testing.T) {
	reserved := static
	reserved.CPU.Reserved, reserved.CPU.ReservedCount = idset.Of(0, 2), 2
	remains := Remains{Pod: "a", Group: "/a",
		Note:    `{"uid":"a","containers":[{"name":"c0","cpus":"1-2"},{"name":"c1","cpus":"3,99"}]}`,
		Running: map[string]string{"c0": "/a/c0", "c1": "/a/c1"}}
	for range 3 {
		cgroups := newKernel()
		k := keeper(t, reserved, cgroups)
		k.Recover([]Remains{remains, {Pod: "s", Group: "/s"}})
		if own, pool := cgroups.groups["/a"][0].String(), cgroups.groups["/s"][1].String(); own != "1-3,99" ||
			pool != "0,4-15" {
			t.Errorf("own %s, pool %s", own, pool)
		}
		remains.Note = k.Note("a")
	}
	cgroups := newKernel()
	k := keeper(t, reserved, cgroups)
	k.Recover([]Remains{remains, {Pod: "s", Group: "/s"}})
	if r := start(t, k, "a", "c0"); r.CpusetCpus != "1" || !strings.Contains(k.Note("a"), `"cpus":"1"`) {
		t.Errorf("started again on %q, noted as %s", r.CpusetCpus, k.Note("a"))
	}
	if own, pool := cgroups.groups["/a"][0].String(), cgroups.groups["/s"][1].String(); own != "1,3,99" ||
		pool != "0,2,4-15" {
		t.Errorf("after its start: own %s, pool %s", own, pool)
	}
}

// A container whose CPUs are all reserved by now still uses them exclusively: it gets no quota, and no update moves it
// to the pool.
func TestKeptWhole(t *testing.T) {
	reserved := static
	reserved.CPU.Reserved, reserved.CPU.ReservedCount = idset.Of(1, 2), 2
	k := keeper(t, reserved, newKernel())
	k.Recover([]Remains{{Pod: "a", Group: "/a", Note: `{"uid":"a","containers":[{"name":"c0","cpus":"1-2"}]}`,
		Running: map[string]string{"c0": "/a/c0"}}})
	r := &runtimeapi.LinuxContainerResources{}
	k.Update("a", "c0", r)()
	if !k.Exclusive("a", "c0") || !k.Exclusive("a", "") || r.CpusetCpus != "" {
		t.Errorf("exclusive: %v, its pod %v, moved to %q", k.Exclusive("a", "c0"), k.Exclusive("a", ""), r.CpusetCpus)
	}
	start(t, k, "a", "c0")
	if k.Exclusive("a", "c0") {
		t.Error("it was started again, and has what is reserved")
	}
}

// The kernel's values are compared with what was assigned, and the message has the numbers.
func TestCheck(t *testing.T) {
	cgroups := newKernel()
	k := keeper(t, static, cgroups)
	k.mustAdmit(t, pod("a", 2))
	cgroups.groups["/a/c0"], cgroups.mems = [2]idset.Set{idset.Of(1, 2)}, idset.Of(0)
	if err := k.Check("a", "c0", "/a/c0"); err != nil {
		t.Error(err)
	}
	cgroups.groups["/a/c0"], cgroups.mems = [2]idset.Set{idset.Of(2, 3)}, idset.Of(0, 1)
	err := k.Check("a", "c0", "/a/c0")
	for _, want := range []string{"CPUs: the kernel has 2-3, 1-2 is assigned: missing 1, more 3",
		"memory of NUMA nodes: the kernel has 0-1, 0 is assigned: more 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := k.Check("nobody", "c", "/x"); err != nil {
		t.Error(err)
	}
}

// Without a static policy and without assigned CPUs no cgroup is written to.
func TestNothingIsWrittenForNothing(t *testing.T) {
	cgroups := newKernel()
	k := keeper(t, numa.Config{}, cgroups)
	k.Recover([]Remains{{Pod: "s", Group: "/s"}})
	k.mustAdmit(t, pod("a", 2))
	start(t, k, "a", "c0")
	k.Release("a")
	if cgroups.writes != 0 {
		t.Errorf("%d writes", cgroups.writes)
	}
}

// TestChanged: Changed is called after each change, so that the kubelet's checkpoints are written.
func TestChanged(t *testing.T) {
	k := keeper(t, static, newKernel())
	calls := 0
	k.Changed = func() { calls++ }
	k.mustAdmit(t, pod("a", 2))
	k.Release("a")
	if calls != 2 {
		t.Errorf("told %d times of an admission and a release, want twice", calls)
	}
}

// TestNoteOfAKubelet: what a kubelet assigned is recovered like a note of our own.
func TestNoteOfAKubelet(t *testing.T) {
	k := keeper(t, static, newKernel())
	given := numa.Assignment{Pod: "a", Containers: []numa.Assigned{{Container: "c0", CPUs: idset.Of(2, 3)}}}
	k.Recover([]Remains{{Pod: "a", Group: "/a", Note: NoteOf(given), Ready: true,
		Running: map[string]string{"c0": "/a/c0"}}})
	if a, has := k.Assignment("a"); !has || a.Containers[0].CPUs.String() != "2-3" {
		t.Errorf("%+v", a)
	}
	if k.SharedCPUs().Intersect(idset.Of(2, 3)).Len() != 0 {
		t.Error("the CPUs are shared")
	}
	if NoteOf(numa.Assignment{Pod: "a"}) != "" {
		t.Error("a note about nothing")
	}
}
