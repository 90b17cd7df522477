package imagepull

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/imageaccess"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pullsecret"
	coreimageaccess "github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
)

// node is a runtime with its images, a registry that requires passwords, and an API server with secrets.
type node struct {
	runtimeapi.ImageServiceClient // only the two below are called
	t                             *testing.T
	root                          string
	puller                        *Puller
	records                       *imageaccess.Records

	mu        sync.Mutex
	present   map[string]bool
	passwords map[string]string // the password that the registry requires, by image
	refuses   map[string]error  // by image
	takes     time.Duration     // each pull
	secrets   map[string]*corev1.Secret
	pulls     []string // image and user of each
	running   int
	most      int
	events    *record.FakeRecorder
}

func (n *node) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if s := n.secrets[namespace+"/"+name]; s != nil {
		return s, nil
	}
	return nil, errors.New("not found")
}

func newNode(t *testing.T, change ...func(*Options)) *node {
	t.Helper()
	n := &node{
		t: t, root: t.TempDir(), present: map[string]bool{}, passwords: map[string]string{}, refuses: map[string]error{},
		secrets: map[string]*corev1.Secret{},
	}
	n.restart(change...)
	return n
}

// restart starts a new agent on the same node.
func (n *node) restart(change ...func(*Options)) {
	n.t.Helper()
	records, err := imageaccess.Open(n.root)
	if err != nil {
		n.t.Fatal(err)
	}
	policy, err := coreimageaccess.NewPolicy("NeverVerifyPreloadedImages", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.events = record.NewFakeRecorder(1000)
	n.records = records
	o := Options{
		Runtime: n, Records: records, Policy: policy, AtOnce: 2,
		Secrets: n, Recorder: n.events,
	}
	for _, c := range change {
		c(&o)
	}
	n.puller = New(o)
}

func (n *node) ImageStatus(_ context.Context, in *runtimeapi.ImageStatusRequest,
	_ ...grpc.CallOption) (*runtimeapi.ImageStatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.present[in.Image.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "id of " + in.Image.Image, Size: 77}}, nil
}

func (n *node) PullImage(ctx context.Context, in *runtimeapi.PullImageRequest,
	_ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	image := in.Image.Image
	n.mu.Lock()
	n.pulls = append(n.pulls, image+" by "+in.Auth.GetUsername())
	n.running++
	n.most = max(n.most, n.running)
	n.mu.Unlock()
	defer func() { n.mu.Lock(); n.running--; n.mu.Unlock() }()
	select {
	case <-time.After(n.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.refuses[image]; err != nil {
		return nil, err
	}
	if want := n.passwords[image]; want != "" && in.Auth.GetPassword() != want {
		return nil, status.Error(codes.Unknown, "401 Unauthorized")
	}
	n.present[image] = true
	return &runtimeapi.PullImageResponse{ImageRef: "id of " + image}, nil
}

// secret puts a pull secret for r.io into a namespace.
func (n *node) secret(namespace, name, user, password string) {
	n.secrets[namespace+"/"+name] = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			UID: types.UID(namespace + name)}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil,
			`{"auths":{"r.io":{"username":%q,"password":%q}}}`, user, password)},
	}
}

// ensure makes an image present for a pod of a namespace with these pull secrets.
func (n *node) ensure(namespace, image string, policy corev1.PullPolicy, secrets ...string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
	for _, s := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	_, err := n.puller.Ensure(context.Background(), pod, &corev1.Container{Name: "c", Image: image,
		ImagePullPolicy: policy}, func() {})
	return err
}

// fails checks a failure's reason and text.
func fails(t *testing.T, err error, reason, text string) {
	t.Helper()
	var f *Error
	if !errors.As(err, &f) || f.Reason != reason || !strings.Contains(f.Error(), text) {
		t.Errorf("got %v, want %s: %s", err, reason, text)
	}
}

// TestPrivateImages: an image that was pulled with one tenant's credentials cannot be used by the others, before and
// after a restart of the agent.
func TestPrivateImages(t *testing.T) {
	n := newNode(t)
	n.passwords["r.io/app"] = "right"
	n.present["r.io/preloaded"] = true
	n.secret("alice", "s", "alice", "right")
	n.secret("carol", "copy", "alice", "right")
	n.secret("mallory", "s", "mallory", "wrong")
	const ifNotPresent = corev1.PullIfNotPresent
	if err := n.ensure("alice", "r.io/app", ifNotPresent, "s"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		fails(t, n.ensure("mallory", "r.io/app", ifNotPresent), "ErrImagePull", "401 Unauthorized")
		fails(t, n.ensure("mallory", "r.io/app", ifNotPresent, "s"), "ErrImagePull", "401 Unauthorized")
		fails(t, n.ensure("mallory", "r.io/app", corev1.PullNever, "s"), "ErrImageNeverPull",
			"is not present with pull policy of Never")
		before := len(n.pulls)
		for namespace, secret := range map[string]string{"alice": "s", "carol": "copy"} {
			if err := n.ensure(namespace, "r.io/app", ifNotPresent, secret); err != nil {
				t.Errorf("%s: %v", namespace, err)
			}
		}
		if err := n.ensure("mallory", "r.io/preloaded", ifNotPresent); err != nil {
			t.Errorf("an image that was on the node before: %v", err)
		}
		if len(n.pulls) != before {
			t.Errorf("pulls of those who may use it already: %q", n.pulls[before:])
		}
		n.restart()
	}
	// Every tenant may use a public image.
	for _, who := range []string{"alice", "mallory"} {
		if err := n.ensure(who, "r.io/open", ifNotPresent); err != nil {
			t.Error(err)
		}
	}
	if last := n.pulls[len(n.pulls)-1]; last != "r.io/open by " ||
		strings.Count(strings.Join(n.pulls, "\n"), "r.io/open") != 1 {
		t.Errorf("pulls %q", n.pulls)
	}
}

// Each attempt to pull is told, with the size of the image or with the error.
func TestPullsAreTold(t *testing.T) {
	var pulls []string
	n := newNode(t, func(o *Options) {
		o.Pulled = func(p Pull) {
			pulls = append(pulls, fmt.Sprintf("%s of %s: %d %v", p.Image, Registry(p.Image), p.Bytes, p.Err))
		}
	})
	n.refuses["r.io/broken"] = errors.New("no such image")
	for _, image := range []string{"r.io/good", "r.io/good", "r.io/broken"} {
		if err := n.ensure("ns", image, corev1.PullIfNotPresent); (err != nil) != (image == "r.io/broken") {
			t.Errorf("%s: %v", image, err)
		}
	}
	want := []string{"r.io/good of r.io: 77 <nil>", "r.io/broken of r.io: 0 no such image"}
	if !slices.Equal(pulls, want) {
		t.Errorf("told %q, want %q", pulls, want)
	}
	for image, want := range map[string]string{
		"nginx": "docker.io", "library/nginx": "docker.io", "localhost/a": "localhost", "h:5000/a/b:1": "h:5000",
	} {
		if got := Registry(image); got != want {
			t.Errorf("the registry of %s: %s, want %s", image, got, want)
		}
	}
}

// Every request for an image is measured with what was found, and every check whether a pod may use it with its
// outcome.
func TestRequestsAreMeasured(t *testing.T) {
	var reported []string
	n := newNode(t, func(o *Options) {
		o.Asked = func(policy corev1.PullPolicy, present, pull string) {
			reported = append(reported, fmt.Sprint(policy, " ", present, " ", pull))
		}
		o.Checked = func(outcome string) { reported = append(reported, outcome) }
	})
	n.passwords["r.io/app"] = "right"
	n.present["r.io/preloaded"] = true
	n.secret("alice", "s", "alice", "right")
	for _, c := range []struct {
		who, image string
		policy     corev1.PullPolicy
		secrets    []string
		want       string
	}{
		{"alice", "r.io/app", corev1.PullIfNotPresent, []string{"s"}, "IfNotPresent false true"},
		{"alice", "r.io/app", corev1.PullIfNotPresent, []string{"s"}, "credentialRecordFound, IfNotPresent true false"},
		{"mallory", "r.io/app", corev1.PullIfNotPresent, nil, "mustAuthenticate, IfNotPresent true true"},
		{"mallory", "r.io/app", corev1.PullNever, nil, "mustAuthenticate, Never true true"},
		{"mallory", "r.io/preloaded", corev1.PullIfNotPresent, nil, "credentialPolicyAllowed, IfNotPresent true false"},
		{"mallory", "r.io/none", corev1.PullNever, nil, "Never false unknown"},
		{"mallory", "r.io/open", corev1.PullAlways, nil, "Always unknown true"},
		{"alice", "r.io/open", corev1.PullIfNotPresent, nil, "credentialRecordFound, IfNotPresent true false"},
	} {
		reported = nil
		_ = n.ensure(c.who, c.image, c.policy, c.secrets...) // other tests check the result
		if got := strings.Join(reported, ", "); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.who, c.image, got, c.want)
		}
	}
}

// TestOrder: the pod's secrets are tried first, then the node's own file, and every credential is tried.
func TestOrder(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "config.json"),
		[]byte(`{"auths":{"r.io":{"username":"node","password":"right"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(o *Options) { o.NodeFiles = pullsecret.NewFiles(root, "") })
	n.passwords["r.io/app"] = "right"
	n.secret("ns", "s", "pod", "wrong")
	if err := n.ensure("ns", "r.io/app", corev1.PullIfNotPresent, "s", "absent"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(n.pulls, ", "); got != "r.io/app by pod, r.io/app by node" {
		t.Errorf("pulls %s", got)
	}
	if err := n.ensure("other", "r.io/app", corev1.PullIfNotPresent); err != nil || len(n.pulls) != 2 {
		t.Errorf("what the node's own credentials brought is everybody's: %v, %q", err, n.pulls)
	}
	if got := <-n.events.Events; !strings.HasPrefix(got,
		"Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (absent)") {
		t.Errorf("first event %q", got)
	}
}

// TestFailures: the runtime's errors are reported in upstream's words.
func TestFailures(t *testing.T) {
	n := newNode(t, func(o *Options) { o.NodeFiles = pullsecret.NewFiles("/proc/1/mem", "") })
	for image, c := range map[string]struct {
		err          error
		reason, text string
	}{
		"a": {status.Error(codes.Unknown, "no such host"), "ErrImagePull", "no such host"},
		"b": {status.Error(codes.Unknown, "RegistryUnavailable: 503"), "RegistryUnavailable",
			"image pull failed for b because the registry is unavailable: 503"},
		"c": {status.Error(codes.Unknown, "SignatureValidationFailed: no key"), "SignatureValidationFailed",
			"because the signature validation failed: no key"},
		"d": {status.Error(codes.Unknown, "invalid reference format"), "InvalidImageName", `couldn't parse image name "d"`},
	} {
		n.refuses[image] = c.err
		fails(t, n.ensure("ns", image, corev1.PullAlways), c.reason, c.text)
	}
}

// TestCrash: if an agent dies between a pull and its record, pods may use the image only after a pull of their own.
func TestCrash(t *testing.T) {
	n := newNode(t)
	n.passwords["r.io/app"] = "right"
	n.secret("alice", "s", "alice", "right")
	if err := n.records.Begin("r.io/app"); err != nil {
		t.Fatal(err)
	}
	n.present["r.io/app"] = true
	n.restart()
	if err := n.records.Recover([]imageaccess.Image{{ID: "id of r.io/app",
		Names: []string{"r.io/app:latest"}}}); err != nil {
		t.Fatal(err)
	}
	fails(t, n.ensure("mallory", "r.io/app", corev1.PullIfNotPresent), "ErrImagePull", "401")
	if err := n.ensure("alice", "r.io/app", corev1.PullIfNotPresent, "s"); err != nil {
		t.Error(err)
	}
}

// TestLimits: no more pulls run at once than configured, no more begin per second, and a caller that gives up leaves
// the queue.
func TestLimits(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, root: root, present: map[string]bool{}, takes: 10 * time.Second}
		n.restart(func(o *Options) { o.AtOnce, o.QPS, o.Burst = 3, 1, 2 })
		began := time.Now()
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if err := n.ensure("ns", fmt.Sprint("image", i), corev1.PullAlways); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n.most != 3 || time.Since(began) != 41*time.Second { // three at a time, the third a second after the first two
			t.Errorf("%d at once, done after %s", n.most, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := n.puller.Ensure(ctx, &corev1.Pod{}, &corev1.Container{Image: "slow", ImagePullPolicy: corev1.PullAlways},
			func() {})
		if err == nil || time.Since(began) != 42*time.Second {
			t.Errorf("who gives up: %v after %s", err, time.Since(began))
		}
	})
}

// TestPullSecrets: an image is pulled with the credentials for its registry in the pod's imagePullSecrets, and without
// credentials if they have none. A missing secret causes an Event.
func TestPullSecrets(t *testing.T) {
	for _, c := range []struct {
		image string
		names []string
		as    string
		event bool
	}{
		{"r.io/a", nil, "", false},
		{"r.io/a", []string{"alice"}, "alice", false},
		{"r.io/a", []string{"bob"}, "bob", false},
		{"elsewhere.example/a", []string{"alice"}, "", false},
		{"r.io/a", []string{"gone", "", "alice"}, "alice", true},
		{"r.io/a", []string{"gone"}, "", true},
	} {
		n := newNode(t)
		n.secret("ns", "alice", "alice", "p")
		n.secret("ns", "bob", "bob", "p")
		if err := n.ensure("ns", c.image, corev1.PullAlways, c.names...); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(n.pulls, ", "); got != c.image+" by "+c.as {
			t.Errorf("%s with imagePullSecrets %q: pulled %s, want %q", c.image, c.names, got, c.as)
		}
		const missing = "Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (gone); " +
			"attempting to pull the image may not succeed."
		if first := <-n.events.Events; (first == missing) != c.event {
			t.Errorf("%s with imagePullSecrets %q: first Event %q, want one of a missing secret: %v", c.image, c.names, first,
				c.event)
		}
	}
}

// TestImageOfVolume: the image of a volume is pulled by its reference, pullPolicy and the pod's secrets. It is checked
// and reported as a container's image, except that its Events are about the pod.
func TestImageOfVolume(t *testing.T) {
	n := newNode(t)
	n.passwords["r.io/data"] = "p"
	n.secret("ns", "alice", "alice", "p")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	ensure := func(policy corev1.PullPolicy) (string, error) {
		source := &corev1.ImageVolumeSource{Reference: "r.io/data", PullPolicy: policy}
		image, err := n.puller.EnsureVolume(t.Context(), pod, source, func() {})
		return image.ID, err
	}
	_, err := ensure(corev1.PullNever)
	fails(t, err, "ErrImageNeverPull", "is not present with pull policy of Never")
	_, err = ensure(corev1.PullIfNotPresent)
	fails(t, err, "ErrImagePull", "401 Unauthorized")
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "alice"}}
	for _, policy := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullNever, corev1.PullAlways} {
		if id, err := ensure(policy); err != nil || id != "id of r.io/data" {
			t.Errorf("%s: %q (%v)", policy, id, err)
		}
	}
	if got, want := strings.Join(n.pulls, ", "), "r.io/data by , r.io/data by alice, r.io/data by alice"; got != want {
		t.Errorf("pulled %s, want %s", got, want)
	}
	pod.Spec.ImagePullSecrets = nil // the image was pulled with another tenant's secret
	_, err = ensure(corev1.PullNever)
	fails(t, err, "ErrImageNeverPull", "is not present with pull policy of Never")
	where := reference{n.puller.Recorder, ""}
	n.puller.Recorder = &where
	if _, err := ensure(corev1.PullIfNotPresent); err == nil || where.field != "" {
		t.Errorf("reported %q (%v)", where.field, err)
	}
}

// reference keeps the part of a pod that the last Event is about.
type reference struct {
	record.EventRecorder
	field string
}

func (r *reference) Event(object runtime.Object, _, _, _ string) {
	if o, ok := object.(*corev1.ObjectReference); ok {
		r.field = o.FieldPath
	}
}
