package pods

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
)

// pullTimeout bounds one pull, whatever credentials it tries: the kubelet has none, and a pull that hangs then holds up every later one.
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
			err := upstreamText(fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
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
	auths := r.credentials(ctx, pod, c.Image)
	select {
	case r.pulls <- struct{}{}:
		defer func() { <-r.pulls }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	begun := time.Now()
	err := limited(ctx, pullTimeout, func(ctx context.Context) error { return r.tryPull(ctx, spec, auths) })
	if badName(err) {
		cause := status.Convert(err).Message()
		err := upstreamText(fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %s", c.Image, c.Image, cause))
		return &failure{"InvalidImageName", "InspectFailed", "", err}
	}
	if err != nil {
		return &failure{"ErrImagePull", "Failed", fmt.Sprintf("Failed to pull image %q: ", c.Image), err}
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s", c.Image, time.Since(begun).Round(time.Millisecond)))
	return nil
}

// credentials are those that the pod's imagePullSecrets have for an image, in the order to try them in; nil: it is pulled without.
// Secrets that are not there or say nothing of registries are passed over: the pull itself tells what it lacks.
func (r *Runner) credentials(ctx context.Context, pod *corev1.Pod, image string) []*runtimeapi.AuthConfig {
	var ring pullsecret.Keyring
	var missing, useless []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" { // the API server lets it pass
			continue
		}
		secret, err := r.Env.Objects.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		if err := ring.Add(secret); err != nil {
			useless = append(useless, fmt.Sprintf("%s: %v", ref.Name, err))
		}
	}
	const reason = "FailedToRetrieveImagePullSecret"
	const may = "attempting to pull the image may not succeed."
	if len(missing) > 0 {
		r.event(pod, "", corev1.EventTypeWarning, reason, fmt.Sprintf("Unable to retrieve some image pull secrets (%s); %s", strings.Join(missing, ", "), may))
	}
	if len(useless) > 0 {
		r.event(pod, "", corev1.EventTypeWarning, reason, fmt.Sprintf("Unable to use some image pull secrets (%s); %s", strings.Join(useless, ", "), may))
	}
	return ring.For(image)
}

// tryPull pulls an image with one credential after the other until the registry takes one; without any, once without. The error
// has all refusals.
func (r *Runner) tryPull(ctx context.Context, spec *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) error {
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	var refusals []error
	for _, auth := range auths {
		_, err := r.Runtime.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth})
		if err == nil {
			return nil
		}
		if badName(err) || ctx.Err() != nil || len(auths) == 1 {
			return err
		}
		refusals = append(refusals, err)
	}
	return utilerrors.NewAggregate(refusals)
}

// badName reports whether the runtime cannot read an image's name, which no credential changes.
func badName(err error) bool {
	return err != nil && strings.Contains(err.Error(), "invalid reference format")
}

// upstreamText is an error in the words of upstream's kubelet, which begin with a capital letter.
type upstreamText string

func (t upstreamText) Error() string { return string(t) }
