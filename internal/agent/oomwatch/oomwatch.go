// Package oomwatch finds the containers in which the kernel killed processes because memory ran out (the kubelet's OOM
// watcher), records Events about the kills, and explains why containers ended.
//
// # Model
//
// The kernel logs each kill (package kmsg), and core/oom finds the container. The log also has the kills from before
// the agent's start. They explain why containers ended, and for those in containers that still run an Event is
// recorded, since no agent may have done so. The kernel numbers the records of its log. The Event's name has that
// number, so that the API server stores it once, however many agents find the kill in the log.
//
// The kernel logs a kill before the process ends. So the log is read up to the present before an end is explained, and
// the explanation never has to be corrected.
//
// If the log cannot be read, Count compares the kernel's counters. They say how many processes were killed, not which.
//
// # What it does not do
//
// It does not decide what follows from an end: core/podlife does. It evicts nothing.
package oomwatch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/oom"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/kmsg"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// KernelLog is where the kernel logs its kills.
const KernelLog = "/dev/kmsg"

// Reason is the reason of a container that ended because memory ran out, and of the Event about a killed process.
const Reason = "OOMKilled"

// eventsLast is how long the API server keeps Events (kube-apiserver --event-ttl): an Event about an older kill was
// recorded and deleted.
const eventsLast = time.Hour

// Pods are the pods of this node. The methods are called while a lock of this package is held, and must not call it.
type Pods interface {
	// Pod returns the pod with that UID; nil: it is not here.
	Pod(uid types.UID) *corev1.Pod
	// Killed returns the kernel's count of processes of a container that were killed because memory ran out.
	Killed(pod *corev1.Pod, container string) (int64, error)
}

// Watch knows the kills in the containers of a node.
type Watch struct {
	node     string
	pods     Pods
	recorder record.EventRecorder
	log      *kmsg.Log // nil: it cannot be read, and the kernel's counters are used
	begun    unit.Wall // Events about kills from then on are recorded when the kill is logged
	// Noted is called with each kill in a pod of this node that happens while this process runs. It must not wait, nor
	// call the Watch. It is set before Run; nil: nobody asks.
	Noted func(*corev1.Pod, oom.Verdict)
	boot  string // ID of the machine's boot: the kernel numbers its log from zero after each boot

	mu     sync.Mutex // guards everything that follows
	parser kmsg.Parser
	state  oom.State
	counts map[string]int64 // kills as counted last, by container; only used if log is nil
}

// New prepares a watch over a kernel log.
func New(node, kernelLog string, pods Pods, recorder record.EventRecorder) *Watch {
	w := &Watch{
		node:     node,
		pods:     pods,
		recorder: recorder,
		begun:    unit.WallOf(time.Now()),
		counts:   map[string]int64{},
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		slog.Warn("boot ID not read; a kill may be taken for one of an earlier boot", "err", err)
	}
	w.boot = strings.TrimSpace(string(boot))
	if w.log, err = kmsg.Open(kernelLog, w.record); err != nil {
		slog.Warn(
			"the kernel's log cannot be read; its counters say how many processes it killed for memory, not which", "err", err,
		)
	}
	return w
}

// Run follows the kernel's log until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	if w.log == nil {
		return
	}
	if err := w.log.Follow(ctx); err != nil {
		slog.Error("the kernel's log is not followed any more: processes killed for memory are not reported", "err", err)
	}
}

// record takes a record of the kernel's log.
func (w *Watch) record(r kmsg.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.parser.Record(r)
	if !ok {
		return
	}
	if k.At >= w.begun { // process ids are reused later
		k = found("/proc", k)
	}
	v := w.state.AddKill(k, w.killsIn)
	if k.At < w.begun || v.Again {
		return
	}
	w.report(v)
}

// report logs a kill, and records an Event if it was in a pod.
func (w *Watch) report(v oom.Verdict) {
	if v.System() {
		node := &corev1.ObjectReference{Kind: "Node", Name: w.node, UID: types.UID(w.node)}
		w.recorder.Event(node, corev1.EventTypeWarning, "SystemOOM", v.SystemText())
	}
	if v.Container.ID == "" {
		slog.Info(
			"a process outside of containers was killed for memory", "pid", v.PID, "command", v.Command, "cgroup", v.Group,
		)
		return
	}
	if pod := w.reportPod(v); pod != nil && w.Noted != nil {
		w.Noted(pod, v)
	}
}

// reportPod records an Event about a kill in a pod. The Event's name has the number of the kernel's record, so that it
// exists once, however many agents find the kill in the log. It returns the pod; nil: it is not on this node.
func (w *Watch) reportPod(v oom.Verdict) *corev1.Pod {
	pod := w.pods.Pod(types.UID(v.Container.Pod))
	if pod == nil {
		return nil
	}
	slog.Warn(
		"out of memory", "pod", pod.Namespace+"/"+pod.Name, "uid", v.Container.Pod, "container", v.Container.Name, "pid",
		v.PID, "command", v.Command, "rss", v.RSS(), "limit", v.Limit, "first", v.First,
	)
	once := map[string]string{kube.AnnotationOnce: fmt.Sprintf("oom-%s-%d", w.boot, v.Sequence)}
	target := translate.ContainerReference(pod, v.Container.Name)
	w.recorder.AnnotatedEventf(target, once, corev1.EventTypeWarning, Reason, "%s", v.Text())
	return pod
}

// Know is called when a container of a pod runs, or with pid 0 when it is about to run.
func (w *Watch) Know(pod types.UID, c podlife.Container, pid int) {
	w.mu.Lock()
	adopted := pid != 0 && !w.state.HasContainer(c.ID)
	w.mu.Unlock()
	if adopted && w.log != nil {
		if err := w.log.Sync(); err != nil { // reads the kills in it from before
			slog.Warn("kernel log not read", "err", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if adopted {
		defer w.catchUp(c.ID)
	}
	if pid == 0 && c.State == podlife.Created {
		w.counts[c.ID] = 0
	}
	w.state.AddContainer(oom.Container{ID: c.ID, Name: c.Name, Pod: string(pod), PID: pid})
}

// catchUp reports kills from before the agent's start, since no agent may have run. If one has reported them, the Event
// exists already. The caller holds mu.
func (w *Watch) catchUp(id string) {
	for _, v := range w.state.Kills(id) {
		if v.At < w.begun && w.begun.Sub(v.At) < eventsLast {
			w.reportPod(v)
		}
	}
}

// Drop is called when the runtime no longer has the container.
func (w *Watch) Drop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.DropContainer(id)
	delete(w.counts, id)
}

// Explain returns a container that has ended. If it ended because memory ran out, the result has reason and message.
// The runtime may not know: it begins to listen for that only some time after it started the container.
func (w *Watch) Explain(c podlife.Container) podlife.Container {
	if w.log == nil || c.ExitCode == 0 {
		return c
	}
	if err := w.log.Sync(); err != nil { // the kernel logged the kill before the process ended
		slog.Warn("kernel log not read", "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, killed := w.state.Ended(oom.End{ID: c.ID, Code: c.ExitCode, Finished: c.FinishedAt})
	if !killed {
		return c
	}
	c.Reason = Reason
	if c.Message == "" {
		v.Container.Name = c.Name
		c.Message = v.Text()
	}
	return c
}

// Count is for machines whose kernel log cannot be read. It compares the kernel's counters of all containers with the
// previous ones, and reports the differences.
func (w *Watch) Count() {
	if w.log != nil {
		return
	}
	w.mu.Lock()
	containers := w.state.Containers()
	w.mu.Unlock()
	for _, c := range containers {
		n, known := w.killsIn(c)
		if !known {
			continue // it has ended
		}
		w.mu.Lock()
		last, seen := w.counts[c.ID]
		w.counts[c.ID] = n
		w.mu.Unlock()
		pod := w.pods.Pod(types.UID(c.Pod))
		if pod == nil || !seen || n <= last {
			continue
		}
		text := fmt.Sprintf("%d processes of container %s were killed by the kernel, which was out of memory "+
			"(its log cannot be read, so it is not known which)", n-last, c.Name)
		w.recorder.Event(translate.ContainerReference(pod, c.Name), corev1.EventTypeWarning, Reason, text)
	}
}

// killsIn returns the kernel's count of processes in a container that were killed because memory ran out; false: it is
// not known.
func (w *Watch) killsIn(c oom.Container) (int64, bool) {
	pod := w.pods.Pod(types.UID(c.Pod))
	if pod == nil {
		return 0, false
	}
	n, err := w.pods.Killed(pod, c.ID)
	return n, err == nil
}

// found completes a kill that has no report of its own, because the kernel limits their rate or because a whole group
// was killed. While the process dies, proc still has its cgroup and tells to which process a thread belongs: the kernel
// names a process by another thread if the first has ended.
func found(proc string, k oom.Kill) oom.Kill {
	if k.Group != "" && k.Whole == "" {
		return k
	}
	dir := filepath.Join(proc, strconv.Itoa(k.PID))
	if group, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		if group := memoryGroup(string(group)); group != "" {
			k = k.In(group)
		}
	}
	if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil {
		k.PID = cmp.Or(processIn(string(status)), k.PID)
	}
	return k
}

// processIn reads the id of a thread's process from /proc/TID/status (proc_pid_status(5)); 0: it is not there.
func processIn(status string) int {
	for line := range strings.Lines(status) {
		if id, is := strings.CutPrefix(line, "Tgid:"); is {
			pid, _ := strconv.Atoi(strings.TrimSpace(id)) // 0: not a number
			return pid
		}
	}
	return 0
}

// memoryGroup reads /proc/PID/cgroup (cgroups(7)): lines of HIERARCHY:CONTROLLERS:GROUP, where v2 has no controllers.
// An exiting process is in the root on v1, and "(deleted)" may follow on v2.
func memoryGroup(content string) string {
	unified := ""
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		group := strings.TrimSuffix(fields[2], " (deleted)")
		for _, controller := range strings.Split(fields[1], ",") {
			if controller == "memory" {
				return strings.TrimSuffix(group, "/")
			}
		}
		if fields[1] == "" {
			unified = strings.TrimSuffix(group, "/")
		}
	}
	return unified
}
