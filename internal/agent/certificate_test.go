package agent

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// The lifetime of the client certificate is shown wherever it comes from.
func TestClientTTL(t *testing.T) {
	text, _, err := serving.SelfSigned([]string{"n"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "client.crt")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		tls rest.TLSClientConfig
		has bool
	}{
		"data":  {rest.TLSClientConfig{CertData: text}, true},
		"file":  {rest.TLSClientConfig{CertFile: file}, true},
		"none":  {rest.TLSClientConfig{}, false},
		"wrong": {rest.TLSClientConfig{CertData: []byte("no certificate")}, false},
		"gone":  {rest.TLSClientConfig{CertFile: file + ".none"}, false},
	} {
		registry := prometheus.NewRegistry()
		registry.MustRegister(clientTTL(&rest.Config{TLSClientConfig: c.tls}))
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%s: %d families, %v", name, len(families), err)
		}
		ttl := families[0].Metric[0].GetGauge().GetValue()
		if infinite := math.IsInf(ttl, 1); infinite == c.has || c.has && ttl < (24*time.Hour).Seconds() {
			t.Errorf("%s: %v seconds", name, ttl)
		}
	}
}
