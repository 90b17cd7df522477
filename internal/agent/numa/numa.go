// Package numa manages what is assigned to the pods of this node: CPUs, memory on NUMA nodes, devices.
//
// # Model
//
// The Manager owns the node's one numa.State. Admit asks core/numa for an offer to a new pod and commits it; Release
// releases everything when the pod has ended. In between, Start tells the runtime where each container may run, before
// its first instruction.
//
// Containers without assigned CPUs run on the shared pool. The pool is set on the cgroups of pods, not of containers,
// and not through the runtime: the pod's cgroup is confined to the pool and to the pod's assigned CPUs. A container
// without a cpuset of its own follows its pod's, so one write moves a pod at once, and the runtime has no outdated
// value that it could write back later. Only shared containers in a pod with assigned CPUs get the pool through the
// runtime.
//
// # No overlap
//
// When a container starts on CPUs that are assigned to it, no shared container's cpuset contains them:
//
//  1. Admit commits; from then on the pool does not contain the CPUs.
//  2. Place confines a pod's cgroup before anything runs in it, and confineAll confines all cgroups again when the pool
//     has changed. The kernel enforces it for the cgroups below (package cgroup, Confine).
//  3. Start of a container with assigned CPUs calls confineAll first, and returns an error unless it succeeded for
//     every cgroup. While the runtime starts a container with the pool as its cpuset, changes of the pool wait for the
//     start to end.
//  4. Release is called when none of the pod's containers runs; only then do other cgroups get its CPUs.
//
// # Persistence
//
// Nothing is written to disk. An annotation of a pod's sandbox and containers records what is assigned to it (Note).
// The runtime keeps it as long as there is anything of the pod; the newest one counts. Recover reads all of them, and
// what the kernel reports for running containers, and restores the State. What is not possible any more (a CPU is
// offline or reserved now) is logged and left to the container that has it: no running container is moved, stopped or
// refused. Of pods that a kubelet started, its checkpoint files say what was assigned (agent/handover).
//
// # Limits of the package
//
// It does not decide what is assigned to which container: core/numa does. It does not count requests (core/admission).
package numa

import (
	"context"
	"encoding/json"
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

// Cgroups is what a Manager needs of the kernel; host/cgroup implements it.
type Cgroups interface {
	// Confine allows a cgroup the CPUs own and rest. Cgroups below it that are not within own get only rest.
	Confine(group string, own, rest idset.Set) error
	// CPUs returns the CPUs on which the processes of a cgroup may run.
	CPUs(group string) (idset.Set, error)
	// MemoryNodes returns the NUMA nodes from which the processes of a cgroup get memory.
	MemoryNodes(group string) (idset.Set, error)
}

// Options are what a Manager needs. Fields not marked optional must be set.
type Options struct {
	Node    string
	Machine machine.Machine
	Config  numa.Config
	Cgroups Cgroups
	Metrics *metrics.Set
	// Quota keeps the CFS quota of containers with assigned CPUs.
	Quota bool
	// Decided is called, within Admit, with what is decided about a pod that asks for something that is assigned. It must
	// not wait. Optional.
	Decided func(Decision)
	// Changed is called, from any goroutine, when the state has changed. It must not wait. Optional.
	Changed func()
	// Prefers asks a plugin for its preferred devices. Optional: without it the devices with the lowest IDs are taken.
	Prefers func(context.Context, numa.Question) ([]string, error)
}

// Manager manages the assignments of one node's pods. It is safe for concurrent use.
type Manager struct {
	Options
	encoder  *topology.Encoder
	counts   *counts
	changed  chan struct{}        // has a value when the state must be published
	announce chan chan<- struct{} // Publish closes the received channel when it has tried to publish

	// moving is locked for writing while cgroups are confined, and for reading while the runtime starts a container
	// with the pool as its cpuset. It is locked before mu.
	moving sync.RWMutex

	mu    sync.Mutex // guards everything that follows
	state *numa.State
	// CPUs that running containers use exclusively although State cannot record that; by pod and container
	unrecorded map[string]map[string]idset.Set
	// pods that lost their assignment while nothing of them ran: they must be admitted again
	readmit   map[string]bool
	groups    map[string]group        // by pod
	consulted map[string]consultation // pods that are being admitted and whose plugins have preferences
	writing   bool                    // cgroups are confined: CPUs are, or were, assigned to a container
}

// group is a pod's cgroup.
type group struct {
	name      string
	own, rest idset.Set // as it was confined last; both empty: it was not
}

// New prepares a Manager without pods. The error names what the configuration or the machine does not allow.
func New(o Options) (*Manager, error) {
	layout, err := numa.New(o.Machine, o.Config)
	if err != nil {
		return nil, err
	}
	encoder, err := topology.NewEncoder(o.Node, o.Machine, o.Config)
	if err != nil {
		return nil, err
	}
	k := &Manager{
		Options: o, encoder: encoder, changed: make(chan struct{},
			1), announce: make(chan chan<- struct{}), state: layout.NewState(),
		unrecorded: map[string]map[string]idset.Set{}, readmit: map[string]bool{}, consulted: map[string]consultation{},
		groups: map[string]group{}, writing: o.Config.CPU.Static,
	}
	k.counts = newCounts(k)
	k.publishSoon()
	return k, nil
}

// admitTries bounds the offers to one pod that become stale because other pods are admitted or end at the same time.
const admitTries = 100

// consultation is what the plugins preferred for a pod that is being admitted.
type consultation struct {
	answers  numa.Answers
	question *numa.Question // the next one; nil: none
}

// Admit assigns to a pod what it asks for, if fits returns that the pod fits the node otherwise; if it cannot, it
// returns why. A pod that has its assignment already, from before a restart of the agent, keeps it. If asks is true, a
// device plugin must be asked first: nothing is assigned yet, and the caller must call Consult and then Admit again.
// Admit itself never waits.
func (k *Manager) Admit(p numa.Pod, fits func() bool) (rejection *numa.Rejection, asks bool) {
	done := k.counts.admission()
	rejection, asks = k.admit(p, fits)
	if asks {
		return nil, true
	}
	k.mu.Lock()
	delete(k.consulted, p.UID)
	k.mu.Unlock()
	done(p, rejection)
	return rejection, false
}

func (k *Manager) admit(p numa.Pod, fits func() bool) (rejection *numa.Rejection, asks bool) {
	for range admitTries {
		k.mu.Lock()
		answers := k.consulted[p.UID].answers
		if _, has := k.state.Assignment(p.UID); has {
			k.mu.Unlock()
			fits()
			return nil, false
		}
		offer, rejection := k.state.Offer(p, answers)
		if q := offer.Question; q != nil { // before the plugin's answer, a rejection is not final either
			k.consulted[p.UID] = consultation{answers, q}
			k.mu.Unlock()
			return nil, true
		}
		decided := k.decision(p, answers, offer.Assignment, rejection)
		k.mu.Unlock()
		if decided != nil {
			k.Decided(*decided)
		}
		if rejection != nil {
			k.counts.offers.WithLabelValues(offerRejected).Inc()
			return rejection, false
		}
		if !fits() {
			k.counts.offers.WithLabelValues(offerUnused).Inc()
			return nil, false
		}
		k.mu.Lock()
		err := k.state.Commit(offer)
		if err == nil {
			delete(k.readmit, p.UID)
		}
		k.mu.Unlock()
		if err == nil {
			k.counts.offers.WithLabelValues(offerAssigned).Inc()
			k.publishSoon()
			return nil, false
		}
		k.counts.offers.WithLabelValues(offerStale).Inc()
	}
	return numa.Unexpected(fmt.Sprintf("the free resources changed %d times during the admission: try again",
		admitTries)), false
}

// A Decision is what was decided about a pod, and from what.
type Decision struct {
	Pod        numa.Pod
	Answers    numa.Answers
	Before     *numa.State
	Object     Object          // of Before
	Assignment numa.Assignment // if Rejection is nil
	Rejection  *numa.Rejection
}

// decision returns a Decision for Options.Decided; nil: nobody wants it, or the pod asks for nothing that is assigned.
// The caller holds mu.
func (k *Manager) decision(p numa.Pod, answers numa.Answers, a numa.Assignment, r *numa.Rejection) *Decision {
	if k.Decided == nil || r == nil && !slices.ContainsFunc(a.Containers, func(h numa.Assigned) bool {
		return !h.CPUs.IsEmpty() || len(h.Memory) > 0 || len(h.Devices) > 0
	}) {
		return nil
	}
	before := k.state.Fork()
	return &Decision{
		Pod:        p,
		Answers:    answers,
		Before:     before,
		Object:     Object{k.encoder, before},
		Assignment: a,
		Rejection:  r,
	}
}

// Object is the NodeResourceTopology of a State that does not change any more. It is encoded when it is written.
type Object struct {
	encoder *topology.Encoder
	state   *numa.State
}

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) { return json.Marshal(o.encoder.Encode(o.state)) }

// Consult asks the device plugin that Admit needs, and stores its answer for the next Admit of that pod. It takes as
// long as the plugin does; other pods do not wait. If a plugin that has preferences does not answer, the pod is
// rejected, as in the kubelet.
func (k *Manager) Consult(ctx context.Context, pod string) *numa.Rejection {
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
			rejection := numa.NotAllocated(err.Error())
			rejection.Container = c.question.Container
			return rejection
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

// Release releases what is assigned to a pod. It must be called when none of its containers runs any more. The pod's
// sandbox moves to the pool.
func (k *Manager) Release(pod string) {
	k.mu.Lock()
	released := k.state.Release(pod)
	_, hadKept := k.unrecorded[pod]
	delete(k.unrecorded, pod)
	delete(k.readmit, pod)
	delete(k.consulted, pod)
	k.mu.Unlock()
	if !released && !hadKept {
		return
	}
	k.publishSoon()
	if err := k.confineAll(); err != nil {
		slog.Warn("released CPUs were not added to the cpusets of all pods; trying again with the next change", "err", err)
	}
}

// Finish releases what the pod's init containers had and did not pass on; it is called when its other containers start.
func (k *Manager) Finish(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, has := k.state.Assignment(pod)
	if !has || !slices.ContainsFunc(a.Containers, func(h numa.Assigned) bool { return h.Init && h.Memory != nil }) {
		return
	}
	k.state.Finish(pod)
	k.publishSoon()
}

// SetPlugin stores a plugin's devices.
func (k *Manager) SetPlugin(p numa.Plugin) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.SetPlugin(p)
	k.publishSoon()
}

// Assignment returns what is assigned to a pod.
func (k *Manager) Assignment(pod string) (numa.Assignment, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Assignment(pod)
}

// State returns a copy of the state.
func (k *Manager) State() *numa.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Fork()
}

// SharedCPUs returns the shared pool.
func (k *Manager) SharedCPUs() idset.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shared()
}

// shared returns the pool: State's, without the CPUs in unrecorded. If that is empty (strict-cpu-reservation, and all
// other CPUs are assigned), it is the reserved CPUs: shared containers have to run somewhere. The caller holds mu.
func (k *Manager) shared() idset.Set {
	pool, all := k.state.SharedCPUs(), k.Machine.CPUs
	for _, containers := range k.unrecorded {
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

// MustReadmit reports whether a pod that an earlier agent left must be admitted again.
func (k *Manager) MustReadmit(pod string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.readmit[pod]
}

// Exclusive reports whether the CFS quota is not applied: to a container with assigned CPUs, or, if container is empty,
// to a pod with such a container.
func (k *Manager) Exclusive(pod, container string) bool {
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

// cpus returns the CPUs that a container uses exclusively, including those in unrecorded. The caller holds mu.
func (k *Manager) cpus(pod, container string) idset.Set {
	return k.assigned(pod, container).CPUs.Union(k.unrecorded[pod][container])
}

// own returns the CPUs that a pod's containers use exclusively. The caller holds mu.
func (k *Manager) own(pod string) idset.Set {
	var own idset.Set
	for _, cpus := range k.unrecorded[pod] {
		own = own.Union(cpus)
	}
	a, _ := k.state.Assignment(pod)
	for _, h := range a.Containers {
		own = own.Union(h.CPUs)
	}
	return own
}

// assigned returns what is assigned to a container. The caller holds mu.
func (k *Manager) assigned(pod, container string) numa.Assigned {
	a, _ := k.state.Assignment(pod)
	for _, h := range a.Containers {
		if h.Container == container {
			return h
		}
	}
	return numa.Assigned{Container: container}
}

// publishSoon makes Publish publish the state.
func (k *Manager) publishSoon() {
	if k.Changed != nil {
		k.Changed()
	}
	select {
	case k.changed <- struct{}{}:
	default: // a publication is due already, and it reads the state when it runs
	}
}

// confineAll confines the cgroups of all pods to the CPUs that they may use now.
func (k *Manager) confineAll() error {
	k.moving.Lock()
	defer k.moving.Unlock()
	k.mu.Lock()
	if !k.writing && len(k.unrecorded) == 0 && !k.owned() {
		k.mu.Unlock()
		return nil
	}
	k.writing = true // a cgroup that was confined once must also be widened again
	pods := slices.Sorted(maps.Keys(k.groups))
	k.mu.Unlock()
	var problems []error
	for _, pod := range pods {
		problems = append(problems, k.confine(pod))
	}
	return errors.Join(problems...)
}

// owned reports whether any pod has assigned CPUs. The caller holds mu.
func (k *Manager) owned() bool {
	for _, a := range k.state.Assignments() {
		if slices.ContainsFunc(a.Containers, func(h numa.Assigned) bool { return !h.CPUs.IsEmpty() }) {
			return true
		}
	}
	return false
}

// confine confines one pod's cgroup to the CPUs that it may use now. The caller holds moving.
func (k *Manager) confine(pod string) error {
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
		return nil // it was removed or replaced meanwhile
	}
	if err != nil {
		k.groups[pod] = group{name: g.name}
		return err
	}
	k.groups[pod] = group{g.name, own, rest}
	return nil
}

// Place records a pod's cgroup, which was just created, and confines it before anything runs in it.
func (k *Manager) Place(pod, name string) error {
	k.moving.Lock()
	defer k.moving.Unlock()
	k.mu.Lock()
	k.groups[pod] = group{name: name}
	k.writing = k.writing || k.owned()
	writing := k.writing || len(k.unrecorded) > 0
	k.mu.Unlock()
	if !writing {
		return nil
	}
	return k.confine(pod)
}

// Gone records that a pod's cgroup was removed.
func (k *Manager) Gone(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, pod)
}
