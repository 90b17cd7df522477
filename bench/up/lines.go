package main

import "github.com/plimsoll-dev/plimsoll/bench/record"

// Names of values. Cold is on an empty state directory, warm is after `down`.
const (
	readyCold = "ready_cold"
	saidCold  = "said_cold"
	namesCold = "names_cold"
	allCold   = "all_cold"
	readyWarm = "ready_warm"
	saidWarm  = "said_warm"
	namesWarm = "names_warm"
	allWarm   = "all_warm"
	downTime  = "down"
	processes = "processes"
)

// Names of values at rest: of the whole, and with a role and an underscore before them of the role's processes.
const (
	resident = "resident"
	private  = "private"
	restCPU  = "rest_cpu"
)

// of is the name of a value at rest of one role.
func of(role, name string) string { return role + "_" + name }

// The roles of processes. A role has the same work on both sides: the lifecycle controller does what
// kube-controller-manager does where upstream's programs run, so they are one role.
const (
	roleAgent       = "agent"
	roleScheduler   = "scheduler"
	roleControllers = "controllers"
	roleRest        = "rest"
	// roleLifecycle is a part of roleControllers, which only our side has.
	roleLifecycle = "lifecycle"
)

// roleOf returns the role of a child of `up` by its name in `status`.
func roleOf(child string) string {
	switch child {
	case "agent":
		return roleAgent
	case "scheduler":
		return roleScheduler
	case "kube-controller-manager":
		return roleControllers
	case "lifecycle":
		return roleLifecycle
	}
	return roleRest
}

// Bars of the project. Those of several nodes are for three nodes on two cores; the others are for one node.
const (
	manyReadyBar = 40   // s
	manyAllBar   = 40   // s
	readyBar     = 10   // s, after `down`
	allBar       = 20   // s, after `down`
	memoryBar    = 900  // MiB of the whole, shared pages divided
	cpuBar       = 0.08 // cores of the whole
)

const (
	groupCold = "Empty state directory"
	groupWarm = "Again after `down`"
	groupRest = "At rest: the whole"
	groupEnd  = "End"

	titleReady    = "`up` to all nodes Ready, as their agents report"
	titleSaid     = "`up` to its own word that they are: Leases are renewed, too"
	titleNames    = "`up` to names of Services (CoreDNS)"
	titleAll      = "`up` to all add-ons ready"
	titleResident = "resident memory, shared pages counted in each process"
	titlePrivate  = "the same, shared pages divided among the processes that have them"
)

// bars are the bars of one report, by the names of values.
type bars map[string]record.Bar

func (b bars) line(group, name, title, unit string) record.Line {
	return record.Line{Group: group, Name: name, Title: title, Unit: unit, Bar: b[name]}
}

// common are the lines that both reports have.
func (b bars) common() []record.Line {
	return []record.Line{
		b.line(groupCold, readyCold, titleReady, "s"),
		b.line(groupCold, saidCold, titleSaid, "s"),
		b.line(groupCold, namesCold, titleNames, "s"),
		b.line(groupCold, allCold, titleAll, "s"),
		b.line(groupWarm, readyWarm, titleReady, "s"),
		b.line(groupWarm, saidWarm, titleSaid, "s"),
		b.line(groupWarm, namesWarm, titleNames, "s"),
		b.line(groupWarm, allWarm, titleAll, "s"),
		b.line(groupEnd, downTime, "`down`", "s"),
		b.line(groupRest, processes, "processes, those of add-ons included", ""),
		b.line(groupRest, resident, titleResident, "MiB"),
		b.line(groupRest, private, titlePrivate, "MiB"),
		b.line(groupRest, restCPU, "CPU", "cores"),
	}
}

// nodeLines are the lines of the report about several nodes.
func nodeLines() []record.Line {
	ready, all := record.Bar{Max: manyReadyBar}, record.Bar{Max: manyAllBar}
	return bars{saidCold: ready, namesCold: all, saidWarm: ready, namesWarm: all, allWarm: all}.common()
}

// upstreamLines are the lines of the report about upstream's programs.
func upstreamLines() []record.Line {
	b := bars{
		saidWarm: {Max: readyBar},
		allWarm:  {Max: allBar},
		private:  {Max: memoryBar},
		restCPU:  {Max: cpuBar},
	}
	out := b.common()
	for _, r := range []struct{ role, group string }{
		{roleAgent, "At rest: agent and kubelet"},
		{roleScheduler, "At rest: scheduler and kube-scheduler"},
		{roleControllers, "At rest: kube-controller-manager, with our lifecycle controller or its own"},
		{roleLifecycle, "At rest: of that, our lifecycle controller"},
		{roleRest, "At rest: everything else"},
	} {
		out = append(out,
			b.line(r.group, of(r.role, resident), titleResident, "MiB"),
			b.line(r.group, of(r.role, private), titlePrivate, "MiB"),
			b.line(r.group, of(r.role, restCPU), "CPU", "cores"))
	}
	return out
}
