package serving

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestClusterCA reads the CA from where upstream's components read it. When it cannot be read, the old CA is kept and
// the reason is returned.
func TestClusterCA(t *testing.T) {
	certPEM, _, err := SelfSigned([]string{"ca"})
	if err != nil {
		t.Fatal(err)
	}
	text := string(certPEM)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"client-ca-file": text},
		})
	}))
	defer api.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	var ca ClusterCA
	if ca.Pool() != nil {
		t.Error("a CA that nobody said")
	}
	if err := ca.Read(t.Context(), client); err != nil || ca.Pool() == nil {
		t.Errorf("%v, %v", ca.Pool(), err)
	}
	text = "nonsense"
	if err := ca.Read(t.Context(), client); err == nil || !strings.Contains(err.Error(), "no PEM certificate") ||
		ca.Pool() == nil {
		t.Errorf("%v, %v", ca.Pool(), err)
	}
}
