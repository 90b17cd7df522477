package probe

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestFieldsOfProbes: every field that the table lists changes how or when containers are probed.
func TestFieldsOfProbes(t *testing.T) {
	err := sample.Unproved(podfields.ObserverProbe, func(pod *corev1.Pod) (any, error) {
		var seen []any
		for c := range probed(pod) {
			for _, kind := range []probe.Kind{probe.Startup, probe.Readiness, probe.Liveness} {
				p := (&question{container: c, begin: probe.Begin{Kind: kind}}).spec()
				if p == nil {
					continue
				}
				seen = append(seen, c.Name, kind, translate.ProbeSpecs(c)[kind], translate.ProbeGrace(c, kind))
				switch {
				case p.Exec != nil:
					seen = append(seen, p.Exec.Command)
				case p.HTTPGet != nil:
					r, err := Request(context.Background(), p.HTTPGet, c, "192.0.2.7", "probe")
					if err != nil {
						return nil, err
					}
					seen = append(seen, r.URL.String(), r.Header)
				case p.TCPSocket != nil:
					port, err := portOf(p.TCPSocket.Port, c)
					if err != nil {
						return nil, err
					}
					seen = append(seen, port, p.TCPSocket.Host)
				case p.GRPC != nil:
					seen = append(seen, p.GRPC.Port, p.GRPC.Service)
				}
			}
		}
		return seen, nil
	})
	if err != nil {
		t.Error(err)
	}
}
