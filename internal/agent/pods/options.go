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
	"github.com/plimsoll-dev/plimsoll/internal/agent/tracing"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Groups manages the cgroups of pods. In this package a group is a cgroup. Package agent implements it with core/qos
// and host/cgroup.
type Groups interface {
	// Ensure creates or updates the pod's group and returns its name, which the runtime takes as the parent.
	Ensure(pod *corev1.Pod) (parent string, err error)
	Remove(ctx context.Context, uid types.UID) error
	// Pods returns the pods that have a group.
	Pods() ([]types.UID, error)
	// Sizes returns the desired sizes of the pod's group and of its containers' groups.
	Sizes(pod *corev1.Pod) (group resize.Size, of func(*corev1.Container) resize.Size)
	// Has reads the actual size of a container's group, or of the pod's group if id is empty. Values that the kernel does
	// not report are unknown.
	Has(pod *corev1.Pod, id string) (resize.Size, error)
	// Resize takes a step of a resize that changes the pod's own group.
	Resize(pod *corev1.Pod, step resize.Step) error
	// Update translates a step of a resize that changes a container for the runtime. has is the container's actual size.
	Update(pod *corev1.Pod, c *corev1.Container, step resize.Step, has resize.Size) *runtimeapi.LinuxContainerResources
	// MemoryInUse returns the memory of a container that the kernel cannot reclaim at once, or the pod's if id is empty.
	MemoryInUse(pod *corev1.Pod, id string) (unit.Bytes, error)
	// Container returns the name of a container's group; empty: it is not known.
	Container(pod *corev1.Pod, id string) string
	// Killed returns how many processes of a container the kernel has killed because memory ran out.
	Killed(pod *corev1.Pod, id string) (int64, error)
	// Resources returns the resources with which the runtime creates a container.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// SandboxResources returns the pod's overhead, and the sum of its containers' resources without it.
	SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources)
}

// Assignments manages what is assigned to pods: CPUs, memory on NUMA nodes, devices. *numa.Manager of agent/numa
// implements it.
type Assignments interface {
	// Note returns what the sandbox's annotation records of the pod's assignment for the next agent; empty: nothing.
	Note(uid string) string
	// MustReadmit reports whether a pod that an earlier agent started must be admitted again, because its assignment is
	// lost.
	MustReadmit(uid string) bool
	// Start sets in r where a container may run. After an error the container must not be started. The caller calls done
	// when the start is over.
	Start(uid, container string, r *runtimeapi.LinuxContainerResources) (done func(), err error)
	// Update sets in r what an update of a running container must repeat. The caller calls done when it is over.
	Update(uid, container string, r *runtimeapi.LinuxContainerResources) (done func())
	// Check compares a container's cgroup with what is assigned to the container.
	Check(uid, container, group string) error
	// Finish is called when the pod's init containers have ended.
	Finish(uid string)
	// Release is called when no container of the pod runs any more.
	Release(uid string)
}

// Users manages the user namespaces of pods; *userns.Users implements it.
type Users interface {
	// Of returns a pod's user namespace; nil: the host's.
	Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
	// Release is called when no container of the pod runs any more.
	Release(uid types.UID)
}

// Devices manages the devices of containers. Package agent implements it with agent/devicemanager.
type Devices interface {
	// Configure adds what a container's devices need to the configuration with which the container is created.
	Configure(ctx context.Context, uid, container string, config *runtimeapi.ContainerConfig) error
	// Status returns the health of a container's devices.
	Status(uid, container string) []corev1.ResourceStatus
	// Release is called when no container of the pod runs any more.
	Release(uid string)
}

// Volumes manages the files that containers see; *volume.Manager implements it.
type Volumes interface {
	// SetUp sets up the pod's volumes. It may be repeated.
	SetUp(ctx context.Context, pod *corev1.Pod) error
	// Update receives a new version of the pod.
	Update(pod *corev1.Pod)
	VolumePath(pod *corev1.Pod, name string) (string, error)
	Mounts(pod *corev1.Pod, c *corev1.Container, facts volume.ContainerFacts) ([]*runtimeapi.Mount, error)
	BlockDevices(pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error)
	// Release removes what a pod that has ended no longer needs; TearDown removes everything.
	Release(ctx context.Context, uid types.UID) error
	TearDown(ctx context.Context, uid types.UID) error
	// Orphans returns the pods that have files here and are not in known.
	Orphans(known map[types.UID]bool) ([]types.UID, error)
}

// Admission gives the node's verdicts on pods that are not running yet, and on resizes.
//
// The Runner passes the pods that have resources of the node now, in any order. An implementation compares them with
// those of the previous call; it is not notified when a pod comes, changes or goes.
type Admission interface {
	// Wait returns what a pod of which nothing runs must wait for before it starts, and until when. If why is empty, the
	// pod may start; if until is zero, it has waited too long.
	Wait(pod *corev1.Pod, since time.Time) (why string, until time.Time)
	// Admit admits a pod, given the other pods on the node, and returns nil; or it returns why not. It is called for one
	// pod at a time, and waits for nothing outside the agent.
	Admit(pod *corev1.Pod, others []*corev1.Pod) *Rejection
	// Consult asks device plugins for the preference that Admit needs (Rejection.Asks), before Admit is called again. It
	// may take long; no other pod waits for it.
	Consult(ctx context.Context, pod *corev1.Pod) *Rejection
	// Allocate has device plugins allocate the devices that were assigned to a pod. It may take long; no other pod waits
	// for it. If it rejects the pod, nothing is assigned to it any more.
	Allocate(ctx context.Context, pod *corev1.Pod) *Rejection
	// Preempt returns which of the present pods must end so that a critical pod fits that Admit has just rejected. ok is
	// false if no choice of pods helps.
	Preempt(pod *corev1.Pod, others []*corev1.Pod, present []podentry.Present) (p admission.Preemption, ok bool)
	// Resize returns the verdict on each request, in the order of requests. holders are all pods that have resources of
	// the node, including those of requests.
	Resize(requests []allocation.Request, holders []*corev1.Pod) []allocation.Verdict
}

// Rejection says why a pod may not run here, in upstream's words (OutOfcpu, ...).
type Rejection struct {
	Reason, Message string
	Later           bool // the answer may change soon: ask again, for as long as a pod may wait
	Room            bool // other pods may have what the pod lacks
	Preempts        bool // Preempt may find pods that can end for this one
	Asks            bool // there is no answer yet: call Consult, and ask again
}

// RejectionOf translates a rejection by core/numa.
func RejectionOf(r *numa.Rejection) *Rejection {
	return &Rejection{Reason: r.Reason, Message: r.Message(), Later: r.Waiting}
}

// Options are what a Runner needs. Fields not marked optional must be set.
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
	WorkTimeout time.Duration // runtimeRequestTimeout: bounds a call that creates or removes; doubled for a sandbox
	Starts      int           // how many pods start at the same time
	Relist      time.Duration // interval of the relist of the runtime, in case a notification was lost
	MaskedPaths []string      // optional: hidden from containers in addition to the usual ones (criconfig.Node)
	SeccompAll  bool          // seccompDefault: RuntimeDefault for containers that name no profile
	Images      *imagepull.Puller
	Metrics     *metrics.Set
	// Suits returns why a pod cannot run on this system at all, whatever other pods are here; nil: it can. Optional.
	Suits func(*corev1.Pod) *Rejection
	// UserNamespaces means that the agent and the kernel support user namespaces for pods. The runtime may not.
	UserNamespaces bool
	TrustBundles   bool // pods can have certificates of ClusterTrustBundles: the feature gate is on

	CSIVolumes      bool // CSI drivers are registered and called
	PodCertificates bool // the agent requests certificates for pods: the feature gate is on
	// Journal gets what is decided about pods. Nil: nobody.
	Journal *journal.Log
	// Trace makes the spans of syncs. Nil: there are none.
	Trace *tracing.Tracing
	// Judged returns what the last call of Admission.Admit decided from, for the Journal. It is called like Admit, for one
	// pod at a time. Optional.
	Judged func() journal.Judged
	// Evicted returns whether an earlier agent evicted a pod, and how. Optional.
	Evicted func(types.UID) (Eviction, bool)
}

// Eviction is why and when the agent ends a pod that could have gone on.
type Eviction struct {
	Reason, Message string
	KillAt          time.Time // when containers that still run are killed
	Disrupts        bool      // reported as the condition DisruptionTarget
}

func (v Eviction) order() podlife.StopOrder {
	order := podlife.StopOrder{Phase: podlife.Failed, Reason: v.Reason, Message: v.Message}
	if v.Disrupts {
		order.Disruption = v.Message
	}
	return order
}
