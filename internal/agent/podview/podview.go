// Package podview is what the runtime has of one pod, as it was read last: its sandboxes, its containers and how they
// ended. It is the pod's part of what the kubelet calls the pod lifecycle event generator.
//
// A View belongs to one goroutine at a time: the pod's worker. Others mark what happened meanwhile (Dirt), under their
// own lock, and the worker reads it again. The kernel says when the first process of a container or sandbox is gone.
// Exited is called then, on another goroutine. That is before the runtime knows, so Reread asks until it does.
//
// A runtime may be wrong. What it says is believed unless it contradicts itself or the kernel: an answer about
// something else than was asked for, one of another pod, a container that is gone or has ended while its process runs.
// That is an error, and the view stays as it was: nothing is decided by it until the runtime says otherwise.
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

// OOM explains ends by the kernel's out-of-memory killer; *oomwatch.Watch does.
type OOM interface {
	// Know says which process is a container's first; zero: not known yet.
	Know(pod types.UID, c podlife.Container, pid int)
	// Explain returns the container with the reason of its end.
	Explain(c podlife.Container) podlife.Container
	// Drop says that a container is gone.
	Drop(id string)
}

// Exits calls back when processes exit; *process.Exits does.
type Exits interface {
	Watch(pid int, same func() bool, exited func()) (cancel func(), err error)
	// Lives reports whether a process runs that is the first of the container or sandbox with that id.
	Lives(pid int, id string) bool
}

// View is what the runtime has of one pod, by id.
type View struct {
	From   Sources
	Exited func(id string) // the first process of a container or sandbox is gone. Called on any goroutine

	Sandboxes  map[string]podlife.Sandbox
	Containers map[string]podlife.Container
	Runs       map[string]podstatus.Run // of containers: what users are told besides, by id
	Handler    string                   // the runtime's, of the sandbox read last; empty: the default, or none was read
	Note       string                   // what was allocated when the newest sandbox was made; empty: nothing, or not read

	uid     types.UID
	name    func() string     // namespace/name, for messages
	watches map[string]func() // pidfd watches of running containers and sandboxes: to be called to end them
	pids    map[string]int    // their first processes, as far as the runtime said
}

// New returns the View of a pod of which nothing was read yet. From and Exited are to be set before it is read.
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

// Dirt marks what to read anew.
type Dirt struct {
	All     bool
	Changed map[string]bool // containers
	Exited  map[string]bool // containers and sandboxes whose first process is gone
}

// Change marks a container, or with an empty id everything.
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

// AskMax bounds calls that only ask. A runtime that takes longer is hung.
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
			continue // it was read just now
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

// others reports whether a list has something of another pod, which was not asked for.
func (v *View) others(labels map[string]string) bool {
	uid := cri.PodUID(labels)
	return uid != "" && uid != v.uid
}

// checked returns an error where an answer is not about what was asked for.
func (v *View) checked(id, answered string, labels map[string]string) error {
	if answered != id {
		return fmt.Errorf("the runtime answers about %q instead", answered)
	}
	if uid := cri.PodUID(labels); uid != v.uid {
		return fmt.Errorf("the runtime says it is of the pod with UID %q, want %q", uid, v.uid)
	}
	return nil
}

// Contradicted is the error where the kernel contradicts the runtime, which says that a sandbox or container is not
// there or has ended: its first process runs.
type Contradicted struct {
	ID   string
	PID  int
	Says string // the runtime
}

func (c *Contradicted) Error() string {
	const text = "%s: the runtime %s, yet its process %d runs: nothing is started in its place until that ends or the " +
		"runtime agrees (crictl inspect %s)"
	return fmt.Sprintf(text, c.ID, c.Says, c.PID, c.ID)
}

// contradicted returns a *Contradicted where it is one. To start such a container again would have it run twice.
func (v *View) contradicted(id, says string) error {
	pid := v.pids[id]
	if pid == 0 || !v.From.Exits.Lives(pid, id) {
		return nil
	}
	return &Contradicted{ID: id, PID: pid, Says: says}
}

// Summary is the state of everything in the view, by id, in the runtime's numbers; relists compare it.
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

// ReadySandbox is the id of the newest sandbox that is ready; empty: none.
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

// Drop takes a sandbox or container out of the view that the runtime no longer has.
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
		sandbox.IPs = old.IPs // an address that a sandbox has does not go before it does
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

// ReadContainer reads one container; sandbox is its sandbox's id where the caller knows it.
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

// containerOf translates the runtime's status; what it does not repeat (the sandbox) is taken from old.
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
		// Back-off counts from the end. One that is not known is now, lest a restart follow at once.
		c.FinishedAt = cmp.Or(old.FinishedAt, unit.WallOf(time.Now()))
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
		} else if m := v.terminationMessage(s); m != "" {
			c.Message = m
		}
	default:
		c.State = podlife.Unknown
	}
	return c
}

// runOf translates what a status tells of a container's run to users.
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
	exited := func() { v.Exited(id) } // on a goroutine that does not have the view
	cancel, err := v.From.Exits.Watch(pid, func() bool { return v.From.Exits.Lives(pid, id) }, exited)
	if errors.Is(err, unix.ESRCH) {
		exited() // it exited before we could watch it
		cancel = func() {}
	} else if err != nil {
		slog.Warn("the exit of a container is not watched; the next relist finds it", "pod", v.name(), "uid", v.uid, "id", id, "err", err)
		cancel = func() {}
	}
	v.watches[id] = cancel
}

// messagePath returns the host's path of a container's termination log. Our containers have it in an annotation. Of
// those that a kubelet created it is known by the mount.
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
		v.watches[id] = func() {} // there is no process left to watch
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
	return fmt.Errorf("read %s of %s: its process is gone, yet the runtime calls it running", id, v.name())
}

// exitLag is the first interval at which a runtime is asked again about an exit that the kernel already reported
// (containerd 1.6 needs 2 to 20 ms here).
const exitLag = 4 * time.Millisecond

// Bounds of what a container may leave as its last words (upstream: 4096 bytes from the file, 2048 bytes or 80 lines
// from the log).
const (
	terminationMessageMax = 4096
	terminationLogBytes   = 2048
	terminationLogLines   = 80
)

// readBounded returns at most limit bytes of a file, as text; a file that is not there has nothing to say, nor has what
// a container put in its place.
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
