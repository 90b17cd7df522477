package agent

import (
	"crypto/x509"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// TestClientTTL: the metric has the lifetime of the client certificate, or +Inf without one.
func TestClientTTL(t *testing.T) {
	var leaf *x509.Certificate
	registry := prometheus.NewRegistry()
	registry.MustRegister(clientTTL(func() *x509.Certificate { return leaf }))
	ttl := func() float64 {
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%d families, %v", len(families), err)
		}
		return families[0].Metric[0].GetGauge().GetValue()
	}
	if got := ttl(); !math.IsInf(got, 1) {
		t.Errorf("without a certificate: %v seconds", got)
	}
	leaf = &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
	if got := ttl(); got < 3000 || got > 3600 {
		t.Errorf("a certificate of an hour: %v seconds", got)
	}
	leaf = &x509.Certificate{NotAfter: time.Now().Add(-time.Hour)}
	if got := ttl(); got > -3600 {
		t.Errorf("a certificate that expired an hour ago: %v seconds", got)
	}
}

// TestRotationIsTheConfigurations: the agent renews its client certificate if rotateCertificates is true. Otherwise it
// uses the kubeconfig as it is.
func TestRotationIsTheConfigurations(t *testing.T) {
	file := kubeconfigOf(t, "http://127.0.0.1:1")
	for _, rotate := range []bool{false, true} {
		config, _, err := kubeletconfig.Parse(fmt.Appendf(nil, "apiVersion: kubelet.config.k8s.io/v1beta1\n"+
			"kind: KubeletConfiguration\nrotateCertificates: %v\n", rotate), "/")
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{
			o:       Options{Kubeconfig: file, Config: config, NodeName: "n", CertDir: t.TempDir()},
			metrics: metrics.New("n"),
		}
		if _, err := a.clients(); err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		a.identity.Register(registry)
		families, err := registry.Gather()
		if err != nil || (len(families) == 1) != rotate {
			t.Errorf("rotateCertificates: %v: %d families of a kept certificate, %v", rotate, len(families), err)
		}
	}
}
