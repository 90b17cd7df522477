package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// limits lowers the memory limits of cgroups with running processes to their targets: at once where no process is
// harmed, otherwise step by step, as allocatable.Lowering decides.
type limits struct {
	tree   *cgroup.Tree
	report func(limitState)

	clock *clock.Clock
	wake  chan struct{}

	mu      sync.Mutex           // guards everything that follows
	active  map[string]*lowering // the limits that are being lowered, by cgroup
	reached map[string]bool      // cgroups whose limit has reached its target at least once
}

// limitState is the state of a cgroup's limit after a step.
type limitState struct {
	group  string
	done   bool
	reason string
	excess unit.Bytes // usage above the target
	// record says whether to record an Event: for a cgroup's first limit, and for a lowering of more than one step its
	// beginning, at intervals while it lasts, and its end.
	record bool
}

// lowering is the lowering of one cgroup's limit.
type lowering struct {
	*allocatable.Lowering
	refused    bool         // the kernel refused the last write
	wake       unit.Instant // when the next step is due
	recordedAt unit.Instant // when it was last recorded; zero: never
}

const (
	// recordEvery is the interval of Events while a lowering lasts. The kubelet records once a minute that it failed.
	recordEvery = 5 * time.Minute

	// refusedRest is the wait after the kernel refused a write because it could not reclaim enough (chosen).
	refusedRest = time.Second

	// errorRest is the wait after an error other than the kernel's refusal, such as a cgroup that was removed.
	errorRest = time.Minute
)

func newLimits(tree *cgroup.Tree, report func(limitState)) *limits {
	return &limits{
		tree:    tree,
		report:  report,
		clock:   clock.New(),
		wake:    make(chan struct{}, 1),
		active:  map[string]*lowering{},
		reached: map[string]bool{},
	}
}

// lower makes the first step towards target at once; run makes the others.
func (l *limits) lower(group string, target unit.Bytes) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.active[group]; d != nil && d.Target() == target {
		return nil
	}
	d := &lowering{Lowering: allocatable.NewLowering(target, l.tree.Mode() == cgroup.V2)}
	done, err := l.step(group, d)
	if err != nil {
		return err
	}
	if done {
		delete(l.active, group)
		return nil
	}
	l.active[group] = d
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// step reads a cgroup's memory and does what its Lowering decides. The caller holds mu.
func (l *limits) step(group string, d *lowering) (done bool, err error) {
	seen, err := l.tree.Memory(group)
	if err != nil {
		return false, err
	}
	now := l.clock.Now()
	seen.Refused = d.refused
	d.refused = false
	move := d.Step(now, seen)
	d.wake = move.Wake
	for _, w := range move.Writes {
		err := l.tree.SetMemory(group, w)
		if errors.Is(err, cgroup.ErrRefused) {
			d.refused = true
			d.wake = now.Add(refusedRest)
			move.Done = false
			move.Reason += "; the kernel could not reclaim as much"
			break
		} else if err != nil {
			return false, err
		}
	}
	if move.Done {
		// Set again through systemd, so that systemd's own record of the limit is right; the kernel has the limit
		// already.
		if err := l.tree.Set(group, qos.Values{Memory: unit.LimitTo(d.Target())}); err != nil {
			return false, err
		}
	}
	record := d.recordedAt.IsZero() || now.Sub(d.recordedAt) >= recordEvery
	if move.Done {
		record = !d.recordedAt.IsZero() || !l.reached[group]
		l.reached[group] = true
	}
	if record {
		d.recordedAt = now
	}
	l.report(limitState{group: group, done: move.Done, reason: move.Reason, excess: max(0, seen.Usage-d.Target()),
		record: record})
	return move.Done, nil
}

// run makes the steps that are due until ctx ends. It sleeps while no limit is being lowered.
func (l *limits) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		if next := l.runDue(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Millisecond, next.Sub(l.clock.Now())))
		}
	}
}

// runDue makes the steps that are due and returns when the next one is due; zero: never.
func (l *limits) runDue() (next unit.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for group, d := range l.active {
		if d.wake <= now {
			done, err := l.step(group, d)
			if err != nil {
				slog.Warn("memory limit not lowered", "cgroup", group, "target", d.Target(), "err", err)
				d.wake = now.Add(errorRest)
			}
			if done {
				delete(l.active, group)
				continue
			}
		}
		next = next.Earlier(d.wake)
	}
	return next
}

// reportLimit is called by limits after each step. Events have the kubelet's wording.
func (a *Agent) reportLimit(s limitState) {
	if s.done {
		a.metrics.LimitExcess.DeleteLabelValues(s.group)
	} else {
		a.metrics.LimitExcess.WithLabelValues(s.group).Set(float64(s.excess))
	}
	if !s.record {
		slog.Debug("memory limit", "cgroup", s.group, "set", s.done, "why", s.reason)
		return
	}
	what := "Node Allocatable limit across pods"
	if !a.groups.layout.IsPods(s.group) {
		what = "limits on reserved cgroup"
	}
	if s.done {
		slog.Info("memory limit set", "cgroup", s.group, "why", s.reason)
		a.nodeEvent(corev1.EventTypeNormal, eventEnforced, fmt.Sprintf("Updated %s %s: %s", what, s.group, s.reason))
		return
	}
	slog.Warn("memory limit is lowered in steps", "cgroup", s.group, "why", s.reason)
	a.nodeEvent(corev1.EventTypeWarning, eventNotEnforced,
		fmt.Sprintf("Failed to update %s %q at once, continuing in steps: %s", what, s.group, s.reason))
}
