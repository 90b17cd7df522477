package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
)

// runtimesOf returns the container runtimes of an instance as `up` last started them: one for each node of this
// machine, with the node's name.
func runtimesOf(o Options) (names []string, all []*containerruntime.Instance, err error) {
	if !o.Agent {
		return nil, nil,
			fmt.Errorf("instance %s has no container runtime: it was started without an agent (--no-agent, or not as root)",
				o.Instance)
	}
	nodes := []Options{o}
	for _, n := range (layout{o}).localNodes() {
		kept, err := Load(n.o)
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: it has not joined yet: %w", n.name, err)
		}
		nodes = append(nodes, kept)
	}
	for _, node := range nodes {
		runtime, err := newRuntime(layout{node})
		if err != nil {
			return nil, nil, err
		}
		names, all = append(names, node.NodeName), append(all, runtime)
	}
	return names, all, nil
}

// Images returns the images on the machine's nodes, each once.
func Images(ctx context.Context, o Options) ([]containerruntime.Image, error) {
	images, err := merged(o, func(runtime *containerruntime.Instance) ([]containerruntime.Image, error) {
		return runtime.Images(ctx)
	})
	slices.SortStableFunc(images, func(a, b containerruntime.Image) int {
		return cmp.Or(slices.Compare(a.Names, b.Names), cmp.Compare(a.ID, b.ID))
	})
	return images, err
}

// LoadImages imports the images of an archive into all of the machine's nodes, and returns them.
func LoadImages(ctx context.Context, o Options, archive string) ([]containerruntime.Image, error) {
	return merged(o, func(runtime *containerruntime.Instance) ([]containerruntime.Image, error) {
		return runtime.Import(ctx, archive)
	})
}

// merged calls ask for all runtimes and returns each image once. It continues after a failure.
func merged(o Options, ask func(*containerruntime.Instance) ([]containerruntime.Image, error)) (
	images []containerruntime.Image, err error) {
	names, runtimes, err := runtimesOf(o)
	if err != nil {
		return nil, err
	}
	var failed []error
	images = []containerruntime.Image{}
	for i, runtime := range runtimes {
		some, err := ask(runtime)
		if err != nil {
			failed = append(failed, ofNode(names, i, err))
		}
		for _, image := range some {
			if !slices.ContainsFunc(images, func(has containerruntime.Image) bool { return same(has, image) }) {
				images = append(images, image)
			}
		}
	}
	return images, errors.Join(failed...)
}

func same(a, b containerruntime.Image) bool { return a.ID == b.ID && slices.Equal(a.Names, b.Names) }

// ofNode names the node in an error, if there are several.
func ofNode(names []string, i int, err error) error {
	if len(names) == 1 {
		return err
	}
	return fmt.Errorf("node %s: %w", names[i], err)
}

// RemoveImage removes an image, by its name or ID, from all of the machine's nodes, and returns it. It is no error if
// some nodes do not have it.
func RemoveImage(ctx context.Context, o Options, name string) (image containerruntime.Image, err error) {
	names, runtimes, err := runtimesOf(o)
	if err != nil {
		return image, err
	}
	var failed, absent []error
	for i, runtime := range runtimes {
		one, err := runtime.RemoveImage(ctx, name)
		switch {
		case errors.Is(err, containerruntime.ErrNoImage):
			absent = append(absent, ofNode(names, i, err))
		case err != nil:
			failed = append(failed, ofNode(names, i, err))
		default:
			image = one
		}
	}
	if len(absent) == len(runtimes) {
		failed = absent[:1]
	}
	return image, errors.Join(failed...)
}
