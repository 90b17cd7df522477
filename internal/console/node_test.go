package console

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestConfigIn: what an agent of any release says about its configuration gives one that the core can use, or an error.
func TestConfigIn(t *testing.T) {
	for body, want := range map[string]string{
		`{"kubeletconfig":{}}`: "100Mi",
		`{"kubeletconfig":{"evictionHard":{"memory.available":"5%"},"ofTheFuture":{"a":1},"maxPods":null}}`: "5%",
		`{"kubeletconfig":{"evictionHard":{"memory.available":"much"}}}`:                                    "",
		`{"kubeletconfig":{"evictionHard":5}}`:                                                              "",
		`{"kubeletconfig":null}`:                                                                            "",
		`[]`:                                                                                                "",
		``:                                                                                                  "",
	} {
		c, err := configIn([]byte(body))
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if err != nil {
			continue
		}
		if got := c.EvictionHard["memory.available"]; got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
		if _, err := kubeletconfig.Eviction(c); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// FuzzConfigIn: no answer of an agent makes the console fail.
func FuzzConfigIn(f *testing.F) {
	cost.Attack(f,
		`{"kubeletconfig":{"evictionHard":{"memory.available":"5%"},"systemReserved":{"cpu":"1"},"podsPerCore":2}}`)
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		c, err := configIn([]byte(text))
		if err != nil {
			return
		}
		node := &corev1.Node{}
		node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")}
		_, _ = whatif.DrawAllocatable(c, machineOf(node)) // an error is an answer
	})
}

// TestMachineOf: a node that claims impossible amounts is described within bounds.
func TestMachineOf(t *testing.T) {
	for cpus, want := range map[string]int{"4": 4, "0": 0, "-3": 0, "1e12": describedMax, "500m": 1} {
		node := &corev1.Node{}
		node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse(cpus), "memory": resource.MustParse("8Gi")}
		if got := machineOf(node).CPUs.Len(); got != want {
			t.Errorf("%s: %d CPUs, want %d", cpus, got, want)
		}
	}
}
