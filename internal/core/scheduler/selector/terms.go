package selector

// Terms is a list of different terms, with an index to find those that match one node. A term is listed under a label
// or name that it needs. For example, ten thousand terms may each need another host name; for one node, only one of
// them is evaluated. Equal terms are stored once.
//
// Terms that need no label or name (for example those that only exclude a value) are evaluated for every node.
type Terms struct {
	all []Term
	// The index exists once there are more than fewTerms; until then these are nil.
	// Each list has indexes in all.
	byText  map[string]int      // by Term.Text
	byLabel map[LabelID][]int32 // terms that need this label
	byKey   map[int32][]int32   // terms that need some label with this key
	byName  map[string][]int32  // terms that need this node name
	others  []int32             // all others, except those that match nothing
}

// fewTerms is the largest number of terms that are evaluated one by one, without an index. Chosen: below it, the index
// is not faster.
const fewTerms = 8

// Len returns how many different terms there are.
func (s *Terms) Len() int { return len(s.all) }

// At returns the i-th term.
func (s *Terms) At(i int) *Term { return &s.all[i] }

// List returns the terms. The caller must not change them.
func (s *Terms) List() []Term { return s.all }

// Add adds t unless an equal term is there already, and returns its index.
func (s *Terms) Add(t Term) (place int) {
	if s.byText == nil {
		for i := range s.all {
			if s.all[i].Text == t.Text {
				return i
			}
		}
	} else if i, known := s.byText[t.Text]; known {
		return i
	}
	place = len(s.all)
	s.all = append(s.all, t)
	switch {
	case s.byText != nil:
		s.enlist(place)
	case len(s.all) > fewTerms:
		s.byText, s.byLabel = map[string]int{}, map[LabelID][]int32{}
		s.byKey, s.byName = map[int32][]int32{}, map[string][]int32{}
		for i := range s.all {
			s.enlist(i)
		}
	}
	return place
}

// enlist adds the i-th term to the index. Of the labels and names that it needs, it is listed under the one with the
// fewest terms.
func (s *Terms) enlist(i int) {
	t := &s.all[i]
	s.byText[t.Text] = i
	if t.Never {
		return
	}
	best, least := (func())(nil), len(s.others)
	offer := func(size int, list func()) {
		if best == nil || size < least {
			best, least = list, size
		}
	}
	for j := range t.Labels {
		q := &t.Labels[j]
		switch q.Op {
		case In:
			offer(largest(q.Values, func(v int32) int { return len(s.byLabel[LabelID{Key: q.Key, Value: v}]) }), func() {
				eachOnce(q.Values, func(v int32) { put(s.byLabel, LabelID{Key: q.Key, Value: v}, i) })
			})
		case Exists, Gt, Lt:
			offer(len(s.byKey[q.Key]), func() { put(s.byKey, q.Key, i) })
		}
	}
	for j := range t.Names {
		if q := &t.Names[j]; q.Op == In {
			offer(largest(q.Values, func(n string) int { return len(s.byName[n]) }), func() {
				eachOnce(q.Values, func(n string) { put(s.byName, n, i) })
			})
		}
	}
	if best == nil {
		s.others = append(s.others, int32(i))
		return
	}
	best()
}

func largest[T any](values []T, size func(T) int) (most int) {
	for _, v := range values {
		most = max(most, size(v))
	}
	return most
}

func eachOnce[T comparable](values []T, see func(T)) {
	if len(values) == 1 {
		see(values[0])
		return
	}
	seen := make(map[T]bool, len(values))
	for _, v := range values {
		if !seen[v] {
			seen[v] = true
			see(v)
		}
	}
}

func put[K comparable](lists map[K][]int32, key K, i int) { lists[key] = append(lists[key], int32(i)) }

// EachMatch calls see for the index of every term that matches a node with this name and these labels, until see
// returns false. It returns how many terms it evaluated.
func (in *Interner) EachMatch(s *Terms, name string, labels []LabelID, see func(place int) bool) (asked int) {
	if s.byText == nil {
		for i := range s.all {
			if asked++; in.Match(&s.all[i], name, labels) && !see(i) {
				break
			}
		}
		return asked
	}
	ask := func(list []int32) (more bool) {
		for _, i := range list {
			if asked++; in.Match(&s.all[i], name, labels) && !see(int(i)) {
				return false
			}
		}
		return true
	}
	for _, l := range labels {
		if !ask(s.byLabel[l]) || !ask(s.byKey[l.Key]) {
			return asked
		}
	}
	if ask(s.byName[name]) {
		ask(s.others)
	}
	return asked
}

// MatchSome reports whether one of terms matches a node with this name and these labels.
func (in *Interner) MatchSome(s *Terms, name string, labels []LabelID) (found bool) {
	in.EachMatch(s, name, labels, func(int) bool {
		found = true
		return false
	})
	return found
}
