package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// How much the bare client does at once: as much as plimsoll agent.
const (
	bareStartsPerCPU = 4  // StartsPerCPU of internal/agent
	bareStopsAtOnce  = 64 // stopsAtOnce and removalsAtOnce of internal/agent/pods
	bareGrace        = 30 // s: a pod's default terminationGracePeriodSeconds
)

// bareClient has containerd make the sandboxes and containers of the same pods, and does nothing else: no API server,
// no cgroups of pods, no volumes, no status. The time that an agent takes beyond this is its own.
type bareClient struct {
	*rig
	runtime *cri.Client
	node    criconfig.Node
	groups  qos.Layout
	dir     string // of the files that containers mount
}

// barePod is the requests to containerd for one pod, and their results.
type barePod struct {
	sandbox   *runtimeapi.PodSandboxConfig
	container *runtimeapi.ContainerConfig

	sandboxID, containerID string
	running, gone          time.Time
}

// restMarker is the file whose existence makes the bare side's agent do nothing.
const restMarker = "rest"

// bareAgent writes the script that `up` runs as the agent of the bare side. Until the file restMarker exists, the
// script becomes plimsoll agent, which makes the node Ready and prepares its cgroups. From then on it becomes a program
// that does nothing.
func (r *rig) bareAgent() (string, error) {
	ours, err := filepath.Abs(r.plane.Plimsoll)
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(r.plane.Dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	const script = "#!/bin/sh\n[ -e %q ] && exec sleep infinity\nexec %q agent \"$@\"\n"
	text := fmt.Sprintf(script, filepath.Join(dir, restMarker), ours)
	file := filepath.Join(dir, "bare-agent")
	return file, os.WriteFile(file, []byte(text), 0o700)
}

// restAgent ends the agent and waits for the program that does nothing. An agent that runs would remove sandboxes that
// belong to no pod.
func (r *rig) restAgent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	if err := os.WriteFile(filepath.Join(r.plane.Dir, restMarker), nil, 0o600); err != nil {
		return err
	}
	agent := r.pids[roleAgent]
	if err := syscall.Kill(agent, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the agent, pid %d: %w", agent, err)
	}
	for {
		err := r.readPIDs(ctx)
		if err == nil && r.pids[roleAgent] != agent {
			return nil
		}
		if paused := record.Pause(ctx, pollPeriod); paused != nil {
			return fmt.Errorf("wait for the end of the agent, pid %d: %w", agent, errors.Join(paused, err))
		}
	}
}

// measureBare measures the bare client in one round, on the containerd of an instance that is up.
func (r *rig) measureBare(ctx context.Context, m *record.Measurement) error {
	if err := r.restAgent(ctx); err != nil {
		return err
	}
	state, err := filepath.Abs(r.plane.State())
	if err != nil {
		return err
	}
	client, err := cri.Dial(filepath.Join(state, "run", "containerd.sock"))
	if err != nil {
		return err
	}
	defer client.Close()
	dir := filepath.Dir(state)
	groups, err := qos.NewLayout(qos.Cgroupfs, "/plimsoll-"+r.plane.Instance) // where `up` has this instance's pods
	if err != nil {
		return err
	}
	b := &bareClient{
		rig: r, runtime: client, groups: groups, dir: dir,
		node: criconfig.Node{LogDir: filepath.Join(dir, "bare-logs")},
	}
	if err := b.measureSingles(ctx, m); err != nil {
		return fmt.Errorf("pods one by one: %w", err)
	}
	for _, n := range atOnce(r.batches) {
		if err := b.measureBatch(ctx, m, n); err != nil {
			return fmt.Errorf("%d pods at once: %w", n, err)
		}
	}
	return nil
}

// measureSingles is what rig.measureSingles does, without an agent.
func (b *bareClient) measureSingles(ctx context.Context, m *record.Measurement) error {
	var start, end []float64
	for i := range b.singles + 1 {
		all, err := b.prepare([]string{fmt.Sprintf("single-%02d", i)})
		if err != nil {
			return err
		}
		took, err := b.start(ctx, all)
		if err != nil {
			return err
		}
		if err := record.Pause(ctx, singlePause); err != nil {
			return err
		}
		ended, err := b.stop(ctx, all)
		if err != nil {
			return err
		}
		if i == 0 {
			m.Put("first_1", took.Seconds(), 1)
			continue
		}
		start, end = append(start, took.Seconds()), append(end, ended.Seconds())
	}
	if b.singles > 0 {
		putStarts(m, 1, stats.Median(start), start)
		putRemovals(m, 1, stats.Median(end), end)
	}
	return nil
}

// measureBatch starts n pods at once and removes them at once.
func (b *bareClient) measureBatch(ctx context.Context, m *record.Measurement, n int) error {
	all, err := b.prepare(batchNames(n))
	if err != nil {
		return err
	}
	before, err := b.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	took, err := b.start(ctx, all)
	if err != nil {
		return err
	}
	after, err := b.cpu()
	if err != nil {
		return err
	}
	putStartCPU(m, n, after.since(before))
	var start, end []float64
	for _, p := range all {
		start = append(start, p.running.Sub(began).Seconds())
	}
	putStarts(m, n, took.Seconds(), start)
	if err := record.Pause(ctx, singlePause); err != nil {
		return err
	}
	began = time.Now()
	ended, err := b.stop(ctx, all)
	if err != nil {
		return err
	}
	for _, p := range all {
		end = append(end, p.gone.Sub(began).Seconds())
	}
	putRemovals(m, n, ended.Seconds(), end)
	record.Progress("%s: %d pods: all running in %.1f s, all removed in %.1f s", b.side.name, n,
		took.Seconds(), ended.Seconds())
	return nil
}

// start makes all sandboxes and containers, and returns the time until the last container ran.
func (b *bareClient) start(ctx context.Context, all []*barePod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	began := time.Now()
	err := each(bareStartsPerCPU*runtime.NumCPU(), all, func(p *barePod) error { return b.startPod(ctx, p) })
	return time.Since(began), err
}

func (b *bareClient) startPod(ctx context.Context, p *barePod) error {
	ran, err := b.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.sandbox})
	if err != nil {
		return fmt.Errorf("run sandbox of %s: %w", p.sandbox.Metadata.Name, err)
	}
	p.sandboxID = ran.PodSandboxId
	made, err := b.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandboxID, Config: p.container, SandboxConfig: p.sandbox,
	})
	if err != nil {
		return fmt.Errorf("create container of %s: %w", p.sandbox.Metadata.Name, err)
	}
	p.containerID = made.ContainerId
	if _, err := b.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.containerID}); err != nil {
		return fmt.Errorf("start container of %s: %w", p.sandbox.Metadata.Name, err)
	}
	p.running = time.Now()
	return nil
}

// stop stops and removes all, each container with its grace, and returns the time until the last sandbox was gone.
func (b *bareClient) stop(ctx context.Context, all []*barePod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	began := time.Now()
	err := each(bareStopsAtOnce, all, func(p *barePod) error { return b.stopPod(ctx, p) })
	return time.Since(began), err
}

func (b *bareClient) stopPod(ctx context.Context, p *barePod) error {
	stop := &runtimeapi.StopContainerRequest{ContainerId: p.containerID, Timeout: bareGrace}
	if _, err := b.runtime.StopContainer(ctx, stop); err != nil {
		return fmt.Errorf("stop container of %s: %w", p.sandbox.Metadata.Name, err)
	}
	end := &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandboxID}
	if _, err := b.runtime.StopPodSandbox(ctx, end); err != nil {
		return fmt.Errorf("stop sandbox of %s: %w", p.sandbox.Metadata.Name, err)
	}
	remove := &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandboxID}
	if _, err := b.runtime.RemovePodSandbox(ctx, remove); err != nil {
		return fmt.Errorf("remove sandbox of %s: %w", p.sandbox.Metadata.Name, err)
	}
	p.gone = time.Now()
	return nil
}

// prepare translates the pods into requests, as plimsoll agent does, and makes the files that they mount. It is done
// before the clock starts.
func (b *bareClient) prepare(names []string) ([]*barePod, error) {
	var all []*barePod
	for _, pod := range b.podsNamed(names) {
		pod.UID = types.UID("bare-" + pod.Name)
		p, err := b.request(pod)
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", pod.Name, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (b *bareClient) request(pod *corev1.Pod) (*barePod, error) {
	c := &pod.Spec.Containers[0]
	class := qos.Burstable
	if len(c.Resources.Limits) > 0 {
		class = qos.Guaranteed
	}
	sandbox, err := b.node.Sandbox(pod, criconfig.SandboxFacts{
		Hostname:     pod.Name,
		DNS:          &runtimeapi.DNSConfig{Servers: []string{clusterDNS}},
		CgroupParent: b.groups.Pod(class, string(pod.UID)),
	})
	if err != nil {
		return nil, err
	}
	mounts, err := b.mounts(pod)
	if err != nil {
		return nil, err
	}
	container, err := b.node.Container(pod, c, criconfig.ContainerFacts{
		Image: criconfig.Image{ID: c.Image}, Args: c.Args, Mounts: mounts,
		Resources: bareResources(c), GraceSeconds: bareGrace,
	})
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(sandbox.LogDirectory, c.Name)
	return &barePod{sandbox: sandbox, container: container}, os.MkdirAll(logs, 0o755)
}

// mounts are as many as an ordinary pod has: its hosts file, its token, and its termination message.
func (b *bareClient) mounts(pod *corev1.Pod) ([]*runtimeapi.Mount, error) {
	dir := filepath.Join(b.dir, "bare-files", string(pod.UID))
	hosts := filepath.Join(dir, "hosts")
	token := filepath.Join(dir, "token")
	message := filepath.Join(dir, "message")
	if err := os.MkdirAll(token, 0o755); err != nil {
		return nil, err
	}
	for _, file := range []string{hosts, message} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return nil, err
		}
	}
	return []*runtimeapi.Mount{
		{ContainerPath: "/etc/hosts", HostPath: hosts},
		{ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", HostPath: token, Readonly: true},
		{ContainerPath: "/dev/termination-log", HostPath: message},
	}, nil
}

// bareOOMScore is what an agent gives a container that requests nearly no memory.
const bareOOMScore = 999

// bareResources are the container's limits as cgroups have them: shares of 1,024 for a CPU, at least 2 (the kernel's
// minimum), and microseconds of each period of 100 ms.
func bareResources(c *corev1.Container) *runtimeapi.LinuxContainerResources {
	milli := c.Resources.Requests.Cpu().MilliValue()
	out := &runtimeapi.LinuxContainerResources{CpuShares: max(2, milli*1024/1000), OomScoreAdj: bareOOMScore}
	if limit := c.Resources.Limits.Cpu().MilliValue(); limit > 0 {
		out.CpuPeriod, out.CpuQuota = 100_000, limit*100
	}
	out.MemoryLimitInBytes = c.Resources.Limits.Memory().Value()
	return out
}

// compareWithBare gives each agent's measurement its times as multiples of the bare client's in the same round.
func compareWithBare(measurements []*record.Measurement, sizes []int) {
	bares := map[int]*record.Measurement{}
	for _, m := range measurements {
		if m.Side == bare {
			bares[m.Round] = m
		}
	}
	for _, m := range measurements {
		b := bares[m.Round]
		if m.Side == bare || b == nil {
			continue
		}
		for _, n := range sizes {
			for name, as := range map[string]string{"total": "startbare", "delete": "deletebare"} {
				ours, measured := m.Values[sized(name, n)]
				if least := b.Values[sized(name, n)]; measured && least > 0 {
					m.Put(sized(as, n), ours/least, 1)
				}
			}
		}
	}
}

// bareNotes are lines of the report about the bare client's own times: medians over rounds.
func bareNotes(measurements []*record.Measurement, sizes []int) (notes []string) {
	of := func(name string) (values []float64) {
		for _, m := range measurements {
			if v, ok := m.Values[name]; ok && m.Side == bare {
				values = append(values, v)
			}
		}
		return values
	}
	for _, n := range sizes {
		start, end := of(sized("total", n)), of(sized("delete", n))
		if len(start) > 0 && len(end) > 0 {
			const note = "bare client, %d at once: all running after %.3g s, all gone after %.3g s"
			notes = append(notes, fmt.Sprintf(note, n, stats.Median(start), stats.Median(end)))
		}
	}
	return notes
}
