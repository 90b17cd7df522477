package bootstrap

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// claimOf returns a request of a machine that joins, of some age.
func claimOf(name string, age time.Duration) certificatesv1.CertificateSigningRequest {
	return certificatesv1.CertificateSigningRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Annotations:       map[string]string{certrequest.AnnotationAddress: "192.0.2.11"},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
		},
	}
}

// TestIsUnbound: a claim is bound while it keeps the name, once.
func TestIsUnbound(t *testing.T) {
	young, old, bound := claimOf("join:a", time.Minute), claimOf("join:a", time.Hour), claimOf("join:a", time.Minute)
	bound.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "a"}}
	other := claimOf("node-csr-1", time.Minute)
	for name, c := range map[string]struct {
		request certificatesv1.CertificateSigningRequest
		want    bool
	}{"a claim": {young, true}, "out of date": {old, false}, "bound": {bound, false}, "no claim": {other, false}} {
		if got := IsUnbound(&c.request, time.Now()); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// claimServer answers as an API server with node a and some requests does, and notes what is changed.
type claimServer struct {
	mu      sync.Mutex
	changes []string
	patched []byte
}

func (s *claimServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch {
	case r.Method == http.MethodGet && path.Base(r.URL.Path) == "a":
		answer = map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "uid": "uid-a"}}
	case r.Method == http.MethodGet && path.Base(r.URL.Path) == "certificatesigningrequests":
		answer = certificatesv1.CertificateSigningRequestList{
			TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequestList"},
			Items: []certificatesv1.CertificateSigningRequest{claimOf("join:a", 0), claimOf("join:a:1", 0),
				claimOf("join:ab", 0)},
		}
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
	default:
		s.changes = append(s.changes, r.Method+" "+path.Base(r.URL.Path))
		s.patched, _ = io.ReadAll(r.Body) // what is missing fails the test
		answer = claimOf("join:a", 0)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// TestNames: a claim is bound to its node if that is there, and a name is freed without touching others.
func TestNames(t *testing.T) {
	api := &claimServer{}
	server := httptest.NewServer(api)
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"join:a", "join:b"} { // node b does not exist
		request := claimOf(name, 0)
		if err := BindName(t.Context(), client, &request); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(api.changes, []string{"PATCH join:a"}) || !strings.Contains(string(api.patched), `"uid":"uid-a"`) {
		t.Errorf("changes %q, with %s", api.changes, api.patched)
	}
	api.changes = nil
	freed, err := FreeName(t.Context(), client, "a")
	if err != nil || freed != 2 || !slices.Equal(api.changes, []string{"DELETE join:a", "DELETE join:a:1"}) {
		t.Errorf("freed %d, %v: %q", freed, err, api.changes)
	}
	if freed, err := FreeName(t.Context(), client, "b"); err != nil || freed != 0 {
		t.Errorf("a name without claims: freed %d, %v", freed, err)
	}
}
