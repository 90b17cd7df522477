package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// interruptGrace is how long an interrupted suite may take to delete its namespaces (chosen).
const interruptGrace = 90 * time.Second

// runSuite runs the tests once, and returns ginkgo's report of those that ran. Failed tests are not an error.
func runSuite(ctx context.Context, c config, k *cluster, round int) ([]types.SpecReport, error) {
	const report = "report.json"
	dir := filepath.Join(c.logs, fmt.Sprintf("run-%d", round))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{
		"--no-color", "--output-dir", dir, "--json-report", report,
		"--procs", strconv.Itoa(c.procs), "--timeout", c.timeout.String(),
	}
	for _, focus := range c.focuses() {
		args = append(args, "--focus", focus)
	}
	if c.skip != "" {
		args = append(args, "--skip", c.skip)
	}
	args = append(args, filepath.Join(c.programs, "e2e.test"), "--",
		"--kubeconfig="+k.kubeconfig(),
		"--provider=skeleton",
		"--num-nodes=1",
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
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	suite := exec.CommandContext(ctx, filepath.Join(c.programs, "ginkgo"), args...)
	suite.Dir = dir
	suite.Stdout, suite.Stderr = log, log
	suite.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGINT) }
	suite.WaitDelay = interruptGrace
	ran := suite.Run()
	specs, err := readReport(filepath.Join(dir, report))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run the suite: %w (%s says why)", err, log.Name()), ran)
	}
	return specs, nil
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
