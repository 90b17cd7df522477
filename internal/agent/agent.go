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
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/cadvisor"
	"github.com/plimsoll-dev/plimsoll/internal/agent/credentialprovider"
	"github.com/plimsoll-dev/plimsoll/internal/agent/csidrivers"
	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/diskusage"
	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	agenteviction "github.com/plimsoll-dev/plimsoll/internal/agent/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/identity"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	agentnuma "github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/objectcache"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pluginregistry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/agent/trustbundle"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/machineinfo"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
	"github.com/plimsoll-dev/plimsoll/internal/host/sysfs"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Options are the agent's flags; everything else comes from the KubeletConfiguration.
type Options struct {
	Kubeconfig string
	Bootstrap  string                                     // kubeconfig to ask for the first client certificate with; empty: Kubeconfig is there already
	CertDir    string                                     // of the node's certificates
	Config     *kubeletconfigv1beta1.KubeletConfiguration // absolute path
	RootDir    string                                     // absolute path
	Endpoint   string                                     // CRI socket of the container runtime
	// DevicePluginsDir is the directory where device plugins register, an absolute path. The kubelet's is
	// /var/lib/kubelet/device-plugins.
	DevicePluginsDir string
	NodeName         string
	NodeIPs          []netip.Addr // empty: looked up by the host's name, else of the interface with the default route
	Cloud            bool         // an external cloud controller manages the Node's addresses
	Labels           map[string]string
	Taints           []corev1.Taint
	// CreateMissingCgroups creates the controllers that a reserved cgroup lacks. If it is false, the agent refuses to
	// start.
	CreateMissingCgroups bool
	MemorySignal         eviction.MemorySignal // which signal measures available memory
	// near a memory threshold, let the kernel reclaim memory of pods above their request
	ReclaimMemory bool
	Starts        int                        // how many pods start at the same time; 0: StartsPerCPU for each CPU
	Credentials   credentialprovider.Options // of the credential provider plugins, without Accounts and Now
}

// StartsPerCPU is how many pods start at the same time for each CPU of the machine. A start waits for the kernel and
// for the runtime's own lookups about as long as it computes. Measured 2026-11-20 with containerd 1.6 and runc 1.1: 110
// pods on two CPUs take longest with 1 and with 16. A higher number makes each start take longer and the first pods
// late.
const StartsPerCPU = 4

// gcPercent trades a little CPU for memory: the agent allocates in bursts and is idle for hours in between. With Go's
// default of 100 the heap grows to twice the live objects during a burst.
const gcPercent = 50

// relist is the interval at which the agent lists all containers of the runtime. It is the periodic resync for lost
// exits (from the kernel) and lost events (from the runtime). The kubelet relists every second, and that is its only
// source.
const relist = 10 * time.Second

// Agent is one node's agent.
type Agent struct {
	o          Options
	identity   *identity.Identity
	client     *kube.Client // writes with it are throttled
	heartbeats *kube.Client // for the Node's status and Lease
	runtime    *cri.Client
	recorder   record.EventRecorder
	holdEvents func(kube.Held) // what recorder's Events, other than Warnings, wait for

	runtimeName string // prefix of container IDs in the API: containerd, cri-o

	metrics     *metrics.Set
	machine     machine.Machine
	resources   allocatable.Resources // capacity, reservations and allocatable; set once, at the start
	numa        numa.Config
	groups      *groups
	assignments *agentnuma.Manager
	plugins     *plugins
	drivers     *csidrivers.Registry
	csiVolumes  *csivolume.Manager
	registry    *pluginregistry.Registry
	services    services
	node        *node.Reporter
	pods        *pods.Runner
	journal     *journal.Journal
	guard       *agenteviction.Guard
	server      *server.Server
	stats       *stats.Reader
	cgroups     *cadvisor.Collector
	images      *imagegc.Collector
	pulled      *imageaccess.Records
	users       *userns.Users
	hasUsers    bool // pods can have users of their own, if the runtime can
	storage     *diskusage.Meter

	addresses func() ([]corev1.NodeAddress, error)
	volumes   *volume.Manager
	changes   chan struct{} // has a value when the kubelet's checkpoints must be written
}

// Run runs the agent until ctx ends. Containers keep running afterwards.
func Run(ctx context.Context, o Options) error {
	debug.SetGCPercent(gcPercent)
	a := &Agent{o: o, metrics: metrics.New(o.NodeName), changes: make(chan struct{}, 1)}
	kube.ClientMetrics(a.metrics.Registry)
	if err := a.dialAPI(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { a.identity.Run(ctx) }) // the other parts may ask the API server, which waits for this
	version, err := a.connect(ctx)
	if err != nil {
		return err
	}
	a.runtimeName = strings.ToLower(version.RuntimeName)
	slog.Info("container runtime answers", "endpoint", o.Endpoint, "name", version.RuntimeName, "version", version.RuntimeVersion)
	defer a.closeJournal()
	for _, prepare := range []func(context.Context) error{a.readMachine, a.enforce, a.prepareDevices, a.prepareRegistry, a.prepareCSIVolumes, a.prepareAssignments, a.prepareNode, a.preparePods, a.prepareDisks, a.prepareEviction, a.prepareServing} {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	return a.loops(ctx)
}

// serve serves the kubelet's API. If the server could not be prepared at the agent's start, serve prepares it first: on
// a full disk the serving certificate cannot be written until other parts have freed space.
func (a *Agent) serve(ctx context.Context) error {
	if a.server == nil {
		if err := a.prepareServer(ctx); err != nil {
			return err
		}
	}
	return a.server.Run(ctx)
}

// prepareServing calls prepareServer. A shortage (such as a full disk) is not an error, since serve tries again later.
func (a *Agent) prepareServing(ctx context.Context) error {
	err := a.prepareServer(ctx)
	if shortage.Is(err) {
		slog.Warn("the agent's server could not be prepared yet; it is retried", "err", err)
		return nil
	}
	return err
}

// retrying wraps run so that it is retried when the machine is short of something, instead of ending the agent.
func retrying(name string, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return shortage.Retry(ctx, name, run) }
}

// eventSource is the component that Events name. It is the kubelet's, because users' alerts match on it.
const eventSource = "kubelet"

// connect waits for the container runtime, without which the agent can do nothing.
func (a *Agent) connect(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	var err error
	if a.runtime, err = cri.Dial(a.o.Endpoint, a.metrics.RuntimeCalls()); err != nil {
		return nil, err
	}
	if images := imageEndpoint(a.o); images != "" {
		if err := a.runtime.ImagesFrom(images, a.metrics.RuntimeCalls()); err != nil {
			return nil, fmt.Errorf("read kubelet configuration: imageServiceEndpoint: %w", err)
		}
	}
	for said := false; ; {
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		version, err := a.runtime.Handshake(ask)
		cancel()
		if err == nil {
			return version, nil
		}
		if !said {
			slog.Info("waiting for the container runtime", "err", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
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
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := a.runtime.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(info.ImageFilesystems) == 0 {
		slog.Warn("the runtime does not report where it stores images; assuming the file system of --root-dir", "err", err)
		return ""
	}
	return info.ImageFilesystems[0].GetFsId().GetMountpoint()
}

// declaredFeatures are the features that a node of Kubernetes 1.36 must declare before the API server accepts users'
// requests for them (resizes of pod-level resources and of init containers), or before a scheduler sends a pod that
// needs them (rules that restart all containers).
var declaredFeatures = []string{
	"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// prepareNode prepares the part that reports the Node's status and Lease.
func (a *Agent) prepareNode(context.Context) error {
	c := a.o.Config
	serving, err := netip.ParseAddr(c.Address)
	if err != nil {
		return fmt.Errorf("read kubelet configuration: address %q: %w", c.Address, err)
	}
	addresses := node.Addresses{Hostname: a.o.NodeName, NodeIPs: a.o.NodeIPs, Serving: serving}.ThisMachine()
	a.addresses = addresses.Find
	var cloud *node.Cloud
	if a.o.Cloud {
		cloud = &node.Cloud{NodeIPs: a.o.NodeIPs}
	}
	o := nodeOptions(c)
	o.Name = a.o.NodeName
	o.API = a.heartbeats
	o.Runtime = a.runtime
	o.Images = a.runtime.Images
	o.Recorder = a.recorder
	o.Machine, o.Resources = a.machine, a.resources
	o.Announce = a.assignments.Announce
	o.Exists = a.drivers.NodeExists
	o.CSIVolumes = true
	o.VolumesInUse = a.csiVolumes.VolumesInUse
	o.Status = a.csiVolumes.NodeStatus
	o.Addresses = addresses.Find
	o.Cloud = cloud
	o.Startup = a.metrics.Startup
	o.Plugins = a.plugins
	o.Labels, o.Taints = a.o.Labels, slices.Concat(a.o.Taints, o.Taints)
	o.DeclaredFeatures = declaredFeatures
	o.UserNamespaces = func() bool { return a.hasUsers } // known before the first report
	o.MainLoop, o.Pressure = func() time.Time { return a.pods.LastRead() }, a.pressure
	a.node, err = node.New(o)
	return err
}

// hostIPs returns the node's internal IP addresses, as published in the Node.
func (a *Agent) hostIPs() ([]string, error) {
	all, err := a.addresses()
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, address := range all {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	return ips, nil
}

// preparePods prepares the pod workers and what they need.
func (a *Agent) preparePods(ctx context.Context) error {
	c := a.o.Config
	hostIPs, err := a.hostIPs()
	if err != nil {
		return err
	}
	a.services = watchServices(a.client)
	var keeper *volume.Manager
	changed := func(uid types.UID) {
		keeper.Changed(uid)
		a.pods.Retry(uid)
	}
	cache := objectcache.New(ctx, a.client, changed)
	volumes := volume.Options{
		RootDir: a.o.RootDir, ClusterDomain: c.ClusterDomain, Objects: cache, Tokens: volume.KubeTokens(a.client), Allocatable: a.allocatable,
		Claims: volume.KubeClaims(a.client), NodeLabels: a.nodeLabels, MaxPods: int(c.MaxPods),
		Took: a.metrics.ObserveStorage, CSI: a.csiVolumes,
	}
	if kubeletconfig.ReadsTrustBundles(c) {
		volumes.Bundles = trustbundle.New(ctx, a.client, changed)
	}
	if kubeletconfig.RequestsPodCertificates(c) {
		certificates := podcert.New(ctx, podcert.Options{
			Node: a.o.NodeName, API: a.client, NodeUID: a.nodeUID, Recorder: a.recorder, Changed: changed,
		})
		a.metrics.Registry.MustRegister(certificates)
		volumes.Certificates = certificates
	}
	keeper, err = volume.New(ctx, volumes)
	if err != nil {
		return err
	}
	a.volumes = keeper
	a.metrics.Registry.MustRegister(keeper)
	starts := a.o.Starts
	if starts == 0 {
		starts = StartsPerCPU * runtime.NumCPU()
	}
	suits, err := a.suits(ctx)
	if err != nil {
		return err
	}
	o := podOptions(c)
	if o.Images, err = a.preparePulls(ctx, cache); err != nil {
		return err
	}
	o.Node = a.o.NodeName
	o.RootDir = a.o.RootDir
	o.HostIPs = hostIPs
	o.Client = a.client
	o.Runtime = a.runtime
	o.RuntimeName = a.runtimeName
	o.Recorder = a.recorder
	o.Metrics = a.metrics
	o.Volumes, o.Env = keeper, &env.Builder{Objects: cache, Services: a.services.in}
	o.DNS = dns.Resolver{ClusterDomain: c.ClusterDomain, ClusterDNS: c.ClusterDNS, ResolvConf: *c.ResolverConfig, NodeIPs: hostIPs}
	o.Allocatable = a.allocatable
	o.Groups = a.groups
	o.Assignments = a.assignments
	a.prepareUsers(ctx)
	o.Users, o.UserNamespaces = a.users, a.hasUsers
	o.Devices = a.plugins
	o.CSIVolumes = true
	o.Admission = a.admission(ctx)
	o.QOSClass = func(pod *corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSClass(a.groups.class(pod)) }
	o.Starts, o.Relist = starts, relist
	o.Probes = probe.New(ctx, probe.Options{
		Runtime: a.runtime, Recorder: a.recorder, Registry: a.metrics.Probes,
		Changed: func(uid types.UID) { a.pods.Resync(uid) },
	})
	o.Hooks = hook.Runner{Runtime: a.runtime, Recorder: a.recorder, Metrics: a.metrics}
	o.Suits, o.MaskedPaths = suits, sysfs.Default.ThermalThrottles()
	o.Evicted = func(uid types.UID) (pods.Eviction, bool) { return a.guard.Recall(uid) }
	if a.pods, err = pods.New(o); err != nil {
		return err
	}
	a.holdEvents(a.pods.Starting) // four Events for each pod that starts would slow the starts
	return nil
}

// admission is the node's verdict on pods.
func (a *Agent) admission(ctx context.Context) admit {
	c := a.o.Config
	return admit{
		ledger:       newLedger(a.resources),
		assignments:  a.assignments,
		plugins:      a.plugins,
		staticCPUs:   c.CPUManagerPolicy == "static",
		staticMemory: c.MemoryManagerPolicy == "Static",
		swaps:        a.groups.swaps,
		node:         a.node.Node,
		fresh:        func() (*corev1.Node, error) { return a.nodeNow(ctx) },
		elsewhere:    a.plugins.resources,
		conditions:   func() []eviction.Condition { return a.guard.Pressure() },
	}
}

// allocatable returns the node's allocatable resources, and the resources that other programs added to the Node
// (extended resources).
func (a *Agent) allocatable() corev1.ResourceList {
	_, own := translate.NodeResources(a.resources)
	if n := a.node.Node(); n != nil {
		for name, quantity := range n.Status.Allocatable {
			if _, ours := own[name]; !ours {
				own[name] = quantity
			}
		}
	}
	return own
}

// nodeLabels returns the Node's labels as the watch last delivered them.
func (a *Agent) nodeLabels() map[string]string {
	if n := a.node.Node(); n != nil {
		return n.Labels
	}
	return nil
}

// nodeNow is our Node with the labels and taints that it has now. What it offers stays as last seen.
func (a *Agent) nodeNow(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	node := &corev1.Node{}
	if err := a.client.Get(ctx, kube.Nodes, "", a.o.NodeName, node); err != nil {
		return nil, err
	}
	if seen := a.node.Node(); seen != nil {
		node.Status.Allocatable = seen.Status.Allocatable
	}
	return node, nil
}

// nodeUID returns the UID of the Node object at present.
func (a *Agent) nodeUID(ctx context.Context) (types.UID, error) {
	node, err := a.nodeNow(ctx)
	if err != nil {
		return "", err
	}
	return node.UID, nil
}

// prepareServer prepares the server of the kubelet's API.
func (a *Agent) prepareServer(context.Context) error {
	made, err := server.New(server.Options{
		Config: a.o.Config, NodeName: a.o.NodeName, Names: []string{a.o.NodeName}, CertDir: a.o.CertDir, API: a.client,
		Pods: servedPods{a.pods}, Runtime: a.runtime, Stats: a.stats, Cgroups: a.cgroups, Metrics: a.metrics,
		Healthy: func() error { return a.pods.Healthy(healthyWithin) }, Journal: a.journal.Find,
	})
	if err == nil {
		a.server = made
	}
	return err
}

// healthyWithin is how old the last relist may be before the agent's health check fails: the kubelet's limit for a
// relist (3 min).
const healthyWithin = 3 * time.Minute

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
		"services": func(ctx context.Context) error { a.services.controller.RunWithContext(ctx); return nil },
	}
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := a.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// The agent works in bursts and is idle for hours in between. A while after its start, and then at intervals, it
// returns memory to the kernel that only the burst needed: freed heap, and code that ran once. One round costs about 10
// ms of CPU (measured).
const (
	trimFirst = 10 * time.Second
	trimEvery = time.Minute
	// trimLook is how long pods must not have come, gone or changed after some have, before what they needed is
	// returned. Chosen: longer than pods of a burst are apart. Lowered, a slow burst is trimmed while it goes on; raised,
	// the node lacks the memory for longer.
	trimLook = 5 * time.Second
)

// trimTimes says when unused memory is returned. The zero value has not seen anything.
type trimTimes struct {
	version uint64    // of the pods, at the last look
	busy    bool      // pods have changed since memory was returned last
	next    time.Time // when it is returned at the latest
}

// due reports whether memory is to be returned, at a look at the version of the pods.
func (t *trimTimes) due(now time.Time, version uint64) bool {
	changed := version != t.version
	t.version = version
	t.busy = t.busy || changed
	if now.Before(t.next) && (changed || !t.busy) {
		return false
	}
	t.busy = changed
	t.next = now.Add(trimEvery)
	return true
}

// trimMemory returns unused memory to the kernel at intervals, and when a burst is over, except while the agent's
// memory is locked.
func (a *Agent) trimMemory(ctx context.Context) error {
	look := time.NewTicker(trimLook)
	defer look.Stop()
	times := trimTimes{next: time.Now().Add(trimFirst)}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		if !times.due(time.Now(), a.pods.Version()) {
			continue
		}
		if !a.guard.MemoryLocked() {
			debug.FreeOSMemory()
			if err := process.Trim(); err != nil {
				slog.Debug("unused memory not returned to the kernel", "err", err)
			}
		}
	}
}
