// Package imagepull makes the images of containers present on the node, as their pull policies say.
//
// # Model
//
// An image that is present is used, unless the policy is Always. One that is not is pulled, with the credentials that the
// pod's imagePullSecrets have for its registry, one after the other until the registry takes one. A bounded number of
// pulls go at once, whatever pods they are for.
//
// Events and reasons of errors are upstream's.
//
// # What it does not do
//
// It does not wait between tries: core/podlife does. It removes no image: imagegc does.
package imagepull

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Timeout bounds one pull, whatever credentials it tries (chosen): the kubelet has none, and a pull that hangs then
// holds up every later one.
const Timeout = 30 * time.Minute

// askTimeout bounds a question to the runtime (chosen). A runtime that takes longer is hung.
const askTimeout = 15 * time.Second

// Secrets reads the secrets that pods of the node use.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Puller makes images present.
type Puller struct {
	images   runtimeapi.ImageServiceClient
	secrets  Secrets
	recorder record.EventRecorder
	slots    chan struct{} // one for each pull that goes on
}

// New prepares a puller; atOnce is how many pulls may go on at the same time.
func New(
	images runtimeapi.ImageServiceClient, secrets Secrets, recorder record.EventRecorder, atOnce int,
) *Puller {
	return &Puller{images: images, secrets: secrets, recorder: recorder, slots: make(chan struct{}, atOnce)}
}

// Error says why an image is not there, in the words that users know.
type Error struct {
	Reason string // why the container waits: ErrImagePull, ErrImageNeverPull, ...
	Event  string // reason of the Event
	Prefix string // of the Event's text
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// Ensure makes the container's image present, as its pull policy says. It calls pulling before a pull, which may take
// long. Its error is an *Error, or that of ctx.
func (p *Puller) Ensure(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, pulling func(),
) (criconfig.Image, error) {
	spec := &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image}
	if c.ImagePullPolicy != corev1.PullAlways {
		image, present, err := p.find(ctx, spec)
		if err != nil {
			return criconfig.Image{}, notInspected(c, err)
		}
		if present {
			text := fmt.Sprintf("Container image %q already present on machine", c.Image)
			p.event(pod, c.Name, corev1.EventTypeNormal, "Pulled", text)
			return image, nil
		}
		if c.ImagePullPolicy == corev1.PullNever {
			err := upstreamText(fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
			return criconfig.Image{}, &Error{Reason: "ErrImageNeverPull", Event: "ErrImageNeverPull", Err: err}
		}
	}
	pulling()
	if err := p.pull(ctx, pod, c, spec); err != nil {
		return criconfig.Image{}, err
	}
	image, present, err := p.find(ctx, spec)
	if err == nil && !present {
		err = fmt.Errorf("image %q: pulled, yet the runtime does not have it", c.Image)
	}
	if err != nil {
		return criconfig.Image{}, notInspected(c, err)
	}
	return image, nil
}

func notInspected(c *corev1.Container, err error) error {
	return &Error{
		Reason: "ImageInspectError",
		Event:  "InspectFailed",
		Prefix: fmt.Sprintf("Failed to inspect image %q: ", c.Image),
		Err:    err,
	}
}

// find asks the runtime for an image.
func (p *Puller) find(
	ctx context.Context, spec *runtimeapi.ImageSpec,
) (image criconfig.Image, present bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := p.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil || response.Image == nil {
		return criconfig.Image{}, false, err
	}
	return criconfig.ImageOf(response.Image), true, nil
}

func (p *Puller) pull(ctx context.Context, pod *corev1.Pod, c *corev1.Container, spec *runtimeapi.ImageSpec) error {
	auths := p.credentials(ctx, pod, c.Image)
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.event(pod, c.Name, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	begun := time.Now()
	err := p.tryAll(ctx, spec, auths)
	if badName(err) {
		cause := status.Convert(err).Message()
		err := upstreamText(fmt.Sprintf(
			"Failed to apply default image tag %q: couldn't parse image name %q: %s", c.Image, c.Image, cause,
		))
		return &Error{Reason: "InvalidImageName", Event: "InspectFailed", Err: err}
	}
	if err != nil {
		return &Error{
			Reason: "ErrImagePull",
			Event:  "Failed",
			Prefix: fmt.Sprintf("Failed to pull image %q: ", c.Image),
			Err:    err,
		}
	}
	took := time.Since(begun).Round(time.Millisecond)
	text := fmt.Sprintf("Successfully pulled image %q in %s", c.Image, took)
	p.event(pod, c.Name, corev1.EventTypeNormal, "Pulled", text)
	return nil
}

// credentials are those that the pod's imagePullSecrets have for an image, in the order to try them in; nil: it is
// pulled without. Secrets that are not there or say nothing of registries are passed over: the pull itself shows what it
// lacks.
func (p *Puller) credentials(ctx context.Context, pod *corev1.Pod, image string) []*runtimeapi.AuthConfig {
	var ring pullsecret.Keyring
	var missing, useless []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" { // the API server admits it
			continue
		}
		secret, err := p.secrets.Secret(ctx, pod.Namespace, ref.Name)
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
		text := fmt.Sprintf("Unable to retrieve some image pull secrets (%s); %s", strings.Join(missing, ", "), may)
		p.event(pod, "", corev1.EventTypeWarning, reason, text)
	}
	if len(useless) > 0 {
		text := fmt.Sprintf("Unable to use some image pull secrets (%s); %s", strings.Join(useless, ", "), may)
		p.event(pod, "", corev1.EventTypeWarning, reason, text)
	}
	return ring.For(image)
}

// tryAll pulls an image with one credential after the other until the registry takes one; without any, once without.
// The error has all refusals.
func (p *Puller) tryAll(ctx context.Context, spec *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	var refusals []error
	for _, auth := range auths {
		_, err := p.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth})
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

func (p *Puller) event(pod *corev1.Pod, container, kind, reason, text string) {
	p.recorder.Event(translate.ContainerReference(pod, container), kind, reason, text)
}

// upstreamText is an error in the words of upstream's kubelet, which begin with a capital letter.
type upstreamText string

func (t upstreamText) Error() string { return string(t) }
