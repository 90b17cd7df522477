package source

import (
	"slices"
	"strings"
)

// podSlot is the place of a pod. Changes of the pod leave it in its place.
type podSlot struct {
	id   string   // NAMESPACE/NAME
	kept *keptPod // nil: the pod is gone
}

// podList has slots in the order of their ids. What came and went since it was asked for last is put into that order:
// sorting 150,000 pods takes longer than all the rest of a refresh. The zero podList keeps no order.
type podList struct {
	slots []*podSlot // nil: no order is kept
	came  []*podSlot
	gone  int // how many slots have lost their pods
}

func (l *podList) add(s *podSlot) {
	if l.slots != nil {
		l.came = append(l.came, s)
	}
}

// inOrder returns the slots of all pods. It must not be changed.
func (l *podList) inOrder(all map[string]*podSlot) []*podSlot {
	if l.slots == nil {
		l.slots = make([]*podSlot, 0, len(all))
		l.came = make([]*podSlot, 0, len(all))
		for _, s := range all {
			l.came = append(l.came, s)
		}
		l.gone = 0
	}
	lost := func(s *podSlot) bool { return s.kept == nil }
	if l.gone > 0 {
		l.slots, l.came = slices.DeleteFunc(l.slots, lost), slices.DeleteFunc(l.came, lost)
		l.gone = 0
	}
	if len(l.came) > 0 {
		slices.SortFunc(l.came, bySlot)
		l.slots = merge(l.slots, l.came)
		l.came = nil
	}
	return l.slots
}

func bySlot(a, b *podSlot) int { return strings.Compare(a.id, b.id) }

// merge returns the slots of both lists in order. few may be short: then most of many is copied without a look.
func merge(many, few []*podSlot) []*podSlot {
	out := make([]*podSlot, 0, len(many)+len(few))
	for _, s := range few {
		at, _ := slices.BinarySearchFunc(many, s, bySlot)
		out = append(append(out, many[:at]...), s)
		many = many[at:]
	}
	return append(out, many...)
}
