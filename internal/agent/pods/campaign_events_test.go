package pods

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventStream is the runtime's stream of containers' events to one agent. It is guarded by world.mu, except for fields
// that never change.
type eventStream struct {
	grpc.ClientStream
	l      *life
	ctx    context.Context
	queue  []*runtimeapi.ContainerEventResponse
	more   chan struct{} // has something when the queue may have
	broken chan struct{} // closed when it is cut
}

// GetContainerEvents opens a stream, if the runtime of this world has one.
func (f fakeRuntime) GetContainerEvents(
	ctx context.Context, _ *runtimeapi.GetEventsRequest, _ ...grpc.CallOption,
) (runtimeapi.RuntimeService_GetContainerEventsClient, error) {
	w := f.l.w
	s := &eventStream{l: f.l, ctx: ctx, more: make(chan struct{}, 1), broken: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // until keep-alives notice that the runtime does not answer
	defer cancel()
	err := f.l.call(ctx, "events", "events", func() error {
		if !w.evented {
			return status.Error(codes.Unimplemented, "no events")
		}
		w.streams[s] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// emit sends an event to every stream: in time, late, twice, never, or by breaking the stream. The caller holds mu.
func (w *world) emit(uid types.UID, id string, kind runtimeapi.ContainerEventType) {
	if len(w.streams) == 0 {
		return
	}
	w.turns["emit"]++
	times, late := 1, time.Duration(0)
	if r := w.dice("emit", w.turns["emit"]); !w.calm && r.IntN(100) < w.trouble {
		switch r.IntN(4) {
		case 0:
			times = 0
		case 1:
			times = 2
		case 2:
			late = time.Duration(r.IntN(40_000)) * time.Millisecond
		case 3:
			w.cutStreams()
		}
	}
	event := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: string(uid)}},
	}
	for s := range w.streams {
		for range times {
			if late == 0 {
				s.put(event)
				continue
			}
			time.AfterFunc(late, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				s.put(event)
			})
		}
	}
}

// put appends an event to the stream. The caller holds world.mu.
func (s *eventStream) put(event *runtimeapi.ContainerEventResponse) {
	s.queue = append(s.queue, event)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// cutStreams ends every stream, and drops the events that were not read. The caller holds mu.
func (w *world) cutStreams() {
	for s := range w.streams {
		close(s.broken)
	}
	clear(w.streams)
}

// Recv implements the stream.
func (s *eventStream) Recv() (*runtimeapi.ContainerEventResponse, error) {
	for {
		select {
		case <-s.broken:
			return nil, io.EOF
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		case <-s.l.gone:
			return nil, errors.New("the connection is closed")
		case <-s.more:
		}
		s.l.w.mu.Lock()
		if len(s.queue) > 0 {
			event := s.queue[0]
			s.queue = s.queue[1:]
			if len(s.queue) > 0 {
				select {
				case s.more <- struct{}{}:
				default:
				}
			}
			s.l.w.mu.Unlock()
			return event, nil
		}
		s.l.w.mu.Unlock()
	}
}
