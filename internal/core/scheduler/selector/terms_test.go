package selector

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// TestTermsAgree compares the index with evaluating each term, and checks that equal terms are stored once.
func TestTermsAgree(t *testing.T) {
	matched, missed := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		in := NewInterner()
		var s Terms
		var plain []Term
		for range rng.IntN(3 * fewTerms) {
			term := in.Compile(randomTerm(rng))
			place := s.Add(term)
			if s.At(place).Text != term.Text || s.Add(term) != place {
				t.Fatalf("a term is not at the index that Add returned")
			}
			if !slices.ContainsFunc(plain, func(x Term) bool { return x.Text == term.Text }) {
				plain = append(plain, term)
			}
		}
		if s.Len() != len(plain) {
			t.Fatalf("%d terms, want %d", s.Len(), len(plain))
		}
		for range 20 {
			var labels []Label
			for k := range 4 {
				if rng.IntN(3) > 0 {
					labels = append(labels, Label{Key: "k" + strconv.Itoa(k), Value: strconv.Itoa(rng.IntN(4))})
				}
			}
			name, of := "n"+strconv.Itoa(rng.IntN(3)), in.Labels(labels)
			var got, want []int
			in.EachMatch(&s, name, of, func(i int) bool { got = append(got, i); return true })
			for i := range plain {
				if in.Match(&plain[i], name, of) {
					want = append(want, i)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) || in.MatchSome(&s, name, of) != (len(want) > 0) {
				t.Fatalf("seed %d: terms %v match, want %v", seed, got, want)
			}
			if len(want) > 0 {
				matched++
			} else {
				missed++
			}
		}
	}
	if matched < 1000 || missed < 500 {
		t.Errorf("%d matched, %d did not: too few for a test", matched, missed)
	}
}

func randomTerm(rng *rand.Rand) (out NodeTerm) {
	values := func(prefix string) (list []string) {
		for range 1 + rng.IntN(3) {
			list = append(list, prefix+strconv.Itoa(rng.IntN(4)))
		}
		return list
	}
	for range rng.IntN(3) {
		q := Requirement{Key: "k" + strconv.Itoa(rng.IntN(5)), Op: Operator(rng.IntN(6)), Bound: int64(rng.IntN(4))}
		if q.Op <= NotIn {
			q.Values = values("")
		}
		out.Labels = append(out.Labels, q)
	}
	if rng.IntN(6) == 0 {
		out.Names = append(out.Names, Requirement{Op: Operator(rng.IntN(2)), Values: values("n")})
	}
	out.Broken = rng.IntN(20) == 0
	return out
}

// TestTermsAskFew checks that for one node only few of thousands of terms are evaluated.
func TestTermsAskFew(t *testing.T) {
	in := NewInterner()
	one := func(key string, op Operator, values ...string) Requirement {
		return Requirement{Key: key, Op: op, Values: values, Bound: 3}
	}
	const many = 1000
	for _, c := range []struct {
		what string
		most int
		term func(own string) NodeTerm
	}{
		{"a value", 0, func(own string) NodeTerm { return NodeTerm{Labels: []Requirement{one("zone", In, own)}} }},
		{"a key", 0, func(own string) NodeTerm { return NodeTerm{Labels: []Requirement{one(own, Exists)}} }},
		{"a large value", 0, func(own string) NodeTerm { return NodeTerm{Labels: []Requirement{one(own, Gt)}} }},
		{"a name", 0, func(own string) NodeTerm { return NodeTerm{Names: []Requirement{one("", In, own)}} }},
		{"the zone, and a value", 1, func(own string) NodeTerm {
			return NodeTerm{Labels: []Requirement{one("zone", In, "a"), one("host", In, own)}}
		}},
		{"the same", 1, func(string) NodeTerm {
			return NodeTerm{Labels: []Requirement{one("zone", In, "a"), one("host", In, "x")}}
		}},
		{"nothing", 0, func(own string) NodeTerm {
			return NodeTerm{Labels: []Requirement{one(own, NotIn, own)}, Broken: true}
		}},
	} {
		var s Terms
		for i := range many {
			s.Add(in.Compile(c.term(fmt.Sprint("own-", i))))
		}
		labels := in.Labels([]Label{{Key: "zone", Value: "a"}, {Key: "host", Value: "b"}})
		if asked := in.EachMatch(&s, "n", labels, func(int) bool { return true }); asked > c.most {
			t.Errorf("%d terms that each require %s: %d are evaluated, want at most %d", many, c.what, asked, c.most)
		}
	}
}
