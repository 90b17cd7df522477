package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatifExitCodes checks the exit codes that scripts rely on: 0 answered, 2 wrong input, with the name of the file.
func TestWhatifExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	machine := file("machine.yaml",
		"apiVersion: plimsoll.dev/v1alpha1\nkind: Machine\nspec:\n  numaNodes:\n  - {id: 0, cpus: 0, memory: 1Gi}\n"+
			"  filesystems: {nodefs: {capacity: 1Gi}}\n")
	good := file("good.yaml", kubelet)
	much := file("much.yaml", kubelet+"systemReserved: {memory: 2Gi}\n")
	bad := file("bad.yaml", kubelet+"maxPods: -1\n")
	pods, static := file("pods.yaml",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"), file("static.yaml",
		kubelet+"cpuManagerPolicy: static\n")
	summary := file("summary.json", `{"node":{"memory":{"availableBytes":1000,"workingSetBytes":1000}}}`)
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"whatif allocatable --machine " + machine, 0, nil},
		{"whatif allocatable -o json --config " + good + " --machine " + machine, 0, nil},
		{"whatif allocatable", 2, []string{"--machine: required"}},
		{"whatif allocatable --machine " + good + " --config " + bad, 2, []string{"good.yaml: ", "want Machine", "bad.yaml: ",
			"maxPods"}},
		{"whatif allocatable --machine " + machine + " --config " + much, 2,
			[]string{"memory: reservations and eviction threshold of 2148Mi exceed the capacity of 1Gi"}},
		{"whatif allocatable -o xml --machine " + machine, 2, []string{"want one of table, json, yaml"}},
		{"whatif allocatable more --machine " + machine, 2, []string{"more"}},
		{"whatif admit --machine " + machine + " -f " + pods, 0, nil},
		{"whatif admit -o json --machine " + machine + " --config " + good + " -f " + pods + " -f " + pods, 0, nil},
		{"whatif admit", 2, []string{"--machine: required", "--filename: required"}},
		{"whatif admit --machine " + good + " --config " + bad + " -f " + good, 2, []string{"want Machine", "maxPods",
			"good.yaml: document 1: "}},
		{"whatif admit --machine " + machine + " --config " + static + " -f " + pods, 2,
			[]string{"cpuManagerPolicy: static: reserve some CPU"}},
		{"whatif evict --summary " + summary + " -f " + pods, 0, nil},
		{"whatif evict -o json --for 1m --memory-signal available --config " + good + " --summary " + summary + " -f " + pods,
			0, nil},
		{"whatif evict --memory-signal most", 2, []string{"--summary: required", "--filename: required",
			`"most": want working-set or available`}},
		{"whatif evict --summary " + good + " -f " + good + " --config " + bad, 2,
			[]string{"good.yaml: want the JSON that a kubelet serves", "maxPods", "good.yaml: document 1: "}},
		{"whatif place -o json -f " + pods, 0, nil},
		{"whatif place", 2, []string{"--filename: required"}},
		{"whatif place -f " + pods + " --config " + good, 2, []string{"good.yaml: ", "want KubeSchedulerConfiguration"}},
		{"whatif place -f " + pods + " -f " + pods, 2, []string{"pod default/a: is listed twice"}},
		{"scheduler --config " + good, 2, []string{"want KubeSchedulerConfiguration"}},
		{"scheduler", 2, []string{"--kubeconfig: required"}},
		{"whatif", 2, []string{"want one of admit, allocatable, evict, place"}},
		{"whatif nothing", 2, []string{"nothing"}},
		{"machine -o xml", 2, []string{"want one of yaml, json, table"}},
		{"machine", 0, nil},
		{"machine --installed -o table", 0, nil},
		{"machine --root " + dir, 1, []string{"cpu/online"}},
	} {
		err := quietly(t, func() error { return run(t.Context(), strings.Fields(c.args)) })
		if code := exitCode(err); code != c.code {
			t.Errorf("%s: exit code %d, want %d: %v", c.args, code, c.code, err)
		}
		for _, want := range c.says {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in: %v", c.args, want, err)
			}
		}
	}
}

// quietly runs do with standard output discarded.
func quietly(t *testing.T, do func() error) error {
	t.Helper()
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = nowhere
	defer func() { os.Stdout = out }()
	return errors.Join(do(), nowhere.Close())
}
