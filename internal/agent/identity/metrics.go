package identity

import "github.com/prometheus/client_golang/prometheus"

// newErrors counts requests that gave no client certificate, under the kubelet's name.
func newErrors() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "Requests that gave no client certificate",
	})
}

// Register registers the measurements of the client certificate, if the agent keeps it.
func (i *Identity) Register(r prometheus.Registerer) {
	if i.keeper != nil {
		r.MustRegister(i.keeper.errors)
	}
}
