package translate

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
)

// ProbeSpecs translates a container's probes. A plain init container has none.
func ProbeSpecs(c *corev1.Container) probe.Specs {
	return probe.Specs{
		probe.Startup:   probeSpec(c.StartupProbe),
		probe.Readiness: probeSpec(c.ReadinessProbe),
		probe.Liveness:  probeSpec(c.LivenessProbe),
	}
}

func probeSpec(p *corev1.Probe) *probe.Spec {
	if p == nil {
		return nil
	}
	return &probe.Spec{
		InitialDelay: time.Duration(p.InitialDelaySeconds) * time.Second,
		Period:       time.Duration(p.PeriodSeconds) * time.Second,
		Timeout:      time.Duration(p.TimeoutSeconds) * time.Second,
		Failures:     int(p.FailureThreshold),
		Successes:    int(p.SuccessThreshold),
		Eager:        p.Exec == nil, // running a command in a container costs as much as starting a container
	}
}

// ProbeGrace returns the termination grace period of a container's probe; nil: the probe has none.
func ProbeGrace(c *corev1.Container, kind probe.Kind) *time.Duration {
	p := map[probe.Kind]*corev1.Probe{probe.Startup: c.StartupProbe, probe.Liveness: c.LivenessProbe}[kind]
	if p == nil || p.TerminationGracePeriodSeconds == nil {
		return nil
	}
	grace := time.Duration(max(*p.TerminationGracePeriodSeconds, 0)) * time.Second
	return &grace
}
