package eviction

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// intentWithin bounds the wait for the journal before a kill. A healthy disk takes less than 0.1 ms (measured
// 2026-11-20). A longer bound makes evictions late when the disk is part of the trouble; a shorter one loses intents in
// a crash on a slow disk.
const intentWithin = 5 * time.Millisecond

// kill is the outcome of one victim's eviction.
type kill struct {
	victim eviction.Victim
	pod    *corev1.Pod
	group  string
	// from the check's beginning until SIGKILL was sent; zero: its termination grace period still runs
	after time.Duration
	how   cgroup.Killing
	err   error
}

// carryOut carries out the decision: kills first, then everything else.
func (g *Guard) carryOut(ctx context.Context, p *check) {
	kills := g.orderStops(p)
	g.killAll(p, kills)
	changed := g.setConditions(p.decision.Conditions)
	for _, r := range p.decision.Reclaim {
		g.reclaim(ctx, p, r)
	}
	if changed {
		g.o.Changed()
	}
	for _, k := range kills {
		g.o.Pods.Resync(k.pod.UID)
	}
	g.record(p, kills, changed)
}

// orderStops gives the victims' stop orders to their pod workers and records the intents in the journal.
func (g *Guard) orderStops(p *check) []*kill {
	if len(p.decision.Victims) == 0 {
		return nil
	}
	var kills []*kill
	intent := journal.Record{Time: time.Now(), Kind: journal.Intent, Text: "pods are evicted"}
	for _, v := range p.decision.Victims {
		i := slices.IndexFunc(p.present, func(p podentry.Present) bool { return string(p.Pod.UID) == v.ID })
		if i < 0 {
			continue // cannot happen: the core saw no other pods
		}
		pod, at := p.present[i].Pod, time.Now().Add(v.Grace)
		if !g.o.Pods.Evict(pod.UID, pods.Eviction{Reason: eviction.Reason, Message: v.Message, KillAt: at,
			Disrupts: v.Disruption}) {
			continue // the pod has ended meanwhile
		}
		k := &kill{victim: v, pod: pod, group: g.o.Of(pod, "")}
		kills = append(kills, k)
		g.deadlines[pod.UID] = &deadline{at: at, group: k.group}
		if !v.Ending && !p.present[i].Static {
			intent.Pods = append(intent.Pods, journal.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: v.ID,
				Message: v.Message, Until: at.UnixNano(), Disrupts: v.Disruption})
		}
	}
	if len(intent.Pods) > 0 {
		if _, err := g.o.Journal.AppendWithin(intentWithin, intent); err != nil {
			slog.Warn("intent to evict not in the journal yet; evicting nevertheless", "err", err)
		}
	}
	return kills
}

// killAll sends SIGKILL to the victims without a termination grace period: to the first one from this goroutine, to the
// others in parallel.
func (g *Guard) killAll(p *check, kills []*kill) {
	var now []*kill
	for _, k := range kills {
		if k.victim.Grace == 0 && k.group != "" {
			now = append(now, k)
		}
	}
	if len(now) == 0 {
		return
	}
	end := func(k *kill) {
		k.how, k.err = g.o.Tree.Kill(k.group)
		k.after = time.Since(p.began)
	}
	var others sync.WaitGroup
	for _, k := range now[1:] {
		others.Go(func() { end(k) })
	}
	end(now[0])
	others.Wait()
	for _, k := range now {
		g.deadlines[k.pod.UID].at = time.Now().Add(killAgain)
	}
}

// finish kills what still runs of a victim whose termination grace period is over.
func (g *Guard) finish(uid types.UID, group string) {
	if group == "" {
		return
	}
	how, err := g.o.Tree.Kill(group)
	if err != nil {
		slog.Error("evicted pod not killed; trying again", "uid", uid, "cgroup", group, "err", err)
	} else if how.Processes > 0 {
		slog.Info("evicted pod's termination grace period is over: killed", "uid", uid, "cgroup", group, "how", how.How,
			"processes", how.Processes)
	}
	g.recording.Go(func() { how.FreeMemory() })
	g.o.Pods.Resync(uid)
}

// setConditions stores the conditions and returns whether they changed.
func (g *Guard) setConditions(now []eviction.Condition) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Equal(g.conditions, now) {
		return false
	}
	slog.Info("node conditions", "now", now, "before", g.conditions)
	g.conditions = slices.Clone(now)
	return true
}

// reclaim starts an attempt to free resources before pods are evicted. When it ends, that is recorded for the next
// check, and a check is requested.
func (g *Guard) reclaim(ctx context.Context, p *check, r eviction.Reclaim) {
	do := g.o.Reclaims[r.Step]
	if r.Step == eviction.PodMemory {
		groups := map[string]string{}
		for _, p := range p.present {
			groups[string(p.Pod.UID)] = g.o.Of(p.Pod, "")
		}
		do = func(ctx context.Context, r eviction.Reclaim) error { return g.reclaimMemory(ctx, r, groups) }
	}
	go func() {
		began := time.Now()
		var err error
		if do != nil {
			err = do(ctx, r)
		}
		slog.Info("reclaimed before evicting", "step", r.Step, "signal", r.Signal, "until", r.Until,
			"took", time.Since(began).Round(time.Millisecond), "err", err)
		g.mu.Lock()
		g.done[r.Step] = g.clock.Instant(time.Now())
		g.mu.Unlock()
		g.kernel.Wake()
	}()
}
