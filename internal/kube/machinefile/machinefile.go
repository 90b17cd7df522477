// Package machinefile reads and writes a machine as a file: kind Machine, apiVersion plimsoll.dev/v1alpha1, in YAML or
// JSON. `plimsoll machine` writes it, `plimsoll whatif` and the lab read it, people edit it.
//
// # Model
//
//	apiVersion: plimsoll.dev/v1alpha1
//	kind: Machine
//	metadata: {name: example}
//	spec:
//	  numaNodes:
//	  - id: 0
//	    cpus: "0-3,8-11"            # kernel list format; absent: a node without CPUs
//	    memory: 64Gi                # usable by the kernel; absent: a node without memory
//	    installed: 66Gi             # as the firmware handed it over; absent: not known
//	    hugepages: {2Mi: 1024}      # page counts
//	    distances: {0: 10, 1: 21}   # absent everywhere: 10 to itself, 20 to others
//	  memory: 128Gi                 # absent: the sum of the nodes'
//	  hugepageSizes: [1Gi, 2Mi]     # sizes the kernel knows; absent: those that nodes have
//	  offline: "12-15"              # CPUs that are present but switched off
//	  isolated: "3,7"               # CPUs out of the kernel's load balancing
//	  threadSiblings: ["0,8"]       # the threads of one core; CPUs in no list are cores of one thread
//	  sockets: {0: "0-3,8-11"}      # absent: one per NUMA node with CPUs
//	  dies: ["0-1,8-9"]             # absent: one per socket
//	  l3: {0: "0-1,8-9"}            # CPUs that share a last-level cache; absent: one per socket
//	  swap: 1Gi
//	  pids: 32768                   # most processes and threads at once; absent: not known
//	  filesystems:
//	    nodefs:  {capacity: 100Gi, inodes: 6553600}
//	    imagefs: {capacity: 200Gi, inodes: 13107200}                 # absent: same as nodefs
//	  devices:
//	  - {resource: example.com/gpu, ids: {gpu0: [0], gpu1: [1]}}     # device id -> NUMA ids
//	  pciDevices:
//	  - {address: "0000:3b:00.0", class: "0x020000", vendor: "0x15b3", device: "0x1017", numaNode: 0}
//
// # Invariants
//
//   - Decoding is strict: an unknown field, a duplicate field, or a value that no machine can have is an error. One
//     error contains every problem with its path.
//   - A decoded machine is complete (machine.Machine.Complete) and passed Check.
//   - An encoded machine decodes to the same machine, except for its Identity. The same machine is encoded to the same
//     bytes. Quantities are in Kubernetes' canonical form; fields with their default value are left out.
//
// # What it does not do
//
// It reads nothing of the machine it runs on (internal/host/machineinfo does). The file does not contain the machine's
// identity (machine.Identity): the ids of one boot have no meaning elsewhere.
package machinefile

import (
	"fmt"
	"io"
	"os"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
)

const (
	apiVersion = "plimsoll.dev/v1alpha1"
	kind       = "Machine"

	// sizeMax bounds a file, in bytes. A machine of 1024 NUMA nodes has about a million distances, which are 8 MiB of
	// text. A path to another kind of file should not be read whole.
	sizeMax = 16 << 20
)

// File is the description of a machine.
type File struct {
	Name    string // metadata.name; may be empty
	Machine machine.Machine
}

// Load reads the file at path; "-" is standard input.
func Load(path string) (File, error) {
	if path == "-" {
		return Read(os.Stdin, "standard input")
	}
	info, err := os.Stat(path)
	if err != nil {
		return File{}, fmt.Errorf("read machine: %w", err)
	}
	if info.IsDir() || info.Size() > sizeMax {
		return File{}, fmt.Errorf("read machine: %s: want a file of at most %d bytes, found %s of %d", path, sizeMax,
			info.Mode().Type(), info.Size())
	}
	file, err := os.Open(path)
	if err != nil {
		return File{}, fmt.Errorf("read machine: %w", err)
	}
	defer file.Close()
	return Read(file, path)
}

// Read reads a machine from r; name stands for r in errors.
func Read(r io.Reader, name string) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, sizeMax+1))
	if err != nil {
		return File{}, fmt.Errorf("read machine: %w", err)
	}
	if len(data) > sizeMax {
		return File{}, fmt.Errorf("read machine: %s: want at most %d bytes", name, sizeMax)
	}
	f, err := Decode(data)
	if err != nil {
		return File{}, fmt.Errorf("read machine: %s: %w", name, err)
	}
	return f, nil
}

// problems collects what is wrong with a file.
type problems []string

// add adds the problem that the value at path breaks a rule.
func (p *problems) add(path, rule string, args ...any) {
	if configfile.Problems(*p).Full() {
		return
	}
	(*configfile.Problems)(p).Add(path, fmt.Sprintf(rule, args...))
}

// err returns all problems in one error, nil if there are none.
func (p problems) err() error { return configfile.Problems(p).Err() }
