package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// choice says which workloads to run.
type choice struct {
	labels []string // labels that a workload must have; with a leading "-", must not have
	only   *regexp.Regexp
}

// left is a workload that is not run, with the reason.
type left struct{ title, reason string }

// choose returns the requested workloads that can be run, and the requested ones that cannot.
//
// Both schedulers run with the feature gates of their release. Workloads that differ only in feature gates are
// therefore equal; only the first of them is run.
func choose(cases []*testCase, c choice) (play []*workload, out []left, err error) {
	seen := map[string]*workload{}
	for _, of := range cases {
		why, err := of.unplayable()
		if err != nil {
			return nil, nil, err
		}
		for _, w := range of.Workloads {
			if !c.wants(w) {
				continue
			}
			reason := why
			if reason == "" {
				reason = w.unread()
			}
			key := of.Name + fmt.Sprint(w.Params) // fmt prints maps sorted by key
			if first := seen[key]; reason == "" && first != nil {
				reason = "differs from " + first.title() + " in feature gates alone"
			}
			if reason != "" {
				out = append(out, left{w.title(), reason})
				continue
			}
			seen[key] = w
			play = append(play, w)
		}
	}
	return play, out, nil
}

func (c choice) wants(w *workload) bool {
	for _, label := range c.labels {
		name, unwanted := strings.CutPrefix(label, "-")
		if w.has(name) == unwanted {
			return false
		}
	}
	return c.only == nil || c.only.MatchString(w.title())
}

// claimsGroup is the API group of resource claims.
const claimsGroup = "resource.k8s.io/"

// unplayable returns why no workload of the case can be run with a scheduler in a separate process; empty: they can.
func (c *testCase) unplayable() (string, error) {
	if c.SchedulerConfigPath != "" {
		return "has a scheduler configuration of its own (dynamic resource allocation)", nil
	}
	for _, o := range c.WorkloadTemplate {
		switch s := o.step.(type) {
		case *claimsOp:
			return "needs dynamic resource allocation: " + s.opcode, nil
		case *createPods:
			if s.SteadyState || s.SteadyStateParam != "" {
				return "needs a steady state, which only cases of dynamic resource allocation have", nil
			}
		}
		for _, name := range o.templates() {
			text, err := os.ReadFile(c.path(name))
			if err != nil {
				return "", fmt.Errorf("case %s: %w", c.Name, err)
			}
			if strings.Contains(string(text), claimsGroup) {
				return "needs dynamic resource allocation: " + name, nil
			}
		}
	}
	return "", nil
}

// unread returns a parameter that no operation reads. Upstream's test reads it in Go code, to change the scheduler
// inside its process.
func (w *workload) unread() string {
	read := map[string]bool{}
	for _, o := range w.of.WorkloadTemplate {
		for _, p := range o.params() {
			read[strings.TrimPrefix(p, "$")] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Params)) {
		if !read[name] {
			return "parameter " + name +
				" is read by upstream's test code, which replaces parts of the scheduler in its own process"
		}
	}
	return ""
}

// paced reports whether operations with a fixed rate are between the start and the end of measuring. Waiting for them
// says little about a scheduler's rate.
func (w *workload) paced() bool {
	measuring := false
	for _, o := range w.of.WorkloadTemplate {
		switch s := o.step.(type) {
		case *startCollecting:
			measuring = true
		case *stopCollecting:
			measuring = false
		case *deletePods:
			if measuring && s.DeletePodsPerSecond > 0 {
				return true
			}
		case *updateAny:
			if measuring && s.UpdatePerSecond > 0 {
				return true
			}
		}
	}
	return false
}
