// Package stats reads the usage of the node, its pods and their containers at the time of a request, and returns it in
// the form of the Summary API.
//
// Nothing runs between two requests. (The kubelet's cAdvisor has a goroutine and a history per container, which is most
// of the kubelet's idle cost.) CPU and memory come from the cgroup file system, network from /proc/<pid>/net/dev of a
// process of the pod, file systems from statfs(2), images and writable layers from the runtime. A rate (usageNanoCores)
// is computed against the request before; the first request has none.
//
// What cannot be read is left out. It is not reported as zero, and the rest is still reported. Only failing to read the
// node's own usage is an error. Counters belong to the cgroup: they start again with a container's next attempt.
//
// The system containers "kubelet" and "runtime" are only those processes, read from /proc, whatever cgroup they share
// with others; "pods" is the cgroup of all pods.
package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// Parts are the parts of a summary in addition to CPU and memory.
type Parts uint8

// Parts of a summary. Network costs a file per pod; Disk costs two calls to the runtime and a walk over volumes;
// Claims, which needs Disk, has CSI drivers asked; Swap costs two files per pod and container, Pressure three. With
// Recount volumes are walked now, even if they were walked lately. Idle adds pods without a container in the runtime;
// like the kubelet's, summaries for clients leave them out.
const (
	Network Parts = 1 << iota
	Disk
	Recount
	Idle
	Swap
	Pressure
	Claims
	Everything = Network | Disk | Swap | Pressure | Claims
)

// Cgroups reads cgroups; *cgroup.Tree implements it.
type Cgroups interface {
	Usage(group string) (cgroup.Usage, error)
	PIDs(group string) ([]int, error)
	MemoryLimit(group string) (unit.Limit[unit.Bytes], error)
	Swap(group string) (cgroup.Swap, error)
	Pressure(group, resource string) (psi.Pressure, error)
}

// Runtime knows the sizes of writable layers; *cri.Client implements it.
type Runtime interface {
	ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest,
		...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error)
}

// Images knows the file systems of images; *cri.Client's Images implements it.
type Images interface {
	ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest,
		...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error)
}

// Pod is a pod whose usage can be read: one with running containers, or with containers that will run again.
type Pod struct {
	Ref     statsapi.PodReference
	Started time.Time
	Group   string // cgroup
	// the CRI ID and the cgroup of the running sandbox; empty: there is none, or its cgroup is not known
	SandboxID, SandboxGroup string

	HostNetwork bool   // its traffic counts as the node's
	VolumeDir   string // <root-dir>/pods/<uid>/volumes; may not exist
	LogDir      string // the directory of all its containers' logs, one directory each; empty: not known
	Containers  []Container
	Idle        bool // the runtime has no container of it; its volumes may exist from an earlier run
}

// Container is a running container of a Pod.
type Container struct {
	Name        string
	ID          string // CRI ID
	Image       string // as its status names it, else as its specification does
	Group       string // cgroup
	Started     time.Time
	MemoryLimit uint64 // bytes; 0: none
	LogDir      string // the directory of the logs of all its attempts
}

// Options are the sources of a Reader. Runtime and Images may be nil; then disks are left out.
type Options struct {
	NodeName      string
	Pods          func() []Pod
	Cgroups       Cgroups
	PodsGroup     string // cgroup of all pods
	Runtime       Runtime
	Images        Images
	RuntimeSocket string // path of the CRI socket, to find the runtime's process; may be empty
	RootDir       string // the agent's directory; its file system is nodefs
	Proc          string // empty: /proc
	Now           func() time.Time
	// Volumes returns what is known about a pod's volumes behind claims and of CSI drivers. It must return at once.
	// Demand is called before: somebody wants to know it. It may wait for some seconds. Both or none.
	Volumes func(uid types.UID) []statsapi.VolumeStats
	Demand  func(context.Context)
	// Measured is called after a volume on the node's disk was measured. source is ByQuota or ByWalk; a walk that was
	// not complete took its part of the time. Optional.
	Measured func(source string, took time.Duration)
}

// How a volume was measured, in the kubelet's words: by the kernel's project quota or by reading its directories.
const (
	ByQuota = "fsquota"
	ByWalk  = "du"
)

// Reader reads summaries, one at a time. It is safe for concurrent use.
type Reader struct {
	o Options
	// holds one token; the goroutine that took it reads, and only that goroutine uses rates and walks
	token chan struct{}
	rates rates
	walks walks
}

// New returns a Reader.
func New(o Options) *Reader {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Measured == nil {
		o.Measured = func(string, time.Duration) {}
	}
	r := &Reader{o: o, token: make(chan struct{}, 1), rates: rates{}, walks: walks{most: walkEntriesMax,
		known: map[string]*walk{}}}
	r.token <- struct{}{}
	return r
}

// Summary reads CPU and memory, and the parts.
func (r *Reader) Summary(ctx context.Context, parts Parts) (*statsapi.Summary, error) {
	if parts&Claims != 0 && r.o.Demand != nil {
		r.o.Demand(ctx) // before the token is taken: eviction does not wait for drivers
	}
	select {
	case <-r.token:
		defer func() { r.token <- struct{}{} }()
	case <-ctx.Done():
		return nil, fmt.Errorf("read usage: wait for the reading before: %w", ctx.Err())
	}
	p := &pass{Reader: r, ctx: ctx, parts: parts, seen: map[string]bool{}}
	node, err := p.node()
	if err != nil {
		return nil, fmt.Errorf("read usage of the node: %w", err)
	}
	if parts&Disk != 0 {
		p.disks(&node)
	}
	pods := []statsapi.PodStats{}
	for _, pod := range r.o.Pods() {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read usage of pods: %w", ctx.Err())
		}
		if !pod.Idle || parts&Idle != 0 {
			pods = append(pods, p.pod(pod))
		}
	}
	r.rates.dropUnseen(p.seen)
	if parts&Disk != 0 {
		r.walks.dropUnused(r.o.Now())
	}
	return &statsapi.Summary{Node: node, Pods: pods}, nil
}

// pass is one reading.
type pass struct {
	*Reader
	ctx    context.Context
	parts  Parts
	seen   map[string]bool // cgroups and processes that were read; the others' rates are dropped
	nodeFS *statsapi.FsStats
	layers layers
	walked int // directory entries read so far
}

func (p *pass) pod(pod Pod) statsapi.PodStats {
	out := statsapi.PodStats{PodRef: pod.Ref, StartTime: metav1.NewTime(pod.Started),
		Containers: []statsapi.ContainerStats{}}
	if u, at, ok := p.group(pod.Group); ok {
		out.CPU, out.Memory = p.cpu(pod.Group, u, at), memory(u, at, 0)
		out.Swap = p.swap(pod.Group, at)
		out.IO = p.stalls(pod.Group, at, out.CPU, out.Memory)
		if n, ok := u.PIDs.Get(); ok {
			out.ProcessStats = &statsapi.ProcessStats{ProcessCount: ptr(uint64(n))}
		}
	}
	for _, c := range pod.Containers {
		one := statsapi.ContainerStats{Name: c.Name, StartTime: metav1.NewTime(c.Started)}
		if u, at, ok := p.group(c.Group); ok {
			one.CPU, one.Memory = p.cpu(c.Group, u, at), memory(u, at, c.MemoryLimit)
			one.Swap = p.swap(c.Group, at)
			one.IO = p.stalls(c.Group, at, one.CPU, one.Memory)
		}
		if p.parts&Disk != 0 {
			one.Rootfs, one.Logs = p.rootFS(c), p.logs(c)
		}
		out.Containers = append(out.Containers, one)
	}
	if p.parts&Network != 0 && !pod.HostNetwork {
		out.Network = p.podNetwork(pod)
	}
	if p.parts&Disk != 0 {
		p.volumes(pod, &out)
	}
	return out
}

// group reads a cgroup. If it does not exist, its container has just ended, and nothing is logged.
func (p *pass) group(name string) (u cgroup.Usage, at time.Time, ok bool) {
	if name == "" {
		return u, at, false
	}
	u, err := p.o.Cgroups.Usage(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			slog.Debug("read usage", "cgroup", name, "err", err)
		}
		return u, at, false
	}
	return u, p.o.Now(), true
}

// cpu converts a counter to CPUStats; key identifies it for the rate.
func (p *pass) cpu(key string, u cgroup.Usage, at time.Time) *statsapi.CPUStats {
	used, ok := u.CPU.Get()
	if !ok {
		return nil
	}
	p.seen[key] = true
	out := &statsapi.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: ptr(uint64(used))}
	if rate, ok := p.rates.observe(key, at, used); ok {
		out.UsageNanoCores = ptr(rate)
	}
	return out
}

// memory converts a cgroup's usage to MemoryStats. AvailableBytes is only set if there is a limit.
func memory(u cgroup.Usage, at time.Time, limit uint64) *statsapi.MemoryStats {
	if !u.Memory.IsSet() {
		return nil
	}
	out := &statsapi.MemoryStats{Time: metav1.NewTime(at)}
	set := func(to **uint64, v int64, ok bool) {
		if ok {
			*to = ptr(uint64(v))
		}
	}
	usage, ok := u.Memory.Get()
	set(&out.UsageBytes, int64(usage), ok)
	working, ok := u.WorkingSet.Get()
	set(&out.WorkingSetBytes, int64(working), ok)
	if ok && limit > 0 {
		out.AvailableBytes = ptr(limit - min(limit, uint64(working)))
	}
	rss, ok := u.RSS.Get()
	set(&out.RSSBytes, int64(rss), ok)
	faults, ok := u.PageFaults.Get()
	set(&out.PageFaults, faults, ok)
	major, ok := u.MajorPageFaults.Get()
	set(&out.MajorPageFaults, major, ok)
	return out
}

// swap reads what a cgroup has swapped, and how much more it may swap; nil: the kernel does not account for it.
// SwapAvailableBytes is only set if there is a limit.
func (p *pass) swap(group string, at time.Time) *statsapi.SwapStats {
	if p.parts&Swap == 0 {
		return nil
	}
	s, err := p.o.Cgroups.Swap(group)
	if err != nil {
		slog.Debug("read swap", "cgroup", group, "err", err)
		return nil
	}
	used, ok := s.Used.Get()
	if !ok {
		return nil
	}
	out := &statsapi.SwapStats{Time: metav1.NewTime(at), SwapUsageBytes: ptr(uint64(used))}
	if limit, ok := s.Limit.Get(); ok {
		out.SwapAvailableBytes = ptr(uint64(max(0, limit-used)))
	}
	return out
}

// stalls adds a cgroup's stall times to cpu and memory, and returns those for disks; nil if the kernel has none.
func (p *pass) stalls(group string, at time.Time, cpu *statsapi.CPUStats,
	memory *statsapi.MemoryStats) *statsapi.IOStats {
	if p.parts&Pressure == 0 {
		return nil
	}
	read := func(resource string) *statsapi.PSIStats {
		return psiStats(p.o.Cgroups.Pressure(group, resource))
	}
	if cpu != nil {
		cpu.PSI = read("cpu")
	}
	if memory != nil {
		memory.PSI = read("memory")
	}
	if waited := read("io"); waited != nil {
		return &statsapi.IOStats{Time: metav1.NewTime(at), PSI: waited}
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
