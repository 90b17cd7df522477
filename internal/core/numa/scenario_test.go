package numa

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt: each text is a manual of one subject, on small machines. CONTRIBUTING.md says how
// to rewrite outcomes. The commands:
//
//	machine            one fact per line of input; begins a machine without pods:
//	    node ID cpus=LIST [memory=B] [hugepages-2Mi=B]    a NUMA node; memory is 8Gi if not stated
//	    sockets LIST...      CPUs by socket; not stated: a socket for each node
//	    cores LIST...        CPUs by core; not stated: each CPU is a core
//	    caches LIST...       CPUs by last-level cache; not stated: one for each socket
//	    distances ID N...    from a node to all nodes, in order; not stated: 10 to itself, 20 to others
//	config             a line for each field of the KubeletConfiguration that is set; begins without pods. Prints what is
//	                   wrong with it
//	plugin RESOURCE ID[@NODE[+NODE]][!]... [prefers=(ID,...)]    a device plugin lists its devices: near nodes, ! for
//	                   unhealthy; when asked, it prefers those named first
//	plugin RESOURCE gone
//	pod NAME [burstable] [pod-level]    an offer is made to the pod and committed; a container per line:
//	    init|sidecar|main NAME [cpu=N] [memory=B] [hugepages-2Mi=B] [RESOURCE=N] [expected=CPUS@NODE+...]
//	started NAME       the init containers of a pod have ended, all others run
//	end NAME           a pod has ended
//	free               what is free on each node, the shared pool, and the free devices
//	restart [without-plugins]    the agent restarts and rebuilds its State from what the pods have; plugins have listed
//	                   their devices before that, or have not connected yet. Lines of machine and config say what has
//	                   changed. Prints contradictions, and memory assigned beyond what there is
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.command(t, d) })
	})
}

// story is a machine, its configuration and what has happened on it.
type story struct {
	machine machine.Machine
	config  Config
	state   *State
	plugins []Plugin
	prefers map[string][]string
}

func (w *story) command(t *testing.T, d *datadriven.TestData) string {
	lines := strings.Split(strings.TrimSpace(d.Input), "\n")
	switch d.Cmd {
	case "machine":
		*w = story{prefers: map[string][]string{}, machine: machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.GiB}}}
		w.describe(t, lines)
		return ""
	case "config":
		w.config, w.plugins = Config{}, nil
		w.configure(t, lines)
		return w.begin(nil)
	case "plugin":
		w.plugin(t, d)
		return ""
	case "pod":
		return w.pod(t, d, lines)
	case "started":
		w.state.Finish(d.CmdArgs[0].Key)
		return ""
	case "end":
		if !w.state.Release(d.CmdArgs[0].Key) {
			return "no such pod\n"
		}
		return ""
	case "free":
		return w.free()
	case "restart":
		return w.restart(t, lines, len(d.CmdArgs) > 0)
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

// describe sets facts of the machine.
func (w *story) describe(t *testing.T, lines []string) {
	m := &w.machine
	for _, line := range lines {
		words := strings.Fields(line)
		switch words[0] {
		case "node":
			n := machine.NUMANode{ID: machine.NUMAID(whole(t, words[1])), Memory: 8 * unit.GiB}
			for _, word := range words[2:] {
				switch key, value, _ := strings.Cut(word, "="); key {
				case "cpus":
					n.CPUs = list(t, value)
				case "memory":
					n.Memory = bytes(t, value)
				case "hugepages-2Mi":
					n.HugePages = map[unit.Bytes]int64{2 * unit.MiB: int64(bytes(t, value) / (2 * unit.MiB))}
				default:
					t.Fatalf("unknown %q of a node", word)
				}
			}
			m.NUMANodes = slices.DeleteFunc(m.NUMANodes, func(old machine.NUMANode) bool { return old.ID == n.ID })
			m.NUMANodes = append(m.NUMANodes, n)
		case "sockets":
			m.Sockets = map[machine.SocketID]idset.Set{}
			for i, word := range words[1:] {
				m.Sockets[machine.SocketID(i)] = list(t, word)
			}
		case "caches":
			m.L3 = map[machine.CacheID]idset.Set{}
			for i, word := range words[1:] {
				m.L3[machine.CacheID(i)] = list(t, word)
			}
		case "cores":
			for _, word := range words[1:] {
				m.Cores = append(m.Cores, list(t, word))
			}
		case "distances":
			for i := range m.NUMANodes {
				if int64(m.NUMANodes[i].ID) != whole(t, words[1]) {
					continue
				}
				m.NUMANodes[i].Distances = map[machine.NUMAID]int{}
				for to, word := range words[2:] {
					m.NUMANodes[i].Distances[m.NUMANodes[to].ID] = int(whole(t, word))
				}
			}
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
}

// configure sets fields of the configuration, by their names in a KubeletConfiguration.
func (w *story) configure(t *testing.T, lines []string) {
	c := &w.config
	for _, line := range lines {
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "topologyManagerPolicy":
			for c.Topology.Policy = PolicyNone; c.Topology.Policy.String() != value; c.Topology.Policy++ {
			}
		case "topologyManagerScope":
			c.Topology.PodScope = oneOf(t, value, "container", "pod")
		case "topologyManagerPolicyOptions":
			c.Topology.PreferClosest = oneOf(t, value, "", "prefer-closest-numa-nodes")
		case "cpuManagerPolicy":
			c.CPU.Static = oneOf(t, value, "none", "static")
		case "reservedSystemCPUs":
			c.CPU.Reserved = list(t, value)
			c.CPU.ReservedCount = c.CPU.Reserved.Len()
		case "systemReserved":
			c.CPU.ReservedCount = int(whole(t, strings.TrimPrefix(value, "cpu=")))
		case "cpuManagerPolicyOptions":
			options := map[string]*bool{
				"full-pcpus-only":                  &c.CPU.FullPCPUsOnly,
				"strict-cpu-reservation":           &c.CPU.StrictReservation,
				"distribute-cpus-across-numa":      &c.CPU.DistributeNUMA,
				"distribute-cpus-across-cores":     &c.CPU.DistributeCores,
				"align-by-socket":                  &c.CPU.AlignBySocket,
				"prefer-align-cpus-by-uncorecache": &c.CPU.PreferAlignByCache,
			}
			for _, option := range strings.Fields(value) {
				*options[option] = true
			}
		case "memoryManagerPolicy":
			c.Memory.Static = oneOf(t, value, "None", "Static")
		case "reservedMemory":
			c.Memory.Reserved = map[machine.NUMAID]map[unit.Bytes]unit.Bytes{}
			for _, word := range strings.Fields(value) {
				node, amount, _ := strings.Cut(word, "=")
				c.Memory.Reserved[machine.NUMAID(whole(t, node))] = map[unit.Bytes]unit.Bytes{0: bytes(t, amount)}
			}
		default:
			t.Fatalf("unknown field %q", line)
		}
	}
}

// oneOf reports which of two values a field has.
func oneOf(t *testing.T, value, no, yes string) bool {
	if value != no && value != yes {
		t.Fatalf("%q: want %q or %q", value, no, yes)
	}
	return value == yes
}

// begin makes the State of a machine on which pods have the given assignments.
func (w *story) begin(held []Assignment) (out string) {
	m := w.machine.Complete()
	if err := m.Check(); err != nil {
		return err.Error() + "\n"
	}
	l, err := New(m, w.config)
	if err != nil {
		return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "check NUMA configuration: "), "; ", "\n") + "\n"
	}
	w.state = l.NewState()
	for _, p := range w.plugins {
		w.state.SetPlugin(p)
	}
	for _, a := range held {
		for _, problem := range w.state.Adopt(a) {
			out += problem + "\n"
		}
	}
	for _, e := range w.state.Excess() {
		out += fmt.Sprintf("pods own %v of %s on %s of %v\n", e.Owned, KindName(e.PageSize), nodeList(e.Nodes), e.Has)
	}
	return out
}

func (w *story) plugin(t *testing.T, d *datadriven.TestData) {
	p := Plugin{Resource: d.CmdArgs[0].Key}
	for _, a := range d.CmdArgs[1:] {
		switch {
		case a.Key == "prefers":
			p.Prefers, w.prefers[p.Resource] = true, a.Vals
		case a.Key == "gone":
			p.Gone = true
		default:
			id, nodes, _ := strings.Cut(strings.TrimSuffix(a.Key, "!"), "@")
			device := Device{ID: id, Healthy: !strings.HasSuffix(a.Key, "!")}
			for n := range strings.SplitSeq(nodes, "+") {
				if n != "" {
					device.Nodes = append(device.Nodes, machine.NUMAID(whole(t, n)))
				}
			}
			p.Devices = append(p.Devices, device)
		}
	}
	w.plugins = slices.DeleteFunc(w.plugins, func(old Plugin) bool { return old.Resource == p.Resource })
	w.plugins = append(w.plugins, p)
	w.state.SetPlugin(p)
}

func (w *story) pod(t *testing.T, d *datadriven.TestData, lines []string) string {
	p := Pod{UID: d.CmdArgs[0].Key, Guaranteed: true}
	for _, a := range d.CmdArgs[1:] {
		switch a.Key {
		case "burstable":
			p.Guaranteed = false
		case "pod-level":
			p.PodLevel = true
		default:
			t.Fatalf("%s: unknown %q", d.Pos, a.Key)
		}
	}
	for _, line := range lines {
		words := strings.Fields(line)
		if last := words[len(words)-1]; strings.HasPrefix(last, "expected=") {
			p.Berth = append(p.Berth, berth(t, words[1], strings.TrimPrefix(last, "expected=")))
			words = words[:len(words)-1]
		}
		c := container(t, words[1], words[2:])
		switch words[0] {
		case "main":
			p.Containers = append(p.Containers, c)
		case "sidecar":
			c.Sidecar = true
			p.Init = append(p.Init, c)
		case "init":
			p.Init = append(p.Init, c)
		default:
			t.Fatalf("%s: unknown container %q", d.Pos, line)
		}
	}
	return w.admit(t, p)
}

func berth(t *testing.T, container, text string) ContainerBerth {
	cpus, nodes, _ := strings.Cut(text, "@")
	b := ContainerBerth{Container: container, CPUs: list(t, cpus)}
	for n := range strings.SplitSeq(nodes, "+") {
		b.Nodes = append(b.Nodes, machine.NUMAID(whole(t, n)))
	}
	return b
}

func container(t *testing.T, name string, words []string) Container {
	c := Container{Name: name}
	for _, word := range words {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "cpu":
			c.CPU = milli(t, value)
		case "memory":
			c.Memory = append(c.Memory, MemoryRequest{Bytes: bytes(t, value)})
		case "hugepages-2Mi":
			c.Memory = append(c.Memory, MemoryRequest{PageSize: 2 * unit.MiB, Bytes: bytes(t, value)})
		default:
			c.Devices = append(c.Devices, DeviceRequest{Resource: key, Count: int(whole(t, value))})
		}
	}
	return c
}

// admit answers the plugins' questions until none is left, and commits the offer.
func (w *story) admit(t *testing.T, p Pod) string {
	out := ""
	answers := Answers{}
	offer, rejection := w.state.Offer(p, answers)
	for offer.Question != nil {
		q := offer.Question
		out += fmt.Sprintf("asks %s: %d of %s with %s\n", q.Resource, q.Size, orNone(q.Available), orNone(q.Included))
		answer := slices.Clone(q.Included)
		for _, id := range w.prefers[q.Resource] {
			if slices.Contains(q.Available, id) && !slices.Contains(answer, id) && len(answer) < q.Size {
				answer = append(answer, id)
			}
		}
		answers[Subject{q.Container, q.Resource}] = answer
		offer, rejection = w.state.Offer(p, answers)
	}
	if rejection != nil {
		if rejection.Waiting {
			out += "waits: "
		}
		return out + rejection.Reason + "\n" + strings.ReplaceAll(rejection.Message(), "; ", ";\n  ") + "\n"
	}
	if err := w.state.Commit(offer); err != nil {
		t.Fatal(err)
	}
	for _, h := range offer.Assignment.Containers {
		out += w.given(h) + "\n"
	}
	return out
}

// given describes what is assigned to a container, and by which hint.
func (w *story) given(h Assigned) string {
	var parts []string
	if h.CPUs.IsEmpty() {
		parts = append(parts, "the shared pool")
	} else {
		parts = append(parts, fmt.Sprintf("CPUs %v (%s)", h.CPUs, w.nodesOf(h.CPUs)))
	}
	for _, b := range h.Memory {
		parts = append(parts, fmt.Sprintf("%s %v (%s)", KindName(b.PageSize), b.Bytes, nodeList(b.Nodes)))
	}
	for _, d := range h.Devices {
		parts = append(parts, d.Resource+" "+strings.Join(d.IDs, "+"))
	}
	text := h.Container + ": " + strings.Join(parts, ", ")
	switch {
	case w.config.Topology.Policy == PolicyNone:
	case h.Nodes == nil:
		text += "; hint: anywhere"
	default:
		text += "; hint: " + nodeList(h.Nodes)
	}
	if h.Preferred {
		text += ", preferred"
	}
	return text
}

// nodesOf names the nodes of CPUs.
func (w *story) nodesOf(cpus idset.Set) string {
	var nodes []machine.NUMAID
	for _, n := range w.machine.NUMANodes {
		if !n.CPUs.Intersect(cpus).IsEmpty() {
			nodes = append(nodes, n.ID)
		}
	}
	return nodeList(nodes)
}

func nodeList(nodes []machine.NUMAID) string {
	if len(nodes) == 1 {
		return fmt.Sprintf("node %d", nodes[0])
	}
	var ids []int
	for _, n := range nodes {
		ids = append(ids, int(n))
	}
	return fmt.Sprintf("nodes %v", idset.Of(ids...))
}

func (w *story) free() (out string) {
	for _, n := range w.state.Free() {
		out += fmt.Sprintf("node %d: CPUs %s", n.Node, cpuList(n.CPUs))
		for _, m := range n.Memory {
			out += fmt.Sprintf(", %s %v", KindName(m.PageSize), m.Bytes)
		}
		out += "\n"
	}
	out += fmt.Sprintf("shared pool: CPUs %s\n", cpuList(w.state.SharedCPUs()))
	for _, d := range w.state.FreeDevices() {
		out += fmt.Sprintf("%s: %s\n", d.Resource, orNone(d.IDs))
	}
	return out
}

func cpuList(cpus idset.Set) string {
	if cpus.IsEmpty() {
		return "none"
	}
	return cpus.String()
}

func orNone(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, "+")
}

// restart rebuilds the State, on the same machine and configuration or on changed ones.
func (w *story) restart(t *testing.T, lines []string, withoutPlugins bool) string {
	held, before := w.state.Assignments(), w.state.snapshot()
	changed := withoutPlugins
	if withoutPlugins {
		w.plugins = nil
	}
	for _, line := range lines {
		switch {
		case line == "":
			continue
		case strings.Contains(line, ": "):
			w.configure(t, []string{line})
		default:
			w.describe(t, []string{line})
		}
		changed = true
	}
	out := w.begin(held)
	if !changed && w.state.snapshot() != before {
		out += "differs from before\n"
	}
	if out == "" {
		return "nothing contradicts\n"
	}
	return out
}

func whole(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func list(t *testing.T, text string) idset.Set {
	s, err := idset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// milli parses 2 and 500m.
func milli(t *testing.T, text string) unit.MilliCPU {
	if thousandths, ok := strings.CutSuffix(text, "m"); ok {
		return unit.MilliCPU(whole(t, thousandths))
	}
	return unit.CPU * unit.MilliCPU(whole(t, text))
}

// bytes parses 512Mi and 2Gi.
func bytes(t *testing.T, text string) unit.Bytes {
	if n, ok := strings.CutSuffix(text, "Gi"); ok {
		return unit.GiB * unit.Bytes(whole(t, n))
	}
	return unit.MiB * unit.Bytes(whole(t, strings.TrimSuffix(text, "Mi")))
}
