// Package handover reads and writes the kubelet's checkpoint files, so that this agent can take a node over from a
// kubelet, and a kubelet from this agent, with all pods running.
//
// # Model
//
// The checkpoint files (kube/kubeletstate) say what a kubelet assigned to running containers. Read reads them once,
// when the agent starts. They are used for the pods that a kubelet started: those without an annotation of this agent
// (agent/numa, agent/devicemanager).
//
// From then on a Keeper writes the same files, with the content that a kubelet would have written. It writes them
// whenever assignments, devices or allocations have changed, and once more when the agent ends.
//
// # Invariants
//
//   - A file that cannot be read is never overwritten: either the agent does not start (Damage), or the file is renamed
//     (SetAside).
//   - A file is replaced as a whole, and only if its content changes.
//   - Allocations are not written before all pods of the node are known: a kubelet judges a running pod again if the
//     file has no entry of it.
//
// # Limits of the package
//
// If the agent is killed, the written allocations are up to pollEvery old, or up to busyMax while pods come and go. A
// kubelet that follows carries out the resizes of that time again, which restarts a container only if its resizePolicy
// says so. The package decides nothing.
package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

// fileMax bounds a file that is read, in bytes. Chosen: a hundred times what 500 pods with devices need.
const fileMax = 64 << 20

// pollEvery is how often the Keeper checks whether allocations have changed. Chosen: a kubelet writes at once. Polling
// each second costs nothing while nothing changes, and few writes while many pods start.
const pollEvery = time.Second

// busyMax is how long the Keeper puts off a write while allocations change at each poll. A write is expensive, since
// both files contain all pods of the node. Chosen: while 500 pods started, a write each second took a twelfth of the
// agent's CPU time and a quarter of all memory that it allocated (measured 2026-11-24).
const busyMax = 10 * time.Second

// Dirs are the directories of a kubelet's files.
type Dirs struct {
	Root    string // the root directory
	Plugins string // the directory of the device plugins' sockets
}

func (d Dirs) path(name string) string {
	if name == kubeletstate.DevicesFile {
		return filepath.Join(d.Plugins, name)
	}
	return filepath.Join(d.Root, name)
}

// Found is the content of the checkpoint files.
type Found struct {
	cpus    kubeletstate.CPUs
	memory  kubeletstate.Memory
	devices kubeletstate.Devices
	damaged []damage
}

// damage is a file that exists and cannot be read or decoded. It counts as empty.
type damage struct {
	path  string
	bytes int // how many were read
	err   error
}

// Read reads the files of a kubelet or of a Keeper. A missing file counts as empty.
func Read(d Dirs) Found {
	var f Found
	f.cpus = read(&f, d.path(kubeletstate.CPUsFile), kubeletstate.ParseCPUs)
	f.memory = read(&f, d.path(kubeletstate.MemoryFile), kubeletstate.ParseMemory)
	f.devices = read(&f, d.path(kubeletstate.DevicesFile), kubeletstate.ParseDevices)
	return f
}

func read[T any](f *Found, path string, parse func([]byte) (T, error)) T {
	var none T
	text, err := untrusted.Read(path, fileMax)
	if errors.Is(err, fs.ErrNotExist) {
		return none
	}
	content := none
	if err == nil {
		content, err = parse(text)
	}
	if err != nil {
		f.damaged = append(f.damaged, damage{path, len(text), err})
		return none
	}
	return content
}

// Damage returns an error that names each damaged file and says what to do; nil: there is none. If a kubelet started a
// running container, only these files say what is assigned to it, and the agent must not run without them.
func (f Found) Damage() error {
	var all []error
	for _, d := range f.damaged {
		all = append(all, fmt.Errorf("read the kubelet's checkpoint %s: %w: it says what is assigned to running containers. "+
			"Put a whole copy of it back, or drain this node and delete the file", d.path, d.err))
	}
	return errors.Join(all...)
}

// asideSuffix is appended to the name of a damaged file that is not needed.
const asideSuffix = ".damaged"

// SetAside renames the damaged files, so that a Keeper does not overwrite them. A file that was set aside earlier is
// replaced. It must be called only if no running container was started by a kubelet.
func (f Found) SetAside() error {
	for _, d := range f.damaged {
		aside := d.path + asideSuffix
		if err := os.Rename(d.path, aside); err != nil {
			return fmt.Errorf("set the damaged checkpoint of the kubelet aside: %w", err)
		}
		slog.Warn("a damaged checkpoint of the kubelet was renamed; it is not needed, since no kubelet started a "+
			"container that runs", "file", d.path, "bytes", d.bytes, "err", d.err, "renamed", aside)
	}
	return nil
}

// Assignment returns what is assigned to a pod. running has the names of its running containers. A container that does
// not run, such as an init container, may have passed its CPUs on to the others.
func (f Found) Assignment(pod string, running map[string]string) numa.Assignment {
	out := numa.Assignment{Pod: pod}
	at := map[string]int{}
	of := func(container string) *numa.Assigned {
		i, has := at[container]
		if !has {
			i = len(out.Containers)
			at[container] = i
			_, runs := running[container]
			out.Containers = append(out.Containers, numa.Assigned{Container: container, Init: !runs})
		}
		return &out.Containers[i]
	}
	for _, container := range sorted(f.cpus.Exclusive[pod]) {
		if cpus := f.cpus.Exclusive[pod][container]; !cpus.IsEmpty() {
			of(container).CPUs = cpus
		}
	}
	for _, container := range sorted(f.memory.Assigned[pod]) {
		for _, b := range f.memory.Assigned[pod][container] {
			h := of(container)
			if b.Bytes > 0 { // otherwise an init container has passed it on
				h.Memory = append(h.Memory, b)
			}
			h.Nodes = union(h.Nodes, b.Nodes)
		}
	}
	for _, g := range f.devices.Given {
		if g.Pod == pod {
			h := of(g.Container)
			h.Devices = append(h.Devices, numa.Devices{Resource: g.Resource, IDs: idsOf(g)})
		}
	}
	return out
}

// Given returns the devices of a container.
func (f Found) Given(pod, container string) (given []kubeletstate.Given) {
	for _, g := range f.devices.Given {
		if g.Pod == pod && g.Container == container {
			given = append(given, g)
		}
	}
	return given
}

// Source has the inputs of a Keeper.
type Source struct {
	Machine machine.Machine
	Config  numa.Config
	State   func() *numa.State // a copy of what is assigned
	Devices func() kubeletstate.Devices
	// Pods returns the pods of this node with their allocated resources. known is false until all of them are known.
	// Version changes whenever Pods may return something else.
	Pods    func() (pods []*corev1.Pod, known bool)
	Version func() uint64
	Changed <-chan struct{} // has a value when assignments or devices have changed
}

// Keeper keeps the files.
type Keeper struct {
	Dirs
	Source
	failures failurelog.Log
	written  map[string]string // content on disk, by file
	version  uint64            // Version of the allocations that were written last
	known    bool              // the allocations of all pods were written
	seen     uint64            // Version at the last poll
	wroteAt  time.Time         // when allocations were written last
}

// Run writes the files until ctx ends, and then once more.
func (k *Keeper) Run(ctx context.Context) error {
	k.written = map[string]string{}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		whole := k.assigned()
		whole = k.allocated() && whole
		if !k.rest(ctx, poll.C, whole) {
			k.assigned()
			k.allocated()
			return nil
		}
	}
}

// rest waits until something may have changed, or until a failed write is due again. It returns false when ctx has
// ended.
func (k *Keeper) rest(ctx context.Context, poll <-chan time.Time, whole bool) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-k.Changed:
			return true
		case <-poll:
			if !whole || k.changed() {
				return true
			}
		}
	}
}

// changed reports whether allocations should be written: they have changed since they were written, and either do not
// change any more or have been changing for busyMax.
func (k *Keeper) changed() bool {
	before, now := k.seen, k.Version()
	k.seen = now
	return now != k.version && (now == before || time.Since(k.wroteAt) >= busyMax)
}

// assigned writes the checkpoints of CPUs, memory and devices. It returns whether they are up to date.
func (k *Keeper) assigned() bool {
	state := k.State()
	cpus := k.write(kubeletstate.CPUsFile, k.cpus(state).Marshal())
	memory := k.write(kubeletstate.MemoryFile, k.memory(state).Marshal())
	devices := k.write(kubeletstate.DevicesFile, k.Devices().Marshal())
	return cpus && memory && devices
}

func (k *Keeper) cpus(state *numa.State) kubeletstate.CPUs {
	if !k.Config.CPU.Static {
		return kubeletstate.CPUs{Policy: kubeletstate.CPUsNone}
	}
	out := kubeletstate.CPUs{
		Policy:    kubeletstate.CPUsStatic,
		Shared:    state.SharedCPUs(),
		Exclusive: map[string]map[string]idset.Set{},
	}
	for _, a := range state.Assignments() {
		for _, h := range a.Containers {
			if h.CPUs.IsEmpty() {
				continue
			}
			if out.Exclusive[a.Pod] == nil {
				out.Exclusive[a.Pod] = map[string]idset.Set{}
			}
			out.Exclusive[a.Pod][h.Container] = h.CPUs
		}
	}
	return out
}

func (k *Keeper) memory(state *numa.State) kubeletstate.Memory {
	if !k.Config.Memory.Static {
		return kubeletstate.Memory{Policy: kubeletstate.MemoryNone}
	}
	out := kubeletstate.Memory{
		Policy:   kubeletstate.MemoryStatic,
		Nodes:    map[machine.NUMAID]kubeletstate.MemoryNode{},
		Assigned: map[string]map[string][]numa.Block{},
	}
	for _, n := range k.Machine.NUMANodes {
		total := map[unit.Bytes]unit.Bytes{0: n.Memory}
		for size := range k.Machine.HugePages { // also those of which this node has none
			total[size] = unit.Bytes(n.HugePages[size]) * size
		}
		out.Nodes[n.ID] = kubeletstate.MemoryNode{Total: total, Reserved: k.Config.Memory.Reserved[n.ID]}
	}
	for _, a := range state.Assignments() {
		for _, h := range a.Containers {
			if len(h.Memory) == 0 {
				continue
			}
			if out.Assigned[a.Pod] == nil {
				out.Assigned[a.Pod] = map[string][]numa.Block{}
			}
			out.Assigned[a.Pod][h.Container] = h.Memory
		}
	}
	return out
}

// allocated writes the checkpoints of allocated resources, if pods may have changed. It returns whether they are up to
// date.
func (k *Keeper) allocated() bool {
	version := k.Version() // read first, so that a change from now on is noticed by the next poll
	if k.known && version == k.version {
		return true
	}
	pods, known := k.Pods()
	if !known {
		return false
	}
	text := allocations(pods).Marshal()
	allocated := k.write(kubeletstate.AllocatedFile, text)
	actuated := k.write(kubeletstate.ActuatedFile, text)
	k.known = allocated && actuated
	k.version = version
	k.wroteAt = time.Now()
	return k.known
}

// allocations returns the resources of pods that have not ended.
func allocations(pods []*corev1.Pod) kubeletstate.Allocations {
	out := kubeletstate.Allocations{}
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		a := kubeletstate.Allocation{
			ContainerResources: map[string]corev1.ResourceRequirements{},
			PodLevelResources:  pod.Spec.Resources,
		}
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				a.ContainerResources[list[i].Name] = list[i].Resources
			}
		}
		out[string(pod.UID)] = a
	}
	return out
}

// write replaces a file if its content has changed. It returns whether the file is up to date; a failure is logged.
func (k *Keeper) write(name string, text []byte) bool {
	if k.written[name] == string(text) {
		return true
	}
	path := k.path(name)
	action := "keep the kubelet's checkpoint " + name
	if err := replace(path, text); err != nil {
		delete(k.written, name)
		k.failures.Failed(action, err)
		return false
	}
	k.failures.Succeeded(action)
	k.written[name] = string(text)
	return true
}

// replace replaces a file. It creates the directory if no kubelet has done so.
func replace(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return durable.Write(path, text)
}
