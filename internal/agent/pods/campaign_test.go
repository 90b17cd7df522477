package pods

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

var (
	historySeed  = flag.Uint64("history", 0, "play only the history of this seed, and print it")
	historyFirst = flag.Uint64("first", 1, "seed of the first history")
	historyCount = flag.Int("histories", 0, "how many histories to play; 0: as many as $PLIMSOLL_HISTORIES says, or a few")
)

// histories returns how many histories are played. It is read from the environment, since Go does not cache the result
// of a test with flags of its own.
func histories(t *testing.T) int {
	if *historyCount > 0 {
		return *historyCount
	}
	text := os.Getenv("PLIMSOLL_HISTORIES")
	if text == "" {
		return historiesShort
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("read PLIMSOLL_HISTORIES: %v", err)
	}
	return n
}

// TestHistories runs agents in a world in which each call may hang, fail, be late or be cut off by a crash. In between
// come stop orders, resizes, evictions, exits of containers and restarts of the agent, in any order. Then the trouble
// ends, every pod is deleted, and nothing may be left. Meanwhile the world judges (judged): a stop is carried out
// within its grace period; no slot is held while a user's code runs or a grace period passes; a container is started
// once for each attempt; a status never goes back; conditions of other writers are not written; what is reported as
// allocated, and what is set, was allocated; and in the end everything allocated is set.
//
// make test-unit plays 3,000 histories without the race detector, with which each takes ten times as long, and a few
// with it; make campaign-pods plays any number. A history is determined by its seed, except for the order of goroutines
// that become ready at the same instant.
func TestHistories(t *testing.T) {
	seeds, count := make(chan uint64), histories(t)
	go func() {
		defer close(seeds)
		first, n := *historyFirst, count
		if *historySeed != 0 {
			first, n = *historySeed, 1
		}
		for seed := range uint64(n) {
			seeds <- first + seed
		}
	}()
	log := slog.Default()
	defer slog.SetDefault(log)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	handlers := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = handlers }()
	utilruntime.ErrorHandlers = nil // one of them sleeps by when it was last called: in another bubble, at another time
	kube.LogToSlog()
	defer klog.ClearLogger()
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // the heap is small: by default it is cleared all the time
	dir := historiesDir(t)
	t.Chdir(dir)
	var players sync.WaitGroup
	var failed atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		players.Go(func() {
			for seed := range seeds {
				if failed.Load() {
					continue
				}
				if log, err := playHistory(t, seed, filepath.Join(dir, fmt.Sprint(seed))); err != nil || *historySeed != 0 {
					t.Logf("%s", log())
					if err != nil {
						failed.Store(true)
						t.Errorf("seed %d: %v\nagain: go test ./internal/agent/pods -run TestHistories -history %d", seed, err, seed)
					}
				}
			}
		})
	}
	players.Wait()
}

// historiesDir returns a directory, in memory if possible: the files of histories are small, and are created and
// removed all the time.
func historiesDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "histories")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// playHistory plays one history in a synctest bubble, which ends only when none of its goroutines is left.
func playHistory(t *testing.T, seed uint64, dir string) (log func() string, err error) {
	defer os.RemoveAll(dir)
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, dir)
		if *historySeed != 0 {
			slog.SetDefault(slog.New(slog.NewTextHandler(worldLog{w}, nil)))
		}
		h := &history{w: w, r: rand.New(rand.NewPCG(seed, 1))}
		h.play()
		err, log = w.wrong, w.text
	})
	return log, err
}

// worldLog adds the agent's log to the world's.
type worldLog struct{ w *world }

func (l worldLog) Write(text []byte) (int, error) {
	go func() { // the goroutine that logs may hold world.mu
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		l.w.say("    %s", strings.TrimSpace(string(text)))
	}()
	return len(text), nil
}

var _ io.Writer = worldLog{}

// history is the random events in a world.
type history struct {
	w    *world
	r    *rand.Rand
	made int
}

func (h *history) play() {
	w := h.w
	w.trouble = []int{0, 5, 15, 40}[h.r.IntN(4)]
	w.liar = []int{0, 0, 2, 10}[w.dice("liar").IntN(4)]
	w.images["here"], w.images["here:1"] = true, true
	w.evented, w.v2 = h.r.IntN(3) > 0, h.r.IntN(2) == 0
	if err := os.MkdirAll(w.staticDir(), 0o700); err != nil {
		panic(err)
	}
	w.begin()
	for range 3 + h.r.IntN(12) {
		pause := time.Duration(h.r.IntN(8_000)) * time.Millisecond
		if h.r.IntN(3) == 0 {
			pause = time.Duration(h.r.IntN(40)) * time.Millisecond
		}
		h.pass(pause)
		if w.wrong != nil {
			break
		}
		h.act()
	}
	h.end()
	w.crash()
}

// pass lets time pass, and judges.
func (h *history) pass(d time.Duration) {
	for ; d > 0; d -= 5 * time.Second {
		time.Sleep(min(d, 5*time.Second))
		if h.look() != "" { // it may be between two calls: the runtime learns of an exit after the kernel
			time.Sleep(time.Second)
			if held := h.look(); held != "" {
				h.w.mu.Lock()
				h.w.judged("for a second, %s", held)
				h.w.mu.Unlock()
			}
		}
	}
}

// look judges stops, and returns which slots are wrongly held.
func (h *history) look() string {
	synctest.Wait()
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.down {
		return ""
	}
	h.w.judgeStops()
	return h.w.slotsHeld()
}

// act does something to the world.
func (h *history) act() {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := h.anyPod()
	what := h.r.IntN(26)
	if what < 14 && pod == nil || what < 3 && len(w.api.pods) < 4 {
		h.create()
		return
	}
	switch what {
	case 3, 4:
		grace := []int64{0, 1, 5, 30, 3600}[h.r.IntN(5)]
		w.say("user deletes %s within %ds", pod.UID, grace)
		w.api.toEnd(pod, grace)
	case 5:
		h.evict(pod)
	case 6, 7:
		w.mu.Unlock()
		w.crash()
		h.pass(time.Duration(h.r.IntN(20_000)) * time.Millisecond)
		w.begin()
		w.mu.Lock()
	case 8:
		if b := h.anyBox(); b != nil {
			w.end(b, int32(h.r.IntN(2)))
		}
	case 9:
		if s := h.anySandbox(); s != nil {
			w.say("sandbox %s falls", s.id)
			w.fall(s)
		}
	case 10:
		h.gate(pod)
	case 11:
		w.say("watches are cut")
		w.api.cutWatches()
	case 12:
		w.trouble = h.r.IntN(60)
	case 13:
		w.mu.Unlock() // the agent has locks of its own
		w.life.runner.Retry(pod.UID)
		w.mu.Lock()
	case 14, 15:
		h.writeManifest()
	case 16:
		h.removeManifest()
	case 17:
		h.breakDir(w.staticDir())
	case 18:
		h.breakDir(filepath.Join(w.logDir, "pods"))
	case 19:
		w.say("event streams are cut")
		w.cutStreams()
	case 20, 21, 22, 23:
		if pod != nil {
			h.resize(pod)
		}
	case 24:
		if b := h.anyBox(); b != nil {
			h.use(b)
		}
	case 25:
		w.milli = int64(500 * (2 + h.r.IntN(10)))
		w.say("the node has %d millicores", w.milli)
		w.mu.Unlock() // the agent has locks of its own
		w.life.runner.RoomChanged()
		w.mu.Lock()
	}
}

func (h *history) anyPod() *corev1.Pod {
	var all []*corev1.Pod
	for _, pod := range h.w.api.pods {
		all = append(all, pod)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return all[h.r.IntN(len(all))]
}

func (h *history) anyBox() *box {
	var all []*box
	for _, b := range h.w.containers {
		if b.alive {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *box) int { return strings.Compare(a.id, b.id) })
	return all[h.r.IntN(len(all))]
}

func (h *history) anySandbox() *sandbox {
	var all []*sandbox
	for _, s := range h.w.sandboxes {
		if s.ready {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *sandbox) int { return strings.Compare(a.id, b.id) })
	return all[h.r.IntN(len(all))]
}

func (h *history) evict(pod *corev1.Pod) {
	w := h.w
	v := Eviction{
		Reason: "Evicted", Message: "The node was low", KillAt: time.Now().Add(time.Duration(h.r.IntN(20)) * time.Second),
	}
	if _, twice := w.evicted[pod.UID]; twice {
		return
	}
	w.mu.Unlock() // the agent has locks of its own
	e := w.life.runner.entryOf(pod.UID)
	here := e != nil && e.Object() != nil && w.life.runner.Evict(pod.UID, v) // eviction knows pods by Present
	w.life.runner.Resync(pod.UID)
	w.mu.Lock()
	if here {
		w.say("node evicts %s", pod.UID)
		if h.r.IntN(4) > 0 { // otherwise its record could not be written, and the next agent does not know of it
			w.evicted[pod.UID] = v
		} else {
			w.forgets[pod.UID] = w.life.number
		}
		w.ordered(pod.UID, time.Until(v.KillAt))
	}
}

// gate writes a condition of another writer (a readiness gate).
func (h *history) gate(pod *corev1.Pod) {
	pod = pod.DeepCopy()
	state := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[h.r.IntN(2)]
	pod.Status.Conditions = slices.DeleteFunc(
		pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == "example.com/lb" },
	)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/lb", Status: state})
	h.w.api.put(pod)
}

var restartPolicies = []corev1.RestartPolicy{
	corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever,
}

// create creates a pod with up to one init container, one sidecar and three main containers.
func (h *history) create() {
	r := h.r
	h.made++
	grace := []int64{0, 1, 10, 30, 3600}[r.IntN(5)]
	name := fmt.Sprintf("p%d", h.made)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(fmt.Sprintf("%08d-0000-0000-0000-000000000000", h.made)), Generation: 1,
			CreationTimestamp: metav1.Now(),
		},
		Spec: corev1.PodSpec{
			NodeName: "node-1", TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSDefault,
			RestartPolicy: restartPolicies[r.IntN(3)],
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if r.IntN(4) == 0 {
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}}
	}
	if r.IntN(3) == 0 {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, h.container("init"))
	}
	if r.IntN(4) == 0 {
		always := corev1.ContainerRestartPolicyAlways
		c := h.container("side")
		c.RestartPolicy = &always
		h.decorate(&c)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range 1 + r.IntN(3) {
		c := h.container(fmt.Sprintf("main%d", i))
		h.decorate(&c)
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	h.resizable(pod)
	h.w.say(
		"user creates %s: grace %ds, %s, %d inits, %d mains", pod.UID, grace, pod.Spec.RestartPolicy,
		len(pod.Spec.InitContainers), len(pod.Spec.Containers),
	)
	h.w.api.put(pod)
}

func (h *history) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "here", ImagePullPolicy: corev1.PullIfNotPresent}
	if h.r.IntN(4) == 0 {
		c.Image, c.ImagePullPolicy = "there", []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent}[h.r.IntN(2)]
	}
	return c
}

// decorate gives a container hooks and a probe, by chance.
func (h *history) decorate(c *corev1.Container) {
	does := func(what string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{what}}}
	}
	var l corev1.Lifecycle
	if h.r.IntN(5) == 0 {
		l.PostStart = does("poststart")
	}
	if h.r.IntN(5) == 0 {
		l.PreStop = does("prestop")
	}
	if l != (corev1.Lifecycle{}) {
		c.Lifecycle = &l
	}
	if h.r.IntN(5) == 0 {
		own := int64(1 + h.r.IntN(9))
		c.LivenessProbe = &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"probe"}}}, PeriodSeconds: 5,
			FailureThreshold: 1 + int32(h.r.IntN(2)), TimeoutSeconds: 1,
		}
		if h.r.IntN(2) == 0 {
			c.LivenessProbe.TerminationGracePeriodSeconds = &own
		}
	}
}

// end ends the trouble, deletes every pod, and checks that nothing is left.
func (h *history) end() {
	w := h.w
	w.mu.Lock()
	w.calm, w.trouble = true, 0
	w.say("the world heals")
	w.mendDir(w.staticDir())
	w.mendDir(filepath.Join(w.logDir, "pods"))
	for _, b := range w.containers {
		b.used = 0
	}
	w.mu.Unlock()
	h.pass(time.Minute)
	// This is the longest wait that trouble may have left: calls that hang while a pod is admitted, its volumes are set up
	// and its sandbox is created, and then a pull.
	for range 10 + int(imagepull.Timeout.Minutes()) {
		if w.missing() == "" && w.unsized() == "" || w.wrong != nil {
			break
		}
		h.pass(time.Minute)
	}
	missing := w.missing() + w.unsized()
	w.mu.Lock()
	if missing != "" {
		w.judged("long after the last trouble: %s", missing)
	}
	for path := range w.files {
		if err := os.Remove(path); err != nil {
			panic(err)
		}
		w.forsake(path)
		w.tellFiles()
	}
	for _, pod := range w.api.pods {
		w.api.toEnd(pod, int64(1+h.r.IntN(30)))
	}
	for _, b := range w.containers {
		if w.api.byUID(b.uid) == nil { // deleted by force within an hour's grace
			w.end(b, 0)
		}
	}
	w.mu.Unlock()
	// This is the longest wait that trouble may have left: a sandbox that takes two runtimeRequestTimeouts, then a
	// removal, then the sweep.
	for range 20 {
		if h.left() == "" || w.wrong != nil {
			return
		}
		h.pass(30 * time.Second)
	}
	left := h.left()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judged("ten minutes after all pods were deleted there is left: %s", left)
}

// left returns what is left of pods.
func (h *history) left() string {
	w := h.w
	entries := len(w.life.runner.entries())
	w.mu.Lock()
	defer w.mu.Unlock()
	logs, _ := os.ReadDir(filepath.Join(w.logDir, "pods"))
	links, _ := os.ReadDir(filepath.Join(w.logDir, "containers"))
	out := ""
	for what, n := range map[string]int{
		"sandboxes":            len(w.sandboxes),
		"containers":           len(w.containers),
		"volumes":              len(w.volumes),
		"groups":               len(w.groups),
		"pods in the API":      len(w.api.pods),
		"entries":              entries,
		"log directories":      len(logs),
		"log links":            len(links),
		"watches of processes": len(w.watches),
		"calls":                len(w.flying),
	} {
		if n > 0 {
			out += fmt.Sprintf("%d %s; ", n, what)
		}
	}
	return out
}
