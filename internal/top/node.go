package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// nodePage is the page of one node: its load lines, stalls, NUMA map, decisions and pods.
func (v *View) nodePage(s *State) document {
	at := slices.IndexFunc(s.Nodes, func(n *Node) bool { return n.Name == v.Node })
	if at < 0 {
		return linesOf([]Line{plain("The API has no node " + v.Node + ".")})
	}
	n := s.Nodes[at]
	d := s.Detail
	if d == nil || d.Node != n.Name {
		d = &Detail{Node: n.Name, NoSamples: "the agent was not asked yet", NoNUMA: "not read yet"}
	}
	wide := v.Width
	if wide <= 0 {
		wide = textWidth
	}
	lines := loads(n, d, wide)
	lines = append(lines, stalls(d, wide)...)
	lines = append(lines, numaMap(d, wide)...)
	lines = append(lines, recent(d, s, wide)...)

	all := podColumns(s.Now, false)
	pods := v.podRows(s, all)
	flex := flexMin
	for _, p := range pods {
		flex = max(flex, columns(p.ID))
	}
	shown := fit(all, v.Width, min(flex, flexMax))
	lines = append(lines, heads(shown, v.sortOf(Pods), v.Reverse)...)
	above := len(lines)
	return document{
		count: above + len(pods),
		line: func(i int) Line {
			if i < above {
				return lines[i]
			}
			return row(shown, pods[i-above])
		},
		id: func(i int) string {
			if i < above {
				return ""
			}
			return pods[i-above].ID
		},
	}
}

// loads is a node's load lines: of each resource what it has, and where that goes.
func loads(n *Node, d *Detail, wide int) (out []Line) {
	state := nodeState(n)
	head := Line{{"Node " + clean(n.Name) + "  ", Title}, state, {"  " + clean(n.Kubelet), Dim}}
	if len(n.Pressure) > 0 {
		head = append(head, Span{"  pressure: " + strings.Join(n.Pressure, ", "), Bad})
	}
	out = append(out, head)
	if len(n.Taints) > 0 {
		out = append(out, plain("taints: "+strings.Join(n.Taints, ", ")))
	}
	used := n.Used
	if last := len(d.Samples); last > 0 && d.Samples[last-1].Used.Known() {
		used = d.Samples[last-1].Used
	}
	reserved, asked := n.Reserved(), n.requested()
	bar := min(max(wide-70, 0), 40) // characters: what is left beside the numbers, at most a fortieth each
	out = append(out, titled(fmt.Sprintf("%-8s%9s %9s %12s %10s %8s %8s", "", "CAPACITY", "-RESERVED", "=ALLOCATABLE",
		"-REQUESTED", "=FREE", "USED")))
	row := func(name string, of func(Amounts) int64, text func(int64) string, inUse int64, measured bool) {
		requested, free := unknown, unknown
		uses := unknown
		if n.Requested != nil {
			requested, free = text(of(asked)), text(of(n.Allocatable)-of(asked))
		}
		if measured {
			uses = text(inUse)
		}
		line := Line{{fmt.Sprintf("%-8s%9s %9s %12s %10s %8s %8s", name, text(of(n.Capacity)), text(of(reserved)),
			text(of(n.Allocatable)), requested, free, uses), Plain}}
		if bar > 0 {
			line = append(line, Span{" " + n.bar(of(n.Capacity), of(reserved), of(asked), inUse, bar), Dim})
		}
		out = append(out, line)
	}
	memory := func(b int64) string { return bytesText(unit.Bytes(b)) }
	row("cpu", func(a Amounts) int64 { return int64(a.CPU) }, func(m int64) string { return cpuText(unit.MilliCPU(m)) },
		int64(used.CPU), used.Known())
	row("memory", func(a Amounts) int64 { return int64(a.Memory) }, memory, int64(used.Memory), used.Known())
	row("storage", func(a Amounts) int64 { return int64(a.Disk) }, memory, 0, false)
	row("pods", func(a Amounts) int64 { return a.Pods }, func(p int64) string { return fmt.Sprint(p) }, asked.Pods,
		n.Requested != nil)
	return out
}

// stalls is how the node used memory and CPU, and waited for them, over the last samples.
func stalls(d *Detail, wide int) []Line {
	if len(d.Samples) == 0 {
		return []Line{dim("Pressure over time: not known: " + orNone(d.NoSamples))}
	}
	out := []Line{titled("Pressure (PSI: share of 10 s in which tasks waited) and use over time")}
	if d.NoSamples != "" {
		out = append(out, Line{{clean("The agent does not answer now: " + d.NoSamples), Warn}})
	}
	width := min(wide-26, samplesShown)
	draw := func(name string, of func(Sample) float64, text func(float64) string, least float64) {
		var values []float64
		top := least
		for _, s := range d.Samples {
			values = append(values, of(s))
			top = max(top, of(s))
		}
		last := values[len(values)-1]
		if last < 0 {
			out = append(out, dim(fmt.Sprintf("%-14s%8s", name, unknown)))
			return
		}
		out = append(out, Line{{fmt.Sprintf("%-14s%8s  ", name, text(last)), Plain}, {sparkline(values, top, width), Dim}})
	}
	percent := func(p float64) string { return fmt.Sprintf("%.1f%%", p) }
	draw("cpu some", func(s Sample) float64 { return s.Stall.CPUSome }, percent, 10)
	draw("memory some", func(s Sample) float64 { return s.Stall.MemorySome }, percent, 10)
	draw("memory full", func(s Sample) float64 { return s.Stall.MemoryFull }, percent, 10)
	draw("io some", func(s Sample) float64 { return s.Stall.IOSome }, percent, 10)
	draw("io full", func(s Sample) float64 { return s.Stall.IOFull }, percent, 10)
	draw("cpu used", func(s Sample) float64 { return float64(s.Used.CPU) },
		func(m float64) string { return cpuText(unit.MilliCPU(m)) }, 1)
	draw("memory used", func(s Sample) float64 { return float64(s.Used.Memory) },
		func(b float64) string { return bytesText(unit.Bytes(b)) }, 1)
	return out
}

// samplesShown is how many samples a sparkline has at most (chosen: a minute or two, in half a line).
const samplesShown = 60

// SamplesMax is how many samples of a node are worth keeping.
const SamplesMax = samplesShown

// owners are the letters of containers in a NUMA map. The containers that follow have an asterisk.
const owners = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// numaMap says who has which CPU: a letter for each container with CPUs of its own.
func numaMap(d *Detail, wide int) []Line {
	if len(d.NUMA) == 0 {
		return []Line{dim("NUMA map: none: " + orNone(d.NoNUMA))}
	}
	out := []Line{titled("NUMA map (topology policy " + clean(d.Policy) +
		"): a letter is a container's own CPU, · shared, r reserved")}
	letters := map[string]rune{}
	var order []string
	for _, n := range d.NUMA {
		var cpus strings.Builder
		for i, c := range n.CPUs {
			if i > 0 && i%8 == 0 { // by eights, to be counted
				cpus.WriteByte(' ')
			}
			switch {
			case c.Owner != "" && letters[c.Owner] == 0:
				letters[c.Owner] = '*'
				if len(order) < len(owners) {
					letters[c.Owner] = rune(owners[len(order)])
				}
				order = append(order, c.Owner)
				fallthrough
			case c.Owner != "":
				cpus.WriteRune(letters[c.Owner])
			case c.Kept:
				cpus.WriteByte('r')
			default:
				cpus.WriteRune('·')
			}
		}
		head := fmt.Sprintf("node %-3d %7s of %-7s free  ", n.ID, bytesText(n.Free), bytesText(n.Memory))
		if n.Memory == 0 {
			head = fmt.Sprintf("node %-3d %-24s", n.ID, "")
		}
		for rest, first := []rune(cpus.String()), true; len(rest) > 0 || first; first = false {
			width := min(max(wide-len(head), 8), len(rest))
			out = append(out, Line{{head, Plain}, {string(rest[:width]), Title}})
			rest, head = rest[width:], strings.Repeat(" ", len(head))
		}
	}
	for _, owner := range order {
		out = append(out, plain(fmt.Sprintf("  %c %s: CPUs %s", letters[owner], owner, cpusOf(d.NUMA, owner))))
	}
	return out
}

// cpusOf lists the CPUs of an owner, as the kernel lists CPUs.
func cpusOf(nodes []NUMANode, owner string) string {
	var ids []int
	for _, n := range nodes {
		for _, c := range n.CPUs {
			if c.Owner == owner {
				ids = append(ids, c.ID)
			}
		}
	}
	slices.Sort(ids)
	var parts []string
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		if last == i {
			parts = append(parts, fmt.Sprint(ids[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ids[i], ids[last]))
		}
		i = last + 1
	}
	return strings.Join(parts, ",")
}

// recentMax is how many decisions the page of a node has (chosen: those that one remembers).
const recentMax = 5

// recent is the node's last decisions, the newest first.
func recent(d *Detail, s *State, wide int) []Line {
	if len(d.Decisions) == 0 {
		return []Line{dim("Last decisions on the node: " + orNone(d.NoJournal))}
	}
	out := []Line{titled("Last decisions on the node")}
	for _, one := range slices.Backward(d.Decisions) {
		if len(out) > recentMax {
			break
		}
		style := Plain
		if one.Bad {
			style = Warn
		}
		text := fmt.Sprintf("%5s  %s: %s", ageText(s.Now.Sub(one.Time)), one.About, one.Text)
		out = append(out, Line{{clean(text), style}}.cut(wide))
	}
	return out
}

func orNone(why string) string {
	if why == "" {
		return "none"
	}
	return why
}
