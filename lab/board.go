package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A board is a machine in QEMU's terms: sockets, dies, cores and threads in equal numbers, with CPUs numbered in that order,
// and NUMA nodes 0, 1, 2, ... that take whole CPUs from them.
type board struct {
	sockets, dies, cores, threads int   // dies of a socket, cores of a die, threads of a core
	node                          []int // of each CPU
	nodes                         []boardNode
	isolated                      idset.Set

	nodeFS, imageFS boardFS // imageFS.capacity 0: none
	swap            unit.Bytes
}

type boardNode struct {
	memory    unit.Bytes // 0: none
	pages     map[unit.Bytes]int64
	distances []int // to each node; empty: the usual
}

type boardFS struct {
	capacity unit.Bytes
	inodes   int64
}

func (b board) memory() (total unit.Bytes) {
	for _, n := range b.nodes {
		total += n.memory
	}
	return total
}

// qemu returns the arguments that make b of QEMU's parts, all but its disks.
func (b board) qemu() []string {
	args := []string{
		"-smp", fmt.Sprintf("%d,sockets=%d,dies=%d,cores=%d,threads=%d", len(b.node), b.sockets, b.dies, b.cores, b.threads),
		"-m", fmt.Sprintf("%dk", int64(b.memory()/unit.KiB)),
	}
	for id, n := range b.nodes {
		node := fmt.Sprintf("node,nodeid=%d", id)
		if n.memory > 0 {
			args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=mem%d,size=%dk", id, int64(n.memory/unit.KiB)))
			node += fmt.Sprintf(",memdev=mem%d", id)
		}
		args = append(args, "-numa", node)
	}
	for cpu, node := range b.node {
		core := cpu / b.threads
		die := core / b.cores
		where := fmt.Sprintf("socket-id=%d,core-id=%d,thread-id=%d", die/b.dies, core%b.cores, cpu%b.threads)
		if b.dies > 1 { // else QEMU knows no dies
			where += fmt.Sprintf(",die-id=%d", die%b.dies)
		}
		args = append(args, "-numa", fmt.Sprintf("cpu,node-id=%d,%s", node, where))
	}
	for from, n := range b.nodes {
		for to, distance := range n.distances {
			args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", from, to, distance))
		}
	}
	return args
}

// kernel returns what the kernel must be told to be b.
func (b board) kernel() []string {
	var args []string
	bySize := map[unit.Bytes][]string{}
	for id, n := range b.nodes {
		for size, count := range n.pages {
			bySize[size] = append(bySize[size], fmt.Sprintf("%d:%d", id, count))
		}
	}
	for _, size := range []unit.Bytes{2 * unit.MiB, unit.GiB} {
		if len(bySize[size]) > 0 {
			slices.Sort(bySize[size])
			args = append(args, "hugepagesz="+strconv.FormatInt(int64(size/unit.MiB), 10)+"M", "hugepages="+strings.Join(bySize[size], ","))
		}
	}
	if !b.isolated.IsEmpty() {
		args = append(args, "isolcpus="+b.isolated.String())
	}
	return args
}
