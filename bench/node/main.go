// Command node compares the node agents: plimsoll agent and upstream's kubelet, each under the same `plimsoll up` with
// the same control plane, scheduler, lifecycle controller, containerd configuration and KubeletConfiguration, one after
// the other on one machine in one run. A third side, the bare client (bare.go), has containerd make the same sandboxes
// and containers and does nothing else: it shows how much of the time is containerd's.
//
// A round measures every side once; the order is reversed every round, so that a machine that becomes slower favours
// none. Each measurement begins with `up` and ends with `down --purge`. A round has these steps: up, idle window, pods
// one by one, then for each batch: pods at once, steady window, deletion. The bare client has no windows. With --churn
// a round is another one (churn.go): thousands of pods come and go, and the agent's memory must not grow with them.
//
// Clocks are this program's own: an event happens when our watch shows it, which delays both agents alike.
//
// It compares the results with the bars of the project (bars.go) and exits with 1 when one is missed or a round could
// not be measured. It is not a test: on a busy machine the report contains warnings, and a build should not fail
// because of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config is the command line.
type config struct {
	rounds int
	// how many rounds, from the first, have idle and steady windows, which take most of the time
	steadyRounds int
	idle, steady time.Duration // lengths of the windows
	settle       time.Duration // between the last change and a window
	batches      []int         // ascending
	singles      int           // number of pods that are started one by one
	guaranteed   int           // number of pods of a larger batch that are Guaranteed; the others are Burstable
	probes       bool          // each pod has a readiness probe each second
	claims       int           // number of claims of each pod, of volumes of the default StorageClass
	scrape       time.Duration // how often all metrics are read in windows; 0: never
	churn        int           // number of pods that come and go in the place of all other steps; 0: none
	churnAtOnce  int           // how many of them there are at a time
	sides        []side
	plimsoll     string
	dir          string
	portBase     int
	out          string
	keep         bool
	profile      bool
}

// side is one of the two agents, or the bare client.
type side struct {
	name   string
	binary string // for --agent-binary; empty: plimsoll agent
}

const (
	kubelet  = "kubelet"
	plimsoll = "plimsoll"
	bare     = "bare"
)

// batchMax is the largest batch: a Linux bridge has 1,024 ports (BR_MAX_PORTS), and each pod needs one.
const batchMax = 1000

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("node", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often each agent is measured")
	f.IntVar(&c.steadyRounds, "steady-rounds", 1, "how many of the rounds measure idle and steady use")
	f.DurationVar(&c.steady, "steady", 3*time.Minute, "length of the window of each batch, with all its pods running")
	f.DurationVar(&c.idle, "idle", time.Minute, "length of the window without pods")
	f.DurationVar(&c.settle, "settle", 20*time.Second, "wait before each window")
	f.IntVar(&c.singles, "singles", 20, "pods started one by one, after one that warms up")
	f.IntVar(&c.guaranteed, "guaranteed", 0, "how many pods of each larger batch are Guaranteed")
	f.BoolVar(&c.probes, "probes", false, "give each pod an HTTP readiness probe each second")
	f.IntVar(&c.claims, "claims", 0, "claims of each pod; their volumes, of the default StorageClass, are made before "+
		"the pods; without the bare client")
	f.DurationVar(&c.scrape, "scrape", 0, "how often all metrics of the agent are read during windows; 0: never")
	f.IntVar(&c.churn, "churn", 0, "in place of all other steps, create and delete so many pods, and read the agent's "+
		"memory after each tenth of them; without the bare client")
	f.IntVar(&c.churnAtOnce, "churn-at-once", 50, "how many pods of --churn there are at a time")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll",
		"our program; its control plane and images are found beside it")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.IntVar(&c.portBase, "port-base", 28640, "first of four ports to use")
	f.StringVar(&c.out, "out", "results/node.md", "report file; empty: standard output only")
	f.BoolVar(&c.keep, "keep", false, "keep state directories (logs) of finished rounds")
	f.BoolVar(&c.profile, "profile", false, "print the runtime's and the API server's calls of each batch, from metrics; "+
		"reading these costs the agent memory, so such a run is not for the record")
	binary := f.String("kubelet", "../bin/upstream-kubelet", "upstream's kubelet")
	only := f.String("only", "", "measure some sides: kubelet, plimsoll, bare or several of them, like plimsoll,bare")
	batches := f.String("batches", "30,110", "sizes of the batches of pods created at once, ascending")
	err := f.Parse(args)
	if err != nil {
		return c, err
	}
	if c.batches, err = parseBatches(*batches); err != nil {
		return c, err
	}
	if c.rounds < 1 || c.singles < 0 || c.guaranteed < 0 || c.scrape < 0 || c.claims < 0 {
		const want = "--rounds %d, --singles %d, --guaranteed %d, --scrape %v, --claims %d: want at least 1, 0, 0, 0 and 0"
		return c, fmt.Errorf(want,
			c.rounds, c.singles, c.guaranteed, c.scrape, c.claims)
	}
	if c.churn != 0 && c.churn < churnTenths || c.churnAtOnce < 1 || c.churnAtOnce > maxPodsLeast {
		const want = "--churn %d, --churn-at-once %d: want 0 or at least %d, and 1 to %d"
		return c, fmt.Errorf(want, c.churn, c.churnAtOnce, churnTenths, maxPodsLeast)
	}
	all := []side{{kubelet, *binary}, {name: plimsoll}, {name: bare}}
	if c.claims > 0 || c.churn > 0 {
		all = all[:2] // the bare client mounts no volumes and keeps nothing of pods
	}
	c.sides, err = chooseSides(all, *only)
	return c, err
}

// parseBatches reads ascending numbers: the report takes the last for the largest, and no two batches may have pods of
// the same name.
func parseBatches(text string) (batches []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > batchMax || len(batches) > 0 && n <= batches[len(batches)-1] {
			const want = "--batches %q: %q: want ascending numbers of pods from 1 to %d, like 30,110"
			return nil, fmt.Errorf(want, text, part, batchMax)
		}
		batches = append(batches, n)
	}
	return batches, nil
}

// chooseSides returns the sides that only names; empty: all.
func chooseSides(all []side, only string) (chosen []side, err error) {
	if only == "" {
		return all, nil
	}
	names := strings.Split(only, ",")
	for _, s := range all {
		if slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) != len(names) {
		return nil, fmt.Errorf("--only %q: want kubelet, plimsoll, bare or several of them, like plimsoll,bare", only)
	}
	return chosen, nil
}

// atOnce returns the sizes of batches that are more than one pod. A batch of one pod has a window, but its times are
// those of the pods one by one.
func atOnce(batches []int) []int {
	return slices.DeleteFunc(slices.Clone(batches), func(n int) bool { return n == 1 })
}

// sizes returns how many pods start at once in the parts of a round: one, and those of the batches.
func sizes(batches []int) []int { return append([]int{1}, atOnce(batches)...) }

func main() { record.Main("node", parseFlags, run) }

// run measures all rounds and writes the report after each, so that an interrupted run has one too.
func run(ctx context.Context, c config) (bool, error) {
	if os.Geteuid() != 0 {
		return false, errors.New("run containers: not root")
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "plimsoll-bench-")
		if err != nil {
			return false, err
		}
		defer os.Remove(dir) // only if empty: kept state and logs of failures stay
		c.dir = dir
	}
	restore, err := plane.KeepSysctls()
	if err != nil {
		return false, err
	}
	defer restore()
	r := newReport(ctx, c, os.Args[1:])
	var names []string
	for _, s := range c.sides {
		names = append(names, s.name)
	}
	if err := r.Play(ctx, c.out, names, func(ctx context.Context, m *record.Measurement) error {
		save := func() error { return r.Save(c.out) }
		err := measure(ctx, c, c.sides[slices.Index(names, m.Side)], m, save)
		if c.churn > 0 {
			r.Warnings = noise(r.Measurements, c.batches)
			return err
		}
		compareWithBare(r.Measurements, sizes(c.batches))
		r.Notes = append([]string{conditions(c)}, bareNotes(r.Measurements, sizes(c.batches))...)
		r.Warnings = noise(r.Measurements, c.batches)
		return err
	}); err != nil {
		return false, err
	}
	return r.Finish(c.out)
}

// measure measures one side in one round, from `up` to `down`. save writes the report of what was measured so far.
func measure(ctx context.Context, c config, s side, m *record.Measurement, save func() error) (err error) {
	dir := filepath.Join(c.dir, fmt.Sprintf("%s-%d", s.name, m.Round))
	r := &rig{config: c, side: s, save: save,
		plane: &plane.Plane{Plimsoll: c.plimsoll, Instance: c.instance(s), Dir: dir}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.agentLogTail())
		}
		// The context is not cancelled with ctx: the clean-up matters most when the run was interrupted.
		err = errors.Join(err, r.down(context.WithoutCancel(ctx), err != nil))
	}()
	if s.name == bare {
		if r.side.binary, err = r.bareAgent(); err != nil {
			return err
		}
	}
	took, err := r.up(ctx)
	if err != nil {
		return err
	}
	if s.name == bare {
		return r.measureBare(ctx, m)
	}
	m.Put("up", took.Seconds(), 1)
	record.Progress("%s round %d: up in %.1f s", s.name, m.Round, took.Seconds())
	if c.churn > 0 {
		return r.measureChurn(ctx, m)
	}
	return r.measureAll(ctx, m, m.Round <= c.steadyRounds)
}

// instance is the name of a side's instance of `up`. Churn takes an hour, and another run may be measured beside it.
func (c config) instance(s side) string {
	if c.churn > 0 {
		return "churn-" + s.name
	}
	return "bench-" + s.name
}
