package cpus

import (
	"cmp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt: which CPUs are chosen on small machines. CONTRIBUTING.md says how to rewrite
// outcomes. The commands:
//
//	machine [distribute-numa] [distribute-cores] [full-cores] [by-cache]    a machine and the Options; lines of input:
//	    nodes|sockets|caches|cores LIST...    the groups of CPUs of that level. Without sockets each node is a socket,
//	                                          without caches each socket is a cache, without cores each CPU is a core
//	choose N [free=(LIST)]    prints the CPUs that are chosen for a request of N; free: all CPUs if not stated
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var topology *Topology
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				topology = New(described(t, d), options(t, d))
				return ""
			case "choose":
				return choose(t, topology, d)
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

// described returns the machine that the input describes.
func described(t *testing.T, d *datadriven.TestData) machine.Machine {
	m := machine.Machine{Sockets: map[machine.SocketID]idset.Set{}, L3: map[machine.CacheID]idset.Set{}}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		for i, word := range words[1:] {
			switch cpus := list(t, word); words[0] {
			case "nodes":
				m.NUMANodes = append(m.NUMANodes, machine.NUMANode{ID: machine.NUMAID(i), CPUs: cpus, Memory: unit.GiB})
			case "sockets":
				m.Sockets[machine.SocketID(i)] = cpus
			case "caches":
				m.L3[machine.CacheID(i)] = cpus
			case "cores":
				m.Cores = append(m.Cores, cpus)
			default:
				d.Fatalf(t, "unknown level %q", words[0])
			}
		}
	}
	m.NodeFS.Capacity = unit.GiB
	m = m.Complete()
	if err := m.Check(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	return m
}

func options(t *testing.T, d *datadriven.TestData) (o Options) {
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "distribute-numa":
			o.DistributeNUMA = true
		case "distribute-cores":
			o.DistributeCores = true
		case "full-cores":
			o.FullCores = true
		case "by-cache":
			o.PreferAlignByCache = true
		default:
			d.Fatalf(t, "unknown option %q", a.Key)
		}
	}
	return o
}

// choose returns the CPUs that are chosen. It checks that they are as many as requested, and were free.
func choose(t *testing.T, topology *Topology, d *datadriven.TestData) string {
	need, err := strconv.Atoi(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	free := topology.CPUs.Clone()
	for _, a := range d.CmdArgs[1:] {
		free = topology.None()
		for cpu := range list(t, strings.Join(a.Vals, ",")).All() {
			free.Add(cpu)
		}
	}
	before := free.Clone()
	chosen, err := topology.Choose(free, need)
	if err != nil {
		return err.Error() + "\n"
	}
	if chosen.Count() != need || !chosen.In(before) || !free.Equal(before) {
		d.Fatalf(t, "chose %v for %d out of %v, which became %v", chosen.IDs(), need, before.IDs(), free.IDs())
	}
	return cmp.Or(chosen.IDs().String(), "none") + "\n"
}

func list(t *testing.T, text string) idset.Set {
	t.Helper()
	set, err := idset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
