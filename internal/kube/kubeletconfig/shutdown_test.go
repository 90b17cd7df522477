package kubeletconfig

import (
	"fmt"
	"strings"
	"testing"
)

// TestShutdownPeriods: both forms of the configuration give periods; a gate that is off makes them an error.
func TestShutdownPeriods(t *testing.T) {
	const byPriority = "shutdownGracePeriodByPodPriority: [{priority: 100, shutdownGracePeriodSeconds: 20}, " +
		"{priority: 0, shutdownGracePeriodSeconds: 5}]\n"
	for text, want := range map[string]string{
		"": "[]",
		"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n": "[{0 20s} {2000000000 10s}]",
		byPriority: "[{0 5s} {100 20s}]",
	} {
		c, warnings, err := Parse([]byte(head+text), "/")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %v", text, warnings, err)
		}
		if got := fmt.Sprint(ShutdownPeriods(c)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"shutdownGracePeriod: 30s\nfeatureGates: {GracefulNodeShutdown: false}\n": "needs featureGates.GracefulNodeShutdown",
		byPriority +
			"featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\n": "GracefulNodeShutdownBasedOnPodPriority: true",
		"shutdownGracePeriodByPodPriority: [{priority: 0, " +
			"shutdownGracePeriodSeconds: -1}]\n": "[0].shutdownGracePeriodSeconds: -1",
	} {
		if _, _, err := Parse([]byte(head+text), "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
