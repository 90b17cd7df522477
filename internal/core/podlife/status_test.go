package podlife

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Sixty containers with the longest possible messages about their last two ends, and about their next start, which
// fails: the status has room for 12 KiB about ends and 64 KiB about waits.
func TestMessagesOfOnePodAreBounded(t *testing.T) {
	const containers = 60
	said := strings.Repeat("\u00e9", 2048) // two bytes each
	o := Observation{Spec: Spec{Name: "p"}, Sandboxes: []Sandbox{{ID: "s", State: SandboxReady}}}
	life := New(0)
	for i := range containers {
		name := fmt.Sprintf("c%d", i)
		o.Spec.Containers = append(o.Spec.Containers, ContainerSpec{Name: name, Kind: Main})
		for attempt := range uint32(2) {
			o.Containers = append(o.Containers, Container{
				ID: fmt.Sprintf("%s-%d", name, attempt), Name: name, SandboxID: "s", Attempt: attempt, State: Exited, ExitCode: 1,
				StartedAt: 1, FinishedAt: unit.Wall(2 + attempt), Message: said,
			})
		}
		if i%2 == 0 {
			life.Failed(epoch, Action{Kind: StartContainer, Container: name, Attempt: 2}, "CreateContainerError",
				strings.Repeat("x", 100<<10))
		}
	}
	last, waits, ends := 0, 0, 0
	for _, st := range life.Step(epoch, wallEpoch, o).Status.Containers {
		for _, text := range []*Terminated{st.Ended, st.Last} {
			if text != nil && (text.Message == "" || !utf8.ValidString(text.Message) || !strings.HasPrefix(said, text.Message)) {
				t.Errorf("%s: %q is not the beginning of what it said", st.Name, text.Message)
			}
		}
		if st.Ended != nil {
			ends += len(st.Ended.Message)
		}
		if st.Last != nil {
			last += len(st.Last.Message)
		}
		if st.Waiting != nil {
			waits += len(st.Waiting.Message)
		}
	}
	if ends+last == 0 || waits == 0 || ends > endMessagesMax || last > endMessagesMax || waits > waitMessagesMax {
		t.Errorf("messages: %d bytes about ends, %d about last ends, %d about waits", ends, last, waits)
	}
	if o.Containers[0].Message != said {
		t.Error("what was observed was written to")
	}
}
