//go:build e2e

package hostile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// attacks is the table of attacks, in lists by what is attacked. A new attack is a row. What every attack must leave
// unharmed is in neighbour_test.go.
var attacks = slices.Concat(onDisk, inProcesses, inLogs, inProbes, inHooks, inObjects)

// The local storage that a pod may use where it must be evicted for more, and what it then uses.
const (
	allowed = "16Mi"
	used    = "48Mi"
)

var onlyRoot = []user{root}

// onDisk are attacks by files: huge, sparse, oddly named, many, deep, or links to other places.
var onDisk = []attack{
	{
		name: "sparse", does: "makes a file of 8 TiB in an emptyDir without writing to it",
		pod: as(emptyDir, disk(allowed), run("sparse --size 8Ti /d/x", "sleep infinity")), holds: both(runs,
			counts(1, unit.MiB)),
	},
	{
		name: "huge", does: "writes more to an emptyDir than it may",
		pod: as(emptyDir, disk(allowed), run("disk --path /d/x --size "+used)), holds: evicted,
	},
	{
		name: "layer", does: "writes more to its own root file system than it may", by: onlyRoot,
		pod: as(disk(allowed), run("disk --path /x --size "+used)), holds: evicted,
	},
	{
		name: "hosts-huge", does: "writes more to its hosts file than it may use of the disk", by: onlyRoot,
		pod: as(disk(allowed), run("disk --path /etc/hosts --size "+used)), holds: evicted,
	},
	{
		name: "hosts-sparse", does: "makes its hosts file 8 TiB large and ends", by: onlyRoot,
		pod: run("sparse --size 8Ti /etc/hosts", "exit"), holds: restarts(1),
	},
	{
		name: "resolv-huge", does: "writes more to its resolv.conf than it may use of the disk", by: onlyRoot,
		limit: "the file is containerd's, in its own directory, and nobody counts it. The kubelet does the same.",
		pod:   as(disk(allowed), run("disk --path /etc/resolv.conf --size "+used)), holds: runs,
	},
	{
		name: "message-huge", does: "writes more to its termination message than it may use of the disk",
		pod: as(disk(allowed), run("disk --path /dev/termination-log --size "+used)), holds: evicted,
	},
	{
		name: "message-sparse", does: "makes its termination message 8 TiB large and ends",
		pod: run("sparse --size 8Ti /dev/termination-log", "exit --code 1"), holds: restarts(1),
	},
	{
		name: "message-link", does: "has its termination message where a link of its own leads to the host's files",
		pod: as(emptyDir, func(_ *siege, p *corev1.Pod) {
			linker := container("linker", "run", "link /etc/hostname /d/log", "link /proc/1/environ /d/other")
			linker.VolumeMounts = p.Spec.Containers[0].VolumeMounts
			p.Spec.InitContainers = []corev1.Container{linker}
			p.Spec.Containers[0].TerminationMessagePath = "/d/log"
		}, run("exit --code 1")), holds: comes,
	},
	{
		name: "odd", does: "fills an emptyDir with FIFOs, device nodes, links, and names that are hard to print",
		pod: as(emptyDir, run("odd /d", "sleep infinity")), holds: both(runs, counts(1, unit.MiB)),
	},
	{
		name: "inodes", does: "makes 20,000 empty files",
		pod: as(emptyDir, run("disk --path /d --files 20000 --size 0")), holds: both(runs, countsInodes(20_000)),
	},
	{
		name: "deep", does: "hides what it writes below more directories than a path can name",
		pod: as(emptyDir, disk(allowed), run("deep --depth 10000 --size "+used+" /d", "sleep infinity")), holds: evicted,
	},
	{
		name: "comb", does: "makes thousands of directories at the end of a long path, whose names together fill memory",
		pod: as(emptyDir, run("deep --depth 4000 --wide 20000 /d", "sleep infinity")), holds: both(runs,
			countsInodes(24_000)),
	},
	{
		name: "churn", does: "moves directories away while they are counted, beside a file that is too large",
		pod: as(emptyDir, disk(allowed), run("disk --path /d/x --size "+used+" --exit", "churn /d")), holds: evicted,
	},
	{
		name: "unlinked", does: "writes a file, deletes it and keeps it open",
		limit: "a walk sees no file that has no name; file systems with project quotas count it (internal/host/quota). The " +
			"kubelet does the same.",
		pod: as(emptyDir, disk(allowed), run("unlinked --path /d/x --size "+used)), holds: runs,
	},
	{
		name: "subpath-link", does: "mounts a subPath that its own init container has made a link to the host's root",
		pod: as(emptyDir, func(_ *siege, p *corev1.Pod) {
			linker := container("linker", "link", "/", "/d/way")
			linker.VolumeMounts = p.Spec.Containers[0].VolumeMounts
			p.Spec.InitContainers = []corev1.Container{linker}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/d", SubPath: "way/etc"}}
		}), holds: waits("CreateContainerConfigError"),
	},
	{
		name: "tmpfs", does: "writes more to a memory emptyDir than it may",
		pod: as(emptyDir, func(_ *siege, p *corev1.Pod) {
			size := quantity(allowed)
			p.Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}, run("disk --path /d/x --size "+used)), holds: ends, // ENOSPC, or evicted
	},
}

// inProcesses are attacks by processes: some are many, some ignore signals, some kill others, some have misleading
// names.
var inProcesses = []attack{
	{name: "bomb", does: "forks as much as it may", copies: 2, pod: run("bomb"), holds: runs},
	{name: "burner", does: "burns every CPU, without a limit", pod: as(unlimited(corev1.ResourceCPU),
		run("cpu --milli 4000")), holds: runs},
	{name: "deaf", does: "ignores SIGTERM", copies: 4, pod: run("ignore-term"), holds: runs},
	{name: "zombies", does: "leaves zombies and orphans", pod: run("fork --children 10 --zombies 50 --orphans 5"),
		holds: runs},
	{name: "crash", does: "ends as soon as it is started", copies: 4, pod: run("exit --code 1"), holds: restarts(1)},
	{
		name: "oom-name", does: "runs out of memory under a name that looks like the kernel's own words",
		pod: as(memory("24Mi"), run("named ') total-vm:1kB,' memory --hold 64Mi")), holds: oomKilled,
	},
	{
		name: "oom-forged", does: "has the kernel log lines that look like kills for memory, by bad addresses",
		pod: run("named 'Killed process ' segfault"), holds: both(restarts(1), notOOM),
	},
	{
		name: "tarpit", does: "keeps 2,000 connections to the agent open from the node's own network",
		pod: func(s *siege, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			run(fmt.Sprintf("dial --count 2000 127.0.0.1:%d", s.AgentPort))(s, p)
		}, holds: runs,
	},
}

// inLogs are attacks by logs: endless, without line breaks, or with invalid content.
var inLogs = []attack{
	{
		name: "flood", does: "prints without end and without a newline",
		pod: as(disk("8Mi"), run("flood --rate 8Mi/s")), during: askForLogs, holds: evicted,
	},
	{
		name: "lines", does: "prints empty lines without end",
		pod: as(disk("8Mi"), run("flood --width 1 --rate 1Mi/s")), during: askForLogs, holds: evicted,
	},
	{
		name: "last-words", does: "prints one line of 8 MiB and fails, its message being its log's end",
		pod: as(func(_ *siege, p *corev1.Pod) {
			p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}, run("flood --bytes 8Mi", "exit --code 1")), holds: restarts(1),
	},
}

// inProbes are attacks by answers to probes: slow, endless, or not HTTP.
var inProbes = []attack{
	rudely("hang"), rudely("drip"), rudely("endless"), rudely("headers"), rudely("slow"), rudely("early"), rudely("loop"),
	rudely("garbage"), rudely("reset"),
	{
		name: "away", does: "has its probe redirected to the agent's own port",
		pod: func(s *siege, p *corev1.Pod) {
			probed(s, p, get(fmt.Sprintf("/away?to=https://127.0.0.1:%d/pods", s.AgentPort)))
		}, holds: runs,
	},
	{
		name: "grpc", does: "answers a gRPC probe with what is not gRPC",
		pod: func(s *siege, p *corev1.Pod) {
			probed(s, p, corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 8080}})
		}, holds: runs,
	},
	{
		name: "exec-flood", alone: true, does: "has probes by command print a gigabyte each",
		pod: func(s *siege, p *corev1.Pod) {
			c := container("c", "sleep", "infinity")
			c.LivenessProbe = probe(command("/workload", "flood", "--bytes", "1Gi"))
			c.ReadinessProbe = probe(command("/workload", "flood", "--bytes", "1Gi"))
			p.Spec.Containers = nil
			for i := range 4 {
				c.Name = fmt.Sprintf("c%d", i)
				p.Spec.Containers = append(p.Spec.Containers, c)
			}
		}, holds: runs,
	},
	{
		name: "exec-hang", does: "has probes by command that never end",
		pod: func(s *siege, p *corev1.Pod) {
			probed(s, p, command("/workload", "ignore-term"))
		}, holds: runs,
	},
}

// rudely is an attack whose HTTP probes are answered in one of the ways of workload's verb rude.
func rudely(way string) attack {
	return attack{
		name: "probe-" + way, does: "answers probes in the way " + way + " of workload's verb rude", by: []user{nobody},
		pod: func(s *siege, p *corev1.Pod) { probed(s, p, get("/"+way)) }, holds: runs,
	}
}

// inHooks are attacks by hooks: they hang, fail, or print without end.
var inHooks = []attack{
	{
		// for each user: more than may start at the same time on two CPUs
		name: "poststart-hang", does: "has a postStart hook that never ends", copies: 6,
		pod: hook(command("/workload", "sleep", "infinity"), none), holds: started,
	},
	{
		name: "poststart-drip", does: "has a postStart hook by HTTP that is answered for ever", copies: 5,
		pod: hook(none, get("/drip")), holds: started, by: []user{nobody},
	},
	{
		name: "poststart-fail", does: "has a postStart hook that fails, and ignores SIGTERM",
		pod: as(hook(command("/workload", "exit", "--code", "1"), none), run("ignore-term")), holds: restarts(1),
	},
	{
		name: "poststart-flood", does: "has a postStart hook that prints a gigabyte",
		pod: hook(command("/workload", "flood", "--bytes", "1Gi"), none), holds: started,
	},
	{
		// for each user; more than 64 in the long form
		name: "prestop-hang", alone: true, does: "has a preStop hook that never ends, and ignores SIGTERM", copies: 11,
		pod: as(hook(none, command("/workload", "sleep", "infinity")), run("ignore-term"), grace(15)), holds: runs,
	},
	{
		name: "prestop-headers", does: "has a preStop hook by HTTP that is answered with headers for ever",
		pod: as(hook(none, get("/headers")), grace(5)), holds: runs, by: []user{nobody},
	},
}

func hook(start, stop corev1.ProbeHandler) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Args = []string{"rude"}
		c.Lifecycle = &corev1.Lifecycle{}
		if start != none {
			c.Lifecycle.PostStart = &corev1.LifecycleHandler{Exec: start.Exec, HTTPGet: start.HTTPGet}
		}
		if stop != none {
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: stop.Exec, HTTPGet: stop.HTTPGet}
		}
	}
}

var none corev1.ProbeHandler

// Functions that change a pod.

// as applies one change after the other.
func as(changes ...func(*siege, *corev1.Pod)) func(*siege, *corev1.Pod) {
	return func(s *siege, p *corev1.Pod) {
		for _, change := range changes {
			change(s, p)
		}
	}
}

// run makes the container run one verb after the other.
func run(verbs ...string) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) { p.Spec.Containers[0].Args = append([]string{"run"}, verbs...) }
}

// emptyDir is mounted on /d.
func emptyDir(_ *siege, p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "d",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "d",
		MountPath: "/d"})
}

// disk limits the container's local storage.
func disk(limit string) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits[corev1.ResourceEphemeralStorage] = quantity(limit)
	}
}

func memory(limit string) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = quantity(limit)
	}
}

func unlimited(resource corev1.ResourceName) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) { delete(p.Spec.Containers[0].Resources.Limits, resource) }
}

func grace(seconds int64) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func get(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}
}

func command(argv ...string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: argv}}
}

// probe is sent every second and tolerates every failure, so that it is sent to the end.
func probe(h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 30, FailureThreshold: 1000}
}

// probed has three containers that answer in such a way, each of which has a liveness and a readiness probe.
func probed(_ *siege, p *corev1.Pod, h corev1.ProbeHandler) {
	c := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for i := range 3 {
		c.Name, c.Args = fmt.Sprintf("c%d", i), []string{"rude", "--port", fmt.Sprint(8080 + i)}
		own := h
		if h.HTTPGet != nil {
			action := *h.HTTPGet
			action.Port = intstr.FromInt32(int32(8080 + i))
			own.HTTPGet = &action
		}
		c.LivenessProbe, c.ReadinessProbe = probe(own), probe(own)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

// oomKilled: the first container was OOM-killed, and the message has the right numbers of the right process.
func oomKilled(_ *siege, pod *corev1.Pod) error {
	if pod != nil {
		for _, c := range pod.Status.ContainerStatuses {
			for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if end != nil && end.Reason == "OOMKilled" && strings.Contains(end.Message, "limit (24Mi)") {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("not killed for memory, at its limit: %s", describe(pod))
}

// notOOM: no status, Event or metric says that the container was OOM-killed.
func notOOM(_ *siege, pod *corev1.Pod) error {
	if pod == nil {
		return errors.New("it is gone")
	}
	for _, c := range pod.Status.ContainerStatuses {
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if end != nil && end.Reason == "OOMKilled" {
				return fmt.Errorf("said to be killed for memory: %s", describe(pod))
			}
		}
	}
	return nil
}
