package recommend

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// TestScenarios plays testdata/*.txt. "watch" collects the samples of its input, and prints the report and the
// recommendation for a node of 4 CPUs, 8 GiB and 110 pods. Lines of the input:
//
//	at TIME busy=TIME inuse=MIB [pods=N]     begins a sample
//	group NAME CPU MIB                       a group with all its pods
//	slice CPU MIB                            system.slice
//	process PID NAME CPU RESIDENT PRIVATE    outside the pods; NAME may be a command line, with / instead of spaces
//	repeat N EVERY [NAME=CPU...]             N more samples like the last, EVERY apart, in each of which busy and the named
//	                                         processes and groups have used that much more CPU
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "watch", func(t *testing.T, d *datadriven.TestData) string {
		var w Watch
		for _, s := range parse(t, d) {
			w.Observe(s)
		}
		return show(w.Report())
	})
}

func parse(t *testing.T, d *datadriven.TestData) []Sample {
	var all []Sample
	duration := func(text string) time.Duration { return scenario.Duration(t, d, text) }
	number := func(text string) int64 {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	mib := func(text string) unit.Bytes { return unit.Bytes(number(text)) * unit.MiB }
	for _, line := range strings.Split(d.Input, "\n") {
		words := strings.Fields(line)
		if words[0] == "at" {
			s := Sample{At: unit.Instant(1).Add(duration(words[1])), CPUs: 4, PodGroups: map[string]Group{}}
			for _, option := range words[2:] {
				switch key, value, _ := strings.Cut(option, "="); key {
				case "busy":
					s.Busy = duration(value)
				case "inuse":
					s.InUse = mib(value)
				case "pods":
					s.Pods = int(number(value))
				}
			}
			all = append(all, s)
			continue
		}
		s := &all[len(all)-1]
		switch words[0] {
		case "group":
			s.PodGroups[words[1]] = Group{duration(words[2]), mib(words[3])}
		case "slice":
			s.Slice = &Group{duration(words[1]), mib(words[2])}
		case "process":
			args := strings.Split(words[2], "/")
			p := Process{
				ID:       ProcessID{PID: int(number(words[1])), Start: number(words[1])},
				Name:     args[0],
				CPU:      duration(words[3]),
				Resident: mib(words[4]),
				Private:  mib(words[5]),
			}
			p.Part, p.PerPod = Classify(p.Name, args)
			s.Processes = append(s.Processes, p)
		case "repeat":
			for range number(words[1]) {
				all = append(all, later(all[len(all)-1], duration(words[2]), words[3:], duration))
			}
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return all
}

func later(s Sample, every time.Duration, more []string, duration func(string) time.Duration) Sample {
	s.At = s.At.Add(every)
	groups := map[string]Group{}
	for name, g := range s.PodGroups {
		groups[name] = g
	}
	s.PodGroups = groups
	s.Processes = append([]Process(nil), s.Processes...)
	for _, m := range more {
		name, cpu, _ := strings.Cut(m, "=")
		if name == "busy" {
			s.Busy += duration(cpu)
		}
		if g, ok := groups[name]; ok {
			g.CPU += duration(cpu)
			groups[name] = g
		}
		for i := range s.Processes {
			if s.Processes[i].Name == name {
				s.Processes[i].CPU += duration(cpu)
			}
		}
	}
	return s
}

func show(r Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v, %d samples, pods %d to %d, per pod %s and %v an hour\n", r.For, r.Samples, r.Pods.P50,
		r.Pods.Peak, mebibytes(r.PerPod.Memory), r.PerPod.CPUPerHour)
	line := func(name string, u Usage) {
		fmt.Fprintf(&b, "%-12s cpu %v %v %v, memory %s %s %s\n", name, u.CPU.P50, u.CPU.P99, u.CPU.Peak,
			mebibytes(u.Memory.P50), mebibytes(u.Memory.P99), mebibytes(u.Memory.Peak))
	}
	for part, u := range r.Parts {
		line(Part(part).String(), u)
	}
	if r.Slice != nil {
		line("system.slice", *r.Slice)
	}
	for _, c := range r.System {
		fmt.Fprintf(&b, "consumer %s: cpu %v, memory %s\n", c.Name, c.CPU, mebibytes(c.Memory))
	}
	a := Recommend(r, Node{CPUs: 4, Memory: 8 * unit.GiB, MaxPods: 110})
	fmt.Fprintf(&b, "systemReserved cpu %v (%s), memory %v (%s)\n", a.System.CPU, a.Why.SystemCPU, a.System.Memory,
		a.Why.SystemMemory)
	fmt.Fprintf(&b, "kubeReserved cpu %v (%s), memory %v (%s)\n", a.Kube.CPU, a.Why.KubeCPU, a.Kube.Memory,
		a.Why.KubeMemory)
	for _, w := range a.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}
