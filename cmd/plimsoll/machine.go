package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/host/machineinfo"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

func newMachineCommand() *cobra.Command {
	var rootDir, imageDir, root string
	var installed bool
	c := &cobra.Command{
		Use:   "machine",
		Short: "Print a description of this machine: CPUs, NUMA nodes, caches, memory, huge pages, file systems",
		Long: `Print a description of this machine, read from /sys and /proc: NUMA nodes with their CPUs, memory, huge pages
and distances, sockets, dies, cores and their threads, groups that share an L3 cache, offline and isolated CPUs, the
nodes of PCI devices, swap, file systems. It needs no root, and no cluster.

The whatif verbs read the output. Absent fields have their default: without threadSiblings, no SMT; without sockets, one
per NUMA node with CPUs; without dies or l3, one per socket; without imagefs, the same as nodefs.

memory is what the kernel can use of a NUMA node's memory; a Node's capacity is computed from it. installed is what
the firmware reported, in whole memory blocks; the kernel uses a part of that itself, which differs from boot to boot.`,
		Example: `  plimsoll machine > machine.yaml
  plimsoll machine -o table`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputYAML, outputJSON, outputTable)
	flags := c.Flags()
	flags.StringVar(&rootDir, "root-dir", "/var/lib/kubelet",
		"the agent's directory: nodefs is its file system, or that of the nearest directory above it that exists")
	flags.StringVar(&imageDir, "image-dir", "/var/lib/containerd",
		"the runtime's directory: imagefs is its file system; if it does not exist, imagefs is nodefs")
	flags.BoolVar(&installed, "installed", false,
		"print installed memory where it is known, to plan for machines or to compare them")
	flags.StringVar(&root, "root", "/", "describe the machine whose root file system is mounted at this path")
	c.RunE = func(c *cobra.Command, _ []string) error {
		h := machineinfo.Host{Root: root, StateDir: existing(filepath.Join(root, rootDir)), ImageDir: filepath.Join(root,
			imageDir)}
		if _, err := os.Stat(h.ImageDir); errors.Is(err, os.ErrNotExist) {
			h.ImageDir = ""
		}
		m, notes, err := h.Look()
		if err != nil {
			return err
		}
		for _, note := range notes {
			fmt.Fprintln(c.ErrOrStderr(), "plimsoll: note:", note)
		}
		if installed {
			m = m.Installed()
		}
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host's name: %w", err)
		}
		return printMachine(c, machinefile.File{Name: name, Machine: m}, output)
	}
	return c
}

func printMachine(c *cobra.Command, f machinefile.File, output *outputFormat) error {
	var text []byte
	switch output.chosen {
	case outputYAML:
		text = f.YAML()
	case outputJSON:
		text = f.JSON()
	case outputTable:
		text = f.Table()
	}
	_, err := c.OutOrStdout().Write(text)
	return err
}

// existing returns dir, or the nearest parent directory that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
