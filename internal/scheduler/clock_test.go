package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// jumping is a clock that a test controls.
type jumping struct {
	mu    sync.Mutex
	ahead time.Duration
	still time.Time // if not zero, the clock stands still at this time
}

func (j *jumping) now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.still.IsZero() {
		return j.still
	}
	return time.Now().Add(j.ahead)
}

func (j *jumping) jump(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ahead += d
}

func (j *jumping) stop() {
	now := j.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.still = now
}

// goOn ends a stop. If catchUp is false, the clock has missed the time since then.
func (j *jumping) goOn(catchUp bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !catchUp {
		j.ahead = time.Until(j.still)
	}
	j.still = time.Time{}
}

// jumps are what clocks do on machines whose time is set, or that are suspended, migrated to another host, or stopped
// by a signal.
var jumps = map[string]func(j *jumping){
	"a year on":   func(j *jumping) { j.jump(365 * 24 * time.Hour) },
	"a year back": func(j *jumping) { j.jump(-365 * 24 * time.Hour) },
	"hours back and forth": func(j *jumping) {
		for i := range 60 {
			j.jump(time.Duration(1-2*(i%2)) * 3 * time.Hour)
			elapse(time.Second)
		}
	},
	"suspended for an hour": func(j *jumping) { // the clock stands still, too
		j.stop()
		elapse(time.Hour)
		j.goOn(false)
	},
	"stopped for an hour": func(j *jumping) {
		j.stop()
		elapse(time.Hour)
		j.goOn(true)
	},
}

// TestClocksThatJump: whatever the clock does while the API server refuses everything, requests for a pod are no more
// frequent than its back-off and the jumps allow. When the server accepts requests again, all pods continue within a
// minute, and each was notified of the event that let it fit.
func TestClocksThatJump(t *testing.T) {
	for name, jump := range jumps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &jumping{}
				f := &faraway{cluster: newCluster(t), asked: map[string]int{}, away: true}
				m, recorder, stop := startPrepared(f.cluster, 16, func(m *loop) {
					m.api, m.clock = f, clock.From(j.now, clock.Start)
				})
				defer stop()
				full := testNode("full", "1")
				full.Labels = map[string]string{"on": "full"}
				m.nodeHandler().OnAdd(testNode("n", "10"), true)
				m.nodeHandler().OnAdd(full, true)
				f.add(m, onNode(withPriority(testPod("low", "1"), 1), "full"))
				m.submit(context.Background(), synced(m))
				for i := range 10 {
					f.add(m, testPod(fmt.Sprint("p", i), "1"))
				}
				high := withPriority(testPod("high", "1"), 10)
				high.Spec.NodeSelector = full.Labels
				f.add(m, high)
				big := testPod("big", "20")
				f.add(m, big)
				elapse(time.Minute)

				began, before := time.Now(), f.count()
				jump(j)
				m.submit(context.Background(), func(unit.Instant) {}) // as the timer, which uses the same clock, would
				elapse(time.Minute)
				// Once per back-off of ten seconds, and once per jump, of which there are up to sixty.
				most := int(time.Since(began)/(10*time.Second)) + 60 + 2
				for what, n := range f.count() {
					pods := map[string]int{"bind": 10, "patch": 12, "remove": 1}[what]
					if n -= before[what]; n > pods*most {
						t.Errorf("%s was asked for %d times in %v, want at most %d", what, n, time.Since(began), pods*most)
					}
				}

				f.back()
				elapse(time.Minute)
				m.nodeHandler().OnAdd(testNode("large", "20"), false)
				elapse(time.Minute)
				f.eachBoundOnce(t, 12)
				if f.where(big) != "large" || f.where(high) != "full" || f.evicted() != "low" {
					t.Errorf("big is on %q, high on %q, evicted: %q", f.where(big), f.where(high), f.evicted())
				}
				told := ""
				for len(recorder.Events) > 0 {
					told += <-recorder.Events + "\n"
				}
				for _, why := range []string{"connection refused", "Insufficient cpu", "Preempted by pod uid-high"} {
					if !strings.Contains(told, why) {
						t.Errorf("no Event or condition says: %s", why)
					}
				}
			})
		})
	}
}

// TestHungBindsAndClocks: if a clock jumps while every slot has a bind without an answer, the loop decides ahead, for
// at most aheadMax pods, and never sends more binds.
func TestHungBindsAndClocks(t *testing.T) {
	for name, jump := range jumps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &jumping{}
				h := &hanging{cluster: newCluster(t), binds: make(chan struct{}), onWire: true, sent: map[string]bool{}}
				m, _, stop := startPrepared(h.cluster, 2, func(m *loop) { m.api, m.clock = h, clock.From(j.now, clock.Start) })
				defer stop()
				m.nodeHandler().OnAdd(testNode("n", "20"), true)
				m.submit(context.Background(), synced(m))
				for i := range 10 {
					h.add(m, testPod(fmt.Sprint("p", i), "1"))
				}
				elapse(hungAfter / 2)
				jump(j)
				late := testPod("late", "100")
				h.add(m, late)
				elapse(time.Minute)
				if told := strings.Join(h.told(), "\n"); !strings.Contains(told, "Insufficient cpu") {
					t.Errorf("the pod that fits nowhere has no such condition: %q", told)
				}
				close(h.binds)
				elapse(time.Minute)
				if len(h.bound) != 10 || h.mostBinds > 2 {
					t.Errorf("%d bound, %d binds at once; want 10, and 2 at most", len(h.bound), h.mostBinds)
				}
			})
		})
	}
}

// TestConditionsAndClocks: a condition that is written again keeps its first time, whatever the clock says now.
func TestConditionsAndClocks(t *testing.T) {
	j := &jumping{}
	pod := testPod("p", "1")
	first := j.now()
	for _, jump := range []time.Duration{0, 365 * 24 * time.Hour, -2 * 365 * 24 * time.Hour} {
		j.jump(jump)
		why := fmt.Sprint("after ", jump)
		c, changed := conditionOf(pod, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: why,
		}, j.now())
		if !changed || c.LastTransitionTime.Sub(first).Abs() > time.Minute || c.Message != why {
			t.Errorf("%s: changed %v, since %v", c.Message, changed, c.LastTransitionTime)
		}
		pod.Status.Conditions = []corev1.PodCondition{c}
	}
}

// TestTimeIsMonotonic: the scheduling loop and its Health use monotonic time, so setting the wall clock does not affect
// them.
func TestTimeIsMonotonic(t *testing.T) {
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName}, nil, nil)
	times := map[string]time.Time{
		"the loop's":  m.clock.At(clock.Start),
		"health's":    m.o.Health.start,
		"the clock's": m.clock.Time(),
	}
	for what, at := range times {
		if at == at.Round(0) {
			t.Errorf("%s time has no monotonic reading", what)
		}
	}
}

// TestNowGoesOn: time is above zero from the start, never goes back, and continues after a clock has gone back.
func TestNowGoesOn(t *testing.T) {
	j := &jumping{}
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName}, nil, nil)
	if now := m.clock.Now(); now <= 0 {
		t.Errorf("it begins at %v", now)
	}
	m.clock = clock.From(j.now, clock.Start)
	last := m.clock.Now()
	for _, d := range []time.Duration{time.Hour, -2 * time.Hour, time.Second, -time.Minute, 0, time.Minute} {
		j.jump(d)
		now := m.clock.Now()
		if now < last || d > 0 && now.Sub(last) < d {
			t.Errorf("after a jump of %v it is %v later", d, now.Sub(last))
		}
		last = now
	}
}
