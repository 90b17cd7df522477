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
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// config is the command line.
type config struct {
	programs string // directory of e2e.test, ginkgo and images.tar
	plimsoll string
	focus    string // regular expression; empty: every test except those of skip
	skip     string
	tests    []string // parts of names; only these tests run, and each must exist
	procs    int      // how many tests run at a time
	repeat   int
	timeout  time.Duration // of one run of the suite
	out      string        // the table
	logs     string        // directory of logs; emptied first
}

// skipDefault matches tests that need something that this cluster lacks, or that damage it.
const skipDefault = `\[Feature:|\[Disruptive\]|\[Flaky\]`

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.StringVar(&c.programs, "programs", "../bin/conformance", "directory of e2e.test, ginkgo and images.tar")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program; its control plane and images are found beside it")
	f.StringVar(&c.focus, "focus", "", "regular expression of the tests to run")
	f.StringVar(&c.skip, "skip", skipDefault, "regular expression of tests not to run")
	file := f.String("tests", "",
		"file with a part of a test's name on each line: these run, and each must be found; # begins a comment")
	f.IntVar(&c.procs, "procs", 3, "tests at a time; those marked [Serial] run alone")
	f.IntVar(&c.repeat, "repeat", 1, "how often the tests run, on the same cluster")
	f.DurationVar(&c.timeout, "timeout", time.Hour, "of one run of the tests")
	f.StringVar(&c.out, "out", "results/last.md", "the table")
	f.StringVar(&c.logs, "logs", "../bin/conformance/logs",
		"directory for the logs of the suite and of the components; what is in it is removed")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.procs < 1 || c.repeat < 1 {
		return c, fmt.Errorf("--procs %d, --repeat %d: want at least 1", c.procs, c.repeat)
	}
	if *file == "" {
		return c, nil
	}
	if c.focus != "" {
		return c, errors.New("--focus and --tests: want one of them")
	}
	var err error
	c.tests, err = readTests(*file)
	return c, err
}

// readTests reads parts of tests' names, one per line.
func readTests(path string) (tests []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			tests = append(tests, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("read %s: no test in it", path)
	}
	return tests, nil
}

// focuses returns the regular expressions for ginkgo, of which a test must match one.
func (c config) focuses() []string {
	if len(c.tests) == 0 && c.focus != "" {
		return []string{c.focus}
	}
	var quoted []string
	for _, test := range c.tests {
		quoted = append(quoted, regexp.QuoteMeta(test))
	}
	return quoted
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
	passed, err := run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
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

// run starts the cluster, runs the tests and takes the cluster down. It returns whether all tests passed.
func run(ctx context.Context, c config) (passed bool, err error) {
	if os.Geteuid() != 0 {
		return false, errors.New("run containers: not root")
	}
	for _, path := range []*string{&c.programs, &c.plimsoll, &c.out, &c.logs} {
		if *path, err = filepath.Abs(*path); err != nil {
			return false, err
		}
	}
	if err := os.RemoveAll(c.logs); err != nil {
		return false, err
	}
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return false, err
	}
	k, err := newCluster(c)
	if err != nil {
		return false, err
	}
	defer func() {
		// The context is not cancelled with ctx: the clean-up matters most when the run was interrupted.
		err = errors.Join(err, k.down(context.WithoutCancel(ctx)))
	}()
	if err := k.up(ctx); err != nil {
		return false, err
	}
	t := newTable(c)
	for n := range c.repeat {
		progress("run %d of %d", n+1, c.repeat)
		specs, err := runSuite(ctx, c, k, n+1)
		t.add(specs)
		if err == nil {
			err = t.save(c.out)
		}
		if err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
	fmt.Print(t.render())
	return t.passed(), nil
}

// progress prints progress to standard error; standard output is for the table.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
