package resize

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func size(shares qos.Shares, quota time.Duration, memory unit.Bytes) Size {
	v := qos.Values{CPUShares: unit.Of(shares), CPUPeriod: qos.CFSPeriodDefault}
	if quota > 0 {
		v.CPUQuota = unit.LimitTo(quota)
	}
	if memory > 0 {
		v.Memory = unit.LimitTo(memory)
	}
	return SizeOf(v)
}

const ms = time.Millisecond

// Orders of steps that the scenarios of core/podlife do not show.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name       string
		pod        Group
		containers []Group
		want       []string
	}{
		{
			"equal sizes need nothing", Group{Has: size(2, 0, 0), Want: size(2, 0, 0)},
			[]Group{{Name: "a", Has: size(2, ms, 1), Want: size(2, ms, 1)}}, nil,
		},
		{"a limit that is new closes, one that goes opens", Group{Has: size(9, ms, 0), Want: size(9, 0, 64)},
			[]Group{{Name: "a", Has: size(9, ms, 0), Want: size(9, 0, 64)}},
			[]string{"a memory=64", "(pod) memory=64", "(pod) quota=none", "a quota=none"}},
		{"request up and limit down", Group{Has: size(10, 2*ms, 0), Want: size(20, ms, 0)},
			[]Group{{Name: "a", Has: size(10, 2*ms, 0), Want: size(20, ms, 0)}},
			[]string{"(pod) shares=20", "a shares=20 quota=1ms/100ms", "(pod) quota=1ms/100ms"}},
		{"request down and limit up", Group{Has: size(20, ms, 0), Want: size(10, 2*ms, 0)},
			[]Group{{Name: "a", Has: size(20, ms, 0), Want: size(10, 2*ms, 0)}},
			[]string{"(pod) quota=2ms/100ms", "a shares=10 quota=2ms/100ms", "(pod) shares=10"}},
		{
			"what is not known is written early", Group{Want: size(10, ms, 64)}, nil,
			[]string{"(pod) memory=64", "(pod) quota=1ms/100ms", "(pod) shares=10"},
		},
		{"what leaves keeps the room open and is left alone", Group{Has: size(20, 2*ms, 64), Want: size(10, ms, 128)},
			[]Group{
				{Name: "a", Has: size(10, ms, 32), Want: size(5, ms, 96), Leaving: true},
				{Name: "b", Has: size(10, ms, 64), Want: size(5, ms, 32)},
			},
			[]string{"(pod) memory=128", "b memory=32", "b shares=5"}},
		{"those that shrink go first, in the pod's order", Group{Has: size(40, 0, 0), Want: size(40, 0, 0)},
			[]Group{
				{Name: "a", Has: size(10, 0, 1), Want: size(10, 0, 2)}, {Name: "b", Has: size(10, 0, 2), Want: size(10, 0, 1)},
				{Name: "c", Has: size(20, 0, 3), Want: size(20, 0, 1)},
			},
			[]string{"b memory=1", "c memory=1", "a memory=2"}},
	} {
		var got []string
		for _, s := range Plan(c.pod, c.containers) {
			got = append(got, s.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func random(r *rand.Rand) Size {
	return size(qos.Shares(2+r.IntN(3)), time.Duration(1+r.IntN(3))*ms, unit.Bytes(1+r.IntN(3)))
}

// TestPlanIsSafeAnywhere checks that plans lead to the desired sizes from wherever they were interrupted. If a
// container's limits are within the pod's at the beginning and at the end, they are within them all the time.
func TestPlanIsSafeAnywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 20_000 {
		pod := Group{Has: random(r), Want: random(r)}
		var containers []Group
		for i := range r.IntN(4) {
			containers = append(containers, Group{Name: string(rune('a' + i)), Has: random(r), Want: random(r)})
			pod.Has, pod.Want = larger(pod.Has, containers[i].Has), larger(pod.Want, containers[i].Want)
		}
		before := fmt.Sprint(pod, containers)
		for len(Plan(pod, containers)) > 0 {
			steps := Plan(pod, containers)
			if again := Plan(pod, containers); !reflect.DeepEqual(steps, again) {
				t.Fatalf("round %d: two plans for one pod", round)
			}
			for _, step := range steps[:1+r.IntN(len(steps))] { // interrupted anywhere
				take(step, &pod, containers)
				for _, c := range containers {
					if !within(c.Has, pod.Has) {
						t.Fatalf("round %d: %s\nafter %s container %s has %s, the pod %s", round, before, step, c.Name, c.Has, pod.Has)
					}
				}
			}
		}
		for _, g := range append(containers, pod) {
			if g.Has != g.Want {
				t.Fatalf("round %d: %s\nends with %s, want %s", round, before, g.Has, g.Want)
			}
		}
	}
}

func take(step Step, pod *Group, containers []Group) {
	if step.Name == "" {
		pod.Has = step.After(pod.Has)
	}
	for i := range containers {
		if containers[i].Name == step.Name {
			containers[i].Has = step.After(containers[i].Has)
		}
	}
}

func within(inner, outer Size) bool {
	return bound(inner.Quota) <= bound(outer.Quota) && bound(inner.Memory) <= bound(outer.Memory)
}

// larger has the larger limits of both. The sizes in these tests all have limits.
func larger(a, b Size) Size {
	if bound(b.Quota) > bound(a.Quota) {
		a.Quota = b.Quota
	}
	if bound(b.Memory) > bound(a.Memory) {
		a.Memory = b.Memory
	}
	return a
}

func bound[T ~int64](l unit.Limit[T]) T {
	v, _ := l.Get()
	return v
}

func TestRefusal(t *testing.T) {
	pod := Group{Has: size(2, 0, 100), Want: size(2, 0, 50)}
	steps := Plan(pod, []Group{
		{Name: "a", Has: size(2, 0, 0), Want: size(2, 0, 40)},
		{Name: "b", Has: size(2, 0, 10), Want: size(2, 0, 20)},
	})
	var reasons []string
	for _, s := range steps {
		if why := s.WhyNot(50); why != "" {
			reasons = append(reasons, why)
		}
	}
	const want = `cannot decrease memory limits: [attempting to set container "a" memory limit (40) below current usage (50), attempting to set pod memory limit (50) below current usage (50)]`
	if got := NotMade(reasons); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestBackToAmounts checks that every request and limit can be computed from the kernel's settings.
func TestBackToAmounts(t *testing.T) {
	for cpu := unit.MilliCPU(10); cpu < 20_000; cpu++ { // below 2m and 10m the kernel has minima
		s := size(qos.SharesOf(cpu), time.Duration(cpu)*qos.CFSPeriodDefault/time.Duration(unit.CPU), 0)
		if got, _ := s.CPURequest(); got != cpu {
			t.Fatalf("request %d comes back as %d", cpu, got)
		}
		if got, _ := s.CPULimit(); got != cpu {
			t.Fatalf("limit %d comes back as %d", cpu, got)
		}
	}
}

// What another process wrote last is not known if the kernel does not return it and it was not reported.
func TestAdopted(t *testing.T) {
	reported := size(10, ms, 64)
	onV2 := func(s Size) Size {
		s.Shares = unit.Amount[qos.Shares]{}
		s.Soft = Soft{}
		return s
	}
	silent := onV2(reported)
	other := onV2(size(20, 2*ms, 64))
	for _, c := range []struct {
		name     string
		has      Size
		underWay bool
		want     string
	}{
		{"v1 tells all", size(20, 2*ms, 32), true, "shares=20 quota=2ms/100ms memory=32"},
		{"v2, as was reported", silent, false, "shares=10 quota=1ms/100ms memory=64"},
		{"v2, while a resize is under way", silent, true, "quota=1ms/100ms memory=64"},
		{"v2, with a limit that nobody was told", other, false, "quota=2ms/100ms memory=64"},
		{"nothing is told", Size{}, false, "shares=10 quota=1ms/100ms memory=64"},
	} {
		if got := c.has.Adopted(reported, c.underWay).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A step that failed may have been written all the same. So the next plan writes it again, whatever is desired by then.
func TestTorn(t *testing.T) {
	before, to := size(10, ms, 64), size(20, 2*ms, 128)
	v1 := to
	v1.Soft = Soft{}
	v2 := v1
	v2.Shares = unit.Amount[qos.Shares]{}
	for _, c := range []struct {
		name string
		step Step
		has  Size
		want string // the plan for the way back to the sizes before
	}{
		{"CPU, v1", Step{Name: "c", Resource: CPU, Request: true, Limit: true, To: to}, v1, "[c shares=10 quota=1ms/100ms]"},
		{"CPU, v2", Step{Name: "c", Resource: CPU, Request: true, Limit: true, To: to}, v2, "[c shares=10 quota=1ms/100ms]"},
		{"the request", Step{Name: "c", Resource: CPU, Request: true, To: to}, Size{}, "[c shares=10]"},
		{"the limit", Step{Name: "c", Resource: CPU, Limit: true, To: to}, v2, "[c quota=1ms/100ms]"},
		{"the limit, which cannot be read", Step{Name: "c", Resource: CPU, Limit: true, To: to}, Size{}, "[c shares=10]"},
		{"memory", Step{Name: "c", Resource: Memory, Limit: true, To: to}, v2, "[c memory=64]"},
		{"nothing can be read", Step{Name: "c", Resource: Memory, Limit: true, To: to}, Size{}, "[c memory=64]"},
	} {
		torn := Group{Name: "c", Has: c.step.Torn(before, c.has), Want: before}
		if got := fmt.Sprint(Plan(Group{Has: before, Want: before}, []Group{torn})); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
