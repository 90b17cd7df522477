// Package imagepull makes the images of containers present on the node, as their pull policies say, and keeps pods from
// images that other tenants' credentials pulled.
//
// # Model
//
//	present? --no----------------------------------> pull: one credential after the other, until the registry accepts one
//	   |yes                                            ^
//	may the pod use it (core/imageaccess)? --no -------+
//	   |yes
//	done
//
// Credentials come from the pod's pull secrets, then from the node's docker configuration, then from credential
// provider plugins, as in the kubelet. Within each source the most specific goes first. Plugins run only when an image
// is pulled, or when the answer to the question depends on them.
//
// Events and reasons of errors are upstream's.
//
// # Invariants
//
//   - A pull is recorded before it begins. After it, the credential with which it succeeded is recorded.
//   - At most AtOnce pulls run at the same time, and they begin at the configured rate. A pull that is too early waits;
//     the kubelet fails it, and tries again after a back-off.
//   - A secret, file or plugin that fails costs its own credentials only. If the pull fails too, its error names them.
//
// # What it does not do
//
// It does not wait between tries: core/podlife does. It removes no image: imagegc does.
package imagepull

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/plimsoll-dev/plimsoll/internal/agent/credentialprovider"
	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
	coreimageaccess "github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

const (
	// Timeout bounds one pull with all credentials that it tries (chosen). The kubelet has no bound, so that a pull that
	// hangs delays every later one.
	Timeout = 30 * time.Minute

	// askTimeout bounds calls that only read. Chosen: a runtime that takes longer is assumed to hang.
	askTimeout = 15 * time.Second
)

// Secrets reads the secrets that pods of the node use.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Records store which credentials pulled which image; *imageaccess.Records implements it.
type Records interface {
	Question(image, id string) coreimageaccess.Question
	Begin(image string) error
	Failed(image string)
	Pulled(image, id string, with *coreimageaccess.Credentials) error
	Learn(image, id string, with *coreimageaccess.Credentials) error
}

// Options are what a Puller needs. Fields not marked optional must be set.
type Options struct {
	Runtime   runtimeapi.ImageServiceClient
	Secrets   Secrets
	Recorder  record.EventRecorder
	NodeFiles *pullsecret.Files             // optional
	Providers *credentialprovider.Providers // optional
	Records   Records
	Policy    coreimageaccess.Policy

	// Pulled is called after each attempt to pull an image. It must not wait. Optional.
	Pulled func(Pull)
	// Asked is called at the end of each Ensure. present and pull say whether the image was present and whether it had to
	// be pulled: true, false or unknown. Checked is called with the outcome of each check whether a pod may use a present
	// image: Allowed, Found, MustAuthenticate or Unreadable. Both are optional.
	Asked   func(policy corev1.PullPolicy, present, pull string)
	Checked func(outcome string)

	AtOnce int     // how many pulls run at once, at least 1
	QPS    float64 // how many pulls begin per second on average; 0: no limit
	Burst  int     // how many pulls may begin at once; only with QPS
}

// Pull is an attempt to pull an image.
type Pull struct {
	Pod       *corev1.Pod
	Container string // empty: the image is that of a volume
	Image     string // as written in the pod
	ID        string // of the image that came
	Bytes     uint64
	Waited    time.Duration // for other pulls, before it began
	Took      time.Duration
	Err       error // nil: the image came
}

// Registry returns the registry in an image's name.
func Registry(image string) string {
	first, _, more := strings.Cut(image, "/")
	if more && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return first
	}
	return "docker.io"
}

// Outcomes of checks, in the kubelet's words.
const (
	Allowed          = "credentialPolicyAllowed" // the policy requires no check, or not for this image
	Found            = "credentialRecordFound"
	MustAuthenticate = "mustAuthenticate"
	Unreadable       = "error"
)

// Puller makes images present. It is safe for concurrent use.
type Puller struct {
	Options
	slots   chan struct{} // one for each pull that runs
	limiter *rate.Limiter // nil: no limit
}

// New returns a Puller.
func New(o Options) *Puller {
	if o.Asked == nil {
		o.Asked = func(corev1.PullPolicy, string, string) {}
	}
	if o.Checked == nil {
		o.Checked = func(string) {}
	}
	p := &Puller{Options: o, slots: make(chan struct{}, max(o.AtOnce, 1))}
	if o.QPS > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(o.QPS), max(o.Burst, 1))
	}
	return p
}

// Error is why an image is not present, with the reason and the Event that Kubernetes users know.
type Error struct {
	Reason string // of the waiting container: ErrImagePull, ...
	Event  string // reason of the Event
	Prefix string // of the Event's text
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Ensure makes the container's image present, as its pull policy says, and checks that the pod may use it. It calls
// pulling before it pulls or asks plugins, which may take long. Its error is an *Error, or that of ctx.
func (p *Puller) Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container,
	pulling func()) (criconfig.Image, error) {
	e := &ensuring{
		Puller: p, pod: pod, c: c, waits: sync.OnceFunc(pulling),
		spec: &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
	}
	const unknown = "unknown"
	wasThere, pull := unknown, unknown
	defer func() { p.Asked(c.ImagePullPolicy, wasThere, pull) }()
	if c.ImagePullPolicy != corev1.PullAlways {
		image, present, err := e.find(ctx)
		if err != nil {
			return criconfig.Image{}, e.notInspected(err)
		}
		wasThere = strconv.FormatBool(present)
		if present && e.mayUse(ctx, image) {
			pull = "false"
			e.event(corev1.EventTypeNormal, "Pulled",
				fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", c.Image))
			return image, nil
		}
		if present {
			pull = "true"
		}
		if c.ImagePullPolicy == corev1.PullNever {
			err := upstreamText(fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
			return criconfig.Image{}, &Error{Reason: podlife.ReasonErrImageNeverPull, Event: podlife.ReasonErrImageNeverPull,
				Err: err}
		}
	}
	pull = "true"
	e.waits()
	return e.pull(ctx)
}

// EnsureVolume is Ensure for the image of a volume. Its Events are about the pod as a whole.
func (p *Puller) EnsureVolume(
	ctx context.Context, pod *corev1.Pod, source *corev1.ImageVolumeSource, pulling func(),
) (criconfig.Image, error) {
	return p.Ensure(ctx, pod, &corev1.Container{Image: source.Reference, ImagePullPolicy: source.PullPolicy}, pulling)
}

// ensuring is one call of Ensure.
type ensuring struct {
	*Puller
	pod   *corev1.Pod
	c     *corev1.Container
	waits func() // called before something that may take long
	spec  *runtimeapi.ImageSpec
	asked bool                    // creds and lacks are set
	creds []pullsecret.Credential // the credentials for the image
	lacks error                   // the secrets, files and plugins that could not be read for credentials
	bytes uint64                  // size of the image that find found last
}

func (e *ensuring) event(kind, reason, text string) { e.record(e.c.Name, kind, reason, text) }

// record records an Event about a container, or about the pod if container is empty.
func (e *ensuring) record(container, kind, reason, text string) {
	e.Recorder.Event(translate.ContainerReference(e.pod, container), kind, reason, text)
}

func (e *ensuring) notInspected(err error) error {
	return &Error{Reason: podlife.ReasonImageInspectError, Event: "InspectFailed",
		Prefix: fmt.Sprintf("Failed to inspect image %q: ", e.c.Image), Err: err}
}

func (e *ensuring) find(ctx context.Context) (image criconfig.Image, present bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := e.Runtime.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: e.spec})
	if err != nil || response.Image == nil {
		return criconfig.Image{}, false, err
	}
	e.bytes = response.Image.Size
	return criconfig.ImageOf(response.Image), true, nil
}

// mayUse reports whether the pod may use an image that is present.
func (e *ensuring) mayUse(ctx context.Context, image criconfig.Image) bool {
	q := e.Records.Question(e.c.Image, image.ID)
	needs, may := e.Policy.NeedsUser(q)
	if !needs {
		switch {
		case q.Unknown:
			e.Checked(Unreadable)
		case !may:
			e.Checked(MustAuthenticate)
		case e.Policy.Checks(q):
			e.Checked(Found)
		default:
			e.Checked(Allowed)
		}
		return may
	}
	user := coreimageaccess.User{}
	for _, c := range e.credentials(ctx) {
		if c.Secret != nil {
			user.Secrets = append(user.Secrets, *c.Secret)
		}
		if c.Account != nil {
			user.Account = c.Account
		}
	}
	may, remember := q.Record.May(e.c.Image, user)
	if remember != nil {
		if err := e.Records.Learn(e.c.Image, image.ID, remember); err != nil {
			slog.Warn("credentials with which an image was pulled not recorded", "image", e.c.Image, "err", err)
		}
	}
	if may {
		e.Checked(Found)
	} else {
		e.Checked(MustAuthenticate)
	}
	return may
}

// pull pulls the image, and says so to Options.Pulled unless it was interrupted.
func (e *ensuring) pull(ctx context.Context) (criconfig.Image, error) {
	creds := e.credentials(ctx)
	came := time.Now()
	if err := e.begin(ctx); err != nil {
		return criconfig.Image{}, err
	}
	begun := time.Now()
	image, err := e.pullNow(ctx, creds)
	if e.Options.Pulled != nil && (err == nil || ctx.Err() == nil) {
		p := Pull{
			Pod:       e.pod,
			Container: e.c.Name,
			Image:     e.c.Image,
			ID:        image.ID,
			Waited:    begun.Sub(came),
			Took:      time.Since(begun),
			Err:       err,
		}
		if err == nil {
			p.Bytes = e.bytes
		}
		e.Options.Pulled(p)
	}
	return image, err
}

// pullNow is pull in the slot that begin took.
func (e *ensuring) pullNow(ctx context.Context, creds []pullsecret.Credential) (criconfig.Image, error) {
	defer func() { <-e.slots }()
	if err := e.Records.Begin(e.c.Image); err != nil {
		return criconfig.Image{}, e.notPulled(err)
	}
	e.event(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", e.c.Image))
	begun := time.Now()
	with, err := e.try(ctx, creds)
	if err != nil {
		e.Records.Failed(e.c.Image)
		return criconfig.Image{}, e.notPulled(err)
	}
	image, present, err := e.find(ctx)
	if err == nil && !present {
		err = fmt.Errorf("image %q: pulled, but the runtime does not have it", e.c.Image)
	}
	if err != nil {
		e.Records.Failed(e.c.Image)
		return criconfig.Image{}, e.notInspected(err)
	}
	if err := e.Records.Pulled(e.c.Image, image.ID, with); err != nil {
		slog.Warn("pulled image not recorded; other pods that use it pull it again", "image", e.c.Image, "err", err)
	}
	e.event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s", e.c.Image,
		time.Since(begun).Round(time.Millisecond)))
	return image, nil
}

// begin waits until the pull may begin, and takes a slot for it.
func (e *ensuring) begin(ctx context.Context) error {
	if e.limiter != nil {
		if err := e.limiter.Wait(ctx); err != nil {
			return err
		}
	}
	select {
	case e.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try pulls the image with one credential after the other until the registry accepts one. If there is no credential, it
// pulls once without. The error contains all refusals. with says whose credential was accepted.
func (e *ensuring) try(ctx context.Context,
	creds []pullsecret.Credential) (with *coreimageaccess.Credentials, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not done within %s", Timeout))
	defer cancel()
	if len(creds) == 0 {
		creds = []pullsecret.Credential{{}}
	}
	var refusals []error
	for _, c := range creds {
		_, err := e.Runtime.PullImage(ctx, &runtimeapi.PullImageRequest{Image: e.spec, Auth: c.Auth})
		if err == nil {
			return recorded(c), nil
		}
		if badName(err) || ctx.Err() != nil || len(creds) == 1 {
			return nil, err
		}
		refusals = append(refusals, err)
	}
	return nil, utilerrors.NewAggregate(refusals)
}

// recorded returns what a record stores of a credential with which an image was pulled.
func recorded(c pullsecret.Credential) *coreimageaccess.Credentials {
	switch {
	case c.Secret != nil:
		return &coreimageaccess.Credentials{Secrets: []coreimageaccess.Secret{*c.Secret}}
	case c.Account != nil:
		return &coreimageaccess.Credentials{Accounts: []coreimageaccess.Account{*c.Account}}
	}
	return &coreimageaccess.Credentials{Everybody: true}
}

// notPulled translates a pull's error into upstream's words.
func (e *ensuring) notPulled(err error) error {
	image := e.c.Image
	said := status.Convert(err).Message()
	if badName(err) {
		text := upstreamText(fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %s", image,
			image, said))
		return &Error{Reason: podlife.ReasonInvalidImageName, Event: "InspectFailed", Err: text}
	}
	f := &Error{Reason: podlife.ReasonErrImagePull, Event: "Failed", Prefix: fmt.Sprintf("Failed to pull image %q: ",
		image), Err: err}
	for known, what := range map[error]string{
		crierrors.ErrRegistryUnavailable:       "the registry is unavailable",
		crierrors.ErrSignatureValidationFailed: "the signature validation failed",
	} {
		if more, ok := strings.CutPrefix(said, known.Error()); ok {
			f.Reason = known.Error()
			f.Err = upstreamText(fmt.Sprintf("image pull failed for %s because %s%s", image, what, more))
		}
	}
	if e.lacks != nil {
		f.Err = fmt.Errorf("%w; credentials that were not obtained: %w", f.Err, e.lacks)
	}
	return f
}

// credentials returns the credentials for the image, in the order in which they are tried. Secrets that do not exist or
// have no credentials are skipped; if the pull fails, its error names them.
func (e *ensuring) credentials(ctx context.Context) []pullsecret.Credential {
	if e.asked {
		return e.creds
	}
	e.asked = true
	ring := e.secrets(ctx)
	e.creds = ring.For(e.c.Image)
	var errs []error
	if e.NodeFiles != nil {
		own, err := e.NodeFiles.Keyring()
		errs = append(errs, err)
		e.creds = append(e.creds, own.For(e.c.Image)...)
	}
	if e.Providers != nil {
		e.waits()
		given, err := e.Providers.For(ctx, e.pod, e.c.Image)
		errs = append(errs, err)
		e.creds = append(e.creds, given.For(e.c.Image)...)
	}
	if e.lacks = errors.Join(errs...); e.lacks != nil {
		slog.Warn("some credentials for an image not obtained", "image", e.c.Image, "namespace", e.pod.Namespace,
			"pod", e.pod.Name, "err", e.lacks)
	}
	return e.creds
}

// secrets returns the credentials in the pod's pull secrets.
func (e *ensuring) secrets(ctx context.Context) *pullsecret.Keyring {
	ring := &pullsecret.Keyring{}
	var missing, useless []string
	for _, ref := range e.pod.Spec.ImagePullSecrets {
		if ref.Name == "" { // the API server accepts an empty name
			continue
		}
		secret, err := e.Secrets.Secret(ctx, e.pod.Namespace, ref.Name)
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
		e.record("", corev1.EventTypeWarning, reason, fmt.Sprintf("Unable to retrieve some image pull secrets (%s); %s",
			strings.Join(missing, ", "), may))
	}
	if len(useless) > 0 {
		e.record("", corev1.EventTypeWarning, reason, fmt.Sprintf("Unable to use some image pull secrets (%s); %s",
			strings.Join(useless, ", "), may))
	}
	return ring
}

// badName reports whether the runtime cannot parse an image's name; then no other credential helps.
func badName(err error) bool {
	return err != nil && strings.Contains(err.Error(), "invalid reference format")
}

// upstreamText is an error in the words of upstream's kubelet, which begin with a capital letter.
type upstreamText string

func (t upstreamText) Error() string { return string(t) }
