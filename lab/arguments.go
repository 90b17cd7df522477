package lab

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// qemu returns QEMU's arguments for b, without its disks.
func (b board) qemu() []string {
	args := []string{
		"-smp", fmt.Sprintf("%d,sockets=%d,dies=%d,cores=%d,threads=%d", len(b.node), b.sockets, b.dies, b.cores, b.threads),
		"-m", kib(b.installed()),
	}
	for id, n := range b.nodes {
		node := fmt.Sprintf("node,nodeid=%d", id)
		if n.installed > 0 {
			args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=mem%d,size=%s", id, kib(n.installed)))
			node += fmt.Sprintf(",memdev=mem%d", id)
		}
		args = append(args, "-numa", node)
	}
	for cpu, node := range b.node {
		core := cpu / b.threads
		die := core / b.cores
		where := fmt.Sprintf("socket-id=%d,core-id=%d,thread-id=%d", die/b.dies, core%b.cores, cpu%b.threads)
		if b.dies > 1 { // with one die per socket, QEMU rejects die-id
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

// kib prints an amount in the format of QEMU and the kernel.
func kib(b unit.Bytes) string { return fmt.Sprintf("%dk", int64(b/unit.KiB)) }

// kernel returns the kernel's arguments for b.
func (b board) kernel() []string {
	var args []string
	for _, size := range []unit.Bytes{2 * unit.MiB, unit.GiB} {
		var pages []string
		for id, n := range b.nodes {
			if count := n.pages[size]; count > 0 {
				pages = append(pages, fmt.Sprintf("%d:%d", id, count))
			}
		}
		if pages != nil {
			args = append(args, "hugepagesz="+kib(size), "hugepages="+strings.Join(pages, ","))
		}
	}
	if !b.isolated.IsEmpty() {
		args = append(args, "isolcpus="+b.isolated.String())
	}
	return args
}

// Where QEMU's q35 board puts memory (hw/i386/pc_q35.c): from address 0 while it is less than lowMax; else lowSplit of
// it there, and the rest from highStart.
const (
	lowMax    = 0xb0000000
	lowSplit  = 0x80000000
	highStart = 0x100000000
)

// withhold returns kernel arguments that withhold an amount at the end of each node's memory from the kernel
// (memmap=SIZE$START, Documentation/admin-guide/kernel-parameters.txt). With them, a node's usable memory is exactly
// what was described, whatever the kernel uses itself.
func (b board) withhold(amounts []unit.Bytes) []string {
	var args []string
	var end unit.Bytes // of the node, if memory were contiguous
	split := b.installed() >= lowMax
	reserve := func(start, size unit.Bytes) {
		if split && start >= lowSplit {
			start += highStart - lowSplit
		}
		if size > 0 {
			args = append(args, fmt.Sprintf("memmap=%s$%s", kib(size), kib(start)))
		}
	}
	for i, n := range b.nodes {
		end += n.installed
		start := end - amounts[i]
		low := unit.Bytes(0) // the part of the amount that is below the split
		if split && start < lowSplit && end > lowSplit {
			low = lowSplit - start
		}
		reserve(start, low)
		reserve(start+low, amounts[i]-low)
	}
	return args
}
