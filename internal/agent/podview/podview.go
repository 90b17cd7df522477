// Package podview caches what the runtime has of one pod: its sandboxes, its containers and how they ended. It does for
// one pod what the kubelet's pod lifecycle event generator does.
//
// A View belongs to one goroutine at a time, the pod's worker. Other goroutines mark what has changed (Dirt), under a
// lock of their own, and the worker reads that again. When the first process of a container or sandbox exits, the
// kernel notifies the agent, and View.Exited is called on another goroutine. The runtime learns of the exit later, so
// Reread asks it until it does.
//
// A runtime may be wrong. Its answers are believed unless they contradict each other or the kernel: an answer about
// another object than the one asked for, an object of another pod, a container that is gone or has ended while its
// process runs. Such an answer is an error, and the view stays as it was until the runtime's answers are consistent.
//
// The package decides nothing and changes nothing in the runtime.
package podview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// Sources are what a View reads from.
type Sources struct {
	Runtime *cri.Client
	OOM     OOM
	Exits   Exits
	LogDir  string // of all pods
}

// OOM finds the containers that the kernel's out-of-memory killer ended; *oomwatch.Watch implements it.
type OOM interface {
	// Know is called with the PID of a container's first process; zero: not known yet.
	Know(pod types.UID, c podlife.Container, pid int)
	// Explain returns the container with the reason why it ended.
	Explain(c podlife.Container) podlife.Container
	// Drop is called when a container is gone.
	Drop(id string)
}

// Exits notifies of the exits of processes; *process.Exits implements it.
type Exits interface {
	Watch(pid int, same func() bool, exited func()) (cancel func(), err error)
	// Lives reports whether a process runs and is the first one of the container or sandbox with that ID.
	Lives(pid int, id string) bool
}

// View is what the runtime has of one pod. Its maps are by ID.
type View struct {
	From   Sources
	Exited func(id string) // called on any goroutine when the first process of a container or sandbox is gone

	Sandboxes  map[string]podlife.Sandbox
	Containers map[string]podlife.Container
	Runs       map[string]podstatus.Run // more about the containers, for the status in the API
	Handler    string                   // runtime handler of the sandbox read last; empty: the default, or none was read
	Note       string                   // annotation of the newest sandbox with the allocated resources; empty: none

	uid     types.UID
	name    func() string     // namespace/name, for messages
	watches map[string]func() // functions that end the pidfd watches of running containers and sandboxes
	pids    map[string]int    // PIDs of their first processes, as far as the runtime has reported them
}

// New returns a View that has read nothing yet. The caller sets From and Exited before it reads.
func New(uid types.UID, name func() string) *View {
	return &View{
		Sandboxes:  map[string]podlife.Sandbox{},
		Containers: map[string]podlife.Container{},
		Runs:       map[string]podstatus.Run{},
		uid:        uid,
		name:       name,
		watches:    map[string]func(){},
		pids:       map[string]int{},
	}
}

// Dirt marks what must be read again.
type Dirt struct {
	All     bool
	Changed map[string]bool // containers
	Exited  map[string]bool // containers and sandboxes whose first process is gone
}

// Change marks a container, or everything if id is empty.
func (d *Dirt) Change(id string) {
	if id == "" {
		d.All = true
		return
	}
	d.Changed = add(d.Changed, id)
}

// Exit marks a container or sandbox whose first process is gone.
func (d *Dirt) Exit(id string) { d.Exited = add(d.Exited, id) }

func add(set map[string]bool, id string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[id] = true
	return set
}

// AskMax bounds calls that only read. Chosen: a runtime that takes longer is assumed to hang.
const AskMax = 15 * time.Second

// Reread reads what is marked.
func (v *View) Reread(ctx context.Context, dirty Dirt) error {
	for id := range dirty.Exited {
		v.Unwatch(id)
		if err := v.readEnded(ctx, id); err != nil {
			return err
		}
	}
	if dirty.All {
		return v.readAll(ctx)
	}
	for id := range dirty.Changed {
		if dirty.Exited[id] {
			continue // readAll has read it
		}
		if err := v.ReadContainer(ctx, id, ""); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads every sandbox and container of the pod.
func (v *View) readAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AskMax)
	defer cancel()
	mine := map[string]string{cri.LabelPodUID: string(v.uid)}
	sandboxes, err := v.From.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: mine},
	})
	if err != nil {
		return fmt.Errorf("list sandboxes of %s: %w", v.name(), err)
	}
	containers, err := v.From.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: mine},
	})
	if err != nil {
		return fmt.Errorf("list containers of %s: %w", v.name(), err)
	}
	seen := map[string]bool{}
	for _, s := range sandboxes.Items {
		if v.others(s.Labels) {
			continue
		}
		seen[s.Id] = true
		if err := v.ReadSandbox(ctx, s.Id); err != nil {
			return err
		}
	}
	for _, c := range containers.Containers {
		if v.others(c.Labels) {
			continue
		}
		seen[c.Id] = true
		if err := v.ReadContainer(ctx, c.Id, c.PodSandboxId); err != nil {
			return err
		}
	}
	for id := range v.Summary() {
		if seen[id] {
			continue
		}
		if err := v.contradicted(id, "does not list it"); err != nil {
			return fmt.Errorf("list containers of %s: %w", v.name(), err)
		}
		v.Drop(id)
	}
	return nil
}

// others reports whether an entry of a list belongs to another pod, although the list was of this pod only.
func (v *View) others(labels map[string]string) bool {
	uid := cri.PodUID(labels)
	return uid != "" && uid != v.uid
}

// checked returns an error if an answer is about another object than the one asked for.
func (v *View) checked(id, answered string, labels map[string]string) error {
	if answered != id {
		return fmt.Errorf("the runtime answers about %q instead", answered)
	}
	if uid := cri.PodUID(labels); uid != v.uid {
		return fmt.Errorf("the runtime says it is of the pod with UID %q, want %q", uid, v.uid)
	}
	return nil
}

// Contradicted is the error if the runtime says that a sandbox or container does not exist or has ended, and the kernel
// says that its first process runs.
type Contradicted struct {
	ID   string
	PID  int
	Says string // what the runtime says, as a predicate: "does not know it"
}

func (c *Contradicted) Error() string {
	const text = "%s: the runtime %s, yet its process %d runs: nothing is started in its place until that ends or the " +
		"runtime agrees (crictl inspect %s)"
	return fmt.Sprintf(text, c.ID, c.Says, c.PID, c.ID)
}

// contradicted returns a *Contradicted if the process of a container or sandbox runs although the runtime says
// otherwise. If such a container were started again, it would run twice.
func (v *View) contradicted(id, says string) error {
	pid := v.pids[id]
	if pid == 0 || !v.From.Exits.Lives(pid, id) {
		return nil
	}
	return &Contradicted{ID: id, PID: pid, Says: says}
}

// Summary returns the state of everything in the view, by ID, in the runtime's numbers. Relists compare it.
func (v *View) Summary() map[string]int32 {
	all := make(map[string]int32, len(v.Sandboxes)+len(v.Containers))
	for id, s := range v.Sandboxes {
		all[id] = int32(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)
		if s.State == podlife.SandboxReady {
			all[id] = int32(runtimeapi.PodSandboxState_SANDBOX_READY)
		}
	}
	for id, c := range v.Containers {
		all[id] = int32(c.State) // podlife numbers them as CRI does
	}
	return all
}

// ReadySandbox returns the ID of the newest sandbox that is ready; empty: none is.
func (v *View) ReadySandbox() (id string) {
	newest := int64(-1)
	for key, s := range v.Sandboxes {
		if int64(s.Attempt) > newest && s.State == podlife.SandboxReady {
			id = key
			newest = int64(s.Attempt)
		}
	}
	return id
}

// Drop removes a sandbox or container that the runtime no longer has.
func (v *View) Drop(id string) {
	v.From.OOM.Drop(id)
	delete(v.Sandboxes, id)
	delete(v.Containers, id)
	delete(v.Runs, id)
	delete(v.pids, id)
	v.Unwatch(id)
}

// Unwatch ends the watch of a sandbox's or container's first process.
func (v *View) Unwatch(id string) {
	if cancel := v.watches[id]; cancel != nil {
		cancel()
		delete(v.watches, id)
	}
}

// ReadSandbox reads one sandbox.
func (v *View) ReadSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, AskMax)
	defer cancel()
	response, err := v.From.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: id,
		Verbose:      v.watches[id] == nil,
	})
	if status.Code(err) == codes.NotFound {
		if err := v.contradicted(id, "does not know it"); err != nil {
			return fmt.Errorf("read sandbox of %s: %w", v.name(), err)
		}
		v.Drop(id)
		return nil
	}
	s := response.GetStatus()
	if err == nil {
		err = v.checked(id, s.GetId(), s.GetLabels())
	}
	if err != nil {
		return fmt.Errorf("read sandbox %s of %s: %w", id, v.name(), err)
	}
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
	if old := v.Sandboxes[id]; len(sandbox.IPs) == 0 && old.State == sandbox.State {
		sandbox.IPs = old.IPs // a sandbox keeps its addresses for its whole life
	}
	v.Sandboxes[id] = sandbox
	v.Handler = s.RuntimeHandler
	if !slices.ContainsFunc(slices.Collect(maps.Values(v.Sandboxes)), func(o podlife.Sandbox) bool {
		return o.Attempt > sandbox.Attempt
	}) {
		v.Note = s.Annotations[criconfig.AnnotationAllocation]
	}
	v.watchPID(id, sandbox.State == podlife.SandboxReady, response.Info)
	return nil
}

// ReadContainer reads one container. sandbox is the ID of its sandbox; empty: the caller does not know it.
func (v *View) ReadContainer(ctx context.Context, id, sandbox string) error {
	ctx, cancel := context.WithTimeout(ctx, AskMax)
	defer cancel()
	response, err := v.From.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{
		ContainerId: id,
		Verbose:     v.watches[id] == nil,
	})
	if status.Code(err) == codes.NotFound {
		if err := v.contradicted(id, "does not know it"); err != nil {
			return fmt.Errorf("read container of %s: %w", v.name(), err)
		}
		v.Drop(id)
		return nil
	}
	if err == nil {
		err = v.checked(id, response.GetStatus().GetId(), response.GetStatus().GetLabels())
	}
	if err != nil {
		return fmt.Errorf("read container %s of %s: %w", id, v.name(), err)
	}
	switch s := response.Status.State; s {
	case runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_EXITED:
		if err := v.contradicted(id, "calls it "+s.String()); err != nil {
			return fmt.Errorf("read container of %s: %w", v.name(), err)
		}
	}
	old := v.Containers[id]
	c := v.containerOf(response.Status, old)
	if c.State == podlife.Exited && old.State != podlife.Exited {
		c = v.From.OOM.Explain(c)
	}
	c.SandboxID = cmp.Or(c.SandboxID, sandbox, parseInfo(response.Info).SandboxID)
	v.Containers[id] = c
	v.Runs[id] = runOf(response.Status)
	if pid := parseInfo(response.Info).PID; c.State == podlife.Running {
		v.From.OOM.Know(v.uid, c, pid)
	}
	v.watchPID(id, c.State == podlife.Running, response.Info)
	return nil
}

// containerOf translates the runtime's status of a container. What the status does not contain (the sandbox) is taken
// from old.
func (v *View) containerOf(s *runtimeapi.ContainerStatus, old podlife.Container) podlife.Container {
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
		Hash:       s.Annotations[cri.AnnotationHash],
		ImageID:    s.ImageRef,
		Fixed:      s.Annotations[criconfig.AnnotationFixed],
		Size:       old.Size,
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_EXITED && c.FinishedAt == 0 {
		// The back-off counts from the end. If the end is not known, it is now, so that no restart follows at once.
		c.FinishedAt = cmp.Or(old.FinishedAt, unit.WallOf(time.Now()))
	}
	if c.FinishedAt != 0 && c.StartedAt > c.FinishedAt {
		// containerd records the start when its start call returns. A process of a few milliseconds has ended by then.
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
		} else if m := v.terminationMessage(s); m != "" {
			c.Message = m
		}
	default:
		c.State = podlife.Unknown
	}
	return c
}

// runOf returns the image and the user of a container's run.
func runOf(s *runtimeapi.ContainerStatus) podstatus.Run {
	run := podstatus.Run{Image: s.GetImage().GetImage()}
	if user := s.GetUser(); user != nil {
		run.User = &corev1.ContainerUser{}
		if linux := user.Linux; linux != nil {
			run.User.Linux = &corev1.LinuxContainerUser{
				UID: linux.Uid, GID: linux.Gid, SupplementalGroups: linux.SupplementalGroups,
			}
		}
	}
	return run
}

// verboseInfo is the part of the runtime's verbose answer that is read here. containerd and CRI-O spell it alike.
type verboseInfo struct {
	PID       int    `json:"pid"`
	SandboxID string `json:"sandboxID"`
}

func parseInfo(info map[string]string) (v verboseInfo) {
	// If the verbose information cannot be parsed, there is no pidfd, and relists find the exit.
	if err := json.Unmarshal([]byte(info["info"]), &v); err != nil {
		return verboseInfo{}
	}
	return v
}

// watchPID watches the first process of a sandbox or container as long as it is alive.
func (v *View) watchPID(id string, alive bool, info map[string]string) {
	if !alive {
		v.Unwatch(id)
		delete(v.pids, id)
		return
	}
	if v.watches[id] != nil {
		return
	}
	pid := parseInfo(info).PID
	if pid <= 0 {
		return
	}
	v.pids[id] = pid
	exited := func() { v.Exited(id) } // called on a goroutine that must not touch the view
	cancel, err := v.From.Exits.Watch(pid, func() bool { return v.From.Exits.Lives(pid, id) }, exited)
	if errors.Is(err, unix.ESRCH) {
		exited() // it exited before the watch began
		cancel = func() {}
	} else if err != nil {
		slog.Warn("the exit of a container is not watched; the next relist finds it", "pod", v.name(), "uid", v.uid, "id", id,
			"err", err)
		cancel = func() {}
	}
	v.watches[id] = cancel
}

// messagePath returns the host's path of a container's termination log. This agent's containers have it in an
// annotation. For a kubelet's containers it is the source of a mount.
func messagePath(s *runtimeapi.ContainerStatus) string {
	if path := s.Annotations[criconfig.AnnotationMessageHost]; path != "" {
		return path
	}
	inside := s.Annotations[cri.AnnotationMessagePath]
	for _, m := range s.Mounts {
		if inside != "" && m.ContainerPath == inside {
			return m.HostPath
		}
	}
	return ""
}

// terminationMessage reads what the container left in its termination log.
func (v *View) terminationMessage(s *runtimeapi.ContainerStatus) string {
	text := readBounded(messagePath(s), terminationMessageMax)
	if text == "" && s.Annotations[cri.AnnotationMessagePolicy] == "FallbackToLogsOnError" && s.ExitCode != 0 {
		if last, err := podlog.Tail(v.From.LogDir, s.LogPath, terminationLogLines, terminationLogBytes); err == nil {
			text = strings.ToValidUTF8(string(last), "?")
		}
	}
	return text
}

// readEnded reads a container or sandbox whose first process has exited. The kernel notifies the agent before the
// runtime, so it asks until the runtime agrees, at growing intervals from exitLag.
func (v *View) readEnded(ctx context.Context, id string) error {
	for wait := exitLag; wait < AskMax; wait *= 2 {
		v.watches[id] = func() {} // no process is left to watch
		var err error
		if _, sandbox := v.Sandboxes[id]; sandbox {
			err = v.ReadSandbox(ctx, id)
		} else {
			err = v.ReadContainer(ctx, id, "")
		}
		if err != nil {
			return err
		}
		if v.Containers[id].State != podlife.Running && v.Sandboxes[id].State != podlife.SandboxReady {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	v.Unwatch(id)
	return fmt.Errorf("read %s of %s: its process is gone, but the runtime says that it runs", id, v.name())
}

// exitLag is the first interval at which the runtime is asked again about an exit that the kernel has reported.
// Measured: containerd 1.6 needs 2 to 20 ms.
const exitLag = 4 * time.Millisecond

// Bounds of a container's termination message, as in the kubelet: bytes of the file, bytes and lines of the log.
const (
	terminationMessageMax = 4096
	terminationLogBytes   = 2048
	terminationLogLines   = 80
)

// readBounded returns at most limit bytes of a file, as text. It returns an empty text if the file does not exist, or
// if a container replaced it by something other than a regular file.
func readBounded(path string, limit int64) string {
	if path == "" {
		return ""
	}
	content, err := untrusted.Head(path, limit)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(content), "?")
}
