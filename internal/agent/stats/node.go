package stats

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	hostprocess "github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// clockTick is the unit of CPU time in /proc/<pid>/stat: USER_HZ, 100 on every Linux architecture that Go supports.
const clockTick = time.Second / 100

// node reads the machine as a whole.
func (p *pass) node() (statsapi.NodeStats, error) {
	out := statsapi.NodeStats{NodeName: p.o.NodeName}
	u, err := p.o.Cgroups.Usage("/")
	if err != nil {
		return out, err
	}
	at := p.o.Now()
	mem, err := readMeminfo(filepath.Join(p.o.Proc, "meminfo"))
	if err != nil {
		return out, err
	}
	if !u.Memory.IsSet() { // cgroup v2 has no memory counters at the root
		used := mem.total - mem.free
		u.Memory = unit.Of(used)
		u.WorkingSet = unit.Of(max(0, used-mem.inactiveFile))
		u.RSS = unit.Of(mem.anonymous)
	}
	out.CPU, out.Memory = p.cpu("/", u, at), memory(u, at, uint64(mem.total))
	if mem.swapTotal > 0 {
		out.Swap = &statsapi.SwapStats{
			Time: metav1.NewTime(at), SwapAvailableBytes: ptr(uint64(mem.swapFree)),
			SwapUsageBytes: ptr(uint64(mem.swapTotal - mem.swapFree)),
		}
	}
	if out.CPU != nil {
		out.CPU.PSI = p.pressure("cpu")
	}
	out.Memory.PSI = p.pressure("memory")
	if waited := p.pressure("io"); waited != nil {
		out.IO = &statsapi.IOStats{Time: metav1.NewTime(at), PSI: waited}
	}
	if boot, err := readBootTime(filepath.Join(p.o.Proc, "stat")); err == nil {
		out.StartTime = metav1.NewTime(boot)
	}
	out.Rlimit = p.rlimit(at)
	out.SystemContainers = p.systemContainers(out.StartTime)
	if p.parts&Network != 0 {
		out.Network = p.network("self")
	}
	return out, nil
}

// pressure reads the machine's stall times; nil if the kernel has none (CONFIG_PSI, since 4.20).
func (p *pass) pressure(resource string) *statsapi.PSIStats {
	return psiStats(psi.Read(filepath.Join(p.o.Proc, "pressure", resource)))
}

// psiStats converts stall times; nil if there are none. A group that has just ended has none, and nothing is logged.
func psiStats(read psi.Pressure, err error) *statsapi.PSIStats {
	if err != nil {
		if !errors.Is(err, psi.ErrNone) && !errors.Is(err, unix.ENODEV) {
			slog.Warn("stall times left out", "err", err)
		}
		return nil
	}
	return &statsapi.PSIStats{Some: stall(read.Some), Full: stall(read.Full)}
}

func stall(s psi.Stall) statsapi.PSIData {
	// the total is in nanoseconds
	return statsapi.PSIData{Total: uint64(s.Total), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
}

func (p *pass) rlimit(at time.Time) *statsapi.RlimitStats {
	out := &statsapi.RlimitStats{Time: metav1.NewTime(at)}
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile(filepath.Join(p.o.Proc, "sys/kernel", name))
		if n, perr := strconv.ParseInt(trim(text), 10, 64); err == nil && perr == nil && (out.MaxPID == nil ||
			n < *out.MaxPID) {
			out.MaxPID = &n
		}
	}
	if n, err := readThreads(filepath.Join(p.o.Proc, "loadavg")); err == nil {
		out.NumOfRunningProcesses = &n
	}
	return out
}

// systemContainers reads the agent, the runtime, and all pods together.
func (p *pass) systemContainers(boot metav1.Time) []statsapi.ContainerStats {
	var out []statsapi.ContainerStats
	process := func(name string, pid int) {
		u, started, err := readProcess(filepath.Join(p.o.Proc, strconv.Itoa(pid)), boot.Time)
		if err != nil {
			slog.Debug("read usage", "system", name, "pid", pid, "err", err)
			return
		}
		at := p.o.Now()
		key := fmt.Sprintf("pid %d %d", pid, started.Unix())
		out = append(out, statsapi.ContainerStats{
			Name: name, StartTime: metav1.NewTime(started), CPU: p.cpu(key, u, at), Memory: memory(u, at, 0),
		})
	}
	process(statsapi.SystemContainerKubelet, os.Getpid())
	if pid, err := hostprocess.Listener(p.o.RuntimeSocket); err == nil {
		process(statsapi.SystemContainerRuntime, pid)
	}
	if u, at, ok := p.group(p.o.PodsGroup); ok {
		// The limit is needed to compute allocatableMemory.available from a summary.
		limit, err := p.o.Cgroups.MemoryLimit(p.o.PodsGroup)
		if err != nil {
			slog.Debug("read memory limit", "cgroup", p.o.PodsGroup, "err", err)
		}
		bytes, _ := limit.Get()
		out = append(out, statsapi.ContainerStats{
			Name: statsapi.SystemContainerPods, StartTime: boot, CPU: p.cpu(p.o.PodsGroup, u, at), Memory: memory(u, at,
				uint64(bytes)),
		})
	}
	return out
}

// podNetwork reads the interfaces of a pod through any of its processes, which share its network namespace.
func (p *pass) podNetwork(pod Pod) *statsapi.NetworkStats {
	groups := make([]string, 0, len(pod.Containers)+1)
	for _, c := range pod.Containers {
		groups = append(groups, c.Group)
	}
	for _, g := range append(groups, pod.Group) { // the sandbox is somewhere below the pod's cgroup
		if g == "" {
			continue
		}
		if pids, err := p.o.Cgroups.PIDs(g); err == nil && len(pids) > 0 {
			return p.network(strconv.Itoa(pids[0]))
		}
	}
	return nil
}

// network reads the interfaces in a process's network namespace.
func (p *pass) network(process string) *statsapi.NetworkStats {
	text, err := os.ReadFile(filepath.Join(p.o.Proc, process, "net/dev"))
	if err != nil {
		return nil // the process has just ended
	}
	interfaces, err := parseNetDev(string(text))
	if err != nil {
		slog.Warn("read network usage", "process", process, "err", err)
		return nil
	}
	out := &statsapi.NetworkStats{Time: metav1.NewTime(p.o.Now()), Interfaces: interfaces}
	for _, i := range interfaces {
		if i.Name == "eth0" { // the kubelet's default interface
			out.InterfaceStats = i
		}
	}
	if out.Name == "" && len(interfaces) > 0 {
		out.InterfaceStats = interfaces[0]
	}
	return out
}

// readProcess reads the CPU time, the resident memory and the start of one process.
func readProcess(dir string, boot time.Time) (cgroup.Usage, time.Time, error) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return cgroup.Usage{}, time.Time{}, err
	}
	s, err := parseProcessStat(string(text))
	if err != nil {
		return cgroup.Usage{}, time.Time{}, fmt.Errorf("%s: %w", filepath.Join(dir, "stat"), err)
	}
	rss := unit.Of(unit.Bytes(s.residentPages * int64(os.Getpagesize())))
	return cgroup.Usage{
		CPU: unit.Of(time.Duration(s.ticks) * clockTick), Memory: rss, WorkingSet: rss, RSS: rss,
		PageFaults: unit.Of(s.faults), MajorPageFaults: unit.Of(s.majorFaults),
	}, boot.Add(time.Duration(s.startTicks) * clockTick), nil
}
