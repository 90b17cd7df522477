// Package machineinfo reads this machine and returns it as a machine.Machine: its resources, from /proc, /sys and
// statfs, and its identity, from /etc. It is the only place that puts these together.
//
// What pods depend on (CPUs and their topology, NUMA nodes, memory, the file system of the agent's directory) must
// exist and be consistent. Otherwise an error names it, since decisions would be made for a wrong machine.
// machine.Complete completes what the kernel does not report at all. What merely describes the machine is left empty if
// it cannot be read, and a note says so.
//
// It needs no root privileges. It writes nothing except a machine ID of its own if the machine has none.
package machineinfo

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
	"github.com/plimsoll-dev/plimsoll/internal/host/sysfs"
)

// Host says where to read.
type Host struct {
	Root     string // the machine's root; "/" except in tests
	StateDir string // the agent's root directory: its file system is nodefs, and a generated machine ID is stored there
	ImageDir string // where the runtime stores images: its file system is imagefs; empty: not known, the same as nodefs
}

// Machine reads the machine's resources and identity. Notes say what could not be read and what is used instead.
func (h Host) Machine() (m machine.Machine, notes []string, err error) {
	m, notes, err = h.Look()
	if err != nil {
		return m, nil, err
	}
	var more []string
	m.Identity, more, err = h.identity(procfs.FS(filepath.Join(h.Root, "proc")), sysfs.FS(filepath.Join(h.Root, "sys")))
	return m, append(notes, more...), err
}

// Look returns the machine's resources, without its identity. It writes nothing.
func (h Host) Look() (m machine.Machine, notes []string, err error) {
	proc, sys := procfs.FS(filepath.Join(h.Root, "proc")), sysfs.FS(filepath.Join(h.Root, "sys"))
	if err := processors(sys, &m); err != nil {
		return m, nil, err
	}
	if notes, err = memory(proc, sys, &m); err != nil {
		return m, nil, err
	}
	if m.NodeFS, err = filesystem(h.StateDir); err != nil {
		return m, nil, err
	}
	m.ImageFS = m.NodeFS
	if h.ImageDir != "" {
		if m.ImageFS, err = filesystem(h.ImageDir); err != nil {
			m.ImageFS = m.NodeFS
			notes = append(notes, err.Error())
		}
	}
	if m.PIDs, err = proc.PIDs(); err != nil {
		m.PIDs = 0
		notes = append(notes, err.Error())
	}
	m = m.Complete()
	return m, notes, m.Check()
}

func processors(sys sysfs.FS, m *machine.Machine) error {
	cpus, err := sys.CPUs()
	if err != nil {
		return err
	}
	m.CPUs = cpus.Online
	m.Offline = cpus.Offline
	m.Isolated = cpus.Isolated
	t, err := sys.Topology(cpus.Online)
	m.Sockets = t.Sockets
	m.Dies = t.Dies
	m.L3 = t.L3
	m.Cores = t.Cores
	return err
}

// memory reads memory and its distribution over NUMA nodes.
func memory(proc procfs.FS, sys sysfs.FS, m *machine.Machine) (notes []string, err error) {
	total, err := proc.Memory()
	if err != nil {
		return nil, err
	}
	m.Memory, m.Swap = total.Total, total.SwapTotal
	if m.NUMANodes, err = sys.NUMANodes(); err != nil {
		return nil, err
	}
	// Some containers see fewer CPUs than the machine has (lxcfs), but all of its NUMA nodes.
	for i := range m.NUMANodes {
		m.NUMANodes[i].CPUs = m.NUMANodes[i].CPUs.Intersect(m.CPUs)
	}
	pages, err := sys.HugePages()
	if err != nil {
		return nil, err
	}
	if m.HugePages = pages; len(m.NUMANodes) > 0 {
		m.HugePages = sum(pages, m.NUMANodes)
	}
	if len(m.NUMANodes) < 2 {
		return nil, nil // with one node, every device is near it
	}
	devices, err := sys.PCIDevices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if _, ok := m.NUMANode(d.NUMANode); !ok {
			notes = append(notes, fmt.Sprintf("read PCI devices: %s: NUMA node %d is not online: the device is left out",
				d.Address, d.NUMANode))
			continue
		}
		m.PCIDevices = append(m.PCIDevices, d)
	}
	return notes, nil
}

// sum returns the pages of all nodes, of every size that the kernel has. The kernel's own total may have changed since
// the nodes were read.
func sum(known map[unit.Bytes]int64, nodes []machine.NUMANode) map[unit.Bytes]int64 {
	out := map[unit.Bytes]int64{}
	for size := range known {
		out[size] = 0
	}
	for _, n := range nodes {
		for size, count := range n.HugePages {
			out[size] += count
		}
	}
	return out
}

func filesystem(dir string) (machine.Filesystem, error) {
	u, err := disk.Of(dir)
	return machine.Filesystem{Capacity: u.Capacity, Inodes: u.Inodes}, err
}

func (h Host) identity(proc procfs.FS, sys sysfs.FS) (id machine.Identity, notes []string, err error) {
	note := func(err error) {
		if err != nil {
			notes = append(notes, err.Error())
		}
	}
	id.Architecture = runtime.GOARCH
	id.KernelVersion, err = proc.KernelVersion()
	note(err)
	id.BootID, err = proc.BootID()
	note(err)
	id.OSImage, err = h.osImage()
	note(err)
	id.SystemUUID = sys.SystemUUID()
	id.MachineID = h.machineID()
	if id.MachineID == "" && id.SystemUUID != "" {
		id.MachineID = strings.ReplaceAll(id.SystemUUID, "-", "")
		notes = append(notes, "read machine id: /etc/machine-id: missing or empty: using the firmware's ID")
	}
	if id.MachineID == "" {
		if id.MachineID, err = h.ownID(); err != nil {
			return id, nil, err
		}
		notes = append(notes, fmt.Sprintf("read machine id: neither /etc/machine-id nor the firmware has one: using %s",
			h.ownIDFile()))
	}
	if id.SystemUUID == "" {
		id.SystemUUID = id.MachineID
	}
	return id, notes, nil
}

// machineID returns the ID that machine-id(5) describes; empty if there is none. A fresh image has an empty file, or
// "uninitialized" until its first boot is done.
func (h Host) machineID() string {
	for _, name := range []string{"etc/machine-id", "var/lib/dbus/machine-id"} {
		data, err := os.ReadFile(filepath.Join(h.Root, name))
		if text := strings.TrimSpace(string(data)); err == nil && text != "" && text != "uninitialized" {
			return text
		}
	}
	return ""
}

func (h Host) ownIDFile() string { return filepath.Join(h.StateDir, "machine-id") }

// ownID returns a generated ID. It is stored in the agent's directory and stays the same as long as that exists.
func (h Host) ownID() (string, error) {
	data, err := os.ReadFile(h.ownIDFile())
	if text := strings.TrimSpace(string(data)); err == nil && len(text) == 32 {
		return text, nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read machine id: %w", err)
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return "", fmt.Errorf("generate machine id: %w", err)
	}
	text := hex.EncodeToString(id)
	next := h.ownIDFile() + ".new"
	err = os.WriteFile(next, []byte(text+"\n"), 0o644)
	if err == nil {
		err = os.Rename(next, h.ownIDFile())
	}
	if shortage.Is(err) {
		// On a full disk the ID is used without being stored, because the agent, which may free the disk, must start.
		return text, nil
	}
	if err != nil {
		return "", fmt.Errorf("store machine id: %w", err)
	}
	return text, nil
}

// osImage returns PRETTY_NAME of os-release(5).
func (h Host) osImage() (string, error) {
	for _, name := range []string{"etc/os-release", "usr/lib/os-release"} {
		data, err := os.ReadFile(filepath.Join(h.Root, name))
		if err != nil {
			continue
		}
		if image := parseOSRelease(string(data)); image != "" {
			return image, nil
		}
	}
	return "", errors.New("read os image: /etc/os-release: no PRETTY_NAME")
}

// parseOSRelease finds PRETTY_NAME among shell-like assignments: PRETTY_NAME="Debian GNU/Linux 12 (bookworm)".
func parseOSRelease(text string) string {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		value, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "PRETTY_NAME=")
		if !ok {
			continue
		}
		if unquoted, err := strconv.Unquote(value); err == nil {
			return unquoted
		}
		return strings.Trim(value, `'"`)
	}
	return ""
}
