package server

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// slis are the results of the checks of /healthz as metrics (/metrics/slis, KEP-3466). Each request for the metrics
// runs the checks, so that they show the present state even if there are no requests for /healthz.
type slis struct {
	registry *prometheus.Registry
	result   *prometheus.GaugeVec   // 1: succeeded, 0: failed
	total    *prometheus.CounterVec // by status: success, error
}

func newSLIs() *slis {
	s := &slis{
		registry: prometheus.NewRegistry(),
		result: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "Result of a check: 1 if it succeeded, else 0",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "Results of checks",
		}, []string{"name", "status", "type"}),
	}
	s.registry.MustRegister(s.result, s.total)
	return s
}

// record runs the checks.
func (s *slis) record(checks []check) {
	for _, c := range checks {
		value, status := 1.0, "success"
		if c.err() != nil {
			value, status = 0, "error"
		}
		s.result.WithLabelValues(c.name, "healthz").Set(value)
		s.total.WithLabelValues(c.name, status, "healthz").Inc()
	}
}

// servingTTL measures how long the serving certificate is valid.
func (s *Server) servingTTL() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_server_ttl_seconds",
		Help: "Seconds until the serving certificate expires; negative: it has expired",
	}, func() float64 {
		certificate, err := s.tls.GetCertificate(nil)
		if err != nil || certificate.Leaf == nil {
			return math.Inf(1)
		}
		return time.Until(certificate.Leaf.NotAfter).Seconds()
	})
}
