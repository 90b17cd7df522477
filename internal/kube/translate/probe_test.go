package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
)

// TestProbeGracePeriod: a container whose probe failed is stopped within the grace period of that probe, if it has one.
func TestProbeGracePeriod(t *testing.T) {
	with := func(seconds *int64) *corev1.Probe { return &corev1.Probe{TerminationGracePeriodSeconds: seconds} }
	five := int64(5)
	zero := int64(0)
	seven := int64(7)
	for _, c := range []struct {
		name              string
		startup, liveness *corev1.Probe
		by                probe.Kind
		want              string
	}{
		{"none of its own", nil, with(nil), probe.Liveness, "the pod's"},
		{"liveness", with(&seven), with(&five), probe.Liveness, "5s"},
		{"startup", with(&seven), with(&five), probe.Startup, "7s"},
		{"at once", nil, with(&zero), probe.Liveness, "0s"},
		{"another's", with(nil), with(&five), probe.Startup, "the pod's"},
	} {
		got := "the pod's"
		if g := ProbeGrace(&corev1.Container{StartupProbe: c.startup, LivenessProbe: c.liveness}, c.by); g != nil {
			got = g.String()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
