package pods

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
)

// pullTimeout bounds one pull: the kubelet has none, and a pull that hangs then holds up every later one.
const pullTimeout = 30 * time.Minute

// ensureImage makes the container's image present, as its pull policy says. A pod that must pull gives up its place
// among the starting ones: the wait is the registry's.
func (r *Runner) ensureImage(ctx context.Context, pod *corev1.Pod, c *corev1.Container, slot *startSlot) (criconfig.Image, error) {
	spec := &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image}
	if c.ImagePullPolicy != corev1.PullAlways {
		ref, present, err := r.findImage(ctx, spec)
		if err != nil {
			return criconfig.Image{}, &failure{"ImageInspectError", "InspectFailed", fmt.Sprintf("Failed to inspect image %q: ", c.Image), err}
		}
		if present {
			r.event(pod, c.Name, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
			return ref, nil
		}
		if c.ImagePullPolicy == corev1.PullNever {
			//lint:ignore ST1005 upstream's text
			err := fmt.Errorf("Container image %q is not present with pull policy of Never", c.Image)
			return criconfig.Image{}, &failure{"ErrImageNeverPull", "ErrImageNeverPull", "", err}
		}
	}
	slot.release()
	if err := r.pull(ctx, pod, c, spec); err != nil {
		return criconfig.Image{}, err
	}
	ref, present, err := r.findImage(ctx, spec)
	if err == nil && !present {
		err = fmt.Errorf("image %q: pulled, yet the runtime does not have it", c.Image)
	}
	if err != nil {
		return criconfig.Image{}, &failure{"ImageInspectError", "InspectFailed", fmt.Sprintf("Failed to inspect image %q: ", c.Image), err}
	}
	return ref, nil
}

func (r *Runner) findImage(ctx context.Context, spec *runtimeapi.ImageSpec) (ref criconfig.Image, present bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := r.Runtime.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil || response.Image == nil {
		return criconfig.Image{}, false, err
	}
	return criconfig.ImageOf(response.Image), true, nil
}

func (r *Runner) pull(ctx context.Context, pod *corev1.Pod, c *corev1.Container, spec *runtimeapi.ImageSpec) error {
	auth, err := r.pullSecrets(ctx, pod, c.Image)
	if err != nil {
		return &failure{"ErrImagePull", "Failed", fmt.Sprintf("Failed to pull image %q: ", c.Image), err}
	}
	select {
	case r.pulls <- struct{}{}:
		defer func() { <-r.pulls }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	begun := time.Now()
	err = limited(ctx, pullTimeout, func(ctx context.Context) error {
		_, err := r.Runtime.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth})
		return err
	})
	if err != nil && strings.Contains(err.Error(), "invalid reference format") {
		//lint:ignore ST1005 upstream's text
		err := fmt.Errorf("Failed to apply default image tag %q: couldn't parse image name %q: %s", c.Image, c.Image, status.Convert(err).Message())
		return &failure{"InvalidImageName", "InspectFailed", "", err}
	}
	if err != nil {
		return &failure{"ErrImagePull", "Failed", fmt.Sprintf("Failed to pull image %q: ", c.Image), err}
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s", c.Image, time.Since(begun).Round(time.Millisecond)))
	return nil
}
