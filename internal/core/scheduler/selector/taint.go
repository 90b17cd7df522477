package selector

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Effect of a taint.
type Effect string

// The effects of taints, spelled as the API spells them.
const (
	NoSchedule       Effect = wellknown.EffectNoSchedule
	PreferNoSchedule Effect = wellknown.EffectPreferNoSchedule
	NoExecute        Effect = wellknown.EffectNoExecute
)

// Taint keeps pods off a node unless they tolerate it.
type Taint struct {
	Key, Value string
	Effect     Effect
}

// A Toleration matches taints. An empty Key or Effect matches any.
type Toleration struct {
	Key    string
	Exists bool // match any value
	Never  bool // the operator is unknown: matches nothing
	Value  string
	Effect Effect
}

// WithEffects returns the taints in list that have one of effects.
func WithEffects(list []Taint, effects ...Effect) (out []Taint) {
	for _, t := range list {
		if slices.Contains(effects, t.Effect) {
			out = append(out, t)
		}
	}
	return out
}

// TolerateAll reports whether tolerations tolerate every one of taints.
func TolerateAll(tolerations []Toleration, taints []Taint) bool {
	for _, t := range taints {
		if !Tolerate(tolerations, t) {
			return false
		}
	}
	return true
}

// Tolerate reports whether any of tolerations matches taint.
func Tolerate(tolerations []Toleration, taint Taint) bool {
	for i := range tolerations {
		if tolerations[i].matches(taint) {
			return true
		}
	}
	return false
}

func (t *Toleration) matches(taint Taint) bool {
	if t.Never || t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Exists || t.Value == taint.Value
}
