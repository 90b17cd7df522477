package admission

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

func TestUnderPressure(t *testing.T) {
	tolerant := scheduler.Pod{Tolerations: []scheduler.Toleration{{Key: wellknown.TaintMemoryPressure, Exists: true,
		Effect: scheduler.NoSchedule}}}
	elsewhere := scheduler.Pod{Tolerations: []scheduler.Toleration{{Key: "node.kubernetes.io/disk-pressure",
		Exists: true}}}
	const memory, disk, pid = eviction.MemoryPressure, eviction.DiskPressure, eviction.PIDPressure
	for _, c := range []struct {
		name       string
		applicant  Applicant
		conditions []eviction.Condition
		want       string
	}{
		{"no pressure", Applicant{Class: qos.BestEffort}, nil, ""},
		{
			"BestEffort and memory", Applicant{Class: qos.BestEffort}, []eviction.Condition{memory},
			"The node had condition: [MemoryPressure]. ",
		},
		{"BestEffort that tolerates it", Applicant{Pod: tolerant, Class: qos.BestEffort}, []eviction.Condition{memory}, ""},
		{
			"BestEffort that tolerates something else", Applicant{Pod: elsewhere, Class: qos.BestEffort},
			[]eviction.Condition{memory}, "The node had condition: [MemoryPressure]. ",
		},
		{"Burstable and memory", Applicant{Class: qos.Burstable}, []eviction.Condition{memory}, ""},
		{
			"Guaranteed and disk", Applicant{Class: qos.Guaranteed}, []eviction.Condition{disk},
			"The node had condition: [DiskPressure]. ",
		},
		{
			"a tolerant pod and disk", Applicant{Pod: elsewhere, Class: qos.Guaranteed},
			[]eviction.Condition{disk}, "The node had condition: [DiskPressure]. ",
		},
		{
			"Burstable, memory and process ids", Applicant{Class: qos.Burstable},
			[]eviction.Condition{pid, memory}, "The node had condition: [MemoryPressure PIDPressure]. ",
		},
		{"critical under all", Applicant{Critical: true, Class: qos.BestEffort}, []eviction.Condition{memory, disk, pid}, ""},
		{
			"started before, under all", Applicant{Started: true, Class: qos.BestEffort},
			[]eviction.Condition{memory, disk, pid}, "",
		},
	} {
		got := ""
		if r := UnderPressure(c.applicant, c.conditions); r != nil {
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
