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

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// patience bounds every wait for a controller; it matters only if something hangs. Upstream's makes 20 requests per
// second and announces every node at its start; all its other work is less.
func (c config) patience() time.Duration {
	return 2*time.Minute + time.Duration(2*c.nodes/20)*time.Second
}

// controller starts one side's controller. No leader is elected, since there is only one.
func (p *rig) controller(side string, round int) (*plane.Process, error) {
	log := filepath.Join(p.dir, fmt.Sprintf("%s-%d.log", side, round))
	grace := "--node-monitor-grace-period=" + p.grace.String()
	if program := map[string]string{ours: p.plimsoll, earlier: p.before}[side]; program != "" {
		return plane.Start(log, program, "lifecycle", "--kubeconfig", p.plane.Kubeconfig(), "--leader-elect=false", grace)
	}
	return plane.Start(log, p.controlplane, "kube-controller-manager",
		"--controllers=node-lifecycle-controller,taint-eviction-controller",
		"--kubeconfig="+p.plane.Kubeconfig(), "--authentication-kubeconfig="+
			p.plane.Kubeconfig(), "--authorization-kubeconfig="+p.plane.Kubeconfig(),
		"--leader-elect=false", "--secure-port=0", grace)
}

// measure measures one controller in one round.
func (p *rig) measure(ctx context.Context, m *record.Measurement, window bool) (err error) {
	c, err := p.controller(m.Side, m.Round)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := p.awaitQuiet(ctx); err != nil {
		return errors.Join(err, c.Check())
	}
	if window {
		if err := p.window(ctx, m, c); err != nil {
			return fmt.Errorf("steady window: %w", err)
		}
	}
	dead, err := p.someDie(ctx, m)
	if err != nil {
		return fmt.Errorf("some nodes die: %w", errors.Join(err, c.Check()))
	}
	zone, err := p.zoneDies(ctx, m)
	if err != nil {
		return fmt.Errorf("a zone dies: %w", errors.Join(err, c.Check()))
	}
	peak, err := record.StatusMiB(c.PID(), "VmHWM")
	if err != nil {
		return err
	}
	m.Put("peak", peak, 1)
	return p.heal(ctx, m, append(dead, zone...))
}

// reporting is how long after their registration the hollow nodes begin to report an unchanged status: half of
// nodeStatusReportFrequency's five minutes (core/heartbeat, Config.ReportEvery); the last one begins at one and a half
// times that. Before, only leases are renewed, and the controller that is measured first would receive less.
const reporting = 150 * time.Second

// awaitQuiet waits until a controller that was just started only watches, and all nodes report their status.
func (p *rig) awaitQuiet(ctx context.Context) error {
	began := time.Now()
	for limit := began.Add(p.patience()); ; {
		if err := record.Pause(ctx, p.settle); err != nil {
			return err
		}
		announced := p.nodes.sinceAnnounced()
		if announced > p.settle {
			break
		}
		if time.Now().After(limit) {
			return fmt.Errorf("wait for the controller to announce nodes: the last was %v ago, after %v",
				announced.Round(time.Second), p.patience())
		}
	}
	if err := record.Pause(ctx, time.Until(p.registered.Add(reporting))); err != nil {
		return err
	}
	if err := p.nodes.await(ctx, p.patience(), "be well at the start", (*nodes).well); err != nil {
		return err
	}
	record.Progress("quiet after %.0f s", time.Since(began).Seconds())
	return nil
}

// window measures usage while all nodes send heartbeats.
func (p *rig) window(ctx context.Context, m *record.Measurement, c *plane.Process) error {
	before, err := p.use(c)
	if err != nil {
		return err
	}
	renewed, _, err := p.renewals(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := record.Pause(ctx, p.steady); err != nil {
		return err
	}
	wall := time.Since(began).Seconds()
	after, err := p.use(c)
	if err != nil {
		return err
	}
	now, p99, err := p.renewals(ctx)
	if err != nil {
		return err
	}
	for role := range after {
		m.Put("cores_"+role, (after[role]-before[role])/wall, 1)
	}
	m.Put("cores_others", others(before, after)/wall, 1)
	for name, pid := range map[string]int{"rss_controller": c.PID(), "rss_fleet": p.fleet.PID()} {
		mib, err := record.StatusMiB(pid, "VmRSS")
		if err != nil {
			return err
		}
		m.Put(name, mib, 1)
	}
	m.Put("renewals", (now-renewed)/wall, int(now-renewed))
	m.Put("p99_renewal", p99, 1000)
	m.Put("wronged", float64(p.nodes.wronged(nil)), 1)
	record.Progress("%s: steady: controller %.4f cores, %.0f MiB; fleet %.3f cores, %.0f renewals/s", m.Side,
		m.Values["cores_controller"], m.Values["rss_controller"], m.Values["cores_fleet"], m.Values["renewals"])
	return c.Check()
}

// use returns CPU seconds by role.
func (p *rig) use(c *plane.Process) (map[string]float64, error) {
	use := map[string]float64{}
	for role, pids := range map[string][]int{"controller": {c.PID()}, "fleet": {p.fleet.PID()}, "control": p.ups,
		"harness": {os.Getpid()}} {
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

// awaitMarked waits until nodes are marked as unreachable, and returns when each node renewed its Lease last.
func (p *rig) awaitMarked(ctx context.Context, victims []string) (renewed map[string]time.Time, err error) {
	if err := p.nodes.await(ctx, p.patience(), "be marked", func(n *nodes) bool {
		return n.all(victims, func(s *nodeSeen) bool { return s.ready != "True" && s.tainted })
	}); err != nil {
		return nil, err
	}
	return p.nodes.renewed(ctx)
}

// someDie silences nodes of all zones except the first, so few that no zone is in disruption. Their leases expire at
// moments that are spread over ten seconds, as their renewals were.
func (p *rig) someDie(ctx context.Context, m *record.Measurement) (victims []string, err error) {
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
			return nil, err
		}
		victims = append(victims, names...)
	}
	renewed, err := p.awaitMarked(ctx, victims)
	if err != nil {
		return nil, err
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
	record.Progress("%s: %d nodes: Unknown after the grace: p50 %.3f s, p99 %.3f s", m.Side, n, m.Values["p50_unknown"],
		m.Values["p99_unknown"])
	return victims, nil
}

// zoneDies silences the first zone at once. Times count from the moment when its last node's grace period was over.
func (p *rig) zoneDies(ctx context.Context, m *record.Measurement) (victims []string, err error) {
	before := p.nodes.wronged(nil)
	victims, err = p.order(ctx, "silence", "zone=zone-0")
	if err != nil {
		return nil, err
	}
	died := time.Now()
	renewed, err := p.awaitMarked(ctx, victims)
	if err != nil {
		return nil, err
	}
	var over, unknown, tainted time.Time
	p.nodes.mu.Lock()
	for _, name := range victims {
		s := p.nodes.by[name]
		over = later(over, renewed[name].Add(p.grace))
		unknown = later(unknown, s.unknownAt)
		tainted = later(tainted, s.taintedAt)
	}
	p.nodes.mu.Unlock()
	m.Put("zone_unknown", unknown.Sub(over).Seconds(), len(victims))
	m.Put("zone_all", later(unknown, tainted).Sub(over).Seconds(), len(victims))
	m.Put("zone_since_death", later(unknown, tainted).Sub(died).Seconds(), len(victims))
	m.Put("wronged_zone", float64(p.nodes.wronged(victims)-before), 1)
	record.Progress("%s: zone of %d: all Unknown %.2f s, all tainted %.2f s after the grace", m.Side, len(victims),
		m.Values["zone_unknown"], m.Values["zone_all"])
	return victims, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// If a fleet returned at one instant, all its heartbeats would be at one instant from then on, every ten seconds, and
// the next controller would be measured with another load than the first. So it returns in a number of groups over one
// period of its leases.
const (
	returns     = 20
	leasePeriod = 10 * time.Second // nodeLeaseDurationSeconds / 4, the fleet's default
)

// heal lets the dead nodes return and waits until the controller has removed everything. The time counts from the
// return of the last.
func (p *rig) heal(ctx context.Context, m *record.Measurement, dead []string) error {
	for k := range returns {
		if k > 0 {
			if err := record.Pause(ctx, leasePeriod/returns); err != nil {
				return err
			}
		}
		if group := dead[k*len(dead)/returns : (k+1)*len(dead)/returns]; len(group) > 0 {
			if _, err := p.order(ctx, "return", "nodes="+strings.Join(group, ",")); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	if err := p.nodes.await(ctx, p.patience(), "be well again", (*nodes).well); err != nil {
		return err
	}
	m.Put("heal", time.Since(began).Seconds(), 1)
	record.Progress("%s: all well %.1f s after the last returned", m.Side, m.Values["heal"])
	return nil
}

// simulate runs the day of the project's bar in virtual time.
func simulate(ctx context.Context, c config, m *record.Measurement) error {
	began := time.Now()
	out, err := exec.CommandContext(ctx, c.plimsoll, "sim", "--day").CombinedOutput()
	if err != nil {
		return fmt.Errorf("plimsoll sim: %w: %s", err, out)
	}
	m.Put("sim", time.Since(began).Seconds(), 1)
	last := strings.TrimSpace(string(out))
	record.Progress("simulated day: %.1f s: %s", m.Values["sim"], last[strings.LastIndexByte(last, '\n')+1:])
	return nil
}

// others returns the CPU seconds that the machine spent on none of the measured roles between two readings, by role.
func others(before, after map[string]float64) float64 {
	seconds := after["machine"] - before["machine"]
	for _, role := range []string{"controller", "fleet", "control", "harness"} {
		seconds -= after[role] - before[role]
	}
	return seconds
}
