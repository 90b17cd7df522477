package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// An Image is an image that the runtime has. Its JSON form is that of `plimsoll image ls`.
type Image struct {
	ID    string   `json:"id"`    // digest of its configuration
	Names []string `json:"names"` // names with tags; if it has none, names with digests; sorted
	Bytes uint64   `json:"bytes"` // on disk, as the runtime counts it: containerd counts compressed layers
}

func imageOf(from *runtimeapi.Image) Image {
	names := slices.Clone(from.GetRepoTags())
	if len(names) == 0 {
		names = slices.Clone(from.GetRepoDigests())
	}
	slices.Sort(names)
	return Image{ID: from.GetId(), Names: names, Bytes: from.GetSize()}
}

// dialed calls do with a connection to the runtime. It returns an error if the runtime does not answer.
func (i *Instance) dialed(ctx context.Context, do func(*cri.Client) error) error {
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	asked, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if _, err := client.Handshake(asked); err != nil {
		return fmt.Errorf("%w (is it running? `plimsoll status` shows)", err)
	}
	return do(client)
}

// Images returns the images that the runtime has, by their first names.
func (i *Instance) Images(ctx context.Context) ([]Image, error) {
	images := []Image{}
	err := i.dialed(ctx, func(client *cri.Client) error {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		answer, err := client.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		if err != nil {
			return fmt.Errorf("ask container runtime for its images: %s: %w", client.Endpoint, err)
		}
		for _, one := range answer.GetImages() {
			images = append(images, imageOf(one))
		}
		return nil
	})
	slices.SortFunc(images, func(a, b Image) int {
		if by := slices.Compare(a.Names, b.Names); by != 0 {
			return by
		}
		return strings.Compare(a.ID, b.ID)
	})
	return images, err
}

// Import imports the images of an archive, and returns them as the runtime shows them. It may be repeated.
func (i *Instance) Import(ctx context.Context, path string) ([]Image, error) {
	contained, err := scan(path)
	if err != nil {
		return nil, fmt.Errorf("load image: %s: %w", path, err)
	}
	var images []Image
	err = i.dialed(ctx, func(client *cri.Client) error {
		if err := i.load(ctx, client, path, contained); err != nil {
			return fmt.Errorf("load image: %s: %w", path, err)
		}
		for _, one := range contained {
			has, err := imageStatus(ctx, client, one.Name)
			if err != nil {
				return err
			}
			if has != nil && !slices.ContainsFunc(images, func(shown Image) bool { return shown.ID == has.GetId() }) {
				images = append(images, imageOf(has))
			}
		}
		return nil
	})
	return images, err
}

func scan(path string) ([]image.Contained, error) {
	in, err := image.Open(path)
	if err != nil {
		return nil, err
	}
	contained, err := image.Scan(in)
	return contained, errors.Join(err, in.Close())
}

// ErrNoImage is in the chain of errors about an image that the runtime does not have.
var ErrNoImage = errors.New("the runtime has no such image (`plimsoll image ls` lists those it has)")

// RemoveImage removes an image with all its names, and returns it. An image that a container or every pod needs is not
// removed.
func (i *Instance) RemoveImage(ctx context.Context, name string) (removed Image, err error) {
	err = i.dialed(ctx, func(client *cri.Client) error {
		has, err := imageStatus(ctx, client, name)
		if err != nil {
			return err
		}
		if has == nil {
			return ErrNoImage
		}
		removed = imageOf(has)
		if has.GetPinned() || slices.Contains(removed.Names, image.Pause) {
			return errors.New("every pod needs it")
		}
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return fmt.Errorf("ask container runtime for its containers: %s: %w", client.Endpoint, err)
		}
		for _, c := range containers.GetContainers() {
			if c.GetImageRef() == removed.ID || c.GetImage().GetImage() == removed.ID {
				return fmt.Errorf("container %s of pod %s/%s was made from it: delete that pod first", c.GetMetadata().GetName(),
					c.GetLabels()[cri.LabelPodNamespace], c.GetLabels()[cri.LabelPodName])
			}
		}
		_, err = client.Images.RemoveImage(ctx,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: removed.ID}})
		return err
	})
	if err != nil {
		return removed, fmt.Errorf("remove image %s: %w", name, err)
	}
	return removed, nil
}
