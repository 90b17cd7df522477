package admission

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

func TestUnderPressure(t *testing.T) {
	tolerant := placement.Pod{Tolerations: []placement.Toleration{{Key: taintMemoryPressure, Exists: true, Effect: placement.NoSchedule}}}
	elsewhere := placement.Pod{Tolerations: []placement.Toleration{{Key: "node.kubernetes.io/disk-pressure", Exists: true}}}
	const memory, disk, pid = eviction.MemoryPressure, eviction.DiskPressure, eviction.PIDPressure
	for _, c := range []struct {
		name       string
		pod        placement.Pod
		critical   bool
		class      qos.Class
		conditions []eviction.Condition
		want       string
	}{
		{"no pressure", placement.Pod{}, false, qos.BestEffort, nil, ""},
		{"BestEffort and memory", placement.Pod{}, false, qos.BestEffort, []eviction.Condition{memory}, "The node had condition: [MemoryPressure]. "},
		{"BestEffort that tolerates it", tolerant, false, qos.BestEffort, []eviction.Condition{memory}, ""},
		{"BestEffort that tolerates something else", elsewhere, false, qos.BestEffort, []eviction.Condition{memory}, "The node had condition: [MemoryPressure]. "},
		{"Burstable and memory", placement.Pod{}, false, qos.Burstable, []eviction.Condition{memory}, ""},
		{"Guaranteed and disk", placement.Pod{}, false, qos.Guaranteed, []eviction.Condition{disk}, "The node had condition: [DiskPressure]. "},
		{"a tolerant pod and disk", elsewhere, false, qos.Guaranteed, []eviction.Condition{disk}, "The node had condition: [DiskPressure]. "},
		{"Burstable, memory and process ids", placement.Pod{}, false, qos.Burstable, []eviction.Condition{pid, memory}, "The node had condition: [MemoryPressure PIDPressure]. "},
		{"critical under all", placement.Pod{}, true, qos.BestEffort, []eviction.Condition{memory, disk, pid}, ""},
	} {
		got := ""
		if r := UnderPressure(c.pod, c.critical, c.class, c.conditions); r != nil {
			got = r.Message
			if r.Reason != "Evicted" {
				t.Errorf("%s: reason %s", c.name, r.Reason)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
