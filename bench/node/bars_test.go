package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// parsed returns the configuration of a command line that must be valid.
func parsed(t *testing.T, args ...string) config {
	t.Helper()
	c, err := parseFlags(args)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// linesByName returns the report's lines, and fails if a name has two lines that are judged differently.
func linesByName(t *testing.T, c config) map[string]record.Line {
	t.Helper()
	byName := map[string]record.Line{}
	for _, l := range lines(c) {
		if before, ok := byName[l.Name]; ok && before.Bar != l.Bar && l.Bar != (record.Bar{}) {
			t.Errorf("%s has the bars %v and %v", l.Name, before.Bar, l.Bar)
		} else if !ok {
			byName[l.Name] = l
		}
	}
	return byName
}

// TestBars: each number of pods has the bars that the issues ask of it.
func TestBars(t *testing.T) {
	c := parsed(t, "--batches", "1,30,110,250,500")
	loaded := c
	loaded.probes = true
	read := c
	read.scrape = 1
	for _, l := range []struct {
		c    config
		name string
		want record.Bar
	}{
		{c, "startbare_110", record.Bar{Max: 1.15}},
		{c, "startbare_30", record.Bar{}},
		{c, "total_500", record.Bar{RatioMax: 1}},
		{c, "rss_idle", record.Bar{RatioMax: 1. / 3}},
		{c, "rss_steady_1", record.Bar{RatioMax: 1. / 3}},
		{c, "rss_steady_110", record.Bar{RatioMax: 1. / 3, Goal: 48}},
		{c, "cores_agent_steady_110", record.Bar{RatioMax: 1. / 4, Goal: 0.01}},
		{c, "rss_steady_250", record.Bar{RatioMax: 1. / 2}},
		{c, "rss_steady_500", record.Bar{RatioMax: 1. / 2, Max: 80}},
		{c, "peak_500", record.Bar{RatioMax: 1. / 2, Max: 80}},
		{c, "growth_rss", record.Bar{Max: 1}},
		{loaded, "rss_steady_110", record.Bar{RatioMax: 1. / 2}},
		{loaded, "cores_agent_steady_30", record.Bar{RatioMax: 1. / 2}},
		{read, "cores_agent_idle", record.Bar{RatioMax: 1. / 2}},
	} {
		line, ok := linesByName(t, l.c)[l.name]
		if !ok || line.Bar != l.want {
			t.Errorf("%s: there is a line: %v, bar %+v, want %+v", l.name, ok, line.Bar, l.want)
		}
	}
	if _, ok := linesByName(t, parsed(t, "--batches", "1,30"))["growth_rss"]; ok {
		t.Error("growth is judged by one batch")
	}
}

// TestCompareWithBare: times are divided by those of the bare client in the same round, whichever was measured first,
// and the report judges the result.
func TestCompareWithBare(t *testing.T) {
	side := func(name string, round int, total, end float64) *record.Measurement {
		m := record.NewMeasurement(name, round)
		putStarts(m, 110, total, []float64{total})
		putRemovals(m, 110, end, []float64{end})
		return m
	}
	c := parsed(t, "--batches", "110")
	for _, l := range []struct {
		ours float64 // of both rounds' bare clients: 10 s, then 20 s
		want string
	}{
		{11.4, "pass: at most 1.15 times"},
		{11.6, "MISSED: at most 1.15 times"},
	} {
		all := []*record.Measurement{
			side(kubelet, 1, 30, 8), side(plimsoll, 1, l.ours, 6), side(bare, 1, 10, 4),
			side(bare, 2, 20, 4), side(plimsoll, 2, 2*l.ours, 6), side(kubelet, 2, 60, 8),
			side(plimsoll, 3, 1000, 1000), // without a bare client
		}
		compareWithBare(all, sizes(c.batches))
		if got := all[1].Values["startbare_110"]; math.Abs(got-l.ours/10) > 1e-9 {
			t.Errorf("started in %v s, the bare client in 10 s: ratio %v", l.ours, got)
		}
		if got := all[5].Values["deletebare_110"]; got != 2 {
			t.Errorf("removed in 8 s, by the bare client in 4 s: ratio %v", got)
		}
		if got, ok := all[6].Values["startbare_110"]; ok {
			t.Errorf("a round without a bare client has the ratio %v", got)
		}
		r := &record.Report{Ours: plimsoll, Theirs: kubelet, Measurements: all, Lines: lines(c)}
		if text, _ := r.Render(); !strings.Contains(text, l.want) {
			t.Errorf("the report lacks %q:\n%s", l.want, text)
		}
		want := "bare client, 110 at once: all running after 15 s, all gone after 4 s"
		if notes := bareNotes(all, sizes(c.batches)); len(notes) != 1 || notes[0] != want {
			t.Errorf("notes: %q, want %q", notes, want)
		}
	}
	r := &record.Report{Ours: plimsoll, Theirs: kubelet, Lines: lines(c)}
	if text, ok := r.Render(); ok || !strings.Contains(text, "not measured (at most 1.15 times)") {
		t.Errorf("a report without a bare client: passed %v:\n%s", ok, text)
	}
}

// TestGrowth: twice the pods with twice of what they add is a growth of 1.
func TestGrowth(t *testing.T) {
	m := record.NewMeasurement(plimsoll, 1)
	for name, v := range map[string]float64{
		"rss_idle": 20, "rss_steady_1": 50, "rss_steady_250": 40, "rss_steady_500": 60,
		"cores_agent_idle": 0.001, "cores_agent_steady_250": 0.011, "cores_agent_steady_500": 0.041,
	} {
		m.Put(name, v, 1)
	}
	putGrowth(m, []int{1, 250, 500})
	if rss, cpu := m.Values["growth_rss"], m.Values["growth_cores_agent"]; rss != 1 || math.Abs(cpu-2) > 1e-9 {
		t.Errorf("memory grew %v times as fast as the pods, want 1; CPU %v, want 2", rss, cpu)
	}
	short := record.NewMeasurement(plimsoll, 2) // a round without windows
	putGrowth(short, []int{1, 250, 500})
	putGrowth(short, []int{1, 500})
	if len(short.Values) != 0 {
		t.Errorf("growth without windows: %v", short.Values)
	}
}

// TestFlags: batches ascend and fit a bridge, and sides are named.
func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--batches", "110,30"}, {"--batches", "30,30"}, {"--batches", "0"}, {"--batches", "1001"}, {"--batches", "many"},
		{"--only", "kubelets"}, {"--only", "plimsoll,nobody"}, {"--guaranteed", "-1"}, {"--scrape", "-1s"},
	} {
		if _, err := parseFlags(args); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: error %v", args, err)
		}
	}
	c := parsed(t, "--only", "bare,plimsoll", "--batches", "1,30,500")
	if len(c.sides) != 2 || c.sides[0].name != plimsoll || c.sides[1].name != bare {
		t.Errorf("sides %v", c.sides)
	}
	for _, want := range []string{"maxPods: 500\n", "clusterDNS: [10.97.0.10]\n"} {
		if text := agentConfigFor(c.batches); !strings.Contains(text, want) {
			t.Errorf("the configuration of the agents lacks %q:\n%s", want, text)
		}
	}
}

// TestPods: 500 pods, five Guaranteed, request at most two CPUs, and have probes if asked for.
func TestPods(t *testing.T) {
	c := parsed(t, "--batches", "500", "--guaranteed", "5", "--probes")
	var milli int64
	guaranteed := 0
	for _, pod := range c.podsNamed(batchNames(500)) {
		container := pod.Spec.Containers[0]
		milli += container.Resources.Requests.Cpu().MilliValue()
		if container.Resources.Limits.Cpu().Equal(*container.Resources.Requests.Cpu()) {
			guaranteed++
		}
		if p := container.ReadinessProbe; p == nil || p.PeriodSeconds != 1 || p.HTTPGet == nil {
			t.Fatalf("probe of %s: %v", pod.Name, p)
		}
	}
	if milli > 2000 || guaranteed != 5 {
		t.Errorf("%d thousandths of a CPU are requested, %d pods are Guaranteed", milli, guaranteed)
	}
	one := c.podsNamed([]string{"single"})[0].Spec.Containers[0]
	if len(one.Resources.Limits) != 0 {
		t.Errorf("a single pod has the limits %v", one.Resources.Limits)
	}
	plain := parsed(t).podsNamed([]string{"single"})[0].Spec.Containers[0]
	if plain.ReadinessProbe != nil || plain.Args[0] != "sleep" {
		t.Errorf("a pod without probes runs %v and has the probe %v", plain.Args, plain.ReadinessProbe)
	}
}

// TestBareResources: the bare client's containers have the limits that an agent would give them.
func TestBareResources(t *testing.T) {
	var c corev1.Container
	guarantee(&c)
	r := bareResources(&c)
	if r.CpuShares != 102 || r.CpuQuota != 10_000 || r.CpuPeriod != 100_000 || r.MemoryLimitInBytes != 64<<20 {
		t.Errorf("Guaranteed: %v", r)
	}
	r = bareResources(&podNamed("p").Spec.Containers[0])
	if r.CpuShares != 2 || r.CpuQuota != 0 || r.MemoryLimitInBytes != 0 {
		t.Errorf("Burstable: %v", r)
	}
}

// TestBareClientDoesAsMuchAtOnce: the bare client's numbers are the agent's own.
func TestBareClientDoesAsMuchAtOnce(t *testing.T) {
	for _, l := range []struct {
		file, name string
		want       int
	}{
		{"agent.go", "StartsPerCPU", bareStartsPerCPU},
		{"pods/pods.go", "stopsAtOnce", bareStopsAtOnce},
		{"pods/pods.go", "removalsAtOnce", bareStopsAtOnce},
	} {
		text, err := os.ReadFile(filepath.Join("../../internal/agent", l.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`\b` + l.name + ` += (\d+)\n`).FindSubmatch(text)
		if found == nil || string(found[1]) != strconv.Itoa(l.want) {
			t.Errorf("%s of internal/agent/%s: %q, here %d", l.name, l.file, found, l.want)
		}
	}
}
