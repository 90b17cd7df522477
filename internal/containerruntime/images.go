package containerruntime

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// LoadImages imports Plimsoll's images and those of add-ons unless the runtime has them already with the same ID. The
// runtime must be ready.
func (i *Instance) LoadImages(ctx context.Context) error {
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	// One after the other: containerd locks the name of each archive's index during the import.
	for _, file := range append([]string{image.PauseFile, image.WorkloadFile}, i.options.Addons...) {
		path := filepath.Join(i.options.ImageDir, file)
		if err := i.loadImage(ctx, client, path); err != nil {
			return fmt.Errorf("load image: %s: %w", path, err)
		}
	}
	return nil
}

func (i *Instance) loadImage(ctx context.Context, client *cri.Client, path string) error {
	archive, err := image.Read(path)
	if err != nil {
		return err
	}
	images := make([]image.Contained, len(archive.Names))
	for n, name := range archive.Names {
		images[n] = image.Contained{Name: name, ID: archive.ID}
	}
	if lacks, err := lacking(ctx, client, images); err != nil || len(lacks) == 0 {
		return err
	}
	return i.load(ctx, client, path, images)
}

// load makes containerd import the archive at path, which has these images, and waits until the CRI shows them.
func (i *Instance) load(ctx context.Context, client *cri.Client, path string, images []image.Contained) error {
	if i.tools.ctr == "" {
		return fmt.Errorf("the program ctr, which imports it, is not on this machine: install containerd's, "+
			"or load %s with your runtime's own tool", path)
	}
	if i.external() {
		if err := wantContainerd(ctx, client, path); err != nil {
			return err
		}
	}
	in, err := image.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	var said bytes.Buffer
	command := exec.CommandContext(ctx, i.tools.ctr, "--address", i.options.socket(), "--namespace", "k8s.io", "images",
		"import", "-")
	command.Stdin = in
	command.Stdout = &said
	command.Stderr = &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, showTimeout, fmt.Errorf("not within %s", showTimeout))
	defer cancel()
	return waitForImages(ctx, client, images)
}

// showTimeout is how long the CRI may take to show imported images. Chosen: it takes milliseconds (containerd 1.6 and
// 2), and longer on a busy machine.
const showTimeout = time.Minute

// wantContainerd returns an error unless an external runtime is containerd, which ctr can import images into.
func wantContainerd(ctx context.Context, client *cri.Client, path string) error {
	version, err := client.Handshake(ctx)
	if err != nil {
		return err
	}
	if version.RuntimeName != "containerd" {
		return fmt.Errorf("the runtime at %s is %s, and plimsoll can import images only into containerd: "+
			"load %s with its own tool (podman load for CRI-O)",
			client.Endpoint, version.RuntimeName, path)
	}
	return nil
}

// lacking returns the names of the images that the runtime does not have, or has with another ID.
func lacking(ctx context.Context, client *cri.Client, images []image.Contained) ([]string, error) {
	var lacks []string
	for _, want := range images {
		has, err := imageStatus(ctx, client, want.Name)
		if err != nil {
			return nil, err
		}
		if has == nil || want.ID != "" && has.GetId() != want.ID {
			lacks = append(lacks, want.Name)
		}
	}
	return lacks, nil
}

// imageStatus returns the runtime's image of a name or ID; nil if it has none.
func imageStatus(ctx context.Context, client *cri.Client, name string) (*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answer, err := client.Images.ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return nil, fmt.Errorf("ask container runtime for image %s: %s: %w", name, client.Endpoint, err)
	}
	return answer.GetImage(), nil
}

// waitForImages waits until the CRI shows the images that ctr has imported. containerd notifies its CRI plugin by an
// event.
func waitForImages(ctx context.Context, client *cri.Client, images []image.Contained) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		lacks, err := lacking(ctx, client, images)
		if err != nil || len(lacks) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("imported, but the runtime does not show %s: %w", strings.Join(lacks, ", "), context.Cause(ctx))
		case <-tick.C:
		}
	}
}
