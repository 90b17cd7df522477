package volume

import (
	"fmt"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestLooks: however many volumes there are, four are looked at in a second on average; few are looked at once a
// minute. While others tell which volumes are to grow, it is a tenth of that. They are looked at in groups, at most one
// in five seconds. Those that are gone count no more.
func TestLooks(t *testing.T) {
	const pod Pod = "p"
	spec := Spec{Driver: "d", Grows: true}
	now := unit.Instant(time.Second)
	r := New()
	r.Driver("d", true)
	// run lets an hour pass, and returns how often a volume was looked at on average, how often the one that was least,
	// and in how many groups.
	run := func(volumes int) (mean, least, groups int) {
		for i := range volumes {
			r.Want(now, pod, Name(fmt.Sprint("v", i)), spec)
		}
		looks := map[Name]int{}
		end := now.Add(time.Hour)
		for {
			d := r.Step(now)
			for _, c := range d.Calls {
				r.Ended(now, c.ID, c.Volume, Done)
			}
			for _, look := range d.Looks {
				looks[look.Volume]++
			}
			if len(d.Looks) > 0 {
				groups++
			}
			if len(d.Calls) > 0 {
				continue
			}
			if d.Wake.IsZero() || d.Wake > end {
				break
			}
			now = d.Wake
		}
		now = end
		total := 0
		least = 1 << 30
		for i := range volumes {
			n := looks[Name(fmt.Sprint("v", i))]
			total += n
			least = min(least, n)
		}
		return total / volumes, least, groups
	}
	for _, c := range []struct {
		volumes, mean int
		telling       bool
	}{
		{1, 60, false}, {100, 60, false}, {1000, 14, false}, // 3,600 s / (1,000 * 250 ms)
		{100, 60, false}, {1, 6, true}, {1000, 1, true}, {1000, 14, false},
	} {
		r.Told(c.telling, nil)
		mean, least, groups := run(c.volumes)
		if mean < c.mean-2 || mean > c.mean+1 || least < c.mean-2 {
			t.Errorf("%d volumes: looked at %d times in an hour, one %d times; want %d", c.volumes, mean, least, c.mean)
		}
		if groups > 720 { // 3,600 s / 5 s
			t.Errorf("%d volumes: looked at in %d groups in an hour", c.volumes, groups)
		}
		r.Release(pod)
		for calls := true; calls; {
			d := r.Step(now)
			for _, c := range d.Calls {
				r.Ended(now, c.ID, c.Volume, Done)
			}
			calls = len(d.Calls) > 0
		}
		if r.looking != 0 || len(r.volumes) != 0 {
			t.Errorf("nothing is there, and %d of %d volumes are looked at", r.looking, len(r.volumes))
		}
	}
}
