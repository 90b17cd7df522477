package main

import "fmt"

// bar is what a number must not exceed. Zero fields: no such bar.
type bar struct {
	ratioMax float64 // ours / upstream's
	max      float64 // ours, in the line's unit
	goal     float64 // ours; told, not judged
}

// line is one line of the report.
type line struct {
	name  string // of the measured value
	title string
	unit  string
	bar   bar
	group string
}

// Bars, from the project's first issue ("Numbers"): a third of upstream's memory, a quarter of its CPU, no time above
// its own; 20 s from `up` to a Ready node; goals of 48 MiB and 0.01 core with 110 pods. The bar for the runtime's CPU is
// ours: an agent that makes containerd do its work has not saved anything.
const (
	barMemory = 1. / 3
	barCPU    = 1. / 4
	barTime   = 1.
	barUp     = 20.   // s
	goalRSS   = 48.   // MiB
	goalCores = 0.010 // cores
)

// lines lists the report's lines for batches of these sizes.
func lines(batches []int) []line {
	out := []line{{"up", "`plimsoll up` to Ready node", "s", bar{max: barUp}, "Start"}}
	for _, n := range append([]int{1}, batches...) {
		group := fmt.Sprintf("%d pods at once", n)
		if n == 1 {
			group = "Pods one by one"
		}
		add := func(name, title string, b bar) {
			out = append(out, line{fmt.Sprintf("%s_%d", name, n), title, "s", b, group})
		}
		if n == 1 {
			add("first", "the node's very first pod, bind to Running", bar{})
		}
		add("total", "first request to all Running", bar{ratioMax: barTime})
		add("p50", "bind to Running, p50", bar{ratioMax: barTime})
		add("p99", "bind to Running, p99", bar{ratioMax: barTime})
		if n > 1 {
			add("spread", "first to last Running", bar{})
		}
		add("delete", "first request to all gone", bar{})
	}
	out = append(out, windowLines("idle", "Idle, no pods", bar{ratioMax: barMemory}, bar{ratioMax: barCPU})...)
	most := batches[len(batches)-1]
	out = append(out, windowLines("steady", fmt.Sprintf("Steady, %d pods", most), bar{ratioMax: barMemory, goal: goalRSS}, bar{ratioMax: barCPU, goal: goalCores})...)
	out = append(out, line{"peak", "agent, highest resident memory of the round", "MiB", bar{}, "Peak"})
	for _, role := range roles {
		out = append(out, line{fmt.Sprintf("startcpu_%s_%d", role, most), roleTitle(role), "cpu s", bar{}, fmt.Sprintf("CPU time to start %d pods", most)})
	}
	return out
}

func windowLines(suffix, group string, memory, cpu bar) []line {
	out := []line{
		{"rss_" + suffix, "agent, resident memory", "MiB", memory, group},
		{"rssanon_" + suffix, "- of it anonymous", "MiB", bar{}, group},
		{"rssfile_" + suffix, "- of it program and libraries", "MiB", bar{}, group},
		{"cores_agent_" + suffix, "agent, CPU", "cores", cpu, group},
		{"cores_runtime_" + suffix, "containerd and shims, CPU", "cores", bar{ratioMax: barTime}, group},
		{"cores_control_" + suffix, "control plane, CPU", "cores", bar{}, group},
		{"cores_others_" + suffix, "others on this machine, CPU", "cores", bar{}, group},
		{"rsscontainerd_" + suffix, "containerd, resident memory", "MiB", bar{}, group},
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
