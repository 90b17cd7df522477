package numa

import "encoding/binary"

// AppendLikeness writes what an offer to a pod that is not here yet depends on, beside the Layout: two States of one Layout
// that write the same bytes admit and refuse the same pods, for the same reasons. Who owns what is not in it, nor are the
// names of devices, only their order. It is for who asks about many nodes that are much alike.
func (s *State) AppendLikeness(b []byte) []byte {
	b = appendSet(b, s.shared)
	m := &s.memory
	for i := range m.blocks {
		b = appendFlag(b, m.blocks[i] > 0)
	}
	for _, bytes := range m.free {
		b = binary.AppendVarint(b, bytes)
	}
	b = binary.AppendVarint(b, int64(len(m.groups)))
	for i := range m.groups {
		b = appendSet(b, m.groups[i].nodes)
		for _, bytes := range m.groups[i].bytes {
			b = binary.AppendVarint(b, bytes)
		}
	}
	b = binary.AppendVarint(b, int64(len(s.pools)))
	for i := range s.pools {
		p := &s.pools[i]
		b = append(binary.AppendVarint(b, int64(len(p.resource))), p.resource...)
		b = appendFlag(appendFlag(appendFlag(b, p.gone), p.prefers), p.aligned)
		b = appendSet(appendSet(binary.AppendVarint(b, int64(len(p.ids))), p.healthy), p.taken)
		for d := range p.ids {
			b = appendFlag(appendSet(b, p.places[d]), p.somewhere[d])
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

// appendSet writes the words of a set, whose number its kind and Layout fix.
func appendSet(b []byte, s set) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
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
