package pods

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/oom"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/kmsg"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// kernelLog is where the kernel says whom it killed.
const kernelLog = "/dev/kmsg"

// oomWatch hears of every process that the kernel kills for memory and knows whose it was. Kills of before the agent's start
// are in the kernel's log, too: they explain ends, and those in containers that go on are told unless the API has their Event.
type oomWatch struct {
	r     *Runner
	log   *kmsg.Log // nil: it cannot be read, and the kernel's counters have to do
	begun unit.Wall // kills from then on are told as they come
	boot  string    // of the machine: the kernel numbers its log from zero at each

	mu     sync.Mutex
	parser kmsg.Parser
	book   oom.Book
	counts map[string]int64 // without a log: kills in a container, as counted last
}

func newOOMWatch(r *Runner, kernelLog string) *oomWatch {
	w := &oomWatch{r: r, begun: unit.WallOf(time.Now()), counts: map[string]int64{}}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		slog.Warn("boot not named", "err", err)
	}
	w.boot = strings.TrimSpace(string(boot))
	if w.log, err = kmsg.Open(kernelLog, w.record); err != nil {
		slog.Warn("who runs out of memory is known by the kernel's counters only: how often, and not which process", "err", err)
	}
	return w
}

// run follows the kernel's log until ctx ends.
func (w *oomWatch) run(ctx context.Context) {
	if w.log == nil {
		return
	}
	if err := w.log.Follow(ctx); err != nil {
		slog.Error("the kernel's log is not followed any more: processes killed for memory go unreported", "err", err)
	}
}

// record takes a record of the kernel's log.
func (w *oomWatch) record(r kmsg.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.parser.Record(r)
	if !ok {
		return
	}
	if k.Group == "" { // rationed: while it dies, it can still be asked
		k.Group = groupOfProcess(k.PID)
	}
	v := w.book.Note(k, w.r.killsIn)
	if k.At < w.begun || v.Again {
		return
	}
	w.tell(v)
}

// tell says what happened where users look for it.
func (w *oomWatch) tell(v oom.Verdict) {
	if v.System() {
		node := &corev1.ObjectReference{Kind: "Node", Name: w.r.Node, UID: types.UID(w.r.Node)}
		w.r.Recorder.Event(node, corev1.EventTypeWarning, "SystemOOM", v.SystemText())
	}
	if v.Container.ID == "" {
		slog.Info("a process outside of containers was killed for memory", "pid", v.PID, "command", v.Command, "cgroup", v.Group)
		return
	}
	w.tellOwner(v)
}

// tellOwner tells the pod of a kill. The kernel's log numbers kills, so that the Event about one is made once, however many
// agents find it there.
func (w *oomWatch) tellOwner(v oom.Verdict) {
	e := w.r.entryOf(types.UID(v.Container.Pod))
	if e == nil {
		return
	}
	w.r.log(e).Warn("out of memory", "container", v.Container.Name, "pid", v.PID, "command", v.Command, "rss", v.RSS(), "limit", v.Limit, "first", v.First)
	if pod := e.object(); pod != nil {
		once := map[string]string{kube.AnnotationOnce: fmt.Sprintf("oom-%s-%d", w.boot, v.Sequence)}
		w.r.Recorder.AnnotatedEventf(eventTarget(pod, v.Container.Name), once, corev1.EventTypeWarning, oomKilled, "%s", v.Text())
	}
}

// oomKilled is the reason of a container that ended so, and of the Event about a process that did.
const oomKilled = "OOMKilled"

// know tells of a container that runs; without a process, of one that is about to.
func (w *oomWatch) know(e *entry, c podlife.Container, pid int) {
	w.mu.Lock()
	adopted := pid != 0 && !w.book.Knows(c.ID)
	w.mu.Unlock()
	if adopted && w.log != nil {
		if err := w.log.Sync(); err != nil { // what happened in it is known before it is
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
	w.book.Know(oom.Container{ID: c.ID, Name: c.Name, Pod: string(e.uid), PID: pid})
}

// eventsLast is how long the API server keeps Events (kube-apiserver --event-ttl): what is older was told and forgotten.
const eventsLast = time.Hour

// catchUp tells of kills that no agent may have told, because none was there. One that was told is not told twice: the Event
// exists. Caller holds mu.
func (w *oomWatch) catchUp(id string) {
	for _, v := range w.book.Kills(id) {
		if v.At < w.begun && w.begun.Sub(v.At) < eventsLast {
			w.tellOwner(v)
		}
	}
}

func (w *oomWatch) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.book.Forget(id)
	delete(w.counts, id)
}

// explain says of a container that has just been found to have ended whether it was for memory. The runtime may not know: it
// listens for that only a while after it started the container.
func (w *oomWatch) explain(c podlife.Container) podlife.Container {
	if w.log == nil || c.ExitCode == 0 {
		return c
	}
	if err := w.log.Sync(); err != nil { // the kernel logged the kill before the process ended
		slog.Warn("kernel log not read", "err", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, killed := w.book.Ended(oom.End{ID: c.ID, Code: c.ExitCode, Finished: c.FinishedAt})
	if !killed {
		return c
	}
	c.Reason = oomKilled
	if c.Message == "" {
		v.Container.Name = c.Name
		c.Message = v.Text()
	}
	return c
}

// count is for machines whose kernel log cannot be read: it compares the kernel's counters of all containers with those seen
// last, and tells what was added.
func (w *oomWatch) count() {
	if w.log != nil {
		return
	}
	w.mu.Lock()
	containers := w.book.Containers()
	w.mu.Unlock()
	for _, c := range containers {
		n, known := w.r.killsIn(c)
		if !known {
			continue // it has ended
		}
		w.mu.Lock()
		last, seen := w.counts[c.ID]
		w.counts[c.ID] = n
		w.mu.Unlock()
		e := w.r.entryOf(types.UID(c.Pod))
		if e == nil || !seen || n <= last {
			continue
		}
		if pod := e.object(); pod != nil {
			text := fmt.Sprintf("%d processes of container %s were killed by the kernel, which was out of memory (its log cannot be read, so it is not known which)", n-last, c.Name)
			w.r.event(pod, c.Name, corev1.EventTypeWarning, oomKilled, text)
		}
	}
}

// killsIn is the kernel's own count of processes killed for memory in a container.
func (r *Runner) killsIn(c oom.Container) (int64, bool) {
	e := r.entryOf(types.UID(c.Pod))
	if e == nil {
		return 0, false
	}
	pod := e.object()
	if pod == nil {
		return 0, false
	}
	n, err := r.Groups.Killed(pod, c.ID)
	return n, err == nil
}

// groupOfProcess is the memory cgroup of a process; empty if it is gone, or has given its cgroup up already.
func groupOfProcess(pid int) string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return memoryGroup(string(content))
}

// memoryGroup reads /proc/PID/cgroup (cgroups(7)): lines of HIERARCHY:CONTROLLERS:GROUP, where v2 has no controllers. An
// exiting process is in the root on v1, and "(deleted)" may follow on v2.
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
