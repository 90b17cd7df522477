package numa

import "encoding/binary"

// AppendLikeness appends what an offer to a new pod depends on, in addition to the Layout. Two States of one Layout
// that append the same bytes admit and reject the same pods, for the same reasons. It does not contain which pod has
// what, and of device ids only their order. It is for callers that examine many similar nodes.
func (s *State) AppendLikeness(b []byte) []byte {
	b = s.shared.AppendTo(b)
	b = s.memory.AppendLikeness(b)
	b = binary.AppendVarint(b, int64(len(s.pools)))
	for i := range s.pools {
		p := &s.pools[i]
		b = append(binary.AppendVarint(b, int64(len(p.resource))), p.resource...)
		b = appendFlag(appendFlag(appendFlag(b, p.gone), p.prefers), p.aligned)
		b = p.taken.AppendTo(p.healthy.AppendTo(binary.AppendVarint(b, int64(len(p.ids)))))
		for d := range p.ids {
			b = appendFlag(p.places[d].AppendTo(b), p.somewhere[d])
		}
	}
	return b
}

func appendFlag(b []byte, on bool) []byte {
	if on {
		return append(b, 1)
	}
	return append(b, 0)
}

// Owns reports whether anything is assigned to any container.
func (a Assignment) Owns() bool {
	for _, h := range a.Containers {
		if !h.CPUs.IsEmpty() || len(h.Memory) > 0 || len(h.Devices) > 0 {
			return true
		}
	}
	return false
}

// Layout returns the Layout of s.
func (s *State) Layout() *Layout { return s.l }
