package main

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// Bars, from the project's first issue ("Numbers"): a third of upstream's memory, a quarter of its CPU, no time longer
// than upstream's; 20 s from `up` to a Ready node; goals of 48 MiB and 0.01 core with 110 pods. The bar for the
// runtime's CPU is ours: an agent that makes containerd do more work has not saved anything.
//
// From the issue "The whole life of a pod": 110 pods at once within 1.15 times the bare client's time; half of
// upstream's CPU and memory everywhere; growth no faster than the pods; 80 MiB with 500 pods. From the issue "Storage":
// pods with claims start and end no later than with upstream's kubelet.
const (
	barMemory = 1. / 3
	barCPU    = 1. / 4
	barTime   = 1.
	barUp     = 20.   // s
	goalRSS   = 48.   // MiB
	goalCores = 0.010 // cores

	barBare   = 1.15 // of the bare client's time
	barHalf   = 1. / 2
	barGrowth = 1.  // as fast as the pods
	barRSS    = 80. // MiB
)

// The numbers of pods that have bars of their own.
const (
	ordinary = 110 // maxPods of an ordinary node
	crowded  = 500
)

// lines returns the report's lines.
func lines(c config) []record.Line {
	out := []record.Line{
		{Name: "up", Title: "`plimsoll up` to Ready node", Unit: "s", Bar: record.Bar{Max: barUp}, Group: "Start"},
	}
	for _, n := range sizes(c.batches) {
		out = append(out, c.startLines(n)...)
	}
	memory, cpu := c.windowBars(0)
	out = append(out, windowLines("idle", "Idle, no pods", memory, cpu)...)
	for _, n := range c.batches {
		memory, cpu := c.windowBars(n)
		out = append(out, windowLines(sized("steady", n), "Steady, "+count(n), memory, cpu)...)
	}
	for _, n := range c.batches {
		b := record.Bar{RatioMax: barHalf}
		if n == crowded {
			b.Max = barRSS
		}
		title := "agent, highest resident memory with " + count(n)
		out = append(out, record.Line{Name: sized("peak", n), Title: title, Unit: "MiB", Bar: b, Group: "Peak"})
	}
	out = append(out, growthLines(c.batches)...)
	most := c.batches[len(c.batches)-1]
	group := "CPU time to start " + count(most)
	for _, role := range roles {
		name := sized("startcpu_"+role, most)
		out = append(out, record.Line{Name: name, Title: roleTitle(role), Unit: "cpu s", Group: group})
	}
	return out
}

func count(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// startLines are the lines about n pods that start and end at once.
func (c config) startLines(n int) (out []record.Line) {
	group := fmt.Sprintf("%d pods at once", n)
	if n == 1 {
		group = "Pods one by one"
	}
	add := func(name, title, unit string, b record.Bar) {
		out = append(out, record.Line{Name: sized(name, n), Title: title, Unit: unit, Bar: b, Group: group})
	}
	if n == 1 {
		add("first", "the node's first pod, bind to Running", "s", record.Bar{})
	}
	least := record.Bar{}
	if n == ordinary {
		least.Max = barBare
	}
	add("total", "first request to all Running", "s", record.Bar{RatioMax: barTime})
	add("startbare", "- as a multiple of the bare client's", "times", least)
	add("p50", "bind to Running, p50", "s", record.Bar{RatioMax: barTime})
	add("p99", "bind to Running, p99", "s", record.Bar{RatioMax: barTime})
	if n > 1 {
		add("spread", "first to last Running", "s", record.Bar{})
	}
	add("delete", "first request to all gone", "s", record.Bar{})
	add("deletebare", "- as a multiple of the bare client's", "times", record.Bar{})
	gone := record.Bar{}
	if c.claims > 0 {
		gone.RatioMax = barTime
	}
	add("p50_gone", "delete to gone, p50", "s", gone)
	add("p99_gone", "delete to gone, p99", "s", gone)
	if n > 1 {
		add("startcpu_agent", "agent, CPU time to start them", "cpu s", record.Bar{RatioMax: barHalf})
		add("startcpu_runtime", "containerd and shims, CPU time to start them", "cpu s", record.Bar{})
	}
	return out
}

// windowBars returns the bars for the agent's memory and CPU with n pods that do nothing. The first issue's bars are
// about pods without probes and claims on a node whose metrics nobody reads.
func (c config) windowBars(n int) (memory, cpu record.Bar) {
	memory, cpu = record.Bar{RatioMax: barHalf}, record.Bar{RatioMax: barHalf}
	if n == crowded {
		memory.Max = barRSS
	}
	if n > ordinary || c.probes || c.claims > 0 || c.scrape > 0 {
		return memory, cpu
	}
	memory.RatioMax, cpu.RatioMax = barMemory, barCPU
	if n == ordinary {
		memory.Goal, cpu.Goal = goalRSS, goalCores
	}
	return memory, cpu
}

// growthLines are the lines about the two largest batches, if there are two.
func growthLines(batches []int) []record.Line {
	large := atOnce(batches)
	if len(large) < 2 {
		return nil
	}
	group := fmt.Sprintf("Growth from %d to %d pods, as a multiple of the pods'", large[len(large)-2], large[len(large)-1])
	line := func(name, title string) record.Line {
		return record.Line{Name: name, Title: title, Unit: "times", Bar: record.Bar{Max: barGrowth}, Group: group}
	}
	return []record.Line{
		line("growth_rss", "agent, resident memory above idle"), line("growth_cores_agent", "agent, CPU above idle"),
	}
}

func windowLines(suffix, group string, memory, cpu record.Bar) []record.Line {
	out := []record.Line{
		{Name: "rss_" + suffix, Title: "agent, resident memory", Unit: "MiB", Bar: memory, Group: group},
		{Name: "rssanon_" + suffix, Title: "- of it anonymous", Unit: "MiB", Group: group},
		{Name: "rssfile_" + suffix, Title: "- of it program and libraries", Unit: "MiB", Group: group},
		{Name: "cores_agent_" + suffix, Title: "agent, CPU", Unit: "cores", Bar: cpu, Group: group},
		{Name: "cores_runtime_" + suffix, Title: "containerd and shims, CPU", Unit: "cores",
			Bar: record.Bar{RatioMax: barTime}, Group: group},
		{Name: "cores_control_" + suffix, Title: "control plane, CPU", Unit: "cores", Group: group},
		{Name: "cores_others_" + suffix, Title: "others on this machine, CPU", Unit: "cores", Group: group},
		{Name: "rsscontainerd_" + suffix, Title: "containerd, resident memory", Unit: "MiB", Group: group},
	}
	return out
}

func roleTitle(role string) string {
	return map[string]string{
		roleAgent:      "agent",
		roleContainerd: "containerd, with CNI plugins",
		roleShims:      "shims, with runc",
		roleControl:    "control plane, scheduler, lifecycle",
		roleHarness:    "this measurement",
		roleOthers:     "kernel threads and others",
		roleMachine:    "whole machine",
	}[role]
}
