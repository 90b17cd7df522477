package fairqueue

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// drain empties a Queue and returns the waiters in order.
func drain(l *Queue[string]) string {
	var out []string
	for {
		w, ok := l.Next()
		if !ok {
			return strings.Join(out, " ")
		}
		out = append(out, w)
	}
}

func TestGroupsTakeTurns(t *testing.T) {
	var l Queue[string]
	for _, w := range []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"} {
		l.Join(w[:1], w)
	}
	if got, want := drain(&l), "a1 b1 c1 a2 c2 a3 a4"; got != want {
		t.Errorf("out came %s, want %s", got, want)
	}

	for _, w := range []string{"a1", "a2", "a3"} {
		l.Join("a", w)
	}
	first, _ := l.Next()
	if l.Others("a") || !l.Others("b") {
		t.Error("only those of a wait")
	}
	l.Join("b", "b1")
	if !l.Others("a") {
		t.Error("b1 waits too")
	}
	l.Rejoin("a", first)
	if got, want := drain(&l), "a1 b1 a2 a3"; got != want {
		t.Errorf("out came %s, want %s", got, want)
	}
	if l.Others("b") {
		t.Error("nobody waits")
	}

	for _, w := range []string{"a1", "a2", "b1"} {
		l.Join(w[:1], w)
	}
	if !l.Leave("a", "a1") || l.Leave("a", "a1") || l.Leave("b", "a2") || l.Leave("d", "d1") || !l.Leave("b", "b1") {
		t.Error("Leave is wrong about who was there")
	}
	if got, want := drain(&l), "a2"; got != want {
		t.Errorf("out came %s, want %s", got, want)
	}
}

// A group never waits for more than one waiter of each other group before one of its own comes out.
func TestNobodyWaitsForMoreThanOneOfEach(t *testing.T) {
	const groups, steps = 5, 100_000
	random := rand.New(rand.NewPCG(1, 2))
	var l Queue[[2]int]
	waiting := make([][]int, groups)
	since := make([][groups]int, groups) // since[g][h]: how many of h came out since g began to wait, or had its turn
	for step := range steps {
		g := random.IntN(groups)
		switch random.IntN(4) {
		case 0:
			l.Join(string(rune('a'+g)), [2]int{g, step})
			waiting[g] = append(waiting[g], step)
		case 1:
			if len(waiting[g]) > 0 {
				i := random.IntN(len(waiting[g]))
				if !l.Leave(string(rune('a'+g)), [2]int{g, waiting[g][i]}) {
					t.Fatalf("%d of group %d is not in the line", waiting[g][i], g)
				}
				waiting[g] = slices.Delete(waiting[g], i, i+1)
			}
		default:
			who, ok := l.Next()
			if !ok {
				continue
			}
			g = who[0]
			if len(waiting[g]) == 0 || waiting[g][0] != who[1] {
				t.Fatalf("%v came out, of %v", who, waiting[g])
			}
			waiting[g] = waiting[g][1:]
			for other := range groups {
				if since[other][g]++; other != g && len(waiting[other]) > 0 && since[other][g] > 1 {
					t.Fatalf("step %d: group %d waits for a second one of %d", step, other, g)
				}
			}
			since[g] = [groups]int{}
		}
		for g := range groups {
			if len(waiting[g]) == 0 {
				since[g] = [groups]int{}
			}
		}
	}
}
