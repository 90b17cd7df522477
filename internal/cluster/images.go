package cluster

import (
	"context"
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
)

// runtimeOf returns the container runtime of an instance as `up` last started it.
func runtimeOf(o Options) (*containerruntime.Instance, error) {
	if !o.Agent {
		return nil, fmt.Errorf("instance %s has no container runtime: it was started without an agent (--no-agent, or without root)", o.Instance)
	}
	return newRuntime(layout{o})
}

// Images returns the images on the machine's own node.
func Images(ctx context.Context, o Options) ([]containerruntime.Image, error) {
	runtime, err := runtimeOf(o)
	if err != nil {
		return nil, err
	}
	return runtime.Images(ctx)
}

// LoadImages imports the images of an archive into the machine's own node, and returns them.
func LoadImages(ctx context.Context, o Options, archive string) ([]containerruntime.Image, error) {
	runtime, err := runtimeOf(o)
	if err != nil {
		return nil, err
	}
	return runtime.Import(ctx, archive)
}

// RemoveImage removes an image, by its name or ID, from the machine's own node, and returns it.
func RemoveImage(ctx context.Context, o Options, name string) (containerruntime.Image, error) {
	runtime, err := runtimeOf(o)
	if err != nil {
		return containerruntime.Image{}, err
	}
	return runtime.RemoveImage(ctx, name)
}
