package podcert

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const signer = "example.com/signer"

// server is an API server with a signer, which answers as the test says.
type server struct {
	t      *testing.T
	key    *ecdsa.PrivateKey // of the signer
	store  cache.Store
	events *record.FakeRecorder

	mu       sync.Mutex
	handler  cache.ResourceEventHandler
	synced   bool
	tries    int                                          // to create requests; guarded by mu
	refusal  error                                        // of tries
	made     []*certificatesv1beta1.PodCertificateRequest // guarded by mu
	selected string
	changed  []types.UID
}

func newServer(t *testing.T) *server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &server{
		t: t, key: key, store: cache.NewStore(cache.MetaNamespaceKeyFunc), events: record.NewFakeRecorder(100), synced: true,
	}
}

func (s *server) Informer(
	_ kube.Kind, sel kube.Selection, h cache.ResourceEventHandler,
) (cache.Store, cache.Controller) {
	s.handler, s.selected = h, sel.Fields.String()
	return s.store, controller{s, nil}
}

type (
	request = certificatesv1beta1.PodCertificateRequest
	status  = certificatesv1beta1.PodCertificateRequestStatus
)

type controller struct {
	s *server
	cache.Controller
}

func (c controller) RunWithContext(ctx context.Context) { <-ctx.Done() }
func (c controller) HasSynced() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.synced
}

func (s *server) Get(_ context.Context, _ kube.Kind, _, name string, out runtime.Object) error {
	*out.(*corev1.ServiceAccount) = corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "account-uid"}}
	return nil
}

func (s *server) Create(_ context.Context, _ kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.refusal != nil {
		return s.refusal
	}
	r := obj.DeepCopyObject().(*certificatesv1beta1.PodCertificateRequest)
	r.Name, r.CreationTimestamp = fmt.Sprintf("req-%d", s.tries), metav1.Now()
	s.made = append(s.made, r)
	*out.(*certificatesv1beta1.PodCertificateRequest) = *r
	return s.store.Add(r)
}

func (s *server) start(ctx context.Context) *Cache {
	return New(ctx, Options{
		Node: "node-1", API: s, Recorder: s.events,
		NodeUID: func(context.Context) (types.UID, error) { return "node-uid", nil },
		Changed: func(uid types.UID) { s.mu.Lock(); s.changed = append(s.changed, uid); s.mu.Unlock() },
	})
}

// count returns how many requests were made, and how often a pod was reported since the last call.
func (s *server) count() (requests, reports int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reports = len(s.changed)
	s.changed = nil
	return len(s.made), reports
}

func (s *server) newest() *certificatesv1beta1.PodCertificateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.made) == 0 {
		s.t.Fatal("no request was made")
	}
	return s.made[len(s.made)-1]
}

// answer gives a request a status.
func (s *server) answer(r *request, is status) {
	s.t.Helper()
	changed := r.DeepCopy()
	changed.Status = is
	if err := s.store.Update(changed); err != nil {
		s.t.Fatal(err)
	}
	s.handler.OnUpdate(r, changed)
}

// issue signs the newest request, for 24 h, to be renewed after 16.
func (s *server) issue() {
	s.t.Helper()
	r := s.newest()
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	s.answer(r, s.issued(request.PublicKey, now, now.Add(16*time.Hour), now.Add(24*time.Hour)))
}

func (s *server) issued(public crypto.PublicKey, from, refresh, until time.Time) status {
	s.t.Helper()
	leaf := certificatePEM(s.t, s.key, public, from, until)
	text := "the chain:\n" + strings.Replace(leaf, "-----\n", "-----\nA: b\n\n", 1) +
		"and\n" + certificatePEM(s.t, s.key, s.key.Public(), from, until)
	ptr := func(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
	return status{
		Conditions:       []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue}},
		CertificateChain: text, NotBefore: ptr(from), BeginRefreshAt: ptr(refresh), NotAfter: ptr(until),
	}
}

func certificatePEM(t testing.TB, key crypto.Signer, public crypto.PublicKey, from, until time.Time) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pod"}, NotBefore: from, NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der}))
}

func refused(kind, reason, message string) status {
	return status{Conditions: []metav1.Condition{
		{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message},
	}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "pod-uid"},
		Spec:       corev1.PodSpec{ServiceAccountName: "cashier"},
	}
}

func source(keyType string) *corev1.PodCertificateProjection {
	seconds := int32(86400)
	return &corev1.PodCertificateProjection{SignerName: signer, KeyType: keyType, MaxExpirationSeconds: &seconds,
		CredentialBundlePath: "bundle.pem", UserAnnotations: map[string]string{"example.com/a": "b"}}
}

func nothing() []byte { return nil }

func get(ctx context.Context, c *Cache, written func() []byte) (Credentials, error) {
	return c.Credentials(ctx, pod(), Place{"v", 2}, source("ECDSAP256"), written)
}

// matches fails the test unless a key and a chain of two certificates belong together.
func matches(t *testing.T, has Credentials) {
	t.Helper()
	if pair, err := tls.X509KeyPair(has.Chain, has.Key); err != nil || len(pair.Certificate) != 2 {
		t.Errorf("%v", err)
	}
	if b := has.Bundle(); !bytes.HasPrefix(b, has.Key) || !bytes.HasSuffix(b, has.Chain) ||
		bytes.Count(b, []byte("-----BEGIN")) != 3 || bytes.Contains(b, []byte("chain")) || bytes.Contains(b, []byte("A: b")) {
		t.Error("a bundle has something else than a key and two certificates")
	}
}

// TestIssue: for each type of key the request names the pod and proves possession of the key, without containing the
// key. The result is a key and its chain only.
func TestIssue(t *testing.T) {
	for _, keyType := range []string{"ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newServer(t)
			c := s.start(ctx)
			if s.handler != nil {
				t.Error("it watches though nobody asks")
			}
			go func() {
				time.Sleep(time.Second)
				s.issue()
			}()
			has, err := c.Credentials(ctx, pod(), Place{"v", 0}, source(keyType), nothing)
			if err != nil {
				t.Fatal(keyType, err)
			}
			matches(t, has)
			if _, _, _, err := readWritten(has.Bundle(), keyType); err != nil {
				t.Errorf("%s: %v", keyType, err)
			}
			r := s.newest()
			spec := r.Spec
			if r.Namespace != "shop" || r.OwnerReferences[0].UID != "pod-uid" || spec.SignerName != signer ||
				spec.PodName != "till" || spec.PodUID != "pod-uid" || spec.ServiceAccountName != "cashier" ||
				spec.ServiceAccountUID != "account-uid" || spec.NodeName != "node-1" || spec.NodeUID != "node-uid" ||
				*spec.MaxExpirationSeconds != 86400 || spec.UnverifiedUserAnnotations["example.com/a"] != "b" {
				t.Errorf("requested %+v", r)
			}
			if s.selected != "spec.nodeName=node-1" {
				t.Errorf("watched %q: a node may not watch others' requests", s.selected)
			}
			text := fmt.Sprintf("%v %+v %#v %s", has, has, has, has)
			if strings.Contains(text, "KEY") || strings.Contains(text, "45, 45") {
				t.Errorf("printed as %s", text)
			}
		})
	}
	if _, err := newPair("RSA1024"); err == nil || !strings.Contains(err.Error(), "use RSA3072") {
		t.Errorf("a bad type: %v", err)
	}
}

// TestRenewal: at its time, and not before, a certificate is renewed with a new key; both change together, and a pod
// whose renewal is denied goes on with what it has. Its user is told of that, and of the end of the certificate.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newServer(t)
		c := s.start(ctx)
		go func() { time.Sleep(time.Second); s.issue() }()
		first, err := get(ctx, c, nothing)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the report of the first certificate may come after it was read
		s.count()
		time.Sleep(15 * time.Hour)
		if same, err := get(ctx, c, nothing); err != nil || !bytes.Equal(same.Key, first.Key) {
			t.Errorf("before its time: %v", err)
		}
		if requests, reports := s.count(); requests != 1 || reports != 0 {
			t.Errorf("before its time: %d requests, %d reports", requests, reports)
		}
		time.Sleep(time.Hour + 7*time.Minute)
		if _, reports := s.count(); reports == 0 {
			t.Error("at its time nobody is told")
		}
		if same, err := get(ctx, c, nothing); err != nil || !bytes.Equal(same.Key, first.Key) {
			t.Errorf("before the answer: %v", err)
		}
		s.issue()
		if requests, reports := s.count(); requests != 2 || reports != 1 {
			t.Errorf("at its time: %d requests, %d reports of the answer", requests, reports)
		}
		second, err := get(ctx, c, nothing)
		if err != nil || bytes.Equal(second.Key, first.Key) {
			t.Errorf("renewed: %v", err)
		}
		matches(t, second)
		time.Sleep(17 * time.Hour)
		_, _ = get(ctx, c, nothing)
		s.answer(s.newest(), refused("Denied", "Closed", "no more"))
		if same, err := get(ctx, c, nothing); err != nil || !bytes.Equal(same.Key, second.Key) {
			t.Errorf("denied: %v", err)
		}
		time.Sleep(100 * time.Hour)
		_, _ = get(ctx, c, nothing)
		if requests, _ := s.count(); requests != 3 {
			t.Errorf("%d requests", requests)
		}
		var told []string
		for len(s.events.Events) > 0 {
			told = append(told, strings.Fields(<-s.events.Events)[1])
		}
		if got := strings.Join(told, " "); got != "CertificateOverdueForRefresh PodCertificateDenied CertificateExpired" &&
			got != "PodCertificateDenied CertificateOverdueForRefresh CertificateExpired" {
			t.Errorf("told %q", got)
		}
	})
}

// TestRefused: a pod whose request was denied or has failed is told so by an error that says all, and asks no more.
// So is one whose certificate is for another key.
func TestRefused(t *testing.T) {
	for kind, want := range map[string]string{
		"Denied": `of signer "example.com/signer" was denied: reason "UnsupportedKeyType", message "want ED25519"`,
		"Failed": `of signer "example.com/signer" failed: reason "UnsupportedKeyType", message "want ED25519"`,
		"Issued": "the certificate was not issued to the key",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newServer(t)
			c := s.start(ctx)
			go func() {
				time.Sleep(time.Second)
				said := refused(kind, "UnsupportedKeyType", "want ED25519")
				if kind == "Issued" {
					now := time.Now()
					said = s.issued(s.key.Public(), now, now.Add(time.Hour), now.Add(2*time.Hour))
				}
				s.answer(s.newest(), said)
			}()
			for range 50 {
				_, err := get(ctx, c, nothing)
				var said *RefusedError
				if !errors.As(err, &said) || !strings.Contains(said.Text, want) ||
					!strings.Contains(said.Text, "replace the pod") {
					t.Fatalf("%s: %v", kind, err)
				}
				time.Sleep(time.Minute)
			}
			if requests, _ := s.count(); requests != 1 || len(s.events.Events) != 0 {
				t.Errorf("%s: %d requests, %d Events", kind, requests, len(s.events.Events))
			}
		})
	}
}

// TestWaits: a pod waits for the answer once and for a bounded time, no longer than it exists, and asks the server for
// nothing meanwhile. Requests that cannot be made are tried less and less often.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newServer(t)
		s.synced = false
		c := s.start(ctx)
		if _, err := get(ctx, c, nothing); err == nil || !strings.Contains(err.Error(), "certificates.k8s.io/v1beta1") {
			t.Errorf("a server without the API: %v", err)
		}
		s.mu.Lock()
		s.synced = true
		s.mu.Unlock()
		deleted, end := context.WithTimeout(ctx, time.Second)
		defer end()
		began := time.Now()
		if _, err := get(deleted, c, nothing); err == nil || time.Since(began) != time.Second {
			t.Errorf("deleted: after %v, %v", time.Since(began), err)
		}
		c.Untrack("pod-uid")
		began = time.Now()
		for range 100 {
			if _, err := get(ctx, c, nothing); err == nil || !strings.Contains(err.Error(), "shop/req-") &&
				!strings.Contains(err.Error(), "requested again at") {
				t.Errorf("waits: %v", err)
			}
		}
		if took := time.Since(began); took > answerWait {
			t.Errorf("100 looks took %v", took)
		}
		time.Sleep(time.Minute)
		_, _ = get(ctx, c, nothing)
		if requests, _ := s.count(); requests != 2 {
			t.Errorf("%d requests, want one of each pod", requests)
		}
		_ = s.store.Delete(s.newest()) // the server's cleaner does, after 15 min
		time.Sleep(11 * time.Minute)
		_, _ = get(ctx, c, nothing)
		if requests, _ := s.count(); requests != 3 {
			t.Errorf("deleted: %d requests", requests)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newServer(t)
		s.refusal = errors.New("no such resource")
		c := s.start(ctx)
		for range 360 {
			if _, err := get(ctx, c, nothing); err == nil || !strings.Contains(err.Error(), "no such resource") {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if s.tries > 20 {
			t.Errorf("%d tries within an hour", s.tries)
		}
		s.refusal = apierrors.NewForbidden(certificatesv1beta1.Resource("podcertificaterequests"), "", errors.New("new"))
		go func() { time.Sleep(time.Second); s.mu.Lock(); s.refusal = nil; s.mu.Unlock() }()
		time.Sleep(5 * time.Minute)
		if _, err := get(ctx, c, nothing); err == nil || !strings.Contains(err.Error(), "no answer yet") {
			t.Errorf("a server that has not seen the pod yet: %v", err)
		}
	})
}

// TestRestart: the next agent goes on with what the volume has, and asks for nothing until half its life has passed.
// One whose pod waits asks again after a pause, and a crash loop does not ask each time.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newServer(t)
		go func() { time.Sleep(time.Second); s.issue() }()
		had, err := get(ctx, s.start(ctx), nothing)
		if err != nil {
			t.Fatal(err)
		}
		var c *Cache
		for range 100 {
			c = s.start(ctx)
			if has, err := get(ctx, c, had.Bundle); err != nil || !bytes.Equal(has.Bundle(), had.Bundle()) {
				t.Fatal(err)
			}
		}
		if requests, _ := s.count(); requests != 1 {
			t.Errorf("%d requests", requests)
		}
		time.Sleep(12*time.Hour + 6*time.Minute)
		if _, err := get(ctx, c, nothing); err != nil {
			t.Error(err)
		}
		if requests, _ := s.count(); requests != 2 {
			t.Errorf("after half its life: %d requests", requests)
		}
		// Content that is not valid is not used.
		for _, bad := range []func() []byte{
			func() []byte { return had.Key }, func() []byte { return had.Chain }, func() []byte { return []byte("x") },
			func() []byte { return append(bytes.Clone(s.other()), had.Chain...) },
		} {
			if _, err := get(ctx, s.start(ctx), bad); err == nil {
				t.Error("used")
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newServer(t)
		short, end := context.WithTimeout(ctx, time.Second)
		defer end()
		for range 100 {
			_, _ = get(short, s.start(ctx), nothing)
		}
		if requests, _ := s.count(); requests != 1 {
			t.Errorf("a crash loop made %d requests", requests)
		}
		c := s.start(ctx)
		_, err := get(ctx, c, nothing)
		if err == nil || !strings.Contains(err.Error(), "requested again at") {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(10 * time.Second)
		_, _ = get(ctx, c, nothing)
		if requests, _ := s.count(); requests != 2 {
			t.Errorf("then: %d requests", requests)
		}
	})
}

// other is another key.
func (s *server) other() []byte {
	p, err := newPair("ECDSAP256")
	if err != nil {
		s.t.Fatal(err)
	}
	return p.key
}

// FuzzReadWritten: whatever a file has, what is taken from it is a key and certificates that belong together.
func FuzzReadWritten(f *testing.F) {
	p, err := newPair("ED25519")
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(p.key)
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		f.Fatal(err)
	}
	key := private.(crypto.Signer)
	now := time.Now()
	good := string(p.key) + certificatePEM(f, key, key.Public(), now, now.Add(time.Hour))
	f.Add(good)
	f.Add(string(p.key))
	cost.Attack(f, good)
	cost.Attack(f, "-----BEGIN CERTIFICATE-----\nA: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		has, _, _, err := readWritten([]byte(text), "ED25519")
		if err != nil {
			return
		}
		if _, err := tls.X509KeyPair(has.Chain, has.Key); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if again := certificates(has.Chain); !bytes.Equal(again, has.Chain) {
			t.Errorf("read again: %q", again)
		}
	})
}
