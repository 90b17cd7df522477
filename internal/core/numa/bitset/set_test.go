package bitset

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestAgainstMap compares random sets of up to 150 numbers with maps.
func TestAgainstMap(t *testing.T) {
	const seed, rounds = 3, 2000
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		n := 1 + rng.IntN(150)
		s, plainS := random(rng, n)
		u, plainU := random(rng, n)
		both, either, less := s.Clone(), s.Clone(), s.Clone()
		both.Keep(u)
		either.Unite(u)
		less.Drop(u)
		plainBoth, plainEither, plainLess := map[int]bool{}, maps.Clone(plainS), map[int]bool{}
		for i := range plainU {
			plainEither[i] = true
		}
		for i := range plainS {
			if plainU[i] {
				plainBoth[i] = true
			} else {
				plainLess[i] = true
			}
		}
		for what, c := range map[string]struct {
			got  Set
			want map[int]bool
		}{"s": {s, plainS}, "keep": {both, plainBoth}, "unite": {either, plainEither}, "drop": {less, plainLess}} {
			want := slices.Sorted(maps.Keys(c.want))
			if !slices.Equal(c.got.Members(), want) || c.got.Count() != len(want) || c.got.IsEmpty() != (len(want) == 0) {
				t.Fatalf("seed %d round %d: %s is %v, want %v", seed, round, what, c.got.Members(), want)
			}
		}
		if s.CountIn(u) != len(plainBoth) || s.Meets(u) != (len(plainBoth) > 0) || s.In(u) != (len(plainLess) == 0) {
			t.Fatalf("seed %d round %d: %v and %v share %d", seed, round, s.Members(), u.Members(), s.CountIn(u))
		}
		if want := compareFromTheTop(plainS, plainU, n); s.Compare(u) != want || s.Equal(u) != (want == 0) {
			t.Fatalf("seed %d round %d: %v beside %v: got %d, want %d", seed, round, s.Members(), u.Members(), s.Compare(u),
				want)
		}
	}
}

func random(rng *rand.Rand, n int) (Set, map[int]bool) {
	s, plain := New(n), map[int]bool{}
	for range rng.IntN(2 * n) {
		i := rng.IntN(n)
		if rng.IntN(4) == 0 {
			s.Remove(i)
			delete(plain, i)
			continue
		}
		s.Add(i)
		plain[i] = true
	}
	return s, plain
}

// compareFromTheTop finds the highest number that only one of the sets has.
func compareFromTheTop(a, b map[int]bool, n int) int {
	for i := n - 1; i >= 0; i-- {
		switch {
		case a[i] && !b[i]:
			return 1
		case b[i] && !a[i]:
			return -1
		}
	}
	return 0
}
