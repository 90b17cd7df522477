package probe

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// TestEveryTypeIsAsked: a type of probe that try does not know would leave its container unready forever, and a
// startup probe of it would let nothing start.
func TestEveryTypeIsAsked(t *testing.T) {
	types := reflect.TypeFor[corev1.ProbeHandler]()
	for i := range types.NumField() {
		c := &corev1.Container{Name: "c", LivenessProbe: &corev1.Probe{}}
		field := reflect.ValueOf(&c.LivenessProbe.ProbeHandler).Elem().Field(i)
		field.Set(reflect.New(field.Type().Elem()))
		q := &question{container: c, pod: &corev1.Pod{}, begin: probe.Begin{Kind: probe.Liveness}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the question is how try would ask, not what the answer is
		a := (&Prober{Options: Options{Runtime: cancelled{}}}).try(ctx, q)
		if a.err != nil && strings.HasPrefix(a.err.Error(), "missing probe handler") {
			t.Errorf("%s: try has no case for it", types.Field(i).Name)
		}
	}
}

// cancelled is a runtime whose calls end at once.
type cancelled struct{}

func (cancelled) ExecSync(ctx context.Context, _ *runtimeapi.ExecSyncRequest,
	_ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	return nil, ctx.Err()
}
