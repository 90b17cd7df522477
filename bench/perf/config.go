package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubernetesModule is the module with upstream's workloads. workloadsDir and workloadsFile are paths in it.
const (
	kubernetesModule = "k8s.io/kubernetes"
	workloadsDir     = "test/integration/scheduler_perf"
	workloadsFile    = "performance-config.yaml"
)

// A testCase is a test case of upstream: operations, and workloads with their parameters. Fields have upstream's names.
type testCase struct {
	Name                   string
	FeatureGates           map[string]bool
	WorkloadTemplate       []op
	Workloads              []*workload
	SchedulerConfigPath    string
	DefaultPodTemplatePath string
	Labels                 []string

	// What upstream's own program measures and checks; not used here.
	MetricsCollectorConfig         json.RawMessage
	DefaultThresholdMetricSelector json.RawMessage

	dir string // the directory of its file, to which paths are relative
}

// A workload is a testCase with values for its parameters.
type workload struct {
	Name         string
	FeatureGates map[string]bool
	Labels       []string
	Params       map[string]any

	Threshold               json.RawMessage
	ThresholdMetricSelector json.RawMessage

	of *testCase
}

// title is the name of a workload in reports and in --only.
func (w *workload) title() string { return w.of.Name + "/" + w.Name }

// has reports whether the workload or its case has a label.
func (w *workload) has(label string) bool {
	return slices.Contains(w.Labels, label) || slices.Contains(w.of.Labels, label)
}

// findWorkloads returns the directory of the published module in the module cache. Building this program downloads it.
func findWorkloads() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", kubernetesModule).Output()
	if err != nil {
		return "", fmt.Errorf("find %s in the module cache: go list: %w", kubernetesModule, withStderr(err))
	}
	return filepath.Join(strings.TrimSpace(string(out)), workloadsDir), nil
}

func withStderr(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// load reads every file of workloads below dir, sorted by name.
func load(dir string) (cases []*testCase, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != workloadsFile {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		more, err := parse(text)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, c := range more {
			c.dir = filepath.Dir(path)
		}
		cases = append(cases, more...)
		return nil
	})
	if err == nil && len(cases) == 0 {
		err = fmt.Errorf("read %s: no %s below it", dir, workloadsFile)
	}
	return cases, err
}

// parse reads one file. An unknown field or operation is an error, because it would be missing in the measurement.
func parse(text []byte) (cases []*testCase, err error) {
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		return nil, err
	}
	for i, c := range cases {
		if c == nil {
			return nil, fmt.Errorf("case %d: empty", i)
		}
		for k, w := range c.Workloads {
			if w == nil {
				return nil, fmt.Errorf("case %s: workload %d: empty", c.Name, k)
			}
			w.of = c
		}
	}
	return cases, nil
}

// path resolves a path in a case's file.
func (c *testCase) path(name string) string { return filepath.Join(c.dir, name) }

// number returns the value of an operation's field, or of the parameter that replaces it.
func (w *workload) number(value int, param string) (int, error) {
	if param == "" {
		return value, nil
	}
	v, ok := w.Params[strings.TrimPrefix(param, "$")]
	if !ok {
		return 0, fmt.Errorf("workload %s: parameter %s: not given", w.title(), param)
	}
	f, ok := v.(float64)
	if !ok || f != float64(int(f)) || f < 0 {
		return 0, fmt.Errorf("workload %s: parameter %s: %v: want a number of objects", w.title(), param, v)
	}
	return int(f), nil
}

// scaled returns n multiplied by --scale, at least 1 if n is not 0.
func scaled(n int, scale float64) int {
	if n == 0 {
		return 0
	}
	return max(1, int(float64(n)*scale))
}
