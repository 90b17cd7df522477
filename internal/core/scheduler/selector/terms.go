package selector

// Terms are many terms about one node each, found by a label or a name without which they do not match: of ten
// thousand terms that each demand a host of their own, a node is asked about one. Equal terms are one.
//
// Terms that demand nothing, as one that forbids a value only, are asked about every node.
type Terms struct {
	all []Term
	// Once there are more than fewTerms.
	byText  map[string]int
	byLabel map[LabelID][]int32
	byKey   map[int32][]int32
	byName  map[string][]int32
	others  []int32
}

// fewTerms is up to how many terms are asked one by one. Chosen: below it, that is as fast as to look for those that
// may match.
const fewTerms = 8

// Len is how many different terms there are.
func (s *Terms) Len() int { return len(s.all) }

// At is the i-th term.
func (s *Terms) At(i int) *Term { return &s.all[i] }

// List returns the terms. They belong to s.
func (s *Terms) List() []Term { return s.all }

// Add adds t unless it is there already, and returns its place.
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

// enlist writes down where the i-th term is found: of what it demands, by that by which fewest others are.
func (s *Terms) enlist(i int) {
	t := &s.all[i]
	s.byText[t.Text] = i
	if t.Never {
		return
	}
	best, least := (func())(nil), len(s.others)
	offer := func(crowd int, list func()) {
		if best == nil || crowd < least {
			best, least = list, crowd
		}
	}
	for j := range t.Labels {
		q := &t.Labels[j]
		switch q.Op {
		case In:
			offer(mostIn(q.Values, func(v int32) int { return len(s.byLabel[LabelID{Key: q.Key, Value: v}]) }), func() {
				eachOnce(q.Values, func(v int32) { put(s.byLabel, LabelID{Key: q.Key, Value: v}, i) })
			})
		case Exists, Gt, Lt:
			offer(len(s.byKey[q.Key]), func() { put(s.byKey, q.Key, i) })
		}
	}
	for j := range t.Names {
		if q := &t.Names[j]; q.Op == In {
			offer(mostIn(q.Values, func(n string) int { return len(s.byName[n]) }), func() {
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

func mostIn[T any](values []T, size func(T) int) (most int) {
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

// EachMatch calls see, until it returns false, for the place of every term that matches a node of this name and these
// labels. It returns how many terms it has asked.
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

// MatchSome reports whether one of terms matches a node of this name and these labels.
func (in *Interner) MatchSome(s *Terms, name string, labels []LabelID) (found bool) {
	in.EachMatch(s, name, labels, func(int) bool {
		found = true
		return false
	})
	return found
}
