package main

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// Bars, from the project's first issue ("Numbers"): a third of upstream's memory, a quarter of its CPU, no time longer
// than upstream's; 20 s from `up` to a Ready node; goals of 48 MiB and 0.01 core with 110 pods. The bar for the
// runtime's CPU is ours: an agent that makes containerd do more work has not saved anything.
const (
	barMemory = 1. / 3
	barCPU    = 1. / 4
	barTime   = 1.
	barUp     = 20.   // s
	goalRSS   = 48.   // MiB
	goalCores = 0.010 // cores
)

// lines returns the report's lines for batches of these sizes.
func lines(batches []int) []record.Line {
	out := []record.Line{{Name: "up", Title: "`plimsoll up` to Ready node", Unit: "s", Bar: record.Bar{Max: barUp}, Group: "Start"}}
	for _, n := range append([]int{1}, batches...) {
		group := fmt.Sprintf("%d pods at once", n)
		if n == 1 {
			group = "Pods one by one"
		}
		add := func(name, title string, b record.Bar) {
			out = append(out, record.Line{Name: fmt.Sprintf("%s_%d", name, n), Title: title, Unit: "s", Bar: b, Group: group})
		}
		if n == 1 {
			add("first", "the node's very first pod, bind to Running", record.Bar{})
		}
		add("total", "first request to all Running", record.Bar{RatioMax: barTime})
		add("p50", "bind to Running, p50", record.Bar{RatioMax: barTime})
		add("p99", "bind to Running, p99", record.Bar{RatioMax: barTime})
		if n > 1 {
			add("spread", "first to last Running", record.Bar{})
		}
		add("delete", "first request to all gone", record.Bar{})
	}
	out = append(out, windowLines("idle", "Idle, no pods", record.Bar{RatioMax: barMemory}, record.Bar{RatioMax: barCPU})...)
	most := batches[len(batches)-1]
	out = append(out, windowLines("steady", fmt.Sprintf("Steady, %d pods", most), record.Bar{RatioMax: barMemory, Goal: goalRSS}, record.Bar{RatioMax: barCPU, Goal: goalCores})...)
	out = append(out, record.Line{Name: "peak", Title: "agent, highest resident memory of the round", Unit: "MiB", Group: "Peak"})
	for _, role := range roles {
		out = append(out, record.Line{Name: fmt.Sprintf("startcpu_%s_%d", role, most), Title: roleTitle(role), Unit: "cpu s", Group: fmt.Sprintf("CPU time to start %d pods", most)})
	}
	return out
}

func windowLines(suffix, group string, memory, cpu record.Bar) []record.Line {
	out := []record.Line{
		{Name: "rss_" + suffix, Title: "agent, resident memory", Unit: "MiB", Bar: memory, Group: group},
		{Name: "rssanon_" + suffix, Title: "- of it anonymous", Unit: "MiB", Group: group},
		{Name: "rssfile_" + suffix, Title: "- of it program and libraries", Unit: "MiB", Group: group},
		{Name: "cores_agent_" + suffix, Title: "agent, CPU", Unit: "cores", Bar: cpu, Group: group},
		{Name: "cores_runtime_" + suffix, Title: "containerd and shims, CPU", Unit: "cores", Bar: record.Bar{RatioMax: barTime}, Group: group},
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
