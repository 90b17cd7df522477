package certrequest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// issued, in answers, is a certificate; undecided is no answer.
const (
	issued    certificatesv1.RequestConditionType = "issued"
	undecided certificatesv1.RequestConditionType = ""
)

// requests are the requests of a cluster. They are listed and watched as those of an API server.
type requests struct {
	source  *cachetesting.FakeControllerSource
	answers []certificatesv1.RequestConditionType // to the requests, in the order in which they are made

	mu     sync.Mutex
	names  []string // in that order
	byName map[string]*certificatesv1.CertificateSigningRequest
}

func newRequests(answers ...certificatesv1.RequestConditionType) *requests {
	return &requests{
		source:  cachetesting.NewFakeControllerSource(),
		answers: answers,
		byName:  map[string]*certificatesv1.CertificateSigningRequest{},
	}
}

func (r *requests) Get(_ context.Context, _ kube.Kind, _, name string, out runtime.Object) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.byName[name]; found != nil {
		found.DeepCopyInto(out.(*certificatesv1.CertificateSigningRequest))
		return nil
	}
	return apierrors.NewNotFound(certificatesv1.Resource("certificatesigningrequests"), name)
}

func (r *requests) Create(_ context.Context, _ kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := obj.(*certificatesv1.CertificateSigningRequest).DeepCopy()
	if made.Name == "" {
		made.Name = fmt.Sprint(made.GenerateName, len(r.names))
	}
	if r.byName[made.Name] != nil {
		return apierrors.NewAlreadyExists(certificatesv1.Resource("certificatesigningrequests"), made.Name)
	}
	made.UID = types.UID(fmt.Sprint("uid-", len(r.names)))
	if made.CreationTimestamp.IsZero() {
		made.CreationTimestamp = metav1.Now()
	}
	r.names = append(r.names, made.Name)
	r.byName[made.Name] = made
	r.source.Add(made)
	made.DeepCopyInto(out.(*certificatesv1.CertificateSigningRequest))
	if answer := r.answers[len(r.names)-1]; answer != undecided {
		go r.decide(made.Name, answer)
	}
	return nil
}

func (r *requests) Informer(
	_ kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler,
) (cache.Store, cache.Controller) {
	selected := cache.FilteringResourceEventHandler{Handler: handler, FilterFunc: func(obj any) bool {
		request := obj.(*certificatesv1.CertificateSigningRequest)
		return sel.Fields == nil || sel.Fields.String() == "metadata.name="+request.Name
	}}
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: r.source,
		ObjectType:    &certificatesv1.CertificateSigningRequest{},
		Handler:       selected,
	})
}

func (r *requests) decide(name string, answer certificatesv1.RequestConditionType) {
	r.mu.Lock()
	defer r.mu.Unlock()
	decided := r.byName[name].DeepCopy()
	if answer == issued {
		decided.Status.Certificate = []byte("certificate of " + name)
	} else {
		decided.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type:    answer,
			Status:  "True",
			Reason:  "Test",
			Message: "not this one",
		}}
	}
	r.byName[name] = decided
	r.source.Modify(decided)
}

func (r *requests) made() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func template() *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:   "system:node:n1",
			Organization: []string{"system:nodes"},
		},
	}
}

// TestRequestIsFoundAgain: who asks again with the same key waits for the same request and gets its certificate. With
// another key, or to renew a certificate with the same key, it is another request.
func TestRequestIsFoundAgain(t *testing.T) {
	api, key := newRequests(undecided, issued, issued), newKey(t)
	gone, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("the program ended"))
	defer cancel()
	var late *Failure
	if _, err := Client.Request(gone, api, key, template(), ""); !errors.As(err, &late) ||
		late.Cause != nodecert.NoAnswer || !strings.Contains(err.Error(), "kubectl certificate approve "+api.made()[0]) {
		t.Fatalf("a request that nobody answers: %v", err)
	}
	api.decide(api.made()[0], issued)
	chain, err := Client.Request(t.Context(), api, key, template(), "")
	if err != nil || string(chain) != "certificate of "+api.made()[0] || len(api.made()) != 1 {
		t.Fatalf("got %q, %v after requests %q", chain, err, api.made())
	}
	chain, err = Client.Request(t.Context(), api, key, template(), "4711")
	if err != nil || string(chain) != "certificate of "+api.made()[1] {
		t.Fatalf("to renew: got %q, %v after requests %q", chain, err, api.made())
	}
	if _, err := Client.Request(t.Context(), api, newKey(t), template(), ""); err != nil || len(api.made()) != 3 {
		t.Fatalf("with another key: %v after requests %q", err, api.made())
	}
}

// TestRefusedRequestIsFollowedByAnother: a request that was denied, or that could not be signed, fails with its cause.
// The next try with the same key makes another request, because the first one never has another answer.
func TestRefusedRequestIsFollowedByAnother(t *testing.T) {
	for condition, cause := range map[certificatesv1.RequestConditionType]nodecert.Cause{
		certificatesv1.CertificateDenied: nodecert.Denied,
		certificatesv1.CertificateFailed: nodecert.SignerFailed,
	} {
		api, key := newRequests(condition, condition, issued), newKey(t)
		for try := 1; try <= 2; try++ {
			var refused *Failure
			if _, err := Client.Request(t.Context(), api, key, template(), ""); !errors.As(err, &refused) ||
				refused.Cause != cause || !strings.Contains(err.Error(), api.made()[try-1]) ||
				!strings.Contains(err.Error(), "not this one") {
				t.Fatalf("%s, try %d: %v", condition, try, err)
			}
		}
		chain, err := Client.Request(t.Context(), api, key, template(), "")
		made := api.made()
		if err != nil || len(made) != 3 || string(chain) != "certificate of "+made[2] {
			t.Fatalf("%s: got %q, %v after requests %q", condition, chain, err, made)
		}
		if !strings.HasPrefix(made[1], made[0]+"-") || !strings.HasPrefix(made[2], made[0]+"-") {
			t.Errorf("%s: %q do not begin with the name of the first", condition, made)
		}
	}
}

// TestNameOfSomethingElse: a request of the name for another key is left alone, and another request is made.
func TestNameOfSomethingElse(t *testing.T) {
	api, key := newRequests(undecided, issued), newKey(t)
	other := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: Client.Name(key, template(), "")},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    []byte("no request"),
			SignerName: Client.Signer,
		},
	}
	if err := api.Create(t.Context(), kube.CertificateRequests, "", "", other, other); err != nil {
		t.Fatal(err)
	}
	chain, err := Client.Request(t.Context(), api, key, template(), "")
	if made := api.made(); err != nil || len(made) != 2 || string(chain) != "certificate of "+made[1] {
		t.Fatalf("got %q, %v after requests %q", chain, err, made)
	}
}
