package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

const (
	// judgeTimeout bounds the wait for a controller to finish with nodes that died; it only bounds what hangs.
	judgeTimeout = 4 * time.Minute
	// healTimeout is the same for taking everything back.
	healTimeout = 4 * time.Minute
)

// controller starts one side's controller. Neither elects a leader: there is one.
func (p *plane) controller(side string, round int) (*process, error) {
	log := filepath.Join(p.dir, fmt.Sprintf("%s-%d.log", side, round))
	grace := "--node-monitor-grace-period=" + p.grace.String()
	if side == ours {
		return start(log, p.plimsoll, "lifecycle", "--kubeconfig", p.kubeconfig(), "--leader-elect=false", grace)
	}
	return start(log, p.controlplane, "kube-controller-manager", "--controllers=node-lifecycle-controller,taint-eviction-controller",
		"--kubeconfig="+p.kubeconfig(), "--authentication-kubeconfig="+p.kubeconfig(), "--authorization-kubeconfig="+p.kubeconfig(),
		"--leader-elect=false", "--secure-port=0", grace)
}

// measure is one controller in one round.
func (p *plane) measure(ctx context.Context, m *record.Measurement, window bool) (err error) {
	c, err := p.controller(m.Side, m.Round)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := pause(ctx, p.settle); err != nil {
		return err
	}
	// New nodes have a taint until a controller has seen that they are Ready.
	if err := p.nodes.await(ctx, healTimeout, "be well at the start", (*nodes).well); err != nil {
		return errors.Join(err, c.check())
	}
	if window {
		if err := p.window(ctx, m, c); err != nil {
			return fmt.Errorf("steady window: %w", err)
		}
	}
	if err := p.someDie(ctx, m); err != nil {
		return fmt.Errorf("some nodes die: %w", errors.Join(err, c.check()))
	}
	if err := p.zoneDies(ctx, m); err != nil {
		return fmt.Errorf("a zone dies: %w", errors.Join(err, c.check()))
	}
	peak, err := record.StatusMiB(c.pid(), "VmHWM")
	if err != nil {
		return err
	}
	m.Put("peak", peak, 1)
	return p.heal(ctx, m)
}

// window measures use while all nodes beat.
func (p *plane) window(ctx context.Context, m *record.Measurement, c *process) error {
	before, err := p.use(c)
	if err != nil {
		return err
	}
	renewed, _, err := p.beats(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, p.steady); err != nil {
		return err
	}
	wall := time.Since(began).Seconds()
	after, err := p.use(c)
	if err != nil {
		return err
	}
	now, p99, err := p.beats(ctx)
	if err != nil {
		return err
	}
	for role := range after {
		m.Put("cores_"+role, (after[role]-before[role])/wall, 1)
	}
	m.Put("cores_others", (after["machine"]-before["machine"]-(after["controller"]-before["controller"])-(after["fleet"]-before["fleet"])-(after["control"]-before["control"])-(after["harness"]-before["harness"]))/wall, 1)
	for name, pid := range map[string]int{"rss_controller": c.pid(), "rss_fleet": p.fleet.pid()} {
		mib, err := record.StatusMiB(pid, "VmRSS")
		if err != nil {
			return err
		}
		m.Put(name, mib, 1)
	}
	m.Put("renewals", (now-renewed)/wall, int(now-renewed))
	m.Put("p99_renewal", p99, 1000)
	m.Put("wronged", float64(p.nodes.wronged(nil)), 1)
	progress("%s: steady: controller %.4f cores, %.0f MiB; fleet %.3f cores, %.0f renewals/s", m.Side, m.Values["cores_controller"], m.Values["rss_controller"], m.Values["cores_fleet"], m.Values["renewals"])
	return c.check()
}

// use is CPU seconds by role.
func (p *plane) use(c *process) (map[string]float64, error) {
	use := map[string]float64{}
	for role, pids := range map[string][]int{"controller": {c.pid()}, "fleet": {p.fleet.pid()}, "control": p.ups, "harness": {os.Getpid()}} {
		for _, pid := range pids {
			s, err := record.CPUSeconds(pid)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", role, err)
			}
			use[role] += s
		}
	}
	var err error
	use["machine"], err = record.MachineSeconds()
	return use, err
}

// someDie silences nodes of all zones but the first, so that no zone is in disruption. Their leases end at moments that
// are spread over ten seconds, as their renewals were.
func (p *plane) someDie(ctx context.Context, m *record.Measurement) error {
	var victims []string
	for zone := 1; zone < p.zones; zone++ {
		count := p.silent / (p.zones - 1)
		if zone <= p.silent%(p.zones-1) {
			count++
		}
		if count == 0 {
			continue
		}
		names, err := p.order(ctx, "silence", fmt.Sprintf("zone=zone-%d", zone), fmt.Sprintf("count=%d", count))
		if err != nil {
			return err
		}
		victims = append(victims, names...)
	}
	if err := p.nodes.await(ctx, judgeTimeout, "be called silent", func(n *nodes) bool {
		return n.all(victims, func(s *nodeSeen) bool { return s.ready != "True" && s.tainted })
	}); err != nil {
		return err
	}
	renewed, err := p.nodes.renewed(ctx)
	if err != nil {
		return err
	}
	var late, taint []float64
	p.nodes.mu.Lock()
	for _, name := range victims {
		over := renewed[name].Add(p.grace)
		late = append(late, p.nodes.by[name].unknownAt.Sub(over).Seconds())
		taint = append(taint, p.nodes.by[name].taintedAt.Sub(over).Seconds())
	}
	p.nodes.mu.Unlock()
	n := len(victims)
	m.Put("p50_unknown", stats.Quantile(late, 0.5), n)
	m.Put("p99_unknown", stats.Quantile(late, 0.99), n)
	m.Put("first_unknown", stats.Quantile(late, 0), n)
	m.Put("p99_taint", stats.Quantile(taint, 0.99), n)
	m.Put("wronged_some", float64(p.nodes.wronged(victims)), 1)
	progress("%s: %d nodes: Unknown after the grace: p50 %.3f s, p99 %.3f s", m.Side, n, m.Values["p50_unknown"], m.Values["p99_unknown"])
	return nil
}

// zoneDies silences the first zone at once. Times are from the moment when its last node's grace was over.
func (p *plane) zoneDies(ctx context.Context, m *record.Measurement) error {
	before := p.nodes.wronged(nil)
	victims, err := p.order(ctx, "silence", "zone=zone-0")
	if err != nil {
		return err
	}
	died := time.Now()
	if err := p.nodes.await(ctx, judgeTimeout, "be called silent", func(n *nodes) bool {
		return n.all(victims, func(s *nodeSeen) bool { return s.ready != "True" && s.tainted })
	}); err != nil {
		return err
	}
	renewed, err := p.nodes.renewed(ctx)
	if err != nil {
		return err
	}
	var over, unknown, tainted time.Time
	p.nodes.mu.Lock()
	for _, name := range victims {
		s := p.nodes.by[name]
		over, unknown, tainted = later(over, renewed[name].Add(p.grace)), later(unknown, s.unknownAt), later(tainted, s.taintedAt)
	}
	p.nodes.mu.Unlock()
	m.Put("zone_unknown", unknown.Sub(over).Seconds(), len(victims))
	m.Put("zone_all", later(unknown, tainted).Sub(over).Seconds(), len(victims))
	m.Put("zone_since_death", later(unknown, tainted).Sub(died).Seconds(), len(victims))
	m.Put("wronged_zone", float64(p.nodes.wronged(victims)-before), 1)
	progress("%s: zone of %d: all Unknown %.2f s, all tainted %.2f s after the grace", m.Side, len(victims), m.Values["zone_unknown"], m.Values["zone_all"])
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// heal lets all nodes return and waits until the controller took everything back.
func (p *plane) heal(ctx context.Context, m *record.Measurement) error {
	if _, err := p.order(ctx, "return"); err != nil {
		return err
	}
	began := time.Now()
	if err := p.nodes.await(ctx, healTimeout, "be well again", (*nodes).well); err != nil {
		return err
	}
	m.Put("heal", time.Since(began).Seconds(), 1)
	progress("%s: all well %.1f s after their return", m.Side, m.Values["heal"])
	return nil
}

// simulate plays the day of the project's bar in virtual time.
func simulate(ctx context.Context, c config, m *record.Measurement) error {
	began := time.Now()
	out, err := exec.CommandContext(ctx, c.plimsoll, "sim", "--day").CombinedOutput()
	if err != nil {
		return fmt.Errorf("plimsoll sim: %w: %s", err, out)
	}
	m.Put("sim", time.Since(began).Seconds(), 1)
	last := strings.TrimSpace(string(out))
	progress("simulated day: %.1f s: %s", m.Values["sim"], last[strings.LastIndexByte(last, '\n')+1:])
	return nil
}

// pause waits for d: the one place where this program sleeps, because time passing is what it measures.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
