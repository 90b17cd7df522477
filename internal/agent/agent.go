// Package agent is the node agent's shell: it runs the pods that are bound to this node, reports the Node's status and
// Lease, and serves the kubelet's API.
//
// The agent's parts are packages below this one; this package constructs them and connects them to each other. Their
// rules are in internal/core. The agent needs no checkpoint of pods on disk: a new agent recovers from the runtime, the
// API server and the volumes on disk. It writes the kubelet's checkpoints for a kubelet that may follow it.
//
// Stopping the agent stops no container. Starting a cluster is not its task: internal/cluster does that.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/cadvisor"
	"github.com/plimsoll-dev/plimsoll/internal/agent/credentialprovider"
	"github.com/plimsoll-dev/plimsoll/internal/agent/csidrivers"
	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/diskusage"
	agenteviction "github.com/plimsoll-dev/plimsoll/internal/agent/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/agent/identity"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	agentnuma "github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pluginregistry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	agentshutdown "github.com/plimsoll-dev/plimsoll/internal/agent/shutdown"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/agent/tracing"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volumestats"
	"github.com/plimsoll-dev/plimsoll/internal/agent/watchdog"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/machineinfo"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// Options are the agent's flags; everything else comes from the KubeletConfiguration.
type Options struct {
	Kubeconfig string // of the API server
	// Bootstrap is the kubeconfig with which the first client certificate is requested. Empty: Kubeconfig exists.
	Bootstrap string
	CertDir   string // directory of the node's certificates
	Config    *kubeletconfigv1beta1.KubeletConfiguration
	RootDir   string // absolute path
	Endpoint  string // CRI socket of the container runtime
	// DevicePluginsDir is the directory where device plugins register, an absolute path. The kubelet's is
	// /var/lib/kubelet/device-plugins.
	DevicePluginsDir string
	NodeName         string
	NodeIPs          []netip.Addr // empty: looked up by the host's name, else of the interface with the default route
	Cloud            bool         // an external cloud controller manages the Node's addresses
	Labels           map[string]string
	// CreateMissingCgroups creates the controllers that a reserved cgroup lacks. If it is false, the agent refuses to
	// start.
	CreateMissingCgroups bool
	MemorySignal         eviction.MemorySignal // which signal measures available memory
	// ReclaimMemory has the kernel reclaim memory of pods that use more than their request, near a memory threshold.
	ReclaimMemory bool
	Starts        int // how many pods start at the same time; 0: StartsPerCPU for each CPU
	// Flags are those of the command line, with their values, for /flagz.
	Flags map[string]string
	// SetVerbosity sets how much is logged, as -v does. Optional: it cannot be set.
	SetVerbosity func(verbosity int)
	// Credentials are the options of the credential provider plugins, without Accounts and Now: the agent sets them.
	Credentials credentialprovider.Options
}

// StartsPerCPU is how many pods start at the same time for each CPU of the machine. A start waits for the kernel and
// for the runtime's own lookups about as long as it computes. Measured 2026-11-20 with containerd 1.6 and runc 1.1: 110
// pods on two CPUs take longest with 1 and with 16. With a higher number each start takes longer, and the first pods
// run later.
const StartsPerCPU = 4

// gcPercent is the agent's GOGC, in percent (chosen). It trades a little CPU for memory: the agent allocates in bursts
// and is idle for hours in between. With Go's default of 100 the heap grows to twice the live objects during a burst.
// Garbage collection took 7 % of the agent's CPU with 50 (110 pods with a probe each second, measured 2026-11-24).
const gcPercent = 35

// relist is the interval at which the agent lists all containers of the runtime. It is the periodic resync for lost
// exits (from the kernel) and lost events (from the runtime). The kubelet relists every second, and that is its only
// source.
const relist = 10 * time.Second

const (
	// callMax bounds one call to the runtime or to the API server that only reads. Chosen: a healthy one answers in
	// milliseconds.
	callMax = 5 * time.Second
	// handshakeRetry is the pause between two attempts to reach the runtime at the agent's start (chosen).
	handshakeRetry = 100 * time.Millisecond
	// reopenMax bounds the call with which the runtime opens a rotated log again (chosen).
	reopenMax = 10 * time.Second
)

// olderMax is how many minor releases an agent may be older than its API server: the kubelet's.
const olderMax = 3

// Agent is one node's agent. Its parts are constructed by the prepare functions, in the order in which Run calls them.
// After that loops runs them, and no field changes any more, except server (see serve).
type Agent struct {
	o          Options
	identity   *identity.Identity
	serving    *identity.Serving // nil: the server's certificate is not requested
	client     *kube.Client      // writes with it are throttled
	heartbeats *kube.Client      // for the Node's status and Lease
	runtime    *cri.Client
	recorder   record.EventRecorder
	holdEvents func(kube.Held) // sets what recorder's Events wait for; Warnings never wait

	runtimeName string // prefix of container IDs in the API: containerd, cri-o

	metrics     *metrics.Set
	tracing     *tracing.Tracing // nil: no spans are made
	machine     machine.Machine
	resources   allocatable.Resources // capacity, reservations and allocatable; set once, at the start
	numa        numa.Config
	groups      *groups
	assignments *agentnuma.Manager
	plugins     *plugins
	drivers     *csidrivers.Registry
	csiVolumes  *csivolume.Manager
	volumeStats *volumestats.Reader
	registry    *pluginregistry.Registry
	services    services
	node        *node.Reporter
	podCIDRs    podCIDRs
	pods        *pods.Runner
	journal     *journal.Journal // of evictions
	decisions   *journal.Log     // about pods, apart from evictions
	judged      journal.Judged   // see admit
	guard       *agenteviction.Guard
	shutdown    *agentshutdown.Guard // nil: shutdowns of the machine are not delayed
	watchdog    *watchdog.Watchdog   // tells systemd about the agent
	server      *server.Server
	stats       *stats.Reader
	cgroups     *cadvisor.Collector
	images      *imagegc.Collector
	pulled      *imageaccess.Records
	users       *userns.Users
	hasUsers    bool // the kernel and the agent can give pods users of their own; the runtime may not
	storage     *diskusage.Meter

	addresses func() ([]corev1.NodeAddress, error)
	volumes   *volume.Manager
	changes   chan struct{} // has a value when the kubelet's checkpoints must be written
}

// Run runs the agent until ctx ends. Containers keep running afterwards.
func Run(ctx context.Context, o Options) error {
	debug.SetGCPercent(gcPercent)
	if err := process.SetOpenFilesMax(uint64(o.Config.MaxOpenFiles)); err != nil {
		slog.Warn("maxOpenFiles: the agent goes on with fewer", "err", err, "help", "LimitNOFILE= of its systemd unit")
	}
	a := &Agent{
		o:        o,
		metrics:  metrics.New(o.NodeName),
		changes:  make(chan struct{}, 1),
		podCIDRs: newPodCIDRs(),
		watchdog: watchdog.New(turnMax), // before any child process is started
	}
	kube.ClientMetrics(a.metrics.Registry)
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { a.watchdog.Run(ctx) })
	if err := a.prepareTracing(ctx); err != nil {
		return err
	}
	defer a.closeTracing()
	if err := a.dialAPI(ctx); err != nil {
		return err
	}
	background.Go(func() { a.heartbeats.NoteSkew(ctx, version.Kubernetes, olderMax) })
	background.Go(func() { a.identity.Run(ctx) }) // the other parts may ask the API server, which waits for this
	is, err := a.connect(ctx)
	if err != nil {
		return err
	}
	a.runtimeName = strings.ToLower(is.RuntimeName)
	slog.Info("container runtime answers", "endpoint", o.Endpoint, "name", is.RuntimeName, "version", is.RuntimeVersion)
	defer a.closeJournal()
	for _, prepare := range []func(context.Context) error{
		a.openJournal,
		a.readMachine,
		a.enforce,
		a.prepareDevices,
		a.prepareRegistry,
		a.prepareCSIVolumes,
		a.prepareAssignments,
		a.prepareNode,
		a.preparePods,
		a.prepareDisks,
		a.prepareEviction,
		a.prepareShutdown,
		a.prepareCertificate,
		a.prepareServing,
	} {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	return a.loops(ctx)
}

// eventSource is the component that Events name. It is the kubelet's, because users' alerts match on it.
const eventSource = "kubelet"

// connect waits for the container runtime, without which the agent can do nothing.
func (a *Agent) connect(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	var err error
	calls := append(a.tracing.RuntimeCalls(), a.metrics.RuntimeCalls())
	if a.runtime, err = cri.Dial(a.o.Endpoint, calls...); err != nil {
		return nil, err
	}
	if images := imageEndpoint(a.o); images != "" {
		if err := a.runtime.ImagesFrom(images, calls...); err != nil {
			return nil, fmt.Errorf("read kubelet configuration: imageServiceEndpoint: %w", err)
		}
	}
	for logged := false; ; {
		ask, cancel := context.WithTimeout(ctx, callMax)
		version, err := a.runtime.Handshake(ask)
		cancel()
		if err == nil {
			return version, nil
		}
		if !logged {
			slog.Info("waiting for the container runtime", "err", err)
			logged = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(handshakeRetry):
		}
	}
}

// unlimitedIfZero translates eventRecordQPS for client-go: 0 means unlimited in the configuration, a negative number
// does in client-go.
func unlimitedIfZero(qps int32) int32 {
	if qps == 0 {
		return -1
	}
	return qps
}

// readMachine reads the machine's capacity.
func (a *Agent) readMachine(ctx context.Context) error {
	if err := os.MkdirAll(a.o.RootDir, 0o750); err != nil {
		return fmt.Errorf("create --root-dir: %w", err)
	}
	host := machineinfo.Host{Root: "/", StateDir: a.o.RootDir, ImageDir: a.imageDir(ctx)}
	var notes []string
	var err error
	if a.machine, notes, err = host.Machine(); err != nil {
		return fmt.Errorf("read this machine's resources: %w", err)
	}
	for _, note := range notes {
		slog.Warn("this machine", "note", note)
	}
	return nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// imageDir asks the runtime where it stores images. It returns "" if the runtime does not answer that.
func (a *Agent) imageDir(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	info, err := a.runtime.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(info.ImageFilesystems) == 0 {
		slog.Warn("the runtime does not report where it stores images; assuming the file system of --root-dir", "err", err)
		return ""
	}
	return info.ImageFilesystems[0].GetFsId().GetMountpoint()
}

// loops runs the parts until ctx ends, or until one of them returns an error. Then the other parts are ended too, and
// loops returns that error.
func (a *Agent) loops(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rotator := rotation(a.o.Config)
	rotator.Logs = func() []podlog.Log { return server.Logs(servedPods{a.pods}) }
	rotator.Reopen = a.reopenLog
	parts := map[string]func(context.Context) error{
		"node":     func(ctx context.Context) error { a.node.Run(ctx); return nil },
		"pods":     a.pods.Run,
		"server":   retrying("server", a.serve),
		"serving":  a.keepServing,
		"shutdown": a.delayShutdowns,
		"logs":     rotator.Run,
		"eviction": a.guard.Run,
		"memory":   a.trimMemory,
		"limits":   a.groups.limits.run,
		"images":   a.images.Run,
		"storage":  a.storage.Run,
		"oom":      a.keepOOMScores,
		"tiers":    func(ctx context.Context) error { return a.groups.follow(ctx, a.pods.Synced) },
		"topology": func(ctx context.Context) error { return a.assignments.Publish(ctx, a.client, a.nodeOwner) },
		"devices":  retrying("device plugins", a.plugins.Run),
		"plugins":  a.registry.Run,
		"drivers":  a.drivers.Run,
		"handover": a.keepHandover,
		"owners":   retrying("pod resources", a.servePodResources),
		"podcidrs": func(ctx context.Context) error { a.podCIDRs.run(ctx, a.runtime); return nil },
		"services": func(ctx context.Context) error { a.services.controller.RunWithContext(ctx); return nil },
		"chains":   a.keepChains,
		"group":    a.keepOwnGroup,
	}
	a.watchLoops()
	var running sync.WaitGroup
	for name, run := range parts {
		running.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	running.Wait()
	if err := a.volumes.HandOver(); err != nil {
		slog.Warn("a kubelet that takes this node over may not be able to update some volumes", "err", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *Agent) reopenLog(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, reopenMax)
	defer cancel()
	_, err := a.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}
