package memory

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// huge is the page size of the huge pages in the texts.
const huge = 2 * unit.MiB

// TestScenarios plays testdata/*.txt: from which NUMA nodes memory is taken. CONTRIBUTING.md says how to rewrite
// outcomes. All amounts are GiB. The commands:
//
//	machine                      a machine on which no memory is assigned; a line of input for each node, in order:
//	    node MEMORY [huge=N] [reserved=N]    N of its memory is set aside as huge pages, N of the rest is reserved
//	pick N [huge=N] [hint=(NODES)] [preferred] [again=(NODES,N)]   prints the nodes that a request would be taken
//	                             from; hint: any node if not stated; again: what init containers have passed on there
//	assign NODES N [huge]        assigns a block
//	release NODES N [huge]       releases a block
//	free                         prints what is free on each node
//	excess                       prints what is assigned beyond what there is
//	shrink NODE N                the node has only N of memory from now on: the machine has changed
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				w = newWorld(t, d)
				return ""
			case "pick":
				return w.pick(t, d)
			case "assign":
				return w.change(t, d, 1)
			case "release":
				return w.change(t, d, -1)
			case "free":
				return w.free()
			case "excess":
				return w.excess()
			case "shrink":
				w.nodes[number(t, d.CmdArgs[0].Key)].Memory = unit.Bytes(number(t, d.CmdArgs[1].Key)) * unit.GiB
				w.capacity = NewCapacity(machine.Machine{NUMANodes: w.nodes}, w.reserved)
				w.table.countFree(w.capacity)
				return ""
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

// world is a machine, and the memory that is assigned on it.
type world struct {
	nodes    []machine.NUMANode
	reserved map[machine.NUMAID]map[unit.Bytes]unit.Bytes
	capacity *Capacity
	table    Table
}

func newWorld(t *testing.T, d *datadriven.TestData) world {
	w := world{reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{}}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		n := machine.NUMANode{ID: machine.NUMAID(len(w.nodes)), Memory: unit.Bytes(number(t, words[1])) * unit.GiB}
		for _, word := range words[2:] {
			switch key, value, _ := strings.Cut(word, "="); key {
			case "huge":
				n.HugePages = map[unit.Bytes]int64{huge: int64(number(t, value)) * int64(unit.GiB/huge)}
			case "reserved":
				w.reserved[n.ID] = map[unit.Bytes]unit.Bytes{0: unit.Bytes(number(t, value)) * unit.GiB}
			default:
				d.Fatalf(t, "unknown %q of a node", word)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	w.capacity = NewCapacity(machine.Machine{NUMANodes: w.nodes}, w.reserved)
	w.table = w.capacity.Unused()
	return w
}

func (w *world) pick(t *testing.T, d *datadriven.TestData) string {
	asked := []Amount{{Kind: w.capacity.Kind(0), Bytes: gib(t, d.CmdArgs[0].Key)}}
	var at hints.Hint
	var again Reusable
	for _, a := range d.CmdArgs[1:] {
		switch a.Key {
		case "huge":
			asked = append(asked, Amount{Kind: w.capacity.Kind(huge), Bytes: gib(t, a.Vals[0])})
		case "hint":
			at.Nodes = w.set(t, strings.Join(a.Vals, ","))
		case "preferred":
			at.Preferred = true
		case "again":
			again = append(again, BlocksOn{Nodes: w.set(t, a.Vals[0]), Bytes: map[int]int64{0: gib(t, a.Vals[1])}})
		default:
			d.Fatalf(t, "unknown %q", a.Key)
		}
	}
	all := func(families []*hints.Family) []*hints.Family { return families }
	nodes, why := w.table.Pick(w.capacity, asked, again, at, all)
	if why != "" {
		return why + "\n"
	}
	return "nodes " + nodes.IDs().String() + "\n"
}

func (w *world) change(t *testing.T, d *datadriven.TestData, blocks int) string {
	kind := 0
	if len(d.CmdArgs) > 2 {
		kind = w.capacity.Kind(huge)
	}
	w.table.Change(w.capacity, w.set(t, d.CmdArgs[0].Key), kind, blocks, int64(blocks)*gib(t, d.CmdArgs[1].Key))
	return ""
}

func (w *world) free() string {
	var b strings.Builder
	for kind, size := range w.capacity.Kinds {
		name := "memory"
		if size > 0 {
			name = "huge pages"
		}
		fmt.Fprintf(&b, "%s:", name)
		for _, n := range w.table.Free(w.capacity, kind) {
			fmt.Fprintf(&b, " %v", unit.Bytes(n))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (w *world) excess() string {
	var b strings.Builder
	w.table.Excess(w.capacity, func(nodes bitset.Set, kind int, owned, has int64) {
		fmt.Fprintf(&b, "nodes %v: %v is assigned of %v\n", nodes.IDs(), unit.Bytes(owned), unit.Bytes(has))
	})
	return b.String()
}

// set parses the places of nodes.
func (w *world) set(t *testing.T, text string) bitset.Set {
	t.Helper()
	ids, err := idset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	out := bitset.New(len(w.nodes))
	for id := range ids.All() {
		out.Add(id)
	}
	return out
}

func gib(t *testing.T, text string) int64 { return int64(number(t, text)) * int64(unit.GiB) }

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
