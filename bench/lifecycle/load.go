package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// barOthers bounds another client's p99 while a controller writes, as a multiple of its p99 at rest: issue 15, part 6.
const barOthers = 2.0

// A span is a time in which the other client's requests are evaluated.
type span struct {
	name     string
	from, to time.Time
}

// The spans of a load measurement, in order.
const (
	spanRest  = "rest"
	spanDead  = "dead"
	spanMarks = "marks"
	spanHeal  = "heal"
)

var spanTitles = map[string]string{
	spanRest:  "at rest: all nodes send heartbeats, nothing is written about them",
	spanDead:  "the nodes are dead, and their grace period is not over",
	spanMarks: "from the end of the grace period until all are marked",
	spanHeal:  "they return, until all are Ready and untainted",
}

// loadLines returns the report's lines of a load measurement.
func loadLines(c config) (out []record.Line) {
	marks := fmt.Sprintf("%d nodes die at once", c.nodes)
	out = append(out,
		record.Line{Name: "marked", Title: "nodes marked: Unknown and NoSchedule", Group: marks},
		record.Line{Name: "mark_seconds", Title: "from the end of the last grace period to the last mark", Unit: "s",
			Group: marks},
		record.Line{Name: "mark_rate", Title: "nodes marked per second", Unit: "1/s", Group: marks},
		record.Line{Name: "busiest", Title: "changes of nodes in the busiest second", Unit: "1/s", Group: marks},
		record.Line{Name: "heal_seconds", Title: "from the last return to the removal of the last taint", Unit: "s",
			Group: marks},
		record.Line{Name: "cores_controller", Title: "controller, CPU while it marks", Unit: "cores", Group: marks},
		record.Line{Name: "cores_control", Title: "control plane, CPU meanwhile", Unit: "cores", Group: marks},
		record.Line{Name: "cores_others", Title: "others on this machine, CPU meanwhile", Unit: "cores", Group: marks})
	for _, name := range []string{spanRest, spanDead, spanMarks, spanHeal} {
		group := "Another client, " + spanTitles[name]
		out = append(out,
			record.Line{Name: "p50_" + name, Title: "all requests, p50", Unit: "ms", Group: group},
			record.Line{Name: "p99_" + name, Title: "all requests, p99", Unit: "ms", Group: group},
			record.Line{Name: "max_" + name, Title: "the longest", Unit: "ms", Group: group})
		for _, what := range []string{"get", "list", "patch"} {
			out = append(out, record.Line{Name: "p99_" + what + "_" + name, Title: what + ", p99", Unit: "ms", Group: group})
		}
		out = append(out, record.Line{Name: "failed_" + name, Title: "failed", Group: group})
		switch name {
		case spanMarks:
			out = append(out, record.Line{Name: "times_" + name, Title: "p99, times its value at rest",
				Bar: record.Bar{Max: barOthers}, Group: group})
		// no bar: thousands of nodes write their own status and leases meanwhile, which no controller can limit
		case spanHeal:
			out = append(out, record.Line{Name: "times_" + name, Title: "p99, times its value at rest", Group: group})
		}
	}
	return out
}

// otherClient starts the other client.
func (p *rig) otherClient(m *record.Measurement) (process *plane.Process, out string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	name := filepath.Join(p.dir, fmt.Sprintf("other-%s-%d", m.Side, m.Round))
	process, err = plane.Start(name+".log", self, otherCommand, "--kubeconfig", p.plane.Kubeconfig(), "--out", name+".txt",
		"--rate", strconv.Itoa(p.rate))
	return process, name + ".txt", err
}

// measureLoad measures how one controller affects another client in one round: at rest, while all nodes are marked, and
// while they return.
func (p *rig) measureLoad(ctx context.Context, m *record.Measurement) (err error) {
	c, err := p.controller(m.Side, m.Round)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := p.quiet(ctx); err != nil {
		return errors.Join(err, c.Check())
	}
	other, out, err := p.otherClient(m)
	if err != nil {
		return err
	}
	var spans []span
	ended := false
	defer func() {
		if !ended {
			err = errors.Join(err, other.Stop())
		}
	}()
	if err := record.Pause(ctx, p.settle); err != nil {
		return err
	}
	began := time.Now()
	if err := record.Pause(ctx, p.steady); err != nil {
		return err
	}
	spans = append(spans, span{name: spanRest, from: began, to: time.Now()})
	more, err := p.allDie(ctx, m, c)
	if err != nil {
		return errors.Join(err, c.Check(), other.Check())
	}
	spans = append(spans, more...)
	ended = true
	if err := other.Stop(); err != nil {
		return err
	}
	all, err := readAsked(out)
	if err != nil {
		return err
	}
	felt(m, all, spans)
	return nil
}

// quiet waits until a controller that was just started only watches.
func (p *rig) quiet(ctx context.Context) error {
	began := time.Now()
	for {
		if err := record.Pause(ctx, p.settle); err != nil {
			return err
		}
		if p.nodes.sinceAnnounced() > p.settle {
			break
		}
		if time.Since(began) > p.patience() {
			return fmt.Errorf("wait for the controller to announce nodes: not done within %v", p.patience())
		}
	}
	record.Progress("quiet after %.0f s", time.Since(began).Seconds())
	return p.nodes.await(ctx, p.patience(), "be well at the start", (*nodes).well)
}

// allDie silences every node, waits until all are marked or --mark-limit is over, and lets them return.
func (p *rig) allDie(ctx context.Context, m *record.Measurement, c *plane.Process) (spans []span, err error) {
	dead, err := p.order(ctx, "silence")
	if err != nil {
		return nil, err
	}
	died := time.Now()
	renewed, err := p.nodes.renewed(ctx)
	if err != nil {
		return nil, err
	}
	var first, last time.Time
	for _, name := range dead {
		over := renewed[name].Add(p.grace)
		if first.IsZero() || over.Before(first) {
			first = over
		}
		last = later(last, over)
	}
	spans = append(spans, span{name: spanDead, from: died.Add(deadSettle), to: first})
	if err := record.Pause(ctx, time.Until(first)); err != nil {
		return nil, err
	}
	p.nodes.count()
	before, err := p.use(c)
	if err != nil {
		return nil, err
	}
	isMarked := func(s *nodeSeen) bool { return s.ready == corev1.ConditionUnknown && s.tainted }
	if err := p.nodes.await(ctx, time.Until(last)+p.markLimit, "be marked", func(n *nodes) bool {
		return n.all(dead,
			isMarked)
	}); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		record.Progress("%s: cut off: %v", m.Side, err)
	}
	end := time.Now()
	after, err := p.use(c)
	if err != nil {
		return nil, err
	}
	wall := end.Sub(first).Seconds()
	m.Put("cores_controller", (after["controller"]-before["controller"])/wall, 1)
	m.Put("cores_control", (after["control"]-before["control"])/wall, 1)
	m.Put("cores_others", others(before, after)/wall, 1)
	spans = append(spans, span{name: spanMarks, from: first, to: end})
	marked, lastMark := p.nodes.marked(dead, isMarked)
	m.Put("marked", float64(marked), 1)
	if marked == len(dead) {
		m.Put("mark_seconds", lastMark.Sub(last).Seconds(), marked)
	}
	m.Put("mark_rate", float64(marked)/lastMark.Sub(first).Seconds(), marked)
	m.Put("busiest", float64(p.nodes.busiestSecond()), 1)
	record.Progress("%s: %d of %d nodes marked in %.1f s; busiest second %d", m.Side, marked, len(dead),
		lastMark.Sub(first).Seconds(), p.nodes.busiestSecond())
	if marked < len(dead) {
		return spans, nil // waiting for their return would take as long again
	}
	if err := record.Pause(ctx, p.settle); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.heal(ctx, m, dead); err != nil {
		return nil, err
	}
	m.Put("heal_seconds", m.Values["heal"], len(dead))
	return append(spans, span{name: spanHeal, from: began, to: time.Now()}), nil
}

// deadSettle is how long after the nodes' death the server may still process their last requests. Chosen.
const deadSettle = 2 * time.Second

// felt stores the other client's latencies in each span.
func felt(m *record.Measurement, all []asked, spans []span) {
	for _, s := range spans {
		by := map[string][]float64{}
		failed := 0
		for _, a := range all {
			if a.due.Before(s.from) || !a.due.Before(s.to) {
				continue
			}
			ms := float64(a.took) / float64(time.Millisecond)
			by[""], by[a.what] = append(by[""], ms), append(by[a.what], ms)
			if !a.ok {
				failed++
			}
		}
		n := len(by[""])
		m.Put("p50_"+s.name, stats.Quantile(by[""], 0.5), n)
		m.Put("p99_"+s.name, stats.Quantile(by[""], 0.99), n)
		m.Put("max_"+s.name, stats.Quantile(by[""], 1), n)
		m.Put("failed_"+s.name, float64(failed), n)
		for _, what := range []string{"get", "list", "patch"} {
			m.Put("p99_"+what+"_"+s.name, stats.Quantile(by[what], 0.99), len(by[what]))
		}
		if s.name == spanMarks || s.name == spanHeal {
			m.Put("times_"+s.name, m.Values["p99_"+s.name]/m.Values["p99_"+spanRest], n)
		}
		record.Progress("%s: another client, %s: %d requests in %.1f s, p50 %.1f ms, p99 %.1f ms, longest %.0f ms", m.Side,
			s.name, n, s.to.Sub(s.from).Seconds(), m.Values["p50_"+s.name], m.Values["p99_"+s.name], m.Values["max_"+s.name])
	}
}
