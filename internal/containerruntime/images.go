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

// LoadImages imports Plimsoll's images unless the runtime has them already with the same ID. The runtime must be ready.
func (i *Instance) LoadImages(ctx context.Context) error {
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	// One after the other: containerd locks the name of each archive's index during the import.
	for _, file := range []string{image.PauseFile, image.WorkloadFile} {
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
	if lacks, err := lacking(ctx, client, archive); err != nil || len(lacks) == 0 {
		return err
	}
	if i.tools.ctr == "" {
		return fmt.Errorf("the program ctr, which imports it, is not on this machine: install containerd's, or load %s with your runtime's own tool", path)
	}
	if i.external() {
		if err := wantContainerd(ctx, client, path); err != nil {
			return err
		}
	}
	var said bytes.Buffer
	command := exec.CommandContext(ctx, i.tools.ctr, "--address", i.options.socket(), "--namespace", "k8s.io", "images", "import", path)
	command.Stdout, command.Stderr = &said, &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return waitForImage(ctx, client, archive)
}

// wantContainerd returns an error unless an external runtime is containerd, which ctr can import images into.
func wantContainerd(ctx context.Context, client *cri.Client, path string) error {
	version, err := client.Handshake(ctx)
	if err != nil {
		return err
	}
	if version.RuntimeName != "containerd" {
		return fmt.Errorf("the runtime at %s is %s, and plimsoll can import images only into containerd: load %s with its own tool (podman load for CRI-O)",
			client.Endpoint, version.RuntimeName, path)
	}
	return nil
}

// lacking returns the archive's names for which the runtime does not have this image.
func lacking(ctx context.Context, client *cri.Client, archive image.Archive) ([]string, error) {
	var lacks []string
	for _, name := range archive.Names {
		answer, err := client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil {
			return nil, fmt.Errorf("ask for image %s: %w", name, err)
		}
		if answer.GetImage().GetId() != archive.ID {
			lacks = append(lacks, name)
		}
	}
	return lacks, nil
}

// waitForImage waits until the CRI shows what ctr has imported: containerd's CRI plugin is notified by an event.
func waitForImage(ctx context.Context, client *cri.Client, archive image.Archive) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		lacks, err := lacking(ctx, client, archive)
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
