package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// sandbox and box are what the runtime has.
type sandbox struct {
	id      string
	uid     types.UID
	config  *runtimeapi.PodSandboxConfig
	ready   bool
	created time.Time
	pid     int
}

type box struct {
	id, name, sandbox          string
	uid                        types.UID
	attempt                    uint32
	config                     *runtimeapi.ContainerConfig
	state                      runtimeapi.ContainerState // as the runtime knows it
	alive                      bool                      // it has a process
	code                       int32
	pid                        int
	created, started, finished time.Time
	ended                      chan struct{} // closed when the runtime knows that its process is gone
	record                     resize.Size   // as the runtime was told last
	used                       unit.Bytes    // of memory, since usedSince
	usedSince                  time.Time
}

// watch is an agent's watch of a process.
type watch struct {
	l      *life
	exited func()
}

// Watch is the kernel's notification of exits. It does not notify an agent that is gone.
func (l *life) Watch(pid int, _ func() bool, exited func()) (cancel func(), err error) {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.runs(pid) {
		return nil, unix.ESRCH
	}
	w.watches[pid] = &watch{l, exited}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watches, pid)
	}, nil
}

// Lives is the kernel's answer whether a process is still a container's.
func (l *life) Lives(pid int, id string) bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	b := l.w.containers[id]
	s := l.w.sandboxes[id]
	return b != nil && b.pid == pid && b.alive || s != nil && s.pid == pid && s.ready
}

// lies reports whether the runtime gives a wrong answer now. The caller holds mu.
func (w *world) lies(what, id string) bool {
	if w.calm || w.liar == 0 {
		return false
	}
	w.turns["lie "+what]++
	lie := w.dice("lie", what, id, w.turns["lie "+what]).IntN(100) < w.liar
	if lie {
		w.say("  the runtime lies about %s: %s", id, what)
	}
	return lie
}

// denies reports whether the runtime says that a running container does not run. It does so only for containers whose
// process this agent was told: without that, no agent could notice. The caller holds mu.
func (w *world) denies(what string, b *box) bool {
	known := w.watches[b.pid]
	return b.alive && known != nil && known.l == w.life && w.lies(what, b.id)
}

// runs reports whether a process with that PID runs. The caller holds mu.
func (w *world) runs(pid int) bool {
	for _, s := range w.sandboxes {
		if s.pid == pid && s.ready {
			return true
		}
	}
	for _, b := range w.containers {
		if b.pid == pid && b.alive {
			return true
		}
	}
	return false
}

// exited notifies the watches of a process, a moment after its end. The caller holds mu.
func (w *world) exited(pid int) {
	lag := time.Duration(w.dice("exit", pid).IntN(5)) * time.Millisecond
	time.AfterFunc(lag, func() {
		w.mu.Lock()
		watched := w.watches[pid]
		delete(w.watches, pid)
		if watched != nil && (watched.l != w.life || w.down) {
			watched = nil
		}
		w.mu.Unlock()
		if watched != nil {
			watched.exited()
		}
	})
}

// end ends a container's process. The runtime learns of it a little later. The caller holds mu.
func (w *world) end(b *box, code int32) {
	if !b.alive {
		return
	}
	b.alive = false
	b.code = code
	b.finished = time.Now()
	delete(w.kernel, b.id)
	w.say("  %s %s#%d exits with %d", b.uid, b.name, b.attempt, code)
	w.exited(b.pid)
	time.AfterFunc(time.Duration(w.dice("lag", b.id).IntN(30))*time.Millisecond, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if b.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			b.state = runtimeapi.ContainerState_CONTAINER_EXITED
			close(b.ended)
			w.emit(b.uid, b.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	})
}

// fall ends a sandbox and everything that runs in it. The caller holds mu.
func (w *world) fall(s *sandbox) {
	if !s.ready {
		return
	}
	s.ready = false
	w.exited(s.pid)
	w.emit(s.uid, s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	for _, b := range w.containers {
		if b.sandbox == s.id {
			w.end(b, 137)
		}
	}
}

// fakeRuntime is the runtime as one agent sees it.
type fakeRuntime struct {
	runtimeapi.RuntimeServiceClient
	l *life
}

func podOf(labels map[string]string) types.UID { return types.UID(labels[cri.LabelPodUID]) }

func notFound(id string) error { return status.Errorf(codes.NotFound, "%q: not found", id) }

func (f fakeRuntime) Version(
	context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption,
) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeApiVersion: "v1"}, nil
}

func (f fakeRuntime) Status(
	context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{}, nil
}

func (f fakeRuntime) ListPodSandbox(
	ctx context.Context, in *runtimeapi.ListPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	out, uid := &runtimeapi.ListPodSandboxResponse{}, podOf(in.GetFilter().GetLabelSelector())
	return out, f.l.call(ctx, "list sandboxes", uid, func() error {
		for _, id := range slices.Sorted(maps.Keys(f.l.w.sandboxes)) {
			s := f.l.w.sandboxes[id]
			if uid == "" || s.uid == uid {
				out.Items = append(
					out.Items,
					&runtimeapi.PodSandbox{
						Id: id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.created.UnixNano(), Labels: s.config.Labels,
						Annotations: s.config.Annotations,
					},
				)
			}
		}
		return nil
	})
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (f fakeRuntime) ListContainers(
	ctx context.Context, in *runtimeapi.ListContainersRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	out, uid := &runtimeapi.ListContainersResponse{}, podOf(in.GetFilter().GetLabelSelector())
	return out, f.l.call(ctx, "list containers", uid, func() error {
		for _, id := range slices.Sorted(maps.Keys(f.l.w.containers)) {
			b := f.l.w.containers[id]
			wrong := uid != "" && b.uid != uid && f.l.w.lies("lists it for another pod", id)
			if (uid == "" || b.uid == uid || wrong) && !f.l.w.denies("does not list it", b) {
				out.Containers = append(
					out.Containers,
					&runtimeapi.Container{
						Id: id, PodSandboxId: b.sandbox, Metadata: b.config.Metadata, State: b.state, CreatedAt: b.created.UnixNano(),
						Labels: b.config.Labels, Annotations: b.config.Annotations,
					},
				)
				if f.l.w.lies("lists it twice", id) {
					out.Containers = append(out.Containers, out.Containers[len(out.Containers)-1])
				}
			}
		}
		return nil
	})
}

func (f fakeRuntime) PodSandboxStatus(
	ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption,
) (out *runtimeapi.PodSandboxStatusResponse, err error) {
	w := f.l.w
	err = f.l.call(ctx, "read sandbox", w.owner(in.PodSandboxId), func() error {
		s := w.sandboxes[in.PodSandboxId]
		if s == nil {
			return notFound(in.PodSandboxId)
		}
		info := map[string]string{"info": fmt.Sprintf(`{"pid":%d}`, s.pid)}
		out = &runtimeapi.PodSandboxStatusResponse{Info: info, Status: &runtimeapi.PodSandboxStatus{
			Id: s.id, Metadata: s.config.Metadata, State: s.state(), Labels: s.config.Labels, Annotations: s.config.Annotations,
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		}}
		if w.lies("has no IP", s.id) {
			out.Status.Network = nil
		}
		if w.lies("has no status", s.id) {
			out.Status = nil
		}
		return nil
	})
	return out, err
}

func (f fakeRuntime) ContainerStatus(
	ctx context.Context, in *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption,
) (out *runtimeapi.ContainerStatusResponse, err error) {
	w := f.l.w
	err = f.l.call(ctx, "read container", w.owner(in.ContainerId), func() error {
		b := w.containers[in.ContainerId]
		if b == nil || w.denies("does not know it", b) {
			return notFound(in.ContainerId)
		}
		out = &runtimeapi.ContainerStatusResponse{
			Info: map[string]string{"info": fmt.Sprintf(`{"pid":%d,"sandboxID":%q}`, b.pid, b.sandbox)},
			Status: &runtimeapi.ContainerStatus{
				Id: b.id, Metadata: b.config.Metadata, State: b.state, CreatedAt: nanos(b.created), StartedAt: nanos(b.started),
				ImageRef: "sha256:1",
				Labels:   b.config.Labels, Annotations: b.config.Annotations,
			},
		}
		if b.state == runtimeapi.ContainerState_CONTAINER_EXITED {
			out.Status.FinishedAt, out.Status.ExitCode = nanos(b.finished), b.code
			if w.lies("has no end", b.id) {
				out.Status.FinishedAt = 0
			}
		}
		switch {
		case w.denies("has exited", b):
			out.Status.State, out.Status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now().UnixNano()
		case w.lies("has no status", b.id):
			out.Status = nil
		case w.lies("has no labels", b.id):
			out.Status.Labels = nil
		case w.lies("is another one", b.id):
			out.Status.Id = "c0"
		}
		return nil
	})
	return out, err
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// owner returns the pod of a sandbox or container, also after its removal.
func (w *world) owner(id string) types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.sandboxes[id]; s != nil {
		return s.uid
	}
	if b := w.containers[id]; b != nil {
		return b.uid
	}
	return "removed"
}

func (f fakeRuntime) RunPodSandbox(
	ctx context.Context, in *runtimeapi.RunPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	w := f.l.w
	out := &runtimeapi.RunPodSandboxResponse{}
	uid := types.UID(in.Config.Metadata.Uid)
	return out, f.l.call(ctx, "run sandbox", uid, func() error {
		for _, s := range w.sandboxes {
			if s.uid == uid && s.config.Metadata.Attempt == in.Config.Metadata.Attempt {
				return status.Errorf(codes.Unknown, "name is reserved for %q", s.id)
			}
		}
		w.lastID++
		out.PodSandboxId = fmt.Sprintf("s%d", w.lastID)
		if s := w.sizings[uid]; s != nil {
			s.ran = true
		}
		w.sandboxes[out.PodSandboxId] = &sandbox{
			id: out.PodSandboxId, uid: uid, config: in.Config, ready: true, created: time.Now(), pid: 1000 + w.lastID,
		}
		w.emit(uid, out.PodSandboxId, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		w.say("  %s has sandbox %s, attempt %d", uid, out.PodSandboxId, in.Config.Metadata.Attempt)
		return nil
	})
}

func (f fakeRuntime) StopPodSandbox(
	ctx context.Context, in *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopPodSandboxResponse, error) {
	w := f.l.w
	return &runtimeapi.StopPodSandboxResponse{}, f.l.call(ctx, "stop sandbox", w.owner(in.PodSandboxId), func() error {
		if s := w.sandboxes[in.PodSandboxId]; s != nil {
			w.fall(s)
		}
		return nil
	})
}

func (f fakeRuntime) RemovePodSandbox(
	ctx context.Context, in *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	w := f.l.w
	return &runtimeapi.RemovePodSandboxResponse{}, f.l.call(ctx, "remove sandbox", w.owner(in.PodSandboxId), func() error {
		s := w.sandboxes[in.PodSandboxId]
		if s == nil {
			return nil
		}
		for _, b := range w.containers {
			if b.sandbox == s.id && b.alive {
				w.judged("%s: sandbox %s is removed while %s#%d runs in it", s.uid, s.id, b.name, b.attempt)
			}
		}
		w.fall(s)
		delete(w.sandboxes, s.id)
		w.emit(s.uid, s.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		maps.DeleteFunc(w.containers, func(_ string, b *box) bool { return b.sandbox == s.id })
		return nil
	})
}

func (f fakeRuntime) CreateContainer(
	ctx context.Context, in *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	w, out := f.l.w, &runtimeapi.CreateContainerResponse{}
	return out, f.l.call(ctx, "create", podOf(in.Config.Labels), func() error {
		s, m := w.sandboxes[in.PodSandboxId], in.Config.Metadata
		if s == nil || !s.ready {
			return notFound(in.PodSandboxId)
		}
		for _, b := range w.containers {
			if b.uid == s.uid && b.name == m.Name && b.attempt == m.Attempt {
				return status.Errorf(codes.Unknown, "name is reserved for %q", b.id)
			}
		}
		w.lastID++
		out.ContainerId = fmt.Sprintf("c%d", w.lastID)
		w.containers[out.ContainerId] = &box{
			id: out.ContainerId, name: m.Name, sandbox: s.id, uid: s.uid, attempt: m.Attempt, config: in.Config,
			created: time.Now(), pid: 1000 + w.lastID,
			ended: make(chan struct{}), state: runtimeapi.ContainerState_CONTAINER_CREATED,
		}
		w.emit(s.uid, out.ContainerId, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		if w.lies("made, without an ID", out.ContainerId) {
			out.ContainerId = ""
		}
		if b := w.anyOther(s.uid); b != nil && w.lies("made, with the ID of another pod's container", out.ContainerId) {
			out.ContainerId = b.id
		}
		return nil
	})
}

func (f fakeRuntime) StartContainer(
	ctx context.Context, in *runtimeapi.StartContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	w := f.l.w
	return &runtimeapi.StartContainerResponse{}, f.l.call(ctx, "start", w.owner(in.ContainerId), func() error {
		b := w.containers[in.ContainerId]
		switch {
		case b == nil:
			return notFound(in.ContainerId)
		case b.state != runtimeapi.ContainerState_CONTAINER_CREATED || !w.sandboxes[b.sandbox].ready:
			return status.Error(codes.FailedPrecondition, "not in created state")
		case w.lies("started", b.id):
			return nil
		}
		w.judgeStart(b)
		b.state = runtimeapi.ContainerState_CONTAINER_RUNNING
		b.alive = true
		b.started = time.Now()
		w.sizeAtStart(b)
		w.say("  %s %s#%d starts as %s", b.uid, b.name, b.attempt, b.id)
		w.emit(b.uid, b.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		r := w.dice("program", b.uid, b.name, b.attempt)
		if init := w.api.isInit(b.uid, b.name); init || r.IntN(4) == 0 {
			code := int32(r.IntN(3) / 2)
			if w.calm {
				code = 0
			}
			time.AfterFunc(time.Duration(r.IntN(60_000))*time.Millisecond, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.end(b, code)
			})
		}
		return nil
	})
}

// anyOther returns a container of another pod. The caller holds mu.
func (w *world) anyOther(uid types.UID) *box {
	for _, id := range slices.Sorted(maps.Keys(w.containers)) {
		if b := w.containers[id]; b.uid != uid {
			return b
		}
	}
	return nil
}

// judgeStart checks whether a container may start. The caller holds mu.
func (w *world) judgeStart(b *box) {
	run := fmt.Sprintf("%s %s#%d", b.uid, b.name, b.attempt)
	by, unrecorded := w.forgets[b.uid]
	forgotten := unrecorded && w.life.number > by
	if w.starts[run]++; w.starts[run] > 1 && !forgotten {
		w.judged("%s is started a second time", run)
	}
	for _, o := range w.containers {
		if o.uid == b.uid && o.name == b.name && o.alive {
			w.judged("%s is started while #%d runs", run, o.attempt)
		}
	}
	w.judgeTwins(b)
	if phase := w.api.final[b.uid]; phase != "" {
		w.judged("%s is started after the pod was reported to be %s", run, phase)
	}
	if at, ok := w.orderedAt[b.uid]; ok && time.Since(at) > overtimeMax+stopSlack {
		w.judged("%s is started %s after the agent was told that its pod is to end", run, time.Since(at))
	}
}

func (f fakeRuntime) StopContainer(
	ctx context.Context, in *runtimeapi.StopContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	w := f.l.w
	var b *box
	begun := time.Now()
	err := f.l.call(ctx, "stop", w.owner(in.ContainerId), func() error {
		if b = w.containers[in.ContainerId]; b == nil {
			return notFound(in.ContainerId)
		}
		r := w.dice("term", b.id)
		if heeds := r.IntN(3) > 0; heeds && in.Timeout > 0 {
			time.AfterFunc(time.Duration(r.IntN(10_000))*time.Millisecond, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.end(b, 143)
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	c := &call{"stop waits", b.uid, begun} // for what it waits is not the runtime's work
	w.flying[c] = true
	running := b.state == runtimeapi.ContainerState_CONTAINER_RUNNING
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.flying, c)
	}()
	if !running {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	grace := time.NewTimer(time.Duration(in.Timeout) * time.Second)
	defer grace.Stop()
	select {
	case <-b.ended:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-f.l.gone:
		return nil, outage
	case <-grace.C:
	}
	w.mu.Lock()
	w.end(b, 137)
	w.mu.Unlock()
	<-b.ended
	return &runtimeapi.StopContainerResponse{}, nil
}

func (f fakeRuntime) RemoveContainer(
	ctx context.Context, in *runtimeapi.RemoveContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemoveContainerResponse, error) {
	w := f.l.w
	return &runtimeapi.RemoveContainerResponse{}, f.l.call(ctx, "remove", w.owner(in.ContainerId), func() error {
		if b := w.containers[in.ContainerId]; b != nil {
			if b.alive {
				w.judged("%s %s#%d is removed while it runs", b.uid, b.name, b.attempt)
			}
			delete(w.containers, b.id)
			w.emit(b.uid, b.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		}
		return nil
	})
}
