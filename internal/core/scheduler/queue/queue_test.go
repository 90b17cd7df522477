package queue

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// job is an item in these tests.
type job struct {
	Entry
	woken int // how often it has left the pool Unschedulable
}

func newQueue() *Queue[*job] {
	return New(0, 0, func(x *job) { x.woken++ })
}

func added(q *Queue[*job], now unit.Instant, id string, priority int32) *job {
	x := &job{Entry: Entry{ID: id, Priority: priority}}
	q.Add(now, x)
	q.Updated(now, x, true)
	return x
}

// popped pops until nothing is ready.
func popped(q *Queue[*job], now unit.Instant) string {
	var ids []string
	for {
		x, ok := q.Pop(now)
		if !ok {
			return strings.Join(ids, " ")
		}
		ids = append(ids, x.ID)
	}
}

const second = unit.Instant(time.Second)

func TestPriorityThenTimeThenName(t *testing.T) {
	q := newQueue()
	added(q, 2, "late", 0)
	added(q, 1, "b", 0)
	added(q, 1, "a", 0)
	added(q, 3, "urgent", 10)
	if got := popped(q, 3); got != "urgent a b late" {
		t.Errorf("popped %s", got)
	}
}

// TestPriorityMayChange checks that an item is in its new place at once.
func TestPriorityMayChange(t *testing.T) {
	q := newQueue()
	added(q, 1, "a", 0)
	x := added(q, 2, "b", 0)
	x.Priority = 1
	q.Updated(2, x, false)
	if got := popped(q, 2); got != "b a" {
		t.Errorf("popped %s", got)
	}
}

// TestBackoffDoubles checks the limits of the back-off, and that failed placements and failed binds count separately.
func TestBackoffDoubles(t *testing.T) {
	q := newQueue()
	x := added(q, 0, "a", 0)
	now := unit.Instant(0)
	for _, want := range []unit.Instant{1, 2, 4, 8, 10, 10} {
		q.Take(x)
		q.BindFailed(now, x, false)
		if due := q.NextDue(); due != now+want*second {
			t.Errorf("due after %v, want %v", due-now, want*second)
		}
		if _, ok := q.Pop(now + want*second - 1); ok {
			t.Error("it was popped before its back-off ended")
		}
		now += want * second
		if _, ok := q.Pop(now); !ok {
			t.Error("it was not popped when its back-off had ended")
		}
	}
	q.Failed(now, x)
	q.Wait(x)
	q.Ready(now, x)
	other := added(q, now-1, "b", 0)
	if got := popped(q, now); got != "b a" {
		t.Errorf("popped %s: an item in its first back-off must come after the others", got)
	}
	q.Ready(now, x)
	q.Ready(now, other)
	if got := popped(q, now+second); got != "b a" {
		t.Errorf("popped %s: after the back-off, the item that failed last must come last", got)
	}
}

// TestPlacementResetsBackoff checks that the back-off starts again after a successful placement.
func TestPlacementResetsBackoff(t *testing.T) {
	q := newQueue()
	x := added(q, 0, "a", 0)
	miss := func() unit.Instant {
		q.Take(x)
		q.Failed(0, x)
		q.Wait(x)
		return x.until
	}
	miss()
	if until := miss(); until != 2*second || !x.HasFailed() {
		t.Errorf("after two failures, the back-off ends at %v", until)
	}
	q.Take(x)
	q.Placed(x)
	if x.HasFailed() {
		t.Error("it was placed, but counts as failed")
	}
	if until := miss(); until != second {
		t.Errorf("the back-off ends at %v, want the first back-off", until)
	}
}

// TestUpdated checks from which pools an update moves an item, and to which.
func TestUpdated(t *testing.T) {
	for _, c := range []struct {
		from           Pool
		gated, changed bool
		want           Pool
	}{
		{from: Absent, want: Active},
		{from: Absent, gated: true, want: Gated},
		{from: Gated, want: Active},
		{from: Active, gated: true, want: Gated},
		{from: Backoff, gated: true, want: Gated},
		{from: Backoff, changed: true, want: Backoff},
		{from: FailedBind, changed: true, want: FailedBind},
		{from: FailedBind, gated: true, want: Gated},
		{from: BindUnknown, gated: true, want: BindUnknown},
		{from: Unschedulable, want: Unschedulable},
		{from: Unschedulable, changed: true, want: Active},
		{from: Unschedulable, gated: true, want: Gated},
		{from: Binding, changed: true, want: Binding},
		{from: Binding, gated: true, want: Gated},
	} {
		q := newQueue()
		x := &job{Entry: Entry{ID: "a"}}
		q.Add(0, x)
		q.move(x, c.from)
		x.Gated = c.gated
		q.Updated(0, x, c.changed)
		if x.Pool() != c.want {
			t.Errorf("%+v: it is in pool %d", c, x.Pool())
		}
		if (x.woken > 0) != (c.from == Unschedulable && c.want != Unschedulable) {
			t.Errorf("%+v: woken %d times", c, x.woken)
		}
	}
}

// TestGatesOfBindUnknown checks that an item whose bind may have succeeded does not become Gated before its back-off
// ends.
func TestGatesOfBindUnknown(t *testing.T) {
	q := newQueue()
	x := added(q, 0, "a", 0)
	q.Take(x)
	q.BindFailed(0, x, true)
	x.Gated = true
	q.Updated(0, x, true)
	if x.Pool() != BindUnknown {
		t.Errorf("gated while its bind may have succeeded: it is in pool %d", x.Pool())
	}
	if _, ok := q.Pop(second); ok || x.Pool() != Gated {
		t.Errorf("it was popped, or is in pool %d", x.Pool())
	}
}

// TestRemove checks that nothing of a removed item remains, whichever pool it was in, and that woken is called.
func TestRemove(t *testing.T) {
	for from := Absent; from <= Binding; from++ {
		q := newQueue()
		x := added(q, 0, "a", 0)
		q.move(x, from)
		q.Remove(x)
		if n := q.Counts(); q.Len() != 0 || q.Find("a") != nil || q.PoolOf("a") != Absent ||
			n["active"]+n["backoff"]+n["gated"]+n["unschedulable"] != 0 {
			t.Errorf("removed from %d: %v", from, n)
		}
		if (x.woken == 1) != (from == Unschedulable) {
			t.Errorf("removed from %d: woken %d times", from, x.woken)
		}
		for range q.All() {
			t.Errorf("removed from %d: an item is left", from)
		}
	}
}

// TestAgainstAPlainQueue runs random histories, and computes before each Pop what it must return.
func TestAgainstAPlainQueue(t *testing.T) {
	came := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q, now := newQueue(), unit.Instant(0)
		for step := range 200 {
			now += unit.Instant(rng.IntN(int(second)))
			if rng.IntN(3) == 0 {
				added(q, now, fmt.Sprint("pod-", step), int32(rng.IntN(3)))
				continue
			}
			want := plainNext(q, now)
			x, ok := q.Pop(now)
			switch {
			case !ok && want == "":
				continue
			case !ok || x.ID != want:
				t.Fatalf("seed %d, step %d: popped %+v, want %q", seed, step, x, want)
			}
			came++
			settle(rng, q, now, x)
			wakeSome(rng, q, now)
		}
		checkCounts(t, q)
	}
	if came < 10000 {
		t.Errorf("only %d items were popped: too few for a test", came)
	}
}

// settle moves x by a random outcome.
func settle(rng *rand.Rand, q *Queue[*job], now unit.Instant, x *job) {
	switch rng.IntN(6) {
	case 0:
		q.Remove(x)
	case 1, 2:
		q.Failed(now, x)
		q.Wait(x)
	case 3:
		q.Placed(x)
	case 4:
		q.BindFailed(now, x, rng.IntN(2) == 0)
	case 5:
		x.Gated = true
		q.Updated(now, x, false)
	}
}

// wakeSome makes some waiting items ready.
func wakeSome(rng *rand.Rand, q *Queue[*job], now unit.Instant) {
	for _, x := range slices.SortedFunc(q.All(), func(a, b *job) int { return cmp.Compare(a.ID, b.ID) }) {
		if rng.IntN(8) > 0 {
			continue
		}
		switch x.Pool() {
		case Unschedulable:
			q.Ready(now, x)
		case Binding:
			q.Resume(x)
		case Gated:
			x.Gated = false
			q.Updated(now, x, false)
		case Active, Backoff:
			x.Priority = int32(rng.IntN(3))
			q.Updated(now, x, false)
		}
	}
}

// plainNext returns the ID of the item that Pop must return: the first of the ready ones, or else the first in
// back-off.
func plainNext(q *Queue[*job], now unit.Instant) string {
	var ready, soon *job
	for x := range q.All() {
		due := x.until <= now
		if x.pool == Active || due && (x.pool == Backoff || x.pool == FailedBind || x.pool == BindUnknown && !x.Gated) {
			if ready == nil || plainBefore(x, ready) {
				ready = x
			}
		}
		if x.pool == Backoff && (soon == nil || x.until < soon.until || x.until == soon.until && plainBefore(x, soon)) {
			soon = x
		}
	}
	switch {
	case ready != nil:
		return ready.ID
	case soon != nil:
		return soon.ID
	}
	return ""
}

func plainBefore(a, b *job) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	if a.since != b.since {
		return a.since < b.since
	}
	return a.ID < b.ID
}

func checkCounts(t *testing.T, q *Queue[*job]) {
	t.Helper()
	names := map[Pool]string{
		Gated:         "gated",
		Active:        "active",
		Backoff:       "backoff",
		FailedBind:    "backoff",
		BindUnknown:   "backoff",
		Unschedulable: "unschedulable",
	}
	want := map[string]int{}
	for x := range q.All() {
		want[names[x.Pool()]]++
	}
	got := q.Counts()
	for _, name := range []string{"gated", "active", "backoff", "unschedulable"} {
		if got[name] != want[name] {
			t.Errorf("%d %s, want %d", got[name], name, want[name])
		}
	}
}
