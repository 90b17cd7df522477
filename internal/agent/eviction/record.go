package eviction

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// check is one check.
type check struct {
	why      []string
	began    time.Time
	now      unit.Instant
	before   eviction.State // of the decider; only if pods were read
	facts    eviction.Facts
	present  []podentry.Present // only if they are needed
	decision eviction.Decision
}

// record records what was done: Events, metrics, the journal. It returns at once.
func (g *Guard) record(p *check, kills []*kill, changed bool) {
	news := p.news()
	if !changed && len(kills) == 0 && (news == "" || news == g.lastNews) {
		g.lastNews = news
		return
	}
	g.lastNews = news
	detail := journal.Decision{Notifications: append([]string(nil), p.why...), Config: g.o.Config, Before: p.before,
		Now: p.now, Facts: p.facts, Decided: p.decision}
	took := time.Since(p.began)
	g.recording.Go(func() { // Run waits for it, so that the journal is still open
		for _, k := range kills {
			detail.Kills = append(detail.Kills, g.recordKill(k))
			k.how.FreeMemory()
		}
		for _, r := range p.decision.Starved {
			g.nodeEvent(corev1.EventTypeWarning, "EvictionThresholdMet", eviction.AttemptMessage(r))
		}
		g.write(detail, took)
	})
}

// news returns what is worth a record although no pod was killed. It changes when another threshold is met, or acts, or
// is held.
func (p *check) news() string {
	text := ""
	for _, m := range p.decision.Met {
		text += fmt.Sprint(m.Signal, m.Value, m.Acts, m.Held, ";")
	}
	return text
}

func (g *Guard) recordKill(k *kill) journal.Kill {
	v := k.victim
	log := slog.With("pod", v.Namespace+"/"+v.Name, "uid", v.ID, "cause", v.Cause, "grace", v.Grace, "message", v.Message)
	out := journal.Kill{UID: v.ID, How: k.how.How, Processes: k.how.Processes, After: k.after}
	switch {
	case k.err != nil:
		out.Error = k.err.Error()
		log.Error("pod evicted; its processes are not killed yet", "err", k.err)
	case v.Ending:
		log.Warn("terminating pod is killed before its grace period ends", "how", k.how.How, "processes", k.how.Processes,
			"after", k.after)
		return out
	default:
		log.Warn("pod evicted", "how", k.how.How, "processes", k.how.Processes, "after", k.after)
	}
	g.o.Metrics.Evictions.WithLabelValues(string(v.Cause)).Inc()
	g.o.Metrics.EvictionStatsAge.WithLabelValues(string(v.Cause)).Observe(k.after.Seconds())
	if v.Grace == 0 && k.group != "" {
		g.counts.reaction.WithLabelValues(string(v.Cause)).Observe(k.after.Seconds())
	}
	g.o.Recorder.AnnotatedEventf(k.pod, v.Annotations, corev1.EventTypeWarning, eviction.Reason, "%s", v.Message)
	return out
}

func (g *Guard) nodeEvent(kind, reason, message string) {
	g.o.Recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: g.o.Node, UID: types.UID(g.o.Node)},
		kind, reason, message)
}

// write appends a decision to the journal.
func (g *Guard) write(d journal.Decision, took time.Duration) {
	r := journal.Record{Time: time.Now(), Kind: journal.Eviction, Text: d.Text()}
	for _, v := range d.Decided.Victims {
		r.Pods = append(r.Pods, journal.Pod{Namespace: v.Namespace, Name: v.Name, UID: v.ID, Message: v.Message})
	}
	slog.Info("eviction decision", "what", r.Text, "notifications", d.Notifications, "took", took,
		"pods", len(d.Facts.Pods))
	var err error
	if r.Detail, err = json.Marshal(d); err == nil {
		_, err = g.o.Journal.Append(r)
	}
	if err != nil {
		slog.Warn("decision not in the journal", "err", err)
	}
}

// readIntents reads which pods earlier agents evicted.
func (g *Guard) readIntents() error {
	all, err := g.o.Journal.Find(journal.Query{})
	if err != nil {
		return err
	}
	for _, r := range all.Records {
		if r.Kind != journal.Intent {
			continue
		}
		for _, p := range r.Pods {
			g.recalled[types.UID(p.UID)] = pods.Eviction{Reason: eviction.Reason, Message: p.Message, KillAt: time.Unix(0,
				p.Until), Disrupts: p.Disrupts}
		}
	}
	return nil
}

// Recall returns whether an earlier agent evicted the pod, and how. It is pods.Options.Evicted.
func (g *Guard) Recall(uid types.UID) (pods.Eviction, bool) {
	v, ok := g.recalled[uid]
	return v, ok
}

// reclaimMemory makes the kernel reclaim memory of pods.
func (g *Guard) reclaimMemory(_ context.Context, r eviction.Reclaim, groups map[string]string) error {
	var problems []error
	for _, e := range r.Pods {
		if group := groups[e.ID]; group != "" {
			if err := g.o.Tree.Reclaim(group, int64(e.Bytes)); err != nil && !errors.Is(err, cgroup.ErrRefused) {
				problems = append(problems, err)
			}
		}
	}
	return errors.Join(problems...)
}
