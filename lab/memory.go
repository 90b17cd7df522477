package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// memory makes the kernel's usable memory of each of a guest's nodes exactly what was described. How much a kernel uses
// itself is known only after its boot; it is the same at each boot of the same kernel on the same board. So the first
// boot of a machine is measured, and later boots withhold the surplus from the kernel. The store keeps how much that
// is.
type memory struct {
	board    board
	withheld []unit.Bytes // per node
	path     string       // the file with the known amounts
	known    bool         // the file has the amounts of withheld
}

// memoryTries bounds the boots to find the right amounts (measured 2026-11: one, and one more the first time; the
// second try after that is for what changes when memory is withheld).
const memoryTries = 4

// errOtherMemory says that a guest's memory was not as described, and that another boot may help.
var errOtherMemory = errors.New("the guest's memory is not as described")

func openMemory(s store, b board, digest string) (*memory, error) {
	m := &memory{board: b, withheld: make([]unit.Bytes, len(b.nodes)), path: filepath.Join(s.dir, "memory-"+digest)}
	text, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, s.prune("memory")
	}
	if err != nil {
		return nil, err
	}
	var kept []unit.Bytes
	if json.Unmarshal(text, &kept) == nil && len(kept) == len(m.withheld) { // otherwise it is measured again
		m.withheld, m.known = kept, true
	}
	return m, s.touch(m.path)
}

// judge compares a guest's memory, in bytes by node, with the description, and corrects the withheld amounts.
func (m *memory) judge(has []int64) error {
	if len(has) != len(m.board.nodes) {
		return fmt.Errorf("the guest's kernel has %d NUMA nodes, %d are described", len(has), len(m.board.nodes))
	}
	var other error
	for i, node := range m.board.nodes {
		surplus := unit.Bytes(has[i]) - node.memory
		if surplus == 0 {
			continue
		}
		m.withheld[i] += surplus
		other, m.known = errOtherMemory, false
		if m.withheld[i] < 0 {
			return fmt.Errorf("numaNodes[%d]: memory %v, installed %v: the kernel leaves %v of that: describe less memory, "+
				"or more installed", i, node.memory, node.installed, unit.Bytes(has[i]))
		}
		if m.withheld[i] >= memoryBlock {
			return fmt.Errorf("numaNodes[%d]: memory %v, installed %v: the kernel leaves %v of that: describe more memory, "+
				"or less installed", i, node.memory, node.installed, unit.Bytes(has[i]))
		}
	}
	return other
}

// shrink reduces the described memory of a node. The withheld amounts are then kept in another file, since the machine
// is another one.
func (m *memory) shrink(node int, by unit.Bytes) error {
	if node < 0 || node >= len(m.board.nodes) || by <= 0 || by%blockSize != 0 || m.withheld[node]+by >= memoryBlock {
		return fmt.Errorf("node %d: %v less: want a node of 0-%d and a multiple of %v below %v", node, by,
			len(m.board.nodes)-1, blockSize, memoryBlock-m.withheld[node])
	}
	m.board.nodes, m.withheld = slices.Clone(m.board.nodes), slices.Clone(m.withheld)
	m.board.nodes[node].memory -= by
	m.withheld[node] += by
	m.path, m.known = fmt.Sprintf("%s-%d-%d", m.path, node, by), false
	return nil
}

// keep saves the right amounts.
func (m *memory) keep() error {
	if m.known {
		return nil
	}
	text, err := json.Marshal(m.withheld)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(m.path), "memory.part-")
	if err != nil {
		return err
	}
	if _, err := next.Write(text); err != nil {
		return errors.Join(err, next.Close(), os.Remove(next.Name()))
	}
	m.known = true
	return errors.Join(next.Close(), os.Rename(next.Name(), m.path))
}
