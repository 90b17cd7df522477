package agent

import (
	"crypto/x509"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
