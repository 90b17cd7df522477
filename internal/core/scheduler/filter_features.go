package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

type featureFilter struct{}

func (featureFilter) about() ruling {
	return ruling{
		rule:   RuleFeatures,
		plugin: "NodeDeclaredFeatures",
		ends:   byNode,
		reads:  podFields{"Features"},
		alike:  true,
	}
}

func (featureFilter) applies(d *demand) bool { return len(d.features) > 0 }

// judge requires every node feature that the pod needs.
func (featureFilter) judge(c *state, d *demand, r row) bool {
	for _, f := range d.features {
		if _, has := slices.BinarySearch(c.features[r], f); !has {
			return false
		}
	}
	return true
}

func (featureFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) didn't match Pod's required features")
}

func (featureFilter) final(*state, *demand, row) bool { return true }

// key appends the answer itself. The rule depends on the row alone, but is evaluated after rules that depend on other
// rows, so rows that it treats differently need different keys.
func (f featureFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	if len(d.features) == 0 {
		return key
	}
	if f.judge(c, d, r) {
		return append(key, 1)
	}
	return append(key, 0)
}

func (f featureFilter) narrow(c *state, d *demand, m rows.Mask) {
	if k := d.class; len(k.features) > 0 {
		c.scratch = encode.Strings(append(c.scratch[:0], keyFeatures), k.features)
		c.narrowBy(m, c.scratch, func(r row) bool { return f.judge(c, &demand{class: k}, r) })
	}
}
