package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const nodeDir = "devices/system/node"

func nodeName(id machine.NUMAID) string { return fmt.Sprintf("node%d", id) }

// NUMANodes returns the online NUMA nodes by ID (Documentation/ABI/stable/sysfs-devices-node); none on a kernel without
// NUMA.
func (fs FS) NUMANodes() ([]machine.NUMANode, error) {
	ids, ok, err := fs.list(nodeDir, "online")
	if err != nil {
		return nil, fmt.Errorf("read NUMA nodes: %w", err)
	}
	if !ok {
		return nil, nil
	}
	var nodes []machine.NUMANode
	for id := range ids.All() {
		n, err := fs.numaNode(machine.NUMAID(id), ids)
		if err != nil {
			return nil, fmt.Errorf("read NUMA nodes: %w", err)
		}
		nodes = append(nodes, n)
	}
	if err := fs.installed(nodes); err != nil {
		return nil, fmt.Errorf("read NUMA nodes: %w", err)
	}
	return nodes, nil
}

// numaNode reads one of the nodes ids.
func (fs FS) numaNode(id machine.NUMAID, ids idset.Set) (machine.NUMANode, error) {
	n := machine.NUMANode{ID: id}
	dir := nodeDir + "/" + nodeName(id)
	cpus, ok, err := fs.list(dir, "cpulist")
	if err != nil || !ok {
		return n, missing(fs.path(dir, "cpulist"), err)
	}
	n.CPUs = cpus
	text, ok, err := fs.text(dir, "meminfo")
	if err != nil || !ok {
		return n, missing(fs.path(dir, "meminfo"), err)
	}
	if n.Memory, err = parseNodeMemory(text); err != nil {
		return n, fmt.Errorf("%s: %w", fs.path(dir, "meminfo"), err)
	}
	if text, ok, err = fs.text(dir, "distance"); err != nil || !ok {
		return n, missing(fs.path(dir, "distance"), err)
	}
	if n.Distances, err = parseDistances(text, ids); err != nil {
		return n, fmt.Errorf("%s: %w", fs.path(dir, "distance"), err)
	}
	n.HugePages, err = fs.hugePages(dir + "/hugepages")
	return n, err
}

func missing(file string, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: missing", file)
}

// parseNodeMemory finds the memory of a node in its meminfo, whose lines are like "Node 0 MemTotal:   21457108 kB".
func parseNodeMemory(text string) (unit.Bytes, error) {
	for number, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "Node" || words[2] != "MemTotal:" {
			continue
		}
		if len(words) == 5 && words[4] == "kB" {
			if n, err := strconv.ParseInt(words[3], 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/1024 {
				return unit.Bytes(n) * unit.KiB, nil
			}
		}
		return 0, fmt.Errorf("line %d: %.80q: want a number of kB", number+1, line)
	}
	return 0, errors.New("MemTotal: missing")
}

// parseDistances reads one number for each online node, in the order of their IDs.
func parseDistances(text string, ids idset.Set) (map[machine.NUMAID]int, error) {
	words := strings.Fields(text)
	if len(words) != ids.Len() {
		return nil, fmt.Errorf("%.80q: want a distance to each of the nodes %v", text, ids)
	}
	distances, i := map[machine.NUMAID]int{}, 0
	for id := range ids.All() {
		d, err := strconv.ParseUint(words[i], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%.80q: %.20q: want a number", text, words[i])
		}
		distances[machine.NUMAID(id)] = int(d)
		i++
	}
	return distances, nil
}

// installed counts the memory blocks of each node (Documentation/admin-guide/mm/memory-hotplug.rst): what the firmware
// provided, in whole blocks. It stays unknown on kernels without memory blocks, and for nodes that share a block.
func (fs FS) installed(nodes []machine.NUMANode) error {
	const sizeFile = "devices/system/memory/block_size_bytes"
	text, ok, err := fs.text(sizeFile)
	if err != nil || !ok {
		return err
	}
	size, err := parseBlockSize(text)
	if err != nil {
		return fmt.Errorf("%s: %w", fs.path(sizeFile), err)
	}
	owner := map[string]int{} // index into nodes
	shared := map[int]bool{}
	for i, n := range nodes {
		entries, err := os.ReadDir(fs.path(nodeDir, nodeName(n.ID)))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if digits, isBlock := strings.CutPrefix(e.Name(), "memory"); !isBlock || !isNumber(digits) {
				continue
			}
			if other, twice := owner[e.Name()]; twice {
				shared[i], shared[other] = true, true
			}
			owner[e.Name()] = i
			nodes[i].Installed += size
		}
	}
	for i := range nodes {
		if n := &nodes[i]; shared[i] || n.Installed < n.Memory {
			n.Installed = 0
		}
	}
	return nil
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}

// blockSizeMax bounds a memory block: kernels have blocks of 16 MiB to 2 GiB, and a million blocks of this size can
// still be counted.
const blockSizeMax = unit.TiB

// parseBlockSize reads block_size_bytes: hexadecimal without 0x.
func parseBlockSize(text string) (unit.Bytes, error) {
	n, err := strconv.ParseUint(text, 16, 63)
	if err != nil || n == 0 || n&(n-1) != 0 || unit.Bytes(n) > blockSizeMax {
		return 0, fmt.Errorf("%.80q: want the size of a memory block in hexadecimal", text)
	}
	return unit.Bytes(n), nil
}

// classBridge is the PCI class of bridges, whose location adds nothing to that of the devices behind them.
const classBridge = 0x06

// PCIDevices returns the devices whose NUMA node is known, by address; bridges are left out.
func (fs FS) PCIDevices() ([]machine.PCIDevice, error) {
	const dir = "bus/pci/devices"
	entries, err := os.ReadDir(fs.path(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read PCI devices: %w", err)
	}
	var devices []machine.PCIDevice
	for _, e := range entries {
		node, ok, err := fs.number(dir, e.Name(), "numa_node")
		if err != nil {
			return nil, fmt.Errorf("read PCI devices: %w", err)
		}
		if !ok || node == -1 {
			continue
		}
		if node < 0 || node > int64(machine.NUMAIDMax) {
			return nil, fmt.Errorf("read PCI devices: %s: %d: want a NUMA node, or -1", fs.path(dir, e.Name(), "numa_node"),
				node)
		}
		d := machine.PCIDevice{Address: e.Name(), NUMANode: machine.NUMAID(node)}
		for _, field := range []struct {
			file string
			bits int
			into *uint32
		}{{"class", 24, &d.Class}, {"vendor", 16, &d.Vendor}, {"device", 16, &d.Device}} {
			text, _, err := fs.text(dir, e.Name(), field.file)
			if err == nil {
				*field.into, err = parseHex(text, field.bits)
			}
			if err != nil {
				return nil, fmt.Errorf("read PCI devices: %s: %w", fs.path(dir, e.Name(), field.file), err)
			}
		}
		if d.Class>>16 != classBridge {
			devices = append(devices, d)
		}
	}
	slices.SortFunc(devices, func(a, b machine.PCIDevice) int { return cmp.Compare(a.Address, b.Address) })
	return devices, nil
}

// parseHex reads a number like 0x020000.
func parseHex(text string, bits int) (uint32, error) {
	digits, isHex := strings.CutPrefix(text, "0x")
	n, err := strconv.ParseUint(digits, 16, bits)
	if !isHex || err != nil {
		return 0, fmt.Errorf("%.80q: want a hexadecimal number of %d bits", text, bits)
	}
	return uint32(n), nil
}
