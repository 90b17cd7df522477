package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
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

// Assignments keeps what is assigned to pods: CPUs, memory on NUMA nodes, devices. Implemented by agent/numa.
type Assignments interface {
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

// Users gives pods users of their own; *userns.Users does.
type Users interface {
	// Of returns a pod's user namespace; nil: the host's.
	Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
	// Release says that nothing of the pod runs any more.
	Release(uid types.UID)
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
	BlockDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error)
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
	// Preempt says which of the pods that are here end so that a critical pod, which Admit has just rejected, fits; ok
	// is false where that does not help.
	Preempt(pod *corev1.Pod, others []*corev1.Pod, present []podentry.Present) (p admission.Preemption, ok bool)
	// Resize gives each request its verdict, in the order of requests. held are all pods that take something of the
	// node, with those that ask.
	Resize(requests []allocation.Request, held []*corev1.Pod) []allocation.Verdict
}

// Rejection says why a pod may not run here, in upstream's words (OutOfcpu, ...).
type Rejection struct {
	Reason, Message string
	Later           bool // it may be another answer soon: ask again, for as long as a pod waits
	Room            bool // what it lacks, other pods may hold
	Preempts        bool // Preempt may find pods that end for it
	Asks            bool // no answer yet: Consult, and ask again
}

// RejectionOf translates a rejection by core/numa.
func RejectionOf(r *numa.Rejection) *Rejection {
	return &Rejection{Reason: r.Reason, Message: r.Message(), Later: r.Waiting}
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
	Assignments Assignments
	Users       Users
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
	// UserNamespaces: this node can give pods users of their own, as far as it is the agent's and the kernel's
	// business.
	UserNamespaces bool
	TrustBundles   bool // pods can have certificates of ClusterTrustBundles: the feature gate is on

	CSIVolumes      bool // CSI drivers are registered and called
	PodCertificates bool // the agent requests certificates for pods: the feature gate is on
	// Evicted says whether an agent before this one evicted a pod of the API. Optional.
	Evicted func(types.UID) (Eviction, bool)
}

// Eviction is the end of a pod for the node's sake.
type Eviction struct {
	Reason, Message string
	KillAt          time.Time // what runs of it then is killed
	Disrupts        bool      // reported as the condition DisruptionTarget
}

func (v Eviction) order() podlife.StopOrder {
	order := podlife.StopOrder{Phase: podlife.Failed, Reason: v.Reason, Message: v.Message}
	if v.Disrupts {
		order.Disruption = v.Message
	}
	return order
}
