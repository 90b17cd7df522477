package agent

import (
	"crypto/x509"
	"encoding/pem"
	"math"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// clientTTL measures how long the certificate is valid with which the agent speaks to the API server. Without one, for
// example with a token, it is infinite, as in the kubelet.
func clientTTL(c *rest.Config) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "Seconds until the client certificate expires; negative: it has expired; +Inf: there is none",
	}, func() float64 {
		text := c.CertData
		if len(text) == 0 && c.CertFile != "" {
			text, _ = os.ReadFile(c.CertFile) // without it there is no certificate
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return math.Inf(1)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return math.Inf(1)
		}
		return time.Until(certificate.NotAfter).Seconds()
	})
}
