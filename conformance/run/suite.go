package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// interruptGrace is how long an interrupted suite may take to delete its namespaces (chosen).
const interruptGrace = 90 * time.Second

// suiteName is the description of upstream's suite; ginkgo puts it before each test's name.
const suiteName = "Kubernetes e2e suite"

// runPlan runs the tests of a plan once, and returns ginkgo's report of those that ran. Failed tests are not an error.
func runPlan(ctx context.Context, k *cluster, p plan, round int) (specs []types.SpecReport, err error) {
	for _, stage := range p.stages {
		var running sync.WaitGroup
		found := make([][]types.SpecReport, len(stage))
		errs := make([]error, len(stage))
		for i, part := range stage {
			progress("%s: %d tests, %d at a time", part.name, len(part.tests), min(part.procs, len(part.tests)))
			running.Go(func() {
				dir := filepath.Join(k.logs, fmt.Sprintf("run-%d", round), part.name)
				found[i], errs[i] = runPart(ctx, k, part, dir)
			})
		}
		running.Wait()
		for _, more := range found {
			specs = append(specs, more...)
		}
		if err := errors.Join(errs...); err != nil || ctx.Err() != nil {
			return specs, err
		}
	}
	return specs, nil
}

// runPart runs the tests of one part. The suite's output is kept in dir.
func runPart(ctx context.Context, k *cluster, p part, dir string) ([]types.SpecReport, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{
		"--no-color", "--output-dir", dir, "--json-report", reportFile,
		"--procs", strconv.Itoa(min(p.procs, len(p.tests))), "--timeout", k.timeout.String(),
	}
	for _, expression := range focuses(p.tests) {
		args = append(args, "--focus", expression)
	}
	args = append(args, filepath.Join(k.programs, "e2e.test"), "--",
		"--kubeconfig="+k.kubeconfig(),
		"--provider=skeleton",
		"--num-nodes="+strconv.Itoa(k.nodes),
		"--node-os-distro=debian",
		"--dns-domain=cluster.local",
		"--non-blocking-taints=",
		"--kubelet-root-dir="+k.agentRoot(),
		"--container-runtime-endpoint=unix://"+k.runtime(),
		"--repo-root="+dir, // e2e.test contains the files that tests read
		"--e2e-output-dir="+dir,
		"--delete-namespace=true",
		"--disable-log-dump",
	)
	args = append(args, k.driverFlags()...)
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	suite := exec.CommandContext(ctx, filepath.Join(k.programs, "ginkgo"), args...)
	suite.Dir = dir
	if k.ssh {
		suite.Env = append(os.Environ(), "KUBE_SSH_USER="+sshUser, "KUBE_SSH_KEY_PATH="+k.sshKey())
	}
	suite.Stdout, suite.Stderr = log, log
	suite.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGINT) }
	suite.WaitDelay = interruptGrace
	ran := suite.Run()
	specs, err := readReport(filepath.Join(dir, reportFile))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run the suite: %w (%s says why)", err, log.Name()), ran)
	}
	return specs, nil
}

// reportFile is ginkgo's report of a part, in its directory of logs.
const reportFile = "report.json"

// focusMax bounds the length of one regular expression, in bytes: Linux passes no argument of 128 KiB (MAX_ARG_STRLEN).
const focusMax = 64 << 10

// focuses returns regular expressions for ginkgo, which match these tests and no others. An expression with an anchor
// for each test takes every process of the suite 80 s (measured 2026-11-24, 522 tests); these take 20 ms.
func focuses(tests []string) (expressions []string) {
	for len(tests) > 0 {
		var chosen []string
		for length := 0; len(tests) > 0; tests = tests[1:] {
			quoted := regexp.QuoteMeta(tests[0])
			if length += len(quoted) + len("|"); length > focusMax && len(chosen) > 0 {
				break
			}
			chosen = append(chosen, quoted)
		}
		expressions = append(expressions, "^"+suiteName+" (?:"+strings.Join(chosen, "|")+`)\s*$`)
	}
	return expressions
}

// readReport returns the tests that ran, and failed steps before or after all tests: if one of these failed, no result
// is reliable.
func readReport(path string) (specs []types.SpecReport, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var suites []types.Report
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			isTest := spec.LeafNodeType.Is(types.NodeTypeIt)
			if isTest && !notAsked(spec) || !isTest && spec.Failed() {
				specs = append(specs, spec)
			}
		}
	}
	return specs, nil
}

// notAsked reports whether the focus excluded a test; a test that skipped itself has a reason.
func notAsked(spec types.SpecReport) bool {
	return spec.State.Is(types.SpecStateSkipped|types.SpecStatePending) && spec.Failure.Message == ""
}

// nameOf returns the full name of a test or step.
func nameOf(spec types.SpecReport) string {
	if name := strings.TrimSpace(spec.FullText()); name != "" {
		return name
	}
	return "[" + spec.LeafNodeType.String() + "]"
}
