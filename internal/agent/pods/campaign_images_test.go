package pods

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecSync runs a user's code: it succeeds, fails, or does not end. It ends with its container.
func (f fakeRuntime) ExecSync(
	ctx context.Context, in *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	w := f.l.w
	w.mu.Lock()
	b := w.containers[in.ContainerId]
	if b == nil || !b.alive || w.life != f.l || w.down {
		w.mu.Unlock()
		return nil, notFound(in.ContainerId)
	}
	w.turns["exec"+in.Cmd[0]+b.id]++
	r := w.dice("exec", in.Cmd[0], b.id, w.turns["exec"+in.Cmd[0]+b.id])
	w.mu.Unlock()
	wait, code := time.Duration(r.IntN(900))*time.Millisecond, int32(0)
	switch r.IntN(8) {
	case 0:
		code = 1
	case 1:
		wait = -1
	}
	if in.Cmd[0] == "poststart" {
		w.hook(b.uid, 1)
		defer w.hook(b.uid, -1)
	}
	answered := make(chan error, 1)
	cut, stop := context.WithCancel(ctx)
	defer stop()
	go func() { answered <- f.l.wait(cut, wait) }()
	select {
	case err := <-answered:
		return &runtimeapi.ExecSyncResponse{ExitCode: code}, err
	case <-b.ended:
		return nil, errors.New("the container has ended")
	}
}

// fakeImages has an image once it was pulled.
type fakeImages struct {
	runtimeapi.ImageServiceClient
	l *life
}

func (f fakeImages) ImageStatus(
	ctx context.Context, in *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	out := &runtimeapi.ImageStatusResponse{}
	return out, f.l.call(ctx, "image", "images", func() error {
		if f.l.w.images[in.Image.Image] {
			out.Image = &runtimeapi.Image{Id: "sha256:1"}
		}
		return nil
	})
}

func (f fakeImages) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	return &runtimeapi.PullImageResponse{}, f.l.call(ctx, "pull", types.UID(in.Image.Image), func() error {
		f.l.w.images[in.Image.Image] = true
		return nil
	})
}

// hook records that a postStart hook of a pod begins or ends. While one runs, the pod's next container must not start.
func (w *world) hook(uid types.UID, change int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hooks[uid] += change
}
