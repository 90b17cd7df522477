package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// growEnv makes this test's program a pod's process. Its value is "<bytes> <bytes per second>", with 0 for all at once.
// The process waits for a line, takes the memory, and sleeps.
const growEnv = "PLIMSOLL_TEST_GROW"

func TestMain(m *testing.M) {
	if text := os.Getenv(growEnv); text != "" {
		grow(text)
	}
	os.Exit(m.Run())
}

func grow(text string) {
	var size, rate int
	if _, err := fmt.Sscan(text, &size, &rate); err != nil {
		panic(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	const step = 1 << 20
	begun := time.Now()
	// Mapped directly: under the race detector an allocation by Go takes as much again for each byte that is touched.
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	for n := 0; n < size && err == nil; n += step {
		err = unix.Madvise(memory[n:min(n+step, size)], unix.MADV_POPULATE_WRITE)
		if rate > 0 {
			time.Sleep(time.Until(begun.Add(time.Duration(n+step) * time.Second / time.Duration(rate))))
		}
	}
	if err != nil {
		panic(err)
	}
	time.Sleep(time.Hour)
}

// bench stands for a node's pods: cgroups of the test's own under one limit, with processes in them.
type bench struct {
	*testing.T
	tree  *cgroup.Tree
	root  string
	limit unit.Bytes

	mu      sync.Mutex
	pods    []podentry.Present
	evicted map[types.UID]pods.Eviction
}

func newBench(t *testing.T, limit unit.Bytes) *bench {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil {
		t.Skipf("needs cgroups: %v", err)
	}
	b := &bench{
		T:       t,
		tree:    tree,
		root:    fmt.Sprintf("/plimsoll-evict-%d", os.Getpid()),
		limit:   limit,
		evicted: map[types.UID]pods.Eviction{},
	}
	if err := tree.Apply(b.root, qos.Values{Memory: unit.LimitTo(limit)}); err != nil {
		t.Skipf("needs writable cgroups: %v", err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(b.root); err != nil {
			t.Errorf("leave nothing behind: %v", err)
		}
	})
	return b
}

func (b *bench) group(uid types.UID) string { return path.Join(b.root, "pod"+string(uid)) }

// pod makes a pod with one process, which begins at once.
func (b *bench) pod(uid string, priority int32, size unit.Bytes, rate unit.Bytes) *exec.Cmd {
	b.Helper()
	group := b.group(types.UID(uid))
	if err := b.tree.Apply(group, qos.Values{}); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", growEnv, size, rate))
	begin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	b.join(types.UID(uid), cmd.Process.Pid)
	b.mu.Lock()
	b.pods = append(b.pods, podentry.Present{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{Priority: &priority},
	}})
	b.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		b.gone(types.UID(uid))
		close(ended)
	}()
	if _, err := begin.Write([]byte("\n")); err != nil {
		b.Fatal(err)
	}
	return cmd
}

// join puts a process into a pod.
func (b *bench) join(uid types.UID, pid int) {
	b.Helper()
	dirs := []string{filepath.Join("/sys/fs/cgroup", b.group(uid))}
	if b.tree.Mode() != cgroup.V2 {
		dirs = nil
		for _, c := range []string{"memory", "pids", "freezer"} {
			dirs = append(dirs, filepath.Join("/sys/fs/cgroup", c, b.group(uid)))
		}
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *bench) gone(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.pods {
		if p.Pod.UID == uid {
			b.pods = append(append([]podentry.Present(nil), b.pods[:i]...), b.pods[i+1:]...)
			return
		}
	}
}

func (b *bench) Present() []podentry.Present {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := append([]podentry.Present(nil), b.pods...)
	for i := range out {
		if v, ok := b.evicted[out[i].Pod.UID]; ok {
			out[i].KillAt = v.KillAt
		}
	}
	return out
}

func (b *bench) Evict(uid types.UID, v pods.Eviction) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evicted[uid] = v
	return true
}

func (b *bench) Resync(types.UID) {}

func (b *bench) victims() (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid := range b.evicted {
		names = append(names, string(uid))
	}
	return names
}

// options returns the options of a Guard that checks only this bench's memory.
func (b *bench) options(dir string, thresholds ...eviction.Threshold) Options {
	b.Helper()
	j, err := journal.Open(dir, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = j.Close() })
	machine, err := procfs.Default.Memory()
	if err != nil {
		b.Fatal(err)
	}
	return Options{
		Node:   "n",
		Config: eviction.Config{Thresholds: thresholds, Transition: time.Minute},
		Tree:   b.tree,
		Proc:   procfs.Default,
		Memory: machine.Total, Limit: unit.LimitTo(b.limit), NodeFS: b.TempDir(), Group: b.root,
		Of: func(pod *corev1.Pod, container string) string {
			if container != "" {
				return ""
			}
			return b.group(pod.UID)
		},
		Pods: b, Recorder: record.NewFakeRecorder(100), Journal: j, Metrics: metrics.New("n"), Changed: func() {},
		Lock: func(bool) error { return nil },
	}
}

// watch runs a Guard until the test ends.
func (b *bench) watch(o Options) *Guard {
	b.Helper()
	g, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	b.run(g)
	return g
}

func (b *bench) run(g *Guard) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}

func (b *bench) until(what string, holds func() bool) {
	b.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			b.Fatalf("%s: not within a minute", what)
		case <-tick.C:
		}
	}
}

func (b *bench) present(name string) bool {
	for _, p := range b.Present() {
		if p.Pod.Name == name {
			return true
		}
	}
	return false
}

// oomKills returns how many processes the kernel has killed itself.
func (b *bench) oomKills() (sum int64) {
	for _, group := range []string{b.root, b.group("small"), b.group("grower"), b.group("other")} {
		if n, err := b.tree.Killed(group); err == nil {
			sum += n
		}
	}
	return sum
}

func hard(value unit.Bytes) eviction.Threshold {
	return eviction.Threshold{
		Signal: allocatable.AllocatableMemory,
		Value:  allocatable.Threshold{Amount: int64(value)},
		Text:   value.String(),
	}
}

// TestTheGrowerGoesBeforeTheKernelKills: memory grows at every speed up to 1 GiB/s under a limit of all pods. The pod
// that grows is evicted, no other pod is, and the kernel kills no process. (The target of the issue on eviction, on a
// small scale.)
func TestTheGrowerGoesBeforeTheKernelKills(t *testing.T) {
	for _, rate := range []unit.Bytes{20 * unit.MiB, 100 * unit.MiB, 500 * unit.MiB, unit.GiB} {
		t.Run(rate.String(), func(t *testing.T) {
			// With the race detector each of these programs takes about 20 MiB more than it is told to.
			b := newBench(t, 512*unit.MiB)
			dir := t.TempDir()
			g := b.watch(b.options(dir, hard(100*unit.MiB)))
			b.pod("small", 0, 16*unit.MiB, 0)
			b.pod("critical", 2_000_000_000, 240*unit.MiB, 0)
			b.pod("grower", 0, unit.GiB, rate)
			b.until("the grower is gone", func() bool { return !b.present("grower") })
			if v := strings.Join(b.victims(), " "); v != "grower" {
				t.Errorf("evicted %q", v)
			}
			if !b.present("small") || !b.present("critical") || b.oomKills() != 0 {
				t.Errorf("present %v, killed by the kernel %d", b.Present(), b.oomKills())
			}
			if !g.MemoryLocked() {
				t.Error("its own memory was not held")
			}
			b.evictedAsTold(dir)
			const reactions = "plimsoll_eviction_reaction_seconds allocatableMemory.available"
			b.until("the reaction is measured", func() bool { return g.measured(t)[reactions] == 1 })
		})
	}
}

// A limit that is still being lowered does not evict pods that were admitted under the higher one.
func TestLimitThatIsNotInForceYet(t *testing.T) {
	b := newBench(t, 200*unit.MiB)
	g, err := New(b.options(t.TempDir(), hard(100*unit.MiB)))
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[unit.Bytes]bool{200 * unit.MiB: true, 100 * unit.MiB: false} {
		g.o.Limit = unit.LimitTo(limit)
		var facts eviction.Facts
		g.observe(&facts, 1)
		if _, observed := facts.Signals[allocatable.AllocatableMemory]; observed != want {
			t.Errorf("limit to be %v, in force %v: observed %v", limit, b.limit, observed)
		}
	}
}

// TestEverySignalIsRead: a threshold on a signal that is not read would never be evaluated.
func TestEverySignalIsRead(t *testing.T) {
	b := newBench(t, 200*unit.MiB)
	o := b.options(t.TempDir())
	o.ImageFS = t.TempDir()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var facts eviction.Facts
	g.observe(&facts, 1)
	for _, signal := range allocatable.Signals() {
		if facts.Signals[signal].Capacity == 0 {
			t.Errorf("%s is not read (signals, read.go): %+v", signal, facts.Signals[signal])
		}
	}
}

// evictedAsTold replays the journal: the inputs that it recorded of each decision lead to the same decision again.
func (b *bench) evictedAsTold(dir string) {
	b.Helper()
	var records []journal.Record
	b.until("the decision is in the journal", func() bool {
		j, err := journal.Open(dir, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer j.Close()
		found, err := j.Find(journal.Query{Namespace: "default", Name: "grower"})
		if err != nil {
			b.Fatal(err)
		}
		records = found.Records
		return len(records) >= 2
	})
	if records[0].Kind != journal.Intent || !strings.Contains(records[0].Pods[0].Message,
		"The node was low on resource: memory. Threshold quantity: ") {
		b.Errorf("first record %+v", records[0])
	}
	for _, r := range records {
		if r.Kind != journal.Eviction {
			continue
		}
		var d journal.Decision
		if err := json.Unmarshal(r.Detail, &d); err != nil {
			b.Fatal(err)
		}
		again, err := json.Marshal(eviction.Resume(d.Config, d.Before).Step(d.Now, d.Facts))
		if err != nil {
			b.Fatal(err)
		}
		was, err := json.Marshal(d.Decided)
		if err != nil {
			b.Fatal(err)
		}
		if string(again) != string(was) {
			b.Errorf("decided again:\n%s\nin the journal:\n%s", again, was)
		}
		for _, p := range d.Facts.Pods {
			b.Logf("%s uses %v", p.Name, p.Used.WorkingSet)
		}
		for _, k := range d.Kills {
			b.Logf("%s: SIGKILL to %d processes by %s %v after the check began; notifications %v", r.Text, k.Processes, k.How,
				k.After, d.Notifications)
		}
	}
}

func TestPageCacheEvictsNobodyWhereItCountsAsAvailable(t *testing.T) {
	// The pods need less than 64 MiB, even in a test program with the race detector, and with the file well less than
	// the limit: at the limit the kernel would drop pages before they are read again, and none would become active.
	b := newBench(t, 256*unit.MiB)
	threshold := 192 * unit.MiB
	o := b.options(t.TempDir(), hard(threshold))
	o.Config.Memory = eviction.SignalAvailable
	b.pod("reader", 0, 8*unit.MiB, 0)
	// The file is written and read in the pod, again and again, until the cache is active: the kubelet counts that as
	// used.
	cmd := exec.Command("sh", "-c", `read go; head -c 96M /dev/zero > "$1"; while :; do cat "$1" > /dev/null; done`, "sh",
		filepath.Join(t.TempDir(), "file"))
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.join("reader", cmd.Process.Pid)
	if _, err := begin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	b.Cleanup(func() {
		k, _ := b.tree.Kill(b.group("reader"))
		k.FreeMemory()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		b.until("the reader's group is empty", func() bool {
			pids, _ := b.tree.PIDs(b.group("reader"))
			return len(pids) == 0
		})
	})
	b.until("the cache is in active use, below the threshold as upstream counts", func() bool {
		if err := b.tree.SumUp(); err != nil {
			t.Fatal(err)
		}
		f, err := b.tree.Footprint(b.root)
		return err == nil && f.Cache > b.limit-threshold+8*unit.MiB
	})
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var facts eviction.Facts
	g.observe(&facts, g.clock.Instant(time.Now()))
	if left := facts.Signals[allocatable.AllocatableMemory].Available; left <= int64(threshold) {
		t.Errorf("%d bytes are available, want more than %v", left, threshold)
	}
	g.check(t.Context(), nil)
	if v := b.victims(); len(v) != 0 || len(g.Pressure()) != 0 {
		t.Errorf("evicted %v, pressure %v", v, g.Pressure())
	}
}

// TestAnAgentDiesBetweenDecidingAndKilling: the intent is in the journal, the process lives. The next agent kills it,
// once.
func TestAnAgentDiesBetweenDecidingAndKilling(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	dir := t.TempDir()
	b.pod("grower", 0, 16*unit.MiB, 0)
	j, err := journal.Open(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(100 * time.Millisecond)
	intent := journal.Record{
		Kind: journal.Intent,
		Pods: []journal.Pod{{
			Namespace: "default",
			Name:      "grower",
			UID:       "grower",
			Message:   "The node was low.",
			Until:     until.UnixNano(),
			Disrupts:  true,
		}},
	}
	if _, err := j.Append(intent); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := New(b.options(dir, hard(8*unit.MiB)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := g.Recall("other"); ok {
		t.Error("a pod was recalled that nobody evicted")
	}
	v, ok := g.Recall("grower")
	if !ok || v.Reason != "Evicted" || v.Message != "The node was low." || !v.Disrupts ||
		!v.KillAt.Equal(time.Unix(0, until.UnixNano())) {
		t.Fatalf("recalled %+v, %v", v, ok)
	}
	b.Evict("grower", v) // pods.Runner does this when it first syncs the pod
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	b.until("it is killed", func() bool { return !b.present("grower") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAGroupThatVanishesIsNoReasonToKill: a pod whose usage cannot be read is never a victim.
func TestAGroupThatVanishesIsNoReasonToKill(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	b.mu.Lock()
	b.pods = append(b.pods, podentry.Present{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ghost", UID: "ghost"}},
	})
	b.mu.Unlock()
	b.watch(b.options(t.TempDir(), hard(64*unit.MiB)))
	b.pod("grower", 0, 128*unit.MiB, 100*unit.MiB)
	b.until("the grower is gone", func() bool { return !b.present("grower") })
	if v := strings.Join(b.victims(), " "); v != "grower" {
		t.Errorf("evicted %q", v)
	}
}

// onDisk is a Storage that knows one volume of every pod.
type onDisk struct{}

func (onDisk) Disks() eviction.Disks { return eviction.OneDisk }

func (onDisk) Limited() bool { return true }

func (onDisk) Fill(_ *corev1.Pod, p *eviction.Pod) {
	p.Volumes = []eviction.Volume{{Local: true, Used: &eviction.Disk{Bytes: 1 << 30}}}
}

// TestAPodThatCannotStartHasItsDisk: a pod without a cgroup, because the full disk prevents its start, has no memory
// and no processes. Its disk usage from before is known.
func TestAPodThatCannotStartHasItsDisk(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	o := b.options(t.TempDir(), hard(64*unit.MiB))
	o.Storage = onDisk{}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, withPIDs := range []bool{false, true} {
		p := g.pod(podentry.Present{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits", UID: "waits"}}}, withPIDs)
		if p.Used == nil || p.Used.PIDs != 0 || p.Used.WorkingSet != 0 || len(p.Volumes) != 1 {
			t.Errorf("process ids near %v: it has %+v of memory, volumes %+v", withPIDs, p.Used, p.Volumes)
		}
	}
}

// unlimited is a Storage of pods without limits.
type unlimited struct {
	onDisk
	asked int
}

func (u *unlimited) Limited() bool {
	u.asked++
	return false
}

// TestLimitsThatNoPodHasCostNothing: no pod is read for limits of local storage where none has one, and that is asked
// once in each period.
func TestLimitsThatNoPodHasCostNothing(t *testing.T) {
	b := newBench(t, 128*unit.MiB)
	o := b.options(t.TempDir(), hard(64*unit.MiB))
	o.Config.LocalStorage = true
	storage := &unlimited{}
	for _, c := range []struct {
		storage Storage
		due     bool
	}{{storage, false}, {onDisk{}, true}} {
		o.Storage = c.storage
		g, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		g.lastFull = g.clock.Now()
		later := g.lastFull.Add(limitsEvery)
		if g.limitsAreDue(g.lastFull) || g.limitsAreDue(later) != c.due || g.limitsAreDue(later) != c.due {
			t.Errorf("%T: due is not %t", c.storage, c.due)
		}
	}
	if storage.asked != 1 {
		t.Errorf("asked %d times in one period, want 1", storage.asked)
	}
}

// TestAHardThresholdDoesNotWaitForASoftEviction: a pod with a termination grace period of a minute is killed at once
// when the hard threshold is met.
func TestAHardThresholdDoesNotWaitForASoftEviction(t *testing.T) {
	b := newBench(t, 192*unit.MiB)
	soft := hard(128 * unit.MiB)
	soft.Grace = 50 * time.Millisecond
	o := b.options(t.TempDir(), hard(48*unit.MiB), soft)
	o.Config.SoftGraceMax = time.Hour
	b.watch(o)
	b.pod("grower", 0, 192*unit.MiB, 60*unit.MiB)
	b.until("it is evicted softly", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return time.Until(b.evicted["grower"].KillAt) > 20*time.Second
	})
	b.until("it is killed", func() bool { return !b.present("grower") })
	if b.oomKills() != 0 {
		t.Error("by the kernel")
	}
}

// diesMeanwhile is a Storage that ends a pod when it is first asked about any pod.
type diesMeanwhile struct{ end func() }

func (d *diesMeanwhile) Disks() eviction.Disks { return eviction.OneDisk }

func (d *diesMeanwhile) Limited() bool { return true }

func (d *diesMeanwhile) Fill(*corev1.Pod, *eviction.Pod) {
	if d.end != nil {
		d.end()
		d.end = nil
	}
}

// A pod that is being terminated dies and frees all that is missing while the pods are being read: after the signals,
// and before it was read itself. No other pod is evicted in its place.
func TestAPodThatDiesDuringALookTakesNobodyWithIt(t *testing.T) {
	b := newBench(t, 640*unit.MiB) // includes what the three programs take themselves
	b.pod("first", 0, 16*unit.MiB, 0)
	dying := b.pod("dying", 0, 412*unit.MiB, 0)
	b.pod("other", 0, 16*unit.MiB, 0)
	charged := func(group string) unit.Bytes {
		f, err := b.tree.Footprint(group)
		if err != nil {
			t.Fatal(err)
		}
		return f.Charged
	}
	b.until("all have what they want", func() bool { return charged(b.root) > 444*unit.MiB })
	b.Evict("dying", pods.Eviction{KillAt: time.Now().Add(-time.Second)})
	o := b.options(t.TempDir(), hard(200*unit.MiB))
	storage := &diesMeanwhile{func() {
		_ = dying.Process.Kill()
		b.until("its memory is free", func() bool { return charged(b.group("dying")) < unit.MiB })
	}}
	o.Storage = storage
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	g.check(t.Context(), nil)
	g.recording.Wait()
	if storage.end != nil {
		t.Fatal("pods were not looked at")
	}
	if v := b.victims(); len(v) != 1 {
		t.Errorf("evicted %q", v)
	}
}

// dearOnce is a Storage that once takes a lot of CPU time of the checking thread.
type dearOnce struct{ cost time.Duration }

func (d *dearOnce) Disks() eviction.Disks {
	for until := threadTime() + d.cost; threadTime() < until; {
		continue
	}
	d.cost = 0
	return eviction.OneDisk
}

func (d *dearOnce) Limited() bool { return true }

func (d *dearOnce) Fill(*corev1.Pod, *eviction.Pod) {}

// A check that was expensive by chance does not delay the next ones until it is too late.
func TestADearLookIsNotRestedFromForSeconds(t *testing.T) {
	b := newBench(t, 512*unit.MiB)
	o := b.options(t.TempDir(), hard(100*unit.MiB))
	o.ImageFS, o.Storage = o.NodeFS, &dearOnce{cost: 800 * time.Millisecond}
	b.watch(o)
	b.pod("grower", 0, unit.GiB, 100*unit.MiB)
	b.until("the grower is gone", func() bool { return !b.present("grower") })
	if v := b.victims(); len(v) != 1 || b.oomKills() != 0 {
		t.Errorf("evicted %q, killed by the kernel %d", v, b.oomKills())
	}
}
