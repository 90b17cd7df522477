// Package pods runs the pods of this node: it lets core/podlife decide and does what it says against a real container
// runtime.
//
// Model. Sources (the API server, a directory of static pods) say which pods should be here; the runtime, the kernel
// (exits, see host/process) and timers say that something may have changed. Each of these only resyncs a pod, which
// carries no content. A resynced pod has one worker goroutine. Each sync of it observes, steps the pod's podlife.Life
// and performs the actions, until there is nothing to do; then the goroutine ends. An idle pod costs memory only.
//
// Who may touch what. A pod has two types. entry is what every goroutine may ask or change, by methods that lock;
// worker is what only the pod's goroutine has: its entry hands it out (wake) and takes it back (rest), so that nothing
// in it needs a lock. Runner.mu guards what is about all pods. Locks are taken in this order: Runner.admission,
// Runner.mu, entry.mu; and no call that may wait is made under the latter two.
//
// Phases. How far a pod has come is its phase, which its worker changes (entry.enter checks each change):
//
//	     plugins are asked             it fits               prepared
//	new -------------------> consulting --------> preparing ----------> admitted --+
//	| ^                          |                    |                            |
//	| +--------------------------+--------------------+ rejected, or it is to end  v
//	|                                                                           dropped
//	+----> rejected: there is nothing to wait for -------------------------------> ^
//
// Ways that leave phases out: new to preparing, where no plugin has to be asked; new to admitted, where an agent before
// this one started the pod; new or consulting to admitted, where its end was ordered while plugins were asked; new to
// dropped, where it was deleted before it was judged. Two more things combine with every phase but the last: that the
// pod is held (entry.hold), since what keeps it from starting may come and go until something of it runs; and that it
// is to end (entry.stop), since an end may be ordered at any time, and the pod keeps what it has until then.
//
// What the runtime has is cached per pod (view) and re-read where something happened: after an action, after an exit,
// and by a slow relist of everything, in case one was lost. Container labels and annotations (spelled as the kubelet
// spells them) and the status in the API are the only memory: an agent that starts anew adopts what runs and disturbs
// nothing.
//
// A pod is seen with its allocated resources (allocation); what its specification asks for by now is judged in every
// sync as long as the two differ (judgeResizes).
//
// The package decides nothing about when pods start, stop or restart: that is core/podlife; nor whether they fit:
// core/admission.
package pods

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/oomwatch"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/runtimehandler"
	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Groups keeps the cgroups of pods. Implemented by the agent's wiring over core/qos and host/cgroup.
type Groups interface {
	// Ensure creates or updates the pod's group and returns the parent to give to the runtime.
	Ensure(pod *corev1.Pod) (parent string, err error)
	Remove(ctx context.Context, uid types.UID) error
	// Pods returns the pods that have a group.
	Pods() ([]types.UID, error)
	// Sizes returns what the pod's group, and each of its containers, are to be set to.
	Sizes(pod *corev1.Pod) (group resize.Size, of func(*corev1.Container) resize.Size)
	// Has reads what a container's group is set to, or with an empty id the pod's own. What the kernel does not show is
	// unknown.
	Has(pod *corev1.Pod, id string) (resize.Size, error)
	// Resize takes a step that is about the pod's own group.
	Resize(pod *corev1.Pod, step resize.Step) error
	// Update is a step that is about a container, in the runtime's form.
	Update(pod *corev1.Pod, c *corev1.Container, step resize.Step, has resize.Size) *runtimeapi.LinuxContainerResources
	// MemoryInUse is what the kernel cannot drop at once of a container's memory, or with an empty id of the pod's.
	MemoryInUse(pod *corev1.Pod, id string) (unit.Bytes, error)
	// Container names a container's group; empty: it is not known.
	Container(pod *corev1.Pod, id string) string
	// Killed is how many processes of a container the kernel has killed for memory.
	Killed(pod *corev1.Pod, id string) (int64, error)
	// Resources returns the container's limits in the runtime's form.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources)
}

// Holdings keeps what is assigned to pods: CPUs, memory on NUMA nodes, devices. Implemented by agent/numa.
type Holdings interface {
	// Note is what the pod's sandbox has to carry for the next agent; empty: nothing.
	Note(uid string) string
	// Anew reports whether a pod that an agent before this one started has to be admitted again: what it had is lost.
	Anew(uid string) bool
	// Start fills in where a container may run. It must be started only without an error; done is called when that is
	// over.
	Start(uid, container string, r *runtimeapi.LinuxContainerResources) (done func(), err error)
	// Update fills in what an update of a running container has to repeat.
	Update(uid, container string, r *runtimeapi.LinuxContainerResources) (done func())
	// Check compares where a container runs, by its cgroup, with what is assigned to it.
	Check(uid, container, group string) error
	// Finish says that the pod's init containers have ended.
	Finish(uid string)
	// Release says that nothing of the pod runs any more.
	Release(uid string)
}

// Devices gives containers what their devices need. Implemented by the agent's wiring over agent/devicemanager.
type Devices interface {
	// Configure adds to the configuration of a container that is about to be made what its devices need.
	Configure(ctx context.Context, uid, container string, config *runtimeapi.ContainerConfig) error
	// Status says how a container's devices are.
	Status(uid, container string) []corev1.ResourceStatus
	// Release says that nothing of the pod runs any more.
	Release(uid string)
}

// Volumes keeps the files that containers see; *volume.Manager does.
type Volumes interface {
	// SetUp makes what the pod's containers mount. It may be repeated.
	SetUp(ctx context.Context, pod *corev1.Pod) error
	// Update has another version of the pod.
	Update(pod *corev1.Pod)
	VolumePath(pod *corev1.Pod, name string) (string, error)
	Mounts(pod *corev1.Pod, c *corev1.Container, facts volume.ContainerFacts) ([]*runtimeapi.Mount, error)
	// Release takes down what a pod that has ended no longer needs, TearDown everything.
	Release(ctx context.Context, uid types.UID) error
	TearDown(ctx context.Context, uid types.UID) error
	// Orphans returns the pods of which something is there and that are not known.
	Orphans(known map[types.UID]bool) ([]types.UID, error)
}

// Admission is the node's verdict on a pod that is not running yet, and on pods that ask for other resources.
//
// The Runner passes the pods that take something of the node now, in any order. An implementation compares them with
// those of the call before; it is not notified when a pod comes, changes or goes.
type Admission interface {
	// Wait says what a pod of which nothing runs has to wait for before it starts, and until when; a zero time says
	// that it has waited too long. Empty: it may start.
	Wait(pod *corev1.Pod, since time.Time) (why string, until time.Time)
	// Admit admits a pod next to others, by a nil Rejection, or says why not. Admissions go one at a time, and wait for
	// nothing outside of the agent.
	Admit(pod *corev1.Pod, others []*corev1.Pod) *Rejection
	// Consult asks device plugins for the preference that Admit needs (Rejection.Asks) before it is called again. They
	// may take long, and no other pod waits for that.
	Consult(ctx context.Context, pod *corev1.Pod) *Rejection
	// Give has device plugins make ready what was assigned to a pod. They may take long, and no other pod waits for
	// that. A pod that is rejected now has nothing.
	Give(ctx context.Context, pod *corev1.Pod) *Rejection
	// Resize gives each request its verdict, in the order of requests. held are all pods that take something of the
	// node, with those that ask.
	Resize(requests []ResizeRequest, held []*corev1.Pod) []Verdict
}

// Rejection says why a pod may not run here, in upstream's words (OutOfcpu, ...).
type Rejection struct {
	Reason, Message string
	Later           bool // it may be another answer soon: ask again, for as long as a pod waits
	Room            bool // what it lacks, other pods may hold
	Asks            bool // no answer yet: Consult, and ask again
}

// Options are everything a Runner needs. All fields without "optional" must be set.
type Options struct {
	Node        string
	RootDir     string // <RootDir>/pods/<uid> belongs to the pod
	LogDir      string // <LogDir>/<ns>_<name>_<uid>/<container>/<attempt>.log
	HostIPs     []string
	StaticDir   string // optional: directory of static pod manifests
	Client      *kube.Client
	Runtime     *cri.Client
	RuntimeName string // prefix of container ids in the API: containerd, cri-o
	QOSClass    func(*corev1.Pod) corev1.PodQOSClass
	Recorder    record.EventRecorder
	Volumes     Volumes
	Env         *env.Builder
	DNS         dns.Resolver
	Allocatable func() corev1.ResourceList
	Groups      Groups
	Admission   Admission
	Holdings    Holdings
	Devices     Devices
	Probes      *probe.Prober
	Hooks       hook.Runner
	BackoffMax  time.Duration
	WorkTimeout time.Duration // of a call that makes or removes something (runtimeRequestTimeout); two of them for a sandbox
	Starts      int           // pods starting at the same time
	Relist      time.Duration // period of reading everything the runtime has, in case a notification was lost
	MaskedPaths []string      // optional: hidden from containers next to the usual (criconfig.Node)
	SeccompAll  bool          // seccompDefault: RuntimeDefault for containers that name no profile
	Images      *imagepull.Puller
	Metrics     *metrics.Set
	// Suits returns why a pod cannot run on this system at all, whatever else is here; nil: it can. Optional.
	Suits func(*corev1.Pod) *Rejection
	// Evicted says whether an agent before this one evicted a pod of the API. Optional.
	Evicted func(types.UID) (Eviction, bool)
}

// Runner runs the pods of one node: it knows them (pods), hears of what happens to them, and has what their workers
// share.
type Runner struct {
	Options // never changes

	// Parts with locks and goroutines of their own; set once.
	exits    exitWatch
	report   *statusreport.Reporter
	static   *staticpods.Source
	handlers *runtimehandler.Handlers
	oom      *oomwatch.Watch
	clock    *clock.Clock

	// How much is done at once.
	starts   *startsLine   // slots of pods that start
	stops    chan struct{} // slots of stops that the runtime works on
	removals chan struct{} // slots of sandboxes that are stopped, and of what is removed

	turns     turns      // of pods that have come and were not judged yet
	admission sync.Mutex // held while one pod is judged, or resizes are: each verdict counts with those before it

	mu       sync.Mutex // guards everything that follows
	pods     map[types.UID]*entry
	synced   bool            // the API has shown every pod at least once
	relisted bool            // everything the runtime has was read at least once; no worker starts before
	ctx      context.Context // of Run: workers and hooks end with it; nil before
	workers  sync.WaitGroup  // goroutines of workers and hooks; needs no lock
	lastSync unit.Instant    // when everything the runtime has was read last; zero: not yet
	sweepEnd unit.Instant    // until then relists look for what pods that went left outside the runtime
}

// New prepares a runner.
func New(o Options) (*Runner, error) {
	exits, err := process.NewExits()
	if err != nil {
		return nil, err
	}
	return newRunner(o, exits, oomwatch.KernelLog), nil
}

// exitWatch calls back when processes exit; *process.Exits does.
type exitWatch interface {
	Watch(pid int, same func() bool, exited func()) (cancel func(), err error)
}

func newRunner(o Options, exits exitWatch, kernelLog string) *Runner {
	r := &Runner{
		Options:  o,
		exits:    exits,
		clock:    clock.New(),
		starts:   newStartsLine(o.Starts),
		stops:    make(chan struct{}, stopsAtOnce),
		removals: make(chan struct{}, removalsAtOnce),
		pods:     map[types.UID]*entry{},
	}
	r.report = statusreport.New(r.Client, r.Node)
	r.static = newStatic(r, nil)
	r.handlers = runtimehandler.New(r.Client)
	r.oom = oomwatch.New(r.Node, kernelLog, oomPods{r}, r.Recorder)
	r.Metrics.Registry.MustRegister(resizeCounts{r})
	return r
}

// Bounds on concurrency that only keep a burst from exhausting the runtime (chosen).
const (
	stopsAtOnce    = 64
	removalsAtOnce = 64
)

// Run runs until ctx ends and then leaves every container as it is.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	if err := r.firstRelist(ctx); err != nil {
		return err
	}
	r.learnHandlers(ctx)
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){
		r.report.Run, r.static.Run, r.watchAPI, r.relistLoop, r.followEvents, r.oom.Run,
	} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
	r.workers.Wait()
	return nil
}

// learnHandlers asks the runtime what its handlers can do.
func (r *Runner) learnHandlers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := r.handlers.Learn(ctx, r.Runtime); err != nil {
		slog.Warn("the runtime does not say what its handlers can", "err", err)
	}
}

// LastRead is when everything the runtime has was last read: proof that the main loop and the runtime are alive.
func (r *Runner) LastRead() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock.At(r.lastSync)
}

// now returns the runner's monotonic clock and the calendar.
func (r *Runner) now() (unit.Instant, unit.Wall) {
	return r.clock.Now(), unit.WallOf(time.Now())
}

// Healthy reports whether the runner made progress lately: its relist answered within limit.
func (r *Runner) Healthy(limit time.Duration) error {
	if age := time.Since(r.LastRead()); age > limit {
		return fmt.Errorf("container runtime was last read %s ago, want at most %s", age.Round(time.Second), limit)
	}
	return nil
}

// resync makes the pod's worker look at it, now or as soon as it is done with what it does.
func (r *Runner) resync(e *entry) {
	r.mu.Lock()
	ctx, ready := r.ctx, r.relisted
	r.mu.Unlock()
	if ctx == nil || !ready || ctx.Err() != nil {
		return
	}
	if w := e.wake(); w != nil {
		r.workers.Go(func() { w.run(ctx) })
	}
}

// oomPods is what package oomwatch asks of the runner.
type oomPods struct{ *Runner }

var _ oomwatch.Pods = oomPods{}

// Pod is the pod of that UID; nil: it is not here, or only the runtime knows it.
func (p oomPods) Pod(uid types.UID) *corev1.Pod {
	if e := p.entryOf(uid); e != nil {
		return e.object()
	}
	return nil
}

// Killed is the kernel's own count.
func (p oomPods) Killed(pod *corev1.Pod, container string) (int64, error) {
	return p.Groups.Killed(pod, container)
}

// entries are the pods that the agent knows, in no order.
func (r *Runner) entries() []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.pods))
}

// entryOf is the pod of that UID, nil if it is not here.
func (r *Runner) entryOf(uid types.UID) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid]
}

// Resync makes the pod's worker look again, for parts of the agent that learned something about it (a probe, a volume).
func (r *Runner) Resync(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		r.resync(e)
	}
}

// Retry makes the pod try again what it waits to retry, because something it may lack has appeared.
func (r *Runner) Retry(uid types.UID) {
	if e := r.entryOf(uid); e != nil {
		e.orderRetry()
		r.resync(e)
	}
}

func (r *Runner) log(e *entry) *slog.Logger {
	return slog.With("pod", e.name(), "uid", e.uid)
}
