package identity

import "github.com/prometheus/client_golang/prometheus"

// newErrors counts requests that gave no client certificate, under the kubelet's name.
func newErrors() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "Requests that gave no client certificate",
	})
}

// newServerErrors counts requests that gave no serving certificate, under the kubelet's name.
func newServerErrors() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_server_expiration_renew_errors",
		Help: "Requests that gave no serving certificate",
	})
}

// newServerRotation measures how long serving certificates were in force when they were replaced, under the kubelet's
// name and with its buckets: 1 min, 1 h, 4 h, 1 d, 7 d, 30 d, 90 d, 180 d, 360 d, 4 years of 360 days.
func newServerRotation() prometheus.Histogram {
	const hour, day = 3600, 24 * 3600
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kubelet_certificate_manager_server_rotation_seconds",
		Help:    "How long serving certificates were in force when they were replaced",
		Buckets: []float64{60, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, 360 * day, 1440 * day},
	})
}

// Register registers the measurements of the client certificate, if the agent keeps it.
func (i *Identity) Register(r prometheus.Registerer) {
	if i.keeper != nil {
		r.MustRegister(i.keeper.errors)
	}
}

// Register registers the measurements of the serving certificate, but for how long it is valid: the server has that.
func (s *Serving) Register(r prometheus.Registerer) {
	r.MustRegister(s.keeper.errors, s.keeper.replaced.(prometheus.Collector))
}
