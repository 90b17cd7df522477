// Command run runs upstream's e2e suite against a cluster of `plimsoll up` on this machine: our agent, scheduler and
// lifecycle controller with upstream's API server and controllers.
//
//	run --focus 'Probing container' --out results/probes.md
//	run --tests once-failed.txt --repeat 10
//
// It runs in its own network namespace, because the suite requires that the kubelet's port is 10250, that registries
// are on port 5000, and that pods reach the API server by an address that is not loopback. The namespace has no route
// to the outside, so that a pull fails at once. The images are imported (command images). The namespace, the cluster
// and its files are removed afterwards, also when this program is killed.
//
// A run passes when every requested test ran and passed each time. It writes a table of them. The suite's output and
// the components' logs of the last run are kept next to the programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// config is the command line.
type config struct {
	programs   string // directory of e2e.test, ginkgo and images.tar
	plimsoll   string
	registry   string // program of the registry from which images are pulled
	containerd string // directory of another containerd than the machine's; empty: the machine's
	agent      string // program to run as the agent; empty: ours
	driver     string // definition of a CSI driver, for which the suite then has tests; empty: none
	focus      *regexp.Regexp
	skip       *regexp.Regexp // empty: skips nothing
	tests      []string       // parts of names; only these tests run, and each must exist
	leftOut    []omission
	earlier    []string // directories of logs of earlier runs; what passed there does not run again
	beside     []string // directories of logs of runs with upstream's kubelet, whose results the table has too
	nodes      int      // of the cluster
	volumesMax int      // the limit that our CSI driver states; 0: none
	procs      int      // how many tests run at a time
	waiting    int      // how many tests that mostly wait run beside them
	ssh        bool     // serve the node's shell by ssh
	repeat     int
	forgive    int           // how many tests may fail, if each passes when it runs once more, alone
	timeout    time.Duration // of one part of a run of the suite
	out        string        // the table
	logs       string        // directory of logs; emptied first
}

// focusDefault matches every test that a node or a cluster has to pass. skipDefault matches tests that need something
// that this cluster lacks, or that damage it.
const (
	focusDefault = `\[Conformance\]|\[NodeConformance\]`
	skipDefault  = `\[Feature:|\[Disruptive\]|\[Flaky\]`
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.StringVar(&c.programs, "programs", "../bin/conformance", "directory of e2e.test, ginkgo and images.tar")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll",
		"our program; its control plane and images are found beside it")
	f.StringVar(&c.registry, "registry", "../bin/registry", "the registry from which tests pull (make bin/registry)")
	f.StringVar(&c.containerd, "containerd", "",
		"directory of another containerd than the machine's, with its shim, ctr and runc (make bin/containerd2)")
	f.StringVar(&c.agent, "agent", "", "program to run as the agent instead of ours: upstream's kubelet, to compare with")
	f.StringVar(&c.driver, "driver", "",
		"file that defines a CSI driver, for which the suite then has tests (storage.yaml defines ours)")
	f.IntVar(&c.volumesMax, "volumes-max", 0, "limit of volumes that our CSI driver states; 0: none")
	focus := f.String("focus", focusDefault, "regular expression of the tests to run")
	skip := f.String("skip", skipDefault,
		"regular expression of tests not to run; those marked [Conformance] run all the same")
	file := f.String("tests", "",
		"file with a part of a test's name on each line: only these tests run, and each must exist; # begins a comment")
	leftOut := f.String("left-out", "left-out.txt",
		"file of tests not to run: a part of a name, two spaces, # and the reason, on each line; empty: none is left out")
	f.Func("resume", "`directory` of an earlier run's logs: what passed there is in the table and does not run again; "+
		"may be repeated", func(dir string) error {
		c.earlier = append(c.earlier, dir)
		return nil
	})
	f.Func("beside", "`directory` of the logs of a run with upstream's kubelet: the table has its results beside those "+
		"of this run; may be repeated: what ran again counts", func(dir string) error {
		c.beside = append(c.beside, dir)
		return nil
	})
	f.IntVar(&c.nodes, "nodes", 1,
		"nodes of the cluster; with two, tests run that are left out because they need two nodes")
	f.BoolVar(&c.ssh, "ssh", false,
		"serve ssh on the node, by which tests marked [Disruptive] stop and start its agent (with one node)")
	f.IntVar(&c.procs, "procs", 3, "tests at a time; those marked [Serial] or [Disruptive] run alone")
	f.IntVar(&c.waiting, "waiting", 10,
		"tests at a time, beside those of --procs, of the tests that mostly wait: probes and [Slow]")
	f.IntVar(&c.repeat, "repeat", 1, "how often the tests run, on the same cluster")
	f.IntVar(&c.forgive, "forgive", 0,
		"how many tests may fail, if each passes when it runs once more with no other beside it: the suite's tests have "+
			"time limits of their own, which a busy machine exceeds; the table names them all the same")
	f.DurationVar(&c.timeout, "timeout", 90*time.Minute,
		"of the tests that wait, of the rest, and of those that run alone")
	f.StringVar(&c.out, "out", "results/last.md", "the table")
	f.StringVar(&c.logs, "logs", "../bin/conformance/logs",
		"directory for the logs of the suite and of the components; what is in it is removed")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.nodes < 1 || c.procs < 1 || c.waiting < 1 || c.repeat < 1 {
		return c, fmt.Errorf("--nodes %d, --procs %d, --waiting %d, --repeat %d: want at least 1", c.nodes, c.procs,
			c.waiting,
			c.repeat)
	}
	if c.ssh && c.nodes > 1 {
		return c, fmt.Errorf("--ssh, --nodes %d: want one node", c.nodes)
	}
	if c.forgive < 0 {
		return c, fmt.Errorf("--forgive %d: want at least 0", c.forgive)
	}
	var err error
	if c.focus, err = regexp.Compile(*focus); err != nil {
		return c, fmt.Errorf("--focus: %w", err)
	}
	if c.skip, err = regexp.Compile(*skip); err != nil {
		return c, fmt.Errorf("--skip: %w", err)
	}
	if *leftOut != "" {
		if c.leftOut, err = readOmissions(*leftOut); err != nil {
			return c, err
		}
	}
	if *file == "" {
		return c, nil
	}
	if *focus != focusDefault {
		return c, errors.New("--focus and --tests: want one of them")
	}
	c.tests, err = readTests(*file)
	return c, err
}

// insideVariable is set when the program runs in its namespace.
const insideVariable = "PLIMSOLL_CONFORMANCE_INSIDE"

func main() {
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if os.Getenv(insideVariable) == "" {
		os.Exit(enter())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	passed, failures, err := run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	// They come last, because some logs keep only the end of what a program prints.
	for _, line := range failures {
		fmt.Fprintln(os.Stderr, "conformance:", line)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// enter runs this program again in a new network namespace, and returns its exit code. When the outer process ends, the
// inner one is signalled and takes the cluster down.
func enter() int {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), insideVariable+"=1")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGTERM,
		Setpgid:    true,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: enter a network namespace:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = c.Process.Signal(s) // an error means that it has just ended
		}
	}()
	if err := c.Wait(); err != nil && c.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		return 1
	}
	return c.ProcessState.ExitCode()
}

// run starts the cluster, runs the tests and takes the cluster down. It returns whether all tests passed, and a
// line for each that did not.
func run(ctx context.Context, c config) (good bool, failures []string, err error) {
	if os.Geteuid() != 0 {
		return false, nil, errors.New("run containers: not root")
	}
	if err = c.resolve(); err != nil {
		return false, nil, err
	}
	names, err := listTests(ctx, c)
	if err != nil {
		return false, nil, err
	}
	passed, err := passedEarlier(c.earlier)
	if err != nil {
		return false, nil, err
	}
	chosen, err := newPlan(c, names, passed)
	if err != nil {
		return false, nil, err
	}
	t := newTable(c, chosen)
	t.add(chosen.passed)
	if err := t.readBeside(); err != nil {
		return false, nil, err
	}
	if err := os.RemoveAll(c.logs); err != nil {
		return false, nil, err
	}
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return false, nil, err
	}
	k, err := newCluster(c)
	if err != nil {
		return false, nil, err
	}
	defer func() {
		// The context is not cancelled with ctx: the clean-up matters most when the run was interrupted.
		err = errors.Join(err, k.down(context.WithoutCancel(ctx)))
	}()
	if err := k.up(ctx); err != nil {
		return false, nil, err
	}
	if c.ssh {
		if err := serveShell(ctx, k); err != nil {
			return false, nil, fmt.Errorf("--ssh: %w", err)
		}
	}
	t.began = time.Now() // the cluster's start is not counted
	for n := range c.repeat {
		progress("run %d of %d", n+1, c.repeat)
		specs, err := runPlan(ctx, k, chosen, n+1)
		t.add(specs)
		if err == nil {
			err = t.save(c.out)
		}
		if err != nil {
			return false, nil, err
		}
		if ctx.Err() != nil {
			return false, nil, context.Cause(ctx)
		}
	}
	if err := runAgain(ctx, k, t); err != nil {
		return false, t.failures(), err
	}
	fmt.Print(t.render())
	return t.passed(), t.failures(), nil
}

// runAgain runs the tests that failed once more, one at a time, if they are no more than may be forgiven.
func runAgain(ctx context.Context, k *cluster, t *table) error {
	failed := t.failed()
	if len(failed) == 0 || len(failed) > t.forgive {
		return nil
	}
	progress("again, alone: %d tests that failed", len(failed))
	again := plan{stages: [][]part{{{name: "again", tests: failed, procs: 1}}}}
	specs, err := runPlan(ctx, k, again, t.repeat+1)
	t.addAgain(specs)
	return errors.Join(err, t.save(t.out))
}

// resolve makes the paths absolute, and puts the chosen containerd first on PATH.
func (c *config) resolve() (err error) {
	for _, path := range []*string{&c.programs, &c.plimsoll, &c.registry, &c.containerd, &c.agent, &c.driver, &c.out,
		&c.logs} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if c.containerd == "" {
		return nil
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		if path := filepath.Join(c.containerd, name); !exists(path) {
			return fmt.Errorf("--containerd: no %s: make bin/containerd2 builds it", path)
		}
	}
	return os.Setenv("PATH", c.containerd+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// progress prints progress to standard error; standard output is for the table.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
