package numa

import "encoding/binary"

// AppendLikeness writes what an offer to a pod that is not here yet depends on, beside the Layout: two States of one Layout
// that write the same bytes admit and refuse the same pods, for the same reasons. Who owns what is not in it, nor are the
// names of devices, only their order. It is for who asks about many nodes that are much alike.
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

// Owns reports whether the assignment gives any container anything of its own.
func (a Assignment) Owns() bool {
	for _, h := range a.Containers {
		if !h.CPUs.IsEmpty() || len(h.Memory) > 0 || len(h.Devices) > 0 {
			return true
		}
	}
	return false
}

// Layout returns the layout of the state.
func (s *State) Layout() *Layout { return s.l }
