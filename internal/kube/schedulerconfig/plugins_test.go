package schedulerconfig

import (
	"maps"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// TestKnowsEveryRule checks that this package knows every rule, so that each can be configured.
func TestKnowsEveryRule(t *testing.T) {
	scores := scheduler.DefaultProfile().Weights
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if known[name].scores != (scores[name] > 0) {
			t.Errorf("%s scores here: %v, its default weight in core/scheduler: %d", name, known[name].scores, scores[name])
		}
	}
	for name := range scores {
		if !known[name].scores {
			t.Errorf("%s scores in core/scheduler: add it to the table known", name)
		}
	}
	const ours = "Plimsoll" // the plugin of rules that upstream does not have
	for _, name := range (^scheduler.RuleSet(0)).Plugins() {
		if name != ours && !known[name].filters {
			t.Errorf("%s filters in core/scheduler: add it to the table known", name)
		}
	}
}
