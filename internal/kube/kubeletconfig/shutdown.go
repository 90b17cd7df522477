package kubeletconfig

import (
	"time"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/shutdown"
)

// ShutdownPeriods translates how long the machine's shutdown waits for pods, by priority; none: it does not.
func ShutdownPeriods(c *kubeletconfigv1beta1.KubeletConfiguration) []shutdown.Period {
	var given []shutdown.Period
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		given = append(given, shutdown.Period{
			Priority: p.Priority,
			Budget:   time.Duration(p.ShutdownGracePeriodSeconds) * time.Second,
		})
	}
	return shutdown.Periods(c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration, given)
}
