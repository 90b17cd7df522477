// Command evict compares the node agents when memory runs out: plimsoll agent and upstream's kubelet, each under the
// same `plimsoll up` with the same KubeletConfiguration. It allows all pods 1 GiB together and evicts below 100 MiB.
//
// A pod grows at a steady rate next to pods that do not grow. *Crossed* is when this program first reads that the
// cgroup of all pods uses more than the limit minus the threshold; *killed* is when the growing process has SIGKILL
// pending or is gone. Both are checked every millisecond. A run is clean when the growing pod was evicted, the kernel
// killed no process for memory, and all other pods continue. Rates and agents alternate; the order of agents is
// reversed every round.
//
// It compares the results with the bars of the issue and exits with 1 when one is missed. It is not a test: on a busy
// machine the numbers of both are worse.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// config is the command line.
type config struct {
	runs, kubeletRuns      int      // per rate
	rates                  []string // growth per second, as quantities
	plimsoll, kubelet, out string   // the programs, and the report's file
	dir                    string   // of all state
	portBase               int      // first of four ports
	sides                  []string // what is measured
}

const (
	kubelet  = "kubelet"
	plimsoll = "plimsoll"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("evict", flag.ContinueOnError)
	f.IntVar(&c.runs, "runs", 20, "how often each rate is measured under plimsoll agent")
	f.IntVar(&c.kubeletRuns, "kubelet-runs", 2, "how often each rate is measured under the kubelet, which takes longer")
	rates := f.String("rates", "5Mi,20Mi,100Mi,500Mi,1Gi", "growth per second")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.kubelet, "kubelet", "../bin/upstream-kubelet", "upstream's kubelet")
	f.StringVar(&c.out, "out", "results/evict.md", "report file; empty: standard output only")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.IntVar(&c.portBase, "port-base", 28740, "first of four ports to use")
	only := f.String("only", "", "measure one agent: kubelet or plimsoll")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.rates = strings.Split(*rates, ",")
	for _, rate := range c.rates {
		if q, err := resource.ParseQuantity(rate); err != nil || q.Sign() <= 0 {
			return c, fmt.Errorf("--rates %q: %q: want quantities of memory, like 5Mi,1Gi", *rates, rate)
		}
	}
	if c.sides = []string{plimsoll, kubelet}; *only != "" {
		c.sides = slices.DeleteFunc(c.sides, func(s string) bool { return s != *only })
	}
	if len(c.sides) == 0 || c.runs < 1 || c.kubeletRuns < 1 {
		return c, fmt.Errorf("--only %q, --runs %d, --kubelet-runs %d: want kubelet or plimsoll, and at least 1", *only,
			c.runs, c.kubeletRuns)
	}
	return c, nil
}

func main() { record.Main("evict", parseFlags, run) }

// Bars of the issue. Bars on shares hold for all runs at every rate; times count only for runs where the agent killed,
// and not the kernel.
const (
	barP50   = 0.020 // s
	barP99   = 0.100 // s
	barAll   = 1.0   // share of runs that were clean
	barWatch = 0.01  // cores
)

func lines(rates []string) []record.Line {
	const (
		all   = "All rates"
		crowd = "110 pods that do nothing"
		cache = "Page cache in use, memory to spare"
		soft  = "A hard threshold is met during the grace period of a soft eviction"
	)
	out := []record.Line{
		{Name: "p50_kill", Title: "threshold crossed to killed, p50", Unit: "s", Bar: record.Bar{Max: barP50}, Group: all},
		{Name: "p99_kill", Title: "threshold crossed to killed, p99", Unit: "s", Bar: record.Bar{Max: barP99}, Group: all},
		{Name: "others", Title: "victims beyond the grower, evicted or killed, all runs", Unit: "pods", Group: all},
		{Name: "watch", Title: "CPU of the thread that watches", Unit: "cores", Bar: record.Bar{Max: barWatch}, Group: crowd},
		{Name: "cores", Title: "CPU of the whole agent", Unit: "cores", Group: crowd},
		{Name: "cache_evictions", Title: "evictions", Unit: "pods", Group: cache},
		{Name: "cache_used", Title: "memory in use as upstream counts, at most", Unit: "MiB", Group: cache},
		{Name: "cache_spared", Title: "share of runs without an eviction (ours: memory signal available)",
			Bar: record.Bar{Min: barAll}, Group: cache},
		{Name: "soft_p50", Title: "hard threshold crossed to killed, p50", Unit: "s", Bar: record.Bar{Max: barP50},
			Group: soft},
		{Name: "soft_max", Title: "hard threshold crossed to killed, longest", Unit: "s", Bar: record.Bar{Max: barP99},
			Group: soft},
	}
	for _, rate := range rates {
		group := rate + "/s"
		out = append(out,
			record.Line{Name: "clean_" + rate, Title: "share of runs that were clean", Bar: record.Bar{Min: barAll},
				Group: group},
			record.Line{Name: "p50_" + rate, Title: "crossed to killed, p50", Unit: "s", Group: group},
			record.Line{Name: "max_" + rate, Title: "crossed to killed, longest", Unit: "s", Group: group},
		)
	}
	return out
}

func run(ctx context.Context, c config) (bool, error) {
	if os.Geteuid() != 0 {
		return false, errors.New("run containers: not root")
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "plimsoll-bench-")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
		c.dir = dir
	}
	r := &record.Report{
		Title: "Evictions side by side", Program: "evict", Ours: plimsoll, Theirs: kubelet, Lines: lines(c.rates), Rounds: 1,
		Args: os.Args[1:], Began: time.Now(),
		Machine: append(record.Machine(ctx), record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")}),
		Notes: []string{fmt.Sprintf("%d runs a rate under plimsoll agent, %d under the kubelet; 1 GiB for all pods, "+
			"threshold 100Mi", c.runs, c.kubeletRuns)},
	}
	var problems []error
	for _, side := range c.sides {
		m, err := measure(ctx, c, side)
		r.Measurements = append(r.Measurements, m)
		if err != nil {
			r.Problems = append(r.Problems, side+": "+err.Error())
			problems = append(problems, fmt.Errorf("%s: %w", side, err))
		}
	}
	if c.out != "" {
		if err := r.Save(c.out); err != nil {
			return false, err
		}
	}
	text, ok := r.Render()
	fmt.Print(text)
	return ok && len(problems) == 0, errors.Join(problems...)
}

// measure measures one agent, from `up` to `down`; ours twice, with upstream's settings and with those that upstream
// does not have.
func measure(ctx context.Context, c config, side string) (*record.Measurement, error) {
	m := record.NewMeasurement(side, 1)
	r := &rig{config: c, side: side, name: side}
	if side == kubelet {
		return m, r.during(ctx, func() error {
			return errors.Join(r.rates(ctx, m, c.kubeletRuns), r.cached(ctx, m, min(1, c.kubeletRuns)))
		})
	}
	err := r.during(ctx, func() error {
		if err := r.crowd(ctx, m); err != nil {
			return err
		}
		return r.rates(ctx, m, c.runs)
	})
	own := &rig{config: c, side: side, name: "own", flags: []string{"--memory-signal", "available"}, more: softConfig}
	extra := min(c.runs, extraRuns)
	return m, errors.Join(err, own.during(ctx, func() error {
		return errors.Join(own.cached(ctx, m, min(extra, 3)), own.preempted(ctx, m, extra))
	}))
}

// extraRuns is how often settings that upstream does not have are measured. Chosen: each takes a minute.
const extraRuns = 5

// during starts an instance, calls do and stops the instance.
func (r *rig) during(ctx context.Context, do func() error) (err error) {
	defer func() { err = errors.Join(err, r.down(context.WithoutCancel(ctx))) }()
	if err := r.up(ctx); err != nil {
		return err
	}
	return do()
}

// rates measures growing pods at every rate.
func (r *rig) rates(ctx context.Context, m *record.Measurement, runs int) error {
	var all []float64
	others := 0
	for _, rate := range r.config.rates {
		clean, late := 0, []float64{}
		for n := range runs {
			o, err := r.grow(ctx, fmt.Sprintf("grower-%s-%d", strings.ToLower(rate), n), rate)
			if err != nil {
				return fmt.Errorf("grow at %s/s: %w", rate, err)
			}
			record.Progress("%s: %s/s: %s", r.side, rate, o)
			if o.clean() {
				clean++
				if o.killed > 0 {
					late = append(late, o.killed.Seconds())
				}
			}
			others += o.others
		}
		all = append(all, late...)
		m.Put("clean_"+rate, float64(clean)/float64(runs), runs)
		if len(late) > 0 {
			m.Put("p50_"+rate, stats.Quantile(late, 0.5), len(late))
			m.Put("max_"+rate, stats.Quantile(late, 1), len(late))
		}
	}
	m.Put("others", float64(others), len(r.config.rates)*runs)
	if len(all) > 0 {
		m.Put("p50_kill", stats.Quantile(all, 0.5), len(all))
		m.Put("p99_kill", stats.Quantile(all, 0.99), len(all))
	}
	return nil
}
