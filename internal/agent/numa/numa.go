// Package numa keeps what pods of this node have of their own: CPUs, memory on NUMA nodes, devices.
//
// # Model
//
// The Keeper owns the node's one numa.State. Admit has core/numa make an offer for a new pod and commits it; Release
// takes everything back when the pod has ended. In between Start tells the runtime where each container may run, before
// its first instruction.
//
// Containers without CPUs of their own run on the shared pool. It is kept in the cgroups of pods, not of containers,
// and not through the runtime: the group of a pod is confined to the pool and to what the pod itself owns. What a
// container has no cpuset of its own for follows its pod, so that one write moves a pod at once and the runtime knows
// of nothing that it could write back later. Only shared containers of a pod that has CPUs of its own get the pool
// through the runtime.
//
// # No overlap
//
// A CPU that becomes some container's own is in no shared container's cpuset when that container starts:
//
//  1. Admit commits; from then on the pool does not have the CPU.
//  2. Place confines a pod's group before anything runs in it, and settle confines all groups again when the pool has
//     changed. The kernel answers for what is below (package cgroup, Confine).
//  3. Start of a container with CPUs of its own settles first and returns an error unless it succeeded for every group. Pools that change while the runtime
//     starts a container with the pool as its cpuset wait for the start to end.
//  4. Release comes when none of the pod's containers runs; only then do other groups grow.
//
// # What outlives the agent
//
// Nothing is written to disk. What a pod owns stands in an annotation of its sandbox and containers (Note), which the
// runtime keeps as long as there is anything of the pod; the newest counts. Recover reads all of them, and what the
// kernel has for running containers, and makes the State again. What cannot be so any more (a CPU went offline or is
// reserved now) is told and left to the container that has it: nothing that runs is moved, stopped or refused. The
// kubelet's checkpoint files are not read.
//
// # What it does not do
//
// It decides nothing about who gets what: core/numa does. It does not count requests (core/admission).
package numa

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// Cgroups is what a Keeper needs of the kernel. Implemented by host/cgroup.
type Cgroups interface {
	// Confine lets a group use own and rest; groups in it that are not within own only rest.
	Confine(group string, own, rest idset.Set) error
	// CPUs returns where what is in a group runs.
	CPUs(group string) (idset.Set, error)
	// MemoryNodes returns where what is in a group gets memory.
	MemoryNodes(group string) (idset.Set, error)
}

// Options are what a Keeper needs. All fields without "optional" must be set.
type Options struct {
	Node    string
	Machine machine.Machine
	Config  numa.Config
	Cgroups Cgroups
	Metrics *metrics.Set
	// Quota keeps the CFS quota of containers with CPUs of their own.
	Quota bool
	// Prefers answers a plugin's question. Optional: without it the devices with the lowest ids are taken.
	Prefers func(context.Context, numa.Question) ([]string, error)
}

// Keeper keeps the holdings of one node's pods. It is safe for concurrent use.
type Keeper struct {
	Options
	encoder  *topology.Encoder
	counts   *counts
	changed  chan struct{}        // holds one: something is to be published
	announce chan chan<- struct{} // to be closed when that was tried

	// moving is held for writing while groups are confined, and for reading while the runtime starts a container with
	// the pool as its cpuset. Taken before mu.
	moving sync.RWMutex

	mu        sync.Mutex // guards everything that follows
	state     *numa.State
	kept      map[string]map[string]idset.Set // CPUs that running containers have for themselves, although State cannot say so; by pod and container
	anew      map[string]bool                 // pods that lost what they had while nothing of them ran: to be admitted again
	groups    map[string]group                // by pod
	consulted map[string]consultation         // pods that are being admitted and whose plugins have an opinion
	writing   bool                            // groups are confined: somebody has, or had, CPUs of its own
}

// group is a pod's cgroup.
type group struct {
	name      string
	own, rest idset.Set // as it was confined last; both empty: it was not
}

// New prepares a keeper that knows of no pods. The error says what configuration or machine forbid.
func New(o Options) (*Keeper, error) {
	layout, err := numa.New(o.Machine, o.Config)
	if err != nil {
		return nil, err
	}
	encoder, err := topology.NewEncoder(o.Node, o.Machine, o.Config)
	if err != nil {
		return nil, err
	}
	k := &Keeper{
		Options: o, encoder: encoder, changed: make(chan struct{}, 1), announce: make(chan chan<- struct{}), state: layout.NewState(),
		kept: map[string]map[string]idset.Set{}, anew: map[string]bool{}, consulted: map[string]consultation{}, groups: map[string]group{}, writing: o.Config.CPU.Static,
	}
	k.counts = newCounts(k)
	k.tell()
	return k, nil
}

// admitTries bounds the offers to one pod that become stale because others leave at the same time.
const admitTries = 100

// consultation is what plugins said of a pod that is being admitted.
type consultation struct {
	answers  numa.Answers
	question *numa.Question // the next; nil: none
}

// Admit gives a pod what it asks for of its own, if fits says that it fits the node otherwise, and says why not. A pod
// that has it already, from before a restart of the agent, keeps it. If asks is true, a device plugin has to be asked
// first: then the pod has nothing yet, and Consult is to be called before it is admitted again. Admit itself waits for
// nobody.
func (k *Keeper) Admit(p numa.Pod, fits func() bool) (refusal *numa.Refusal, asks bool) {
	done := k.counts.admission()
	refusal, asks = k.admit(p, fits)
	if asks {
		return nil, true
	}
	k.mu.Lock()
	delete(k.consulted, p.UID)
	k.mu.Unlock()
	done(p, refusal)
	return refusal, false
}

func (k *Keeper) admit(p numa.Pod, fits func() bool) (refusal *numa.Refusal, asks bool) {
	for range admitTries {
		k.mu.Lock()
		if _, has := k.state.Assignment(p.UID); has {
			k.mu.Unlock()
			fits()
			return nil, false
		}
		offer, refusal := k.state.Offer(p, k.consulted[p.UID].answers)
		if q := offer.Question; q != nil { // before its answer, a refusal is not the last word either
			k.consulted[p.UID] = consultation{k.consulted[p.UID].answers, q}
			k.mu.Unlock()
			return nil, true
		}
		k.mu.Unlock()
		if refusal != nil {
			return refusal, false
		}
		if !fits() {
			return nil, false
		}
		k.mu.Lock()
		err := k.state.Commit(offer)
		if err == nil {
			delete(k.anew, p.UID)
		}
		k.mu.Unlock()
		if err == nil {
			k.tell()
			return nil, false
		}
	}
	return &numa.Refusal{Reason: numa.UnexpectedAdmission, Upstream: fmt.Sprintf("what is free here changed %d times while it was offered: try again", admitTries)}, false
}

// Consult asks the device plugin that Admit could not do without, and keeps its answer for the next Admit of that pod.
// It may take as long as the plugin does; nobody else has to wait. Without an answer from one that has an opinion the
// pod is refused, as upstream does.
func (k *Keeper) Consult(ctx context.Context, pod string) *numa.Refusal {
	k.mu.Lock()
	c := k.consulted[pod]
	k.mu.Unlock()
	if c.question == nil {
		return nil
	}
	ids := []string{}
	if k.Prefers != nil {
		var err error
		if ids, err = k.Prefers(ctx, *c.question); err != nil {
			k.mu.Lock()
			delete(k.consulted, pod)
			k.mu.Unlock()
			return &numa.Refusal{
				Reason:    numa.UnexpectedAdmission,
				Upstream:  numa.AllocateFailed(err.Error()),
				Container: c.question.Container,
			}
		}
	}
	answers := maps.Clone(c.answers)
	if answers == nil {
		answers = numa.Answers{}
	}
	answers[numa.Subject{Container: c.question.Container, Resource: c.question.Resource}] = ids
	k.mu.Lock()
	defer k.mu.Unlock()
	k.consulted[pod] = consultation{answers: answers}
	return nil
}

// Release takes back what a pod owns. It must be called when none of its containers runs any more. What is left of the
// pod, its sandbox, moves to the pool.
func (k *Keeper) Release(pod string) {
	k.mu.Lock()
	released := k.state.Release(pod)
	_, hadKept := k.kept[pod]
	delete(k.kept, pod)
	delete(k.anew, pod)
	delete(k.consulted, pod)
	k.mu.Unlock()
	if !released && !hadKept {
		return
	}
	k.tell()
	if err := k.settle(); err != nil {
		slog.Warn("shared CPUs not returned to all pods; trying again with the next change", "err", err)
	}
}

// Finish takes back what a pod's init containers had and did not pass on: its other containers start.
func (k *Keeper) Finish(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, has := k.state.Assignment(pod)
	if !has || !slices.ContainsFunc(a.Containers, func(h numa.Holding) bool { return h.Init && h.Memory != nil }) {
		return
	}
	k.state.Finish(pod)
	k.tell()
}

// SetPlugin takes note of a plugin's devices.
func (k *Keeper) SetPlugin(p numa.Plugin) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.SetPlugin(p)
	k.tell()
}

// Assignment returns what a pod owns.
func (k *Keeper) Assignment(pod string) (numa.Assignment, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Assignment(pod)
}

// State returns a copy of the state.
func (k *Keeper) State() *numa.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Fork()
}

// SharedCPUs returns the pool.
func (k *Keeper) SharedCPUs() idset.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shared()
}

// shared returns the pool: what State says, without what running containers have nevertheless. Where that is nothing
// (strict-cpu-reservation, and all else is somebody's), it is the reserved CPUs: shared containers have to run
// somewhere. Caller holds mu.
func (k *Keeper) shared() idset.Set {
	pool, all := k.state.SharedCPUs(), k.Machine.CPUs
	for _, containers := range k.kept {
		for _, cpus := range containers {
			pool, all = pool.Minus(cpus), all.Minus(cpus)
		}
	}
	if !pool.IsEmpty() {
		return pool
	}
	for _, a := range k.state.Assignments() {
		for _, h := range a.Containers {
			all = all.Minus(h.CPUs)
		}
	}
	return all
}

// Anew reports whether a pod of which there are remains has to be admitted again.
func (k *Keeper) Anew(pod string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.anew[pod]
}

// Exclusive reports whether the CFS quota is lifted: of a container that has CPUs of its own, or with an empty name of
// a pod with such a container.
func (k *Keeper) Exclusive(pod, container string) bool {
	if k.Quota {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if container == "" {
		return !k.own(pod).IsEmpty()
	}
	return !k.cpus(pod, container).IsEmpty()
}

// cpus returns the CPUs of a container's own, those among them that it only keeps. Caller holds mu.
func (k *Keeper) cpus(pod, container string) idset.Set {
	return k.holding(pod, container).CPUs.Union(k.kept[pod][container])
}

// own returns the CPUs of a pod's own. Caller holds mu.
func (k *Keeper) own(pod string) idset.Set {
	var own idset.Set
	for _, cpus := range k.kept[pod] {
		own = own.Union(cpus)
	}
	a, _ := k.state.Assignment(pod)
	for _, h := range a.Containers {
		own = own.Union(h.CPUs)
	}
	return own
}

// holding returns what a container has. Caller holds mu.
func (k *Keeper) holding(pod, container string) numa.Holding {
	a, _ := k.state.Assignment(pod)
	for _, h := range a.Containers {
		if h.Container == container {
			return h
		}
	}
	return numa.Holding{Container: container}
}

// tell has the state published.
func (k *Keeper) tell() {
	select {
	case k.changed <- struct{}{}:
	default: // it will be, and whoever publishes looks at what is then
	}
}

// settle confines the groups of all pods to where they may run now.
func (k *Keeper) settle() error {
	k.moving.Lock()
	defer k.moving.Unlock()
	k.mu.Lock()
	if !k.writing && len(k.kept) == 0 && !k.owned() {
		k.mu.Unlock()
		return nil
	}
	k.writing = true // what was confined once has to be let go of, too
	pods := slices.Sorted(maps.Keys(k.groups))
	k.mu.Unlock()
	var problems []error
	for _, pod := range pods {
		problems = append(problems, k.confine(pod))
	}
	return errors.Join(problems...)
}

// owned reports whether any pod has CPUs of its own. Caller holds mu.
func (k *Keeper) owned() bool {
	for _, a := range k.state.Assignments() {
		if slices.ContainsFunc(a.Containers, func(h numa.Holding) bool { return !h.CPUs.IsEmpty() }) {
			return true
		}
	}
	return false
}

// confine brings one pod's group to where it may run. Caller holds moving.
func (k *Keeper) confine(pod string) error {
	k.mu.Lock()
	g, here := k.groups[pod]
	own, rest := k.own(pod), k.shared()
	k.mu.Unlock()
	if !here || g.own.Equal(own) && g.rest.Equal(rest) {
		return nil
	}
	err := k.Cgroups.Confine(g.name, own, rest)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.groups[pod].name != g.name {
		return nil // it went meanwhile
	}
	if err != nil {
		k.groups[pod] = group{name: g.name}
		return err
	}
	k.groups[pod] = group{g.name, own, rest}
	return nil
}

// Place takes note of a pod's cgroup, which was just made, and confines it before anything runs in it.
func (k *Keeper) Place(pod, name string) error {
	k.moving.Lock()
	defer k.moving.Unlock()
	k.mu.Lock()
	k.groups[pod] = group{name: name}
	k.writing = k.writing || k.owned()
	writing := k.writing || len(k.kept) > 0
	k.mu.Unlock()
	if !writing {
		return nil
	}
	return k.confine(pod)
}

// Gone takes note that a pod's cgroup was removed.
func (k *Keeper) Gone(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, pod)
}
