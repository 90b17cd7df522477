package agent

import (
	"context"
	"crypto/x509"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/identity"
)

// clientTTL measures how long the agent's client certificate for the API server is valid. As in the kubelet, the value
// is infinite if there is none, for example because the agent uses a token.
func clientTTL(leaf func() *x509.Certificate) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "Seconds until the client certificate expires; negative: it has expired; +Inf: there is none",
	}, func() float64 {
		if c := leaf(); c != nil {
			return time.Until(c.NotAfter).Seconds()
		}
		return math.Inf(1)
	})
}

// prepareCertificate prepares the request for the server's certificate, if the configuration wants one. It makes none.
func (a *Agent) prepareCertificate(context.Context) error {
	c := a.o.Config
	if !c.ServerTLSBootstrap {
		return nil
	}
	a.serving = identity.NewServing(a.identity, identity.ServingOptions{
		CertFile:  c.TLSCertFile,
		KeyFile:   c.TLSPrivateKeyFile,
		Addresses: a.published,
	})
	a.serving.Register(a.metrics.Registry)
	return nil
}

// keepServing requests the server's certificate whenever one is due, until ctx ends.
func (a *Agent) keepServing(ctx context.Context) error {
	if a.serving != nil {
		a.serving.Run(ctx)
	}
	return nil
}

// published returns the addresses that the Node has at the API server, which those who approve certificates compare;
// nil: the Node is not there yet, or does not have the machine's present ones yet.
func (a *Agent) published() []corev1.NodeAddress {
	node := a.node.Node()
	if node == nil {
		return nil
	}
	if !a.o.Cloud {
		own, err := a.addresses()
		if err != nil || !slices.Equal(own, node.Status.Addresses) {
			return nil
		}
	}
	return node.Status.Addresses
}
