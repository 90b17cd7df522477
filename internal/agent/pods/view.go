package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// view is what the runtime has of one pod, by id, as it was read last. It belongs to the pod's worker.
type view struct {
	sandboxes  map[string]podlife.Sandbox
	containers map[string]podlife.Container
	watches    map[string]func() // pidfd watches of running containers and sandboxes: to be called to end them
}

func newView() view {
	return view{
		sandboxes:  map[string]podlife.Sandbox{},
		containers: map[string]podlife.Container{},
		watches:    map[string]func(){},
	}
}

// Time limits of calls that only ask. A runtime that takes longer is hung.
const askTimeout = 15 * time.Second

// refresh re-reads what is marked dirty. It returns an error when the runtime does not answer; the view is then as
// before and still dirty.
func (w *worker) refresh(ctx context.Context) error {
	err := w.reread(ctx, w.e.takeDirty())
	if err != nil {
		w.e.markDirty("")
	}
	w.e.sawRuntime(w.view.summary(), w.view.readySandbox())
	return err
}

func (w *worker) reread(ctx context.Context, dirty dirt) error {
	for id := range dirty.exited {
		w.unwatch(id)
		if err := w.readEnded(ctx, id); err != nil {
			return err
		}
	}
	if dirty.all {
		return w.readAll(ctx)
	}
	for id := range dirty.changed {
		if err := w.readContainer(ctx, id, ""); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads every sandbox and container of the pod.
func (w *worker) readAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	mine := map[string]string{criconfig.LabelPodUID: string(w.e.uid)}
	sandboxes, err := w.r.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: mine},
	})
	if err != nil {
		return fmt.Errorf("list sandboxes of %s: %w", w.e.name(), err)
	}
	containers, err := w.r.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: mine},
	})
	if err != nil {
		return fmt.Errorf("list containers of %s: %w", w.e.name(), err)
	}
	seen := map[string]bool{}
	for _, s := range sandboxes.Items {
		seen[s.Id] = true
		if err := w.readSandbox(ctx, s.Id); err != nil {
			return err
		}
	}
	for _, c := range containers.Containers {
		seen[c.Id] = true
		if err := w.readContainer(ctx, c.Id, c.PodSandboxId); err != nil {
			return err
		}
	}
	for id := range w.view.summary() {
		if !seen[id] {
			w.drop(id)
		}
	}
	return nil
}

// summary is the state of everything in the view, by id, in the runtime's numbers; relists compare it.
func (v view) summary() map[string]int32 {
	all := make(map[string]int32, len(v.sandboxes)+len(v.containers))
	for id, s := range v.sandboxes {
		all[id] = int32(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		if s.State == podlife.SandboxReady {
			all[id] = int32(runtimeapi.PodSandboxState_SANDBOX_READY)
		}
	}
	for id, c := range v.containers {
		all[id] = int32(c.State) // podlife numbers them as CRI does
	}
	return all
}

// readySandbox is the id of the newest sandbox that is ready; empty: none.
func (v view) readySandbox() (id string) {
	newest := int64(-1)
	for key, s := range v.sandboxes {
		if int64(s.Attempt) > newest && s.State == podlife.SandboxReady {
			id = key
			newest = int64(s.Attempt)
		}
	}
	return id
}

// drop takes a sandbox or container out of the view that the runtime no longer has.
func (w *worker) drop(id string) {
	w.r.oom.Drop(id)
	delete(w.view.sandboxes, id)
	delete(w.view.containers, id)
	w.unwatch(id)
}

func (w *worker) unwatch(id string) {
	if cancel := w.view.watches[id]; cancel != nil {
		cancel()
		delete(w.view.watches, id)
	}
}

func (w *worker) readSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := w.r.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: id,
		Verbose:      w.view.watches[id] == nil,
	})
	if status.Code(err) == codes.NotFound {
		w.drop(id)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sandbox %s of %s: %w", id, w.e.name(), err)
	}
	s := response.Status
	sandbox := podlife.Sandbox{ID: id, Attempt: s.GetMetadata().GetAttempt()}
	if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
		sandbox.State = podlife.SandboxReady
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		sandbox.IPs = append(sandbox.IPs, ip)
		for _, more := range s.Network.AdditionalIps {
			sandbox.IPs = append(sandbox.IPs, more.Ip)
		}
	}
	w.view.sandboxes[id] = sandbox
	w.handler = s.RuntimeHandler
	if !slices.ContainsFunc(slices.Collect(maps.Values(w.view.sandboxes)), func(o podlife.Sandbox) bool {
		return o.Attempt > sandbox.Attempt
	}) {
		w.note = s.Annotations[criconfig.AnnotationAllocation]
	}
	w.watchPID(id, sandbox.State == podlife.SandboxReady, response.Info)
	return nil
}

// readContainer reads one container; sandbox is its sandbox's id where the caller knows it.
func (w *worker) readContainer(ctx context.Context, id, sandbox string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := w.r.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{
		ContainerId: id,
		Verbose:     w.view.watches[id] == nil,
	})
	if status.Code(err) == codes.NotFound {
		w.drop(id)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read container %s of %s: %w", id, w.e.name(), err)
	}
	old := w.view.containers[id]
	c := w.r.containerOf(response.Status, old)
	if c.State == podlife.Exited && old.State != podlife.Exited {
		c = w.r.oom.Explain(c)
	}
	c.SandboxID = cmp.Or(c.SandboxID, sandbox, parseInfo(response.Info).SandboxID)
	w.view.containers[id] = c
	if pid := parseInfo(response.Info).PID; c.State == podlife.Running {
		w.r.oom.Know(w.e.uid, c, pid)
	}
	w.watchPID(id, c.State == podlife.Running, response.Info)
	return nil
}

// containerOf translates the runtime's status; what it does not repeat (the sandbox) is taken from old.
func (r *Runner) containerOf(s *runtimeapi.ContainerStatus, old podlife.Container) podlife.Container {
	c := podlife.Container{
		ID:         s.Id,
		Name:       s.GetMetadata().GetName(),
		Attempt:    s.GetMetadata().GetAttempt(),
		SandboxID:  old.SandboxID,
		CreatedAt:  unit.Wall(s.CreatedAt),
		StartedAt:  unit.Wall(s.StartedAt),
		FinishedAt: unit.Wall(s.FinishedAt),
		ExitCode:   s.ExitCode,
		Reason:     s.Reason,
		Message:    s.Message,
		Hash:       s.Annotations[criconfig.AnnotationHash],
		ImageID:    s.ImageRef,
		Fixed:      s.Annotations[criconfig.AnnotationFixed],
		Size:       old.Size,
	}
	if c.FinishedAt != 0 && c.StartedAt > c.FinishedAt {
		// containerd notes the start when starting returns, which a process of a few milliseconds does not live to see.
		c.StartedAt = c.FinishedAt
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = podlife.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State = podlife.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State = podlife.Exited
		if old.State == podlife.Exited && old.ID == c.ID {
			c.Reason, c.Message = old.Reason, old.Message // as explained when it ended
		} else if m := r.terminationMessage(s); m != "" {
			c.Message = m
		}
	default:
		c.State = podlife.Unknown
	}
	return c
}

// verboseInfo is the part that we read of the runtime's verbose answer, which containerd and CRI-O spell alike.
type verboseInfo struct {
	PID       int    `json:"pid"`
	SandboxID string `json:"sandboxID"`
}

func parseInfo(info map[string]string) (v verboseInfo) {
	// Unreadable debug information costs the pidfd, not correctness: relists find what was missed.
	if err := json.Unmarshal([]byte(info["info"]), &v); err != nil {
		return verboseInfo{}
	}
	return v
}

// watchPID watches the first process of a sandbox or container as long as it is alive.
func (w *worker) watchPID(id string, alive bool, info map[string]string) {
	if !alive {
		w.unwatch(id)
		return
	}
	if w.view.watches[id] != nil {
		return
	}
	pid := parseInfo(info).PID
	if pid <= 0 {
		return
	}
	r, e := w.r, w.e
	exited := func() { // on a goroutine that does not have the worker
		e.exited(id)
		r.resync(e)
	}
	cancel, err := r.exits.Watch(pid, func() bool { return cgroupNames(pid, id) }, exited)
	if errors.Is(err, unix.ESRCH) {
		exited() // it exited before we could watch it
		cancel = func() {}
	} else if err != nil {
		w.log().Warn("no exit watch, the relist covers it", "id", id, "err", err)
		cancel = func() {}
	}
	w.view.watches[id] = cancel
}

// cgroupNames reports whether the process's cgroup names the container: that pid still means what the runtime said.
func cgroupNames(pid int, id string) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(content), id)
}

// terminationMessage reads what the container left in its termination log, which the status names by annotation.
func (r *Runner) terminationMessage(s *runtimeapi.ContainerStatus) string {
	text := readBounded(s.Annotations[criconfig.AnnotationMessageHost], terminationMessageMax)
	if text == "" && s.Annotations[criconfig.AnnotationMessagePolicy] == "FallbackToLogsOnError" && s.ExitCode != 0 {
		if last, err := podlog.Tail(r.LogDir, s.LogPath, terminationLogLines, terminationLogBytes); err == nil {
			text = strings.ToValidUTF8(string(last), "?")
		}
	}
	return text
}

// readEnded reads a container or sandbox whose first process has exited. The kernel notifies the agent before the
// runtime, so it asks until the runtime agrees, at growing intervals from exitLag.
func (w *worker) readEnded(ctx context.Context, id string) error {
	for wait := exitLag; wait < askTimeout; wait *= 2 {
		w.view.watches[id] = func() {} // there is no process left to watch
		var err error
		if _, sandbox := w.view.sandboxes[id]; sandbox {
			err = w.readSandbox(ctx, id)
		} else {
			err = w.readContainer(ctx, id, "")
		}
		if err != nil {
			return err
		}
		if w.view.containers[id].State != podlife.Running && w.view.sandboxes[id].State != podlife.SandboxReady {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	w.unwatch(id)
	return fmt.Errorf("read %s of %s: its process is gone, yet the runtime calls it running", id, w.e.name())
}

// exitLag is the first interval at which a runtime is asked again about an exit that the kernel already reported
// (containerd 1.6 needs 2 to 20 ms here).
const exitLag = 4 * time.Millisecond

func uidOf(labels map[string]string) types.UID { return types.UID(labels[criconfig.LabelPodUID]) }

func add(set map[string]bool, id string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[id] = true
	return set
}
