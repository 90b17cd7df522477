// Package userns decides to which ids of the host the users and groups of a pod are mapped, for pods with hostUsers:
// false (KEP-127).
//
// # Model
//
// Such a pod has a user namespace, whose ids 0, 1, 2, ... are mapped to consecutive ids of the host: the pod's Range.
// Config says which ids of the host pods may get. They are divided into slots of PerPod ids. A pod gets the lowest slot
// of which no other pod has an id. User ids and group ids are mapped in the same way.
//
// The caller keeps the range of each pod in a file. After a restart it records what it finds there (Record, Unknown)
// before it calls Take.
//
// # Invariants
//
//   - Take never gives the same id to two pods, and never an id that a recorded pod has.
//   - A pod keeps its range until it is released, even if Config has changed.
//   - No range has id 0: users of a pod are never the host's root.
//   - While the range of one pod is unknown, no pod gets a new range.
//
// It reads and writes no file, and it maps nothing: internal/agent/userns and the container runtime do.
package userns

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Unit is the usual length of a range, in ids, and every range begins at a multiple of it. It is the kubelet's
// (1.36.3), so that each can use the other's ranges. It covers all ids of 16 bits, which images use.
const Unit = 65536

// Range is a run of ids of the host.
type Range struct {
	First  uint32
	Length uint32
}

// end returns the id behind the last one.
func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Length) }

func (r Range) overlaps(other Range) bool {
	return uint64(r.First) < other.end() && uint64(other.First) < r.end()
}

// String returns the first and the last id.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, max(r.end(), 1)-1) }

// check returns why no pod can have the range.
func (r Range) check() error {
	switch {
	case r.Length == 0:
		return fmt.Errorf("ids from %d: there are none", r.First)
	case r.First == 0:
		return fmt.Errorf("ids %v: have the host's root among them", r)
	case r.end() > idsEnd:
		return fmt.Errorf("ids from %d, %d of them: the last possible id is %d", r.First, r.Length, int64(idsEnd-1))
	}
	return nil
}

// idsEnd is the id behind the last one that can be mapped. The last number of 32 bits is no id: it means "none"
// (setresuid(2)), and the kernel refuses ranges that have it (map_write in kernel/user_namespace.c).
const idsEnd = math.MaxUint32

// Config says which ids of the host pods may have.
type Config struct {
	First  uint32 // the lowest, a multiple of PerPod and not 0
	Length uint64 // how many from there on; what is no whole slot stays unused
	PerPod uint32 // userNamespaces.idsPerPod, a multiple of Unit
	Pods   int    // how many pods the node may have: there must be a slot for each
}

// Default returns the configuration of a node for which nothing is configured: pods may get all ids from PerPod on, as
// in the kubelet.
func Default(perPod uint32, pods int) Config {
	return Config{First: perPod, Length: idsEnd - uint64(perPod), PerPod: perPod, Pods: pods}
}

// Check returns why this configuration gives ids to no pod, or to fewer pods than the node may have.
func (c Config) Check() error {
	switch {
	case c.PerPod == 0 || c.PerPod%Unit != 0:
		return fmt.Errorf("%d ids per pod: want a multiple of %d", c.PerPod, Unit)
	case c.First == 0:
		return fmt.Errorf("ids of pods begin at 0, the host's root: want %d or more", c.PerPod)
	case c.First%c.PerPod != 0:
		return fmt.Errorf("ids of pods begin at %d: want a multiple of the %d ids per pod", c.First, c.PerPod)
	case c.slots() < uint64(max(c.Pods, 0)):
		const few = "ids of pods from %d, %d of them: are enough for %d pods of %d ids each, and the node may have %d"
		return fmt.Errorf(few, c.First, c.Length, c.slots(), c.PerPod, c.Pods)
	}
	return nil
}

// slots returns how many whole slots there are.
func (c Config) slots() uint64 {
	return min(c.Length, idsEnd-uint64(c.First)) / uint64(c.PerPod)
}

// Ranges is which pod has which ids. A pod is named by its uid.
type Ranges struct {
	config  Config
	byPod   map[string]Range
	unknown map[string]string // pods whose ranges are not known, and why
}

// New returns Ranges in which no pod has ids. It returns an error if config is wrong.
func New(config Config) (*Ranges, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	return &Ranges{config: config, byPod: map[string]Range{}, unknown: map[string]string{}}, nil
}

// Of returns what a pod has.
func (r *Ranges) Of(pod string) (Range, bool) {
	have, ok := r.byPod[pod]
	return have, ok
}

// Pods returns the pods that have ids, sorted.
func (r *Ranges) Pods() []string { return slices.Sorted(maps.Keys(r.byPod)) }

// Take returns the range of a pod. If it has none, it gets the lowest free slot, and fresh is true. Take fails if no
// slot is free, and while the range of another pod is unknown, which may be in any slot.
func (r *Ranges) Take(pod string) (got Range, fresh bool, err error) {
	if have, ok := r.byPod[pod]; ok {
		return have, false, nil
	}
	for _, other := range slices.Sorted(maps.Keys(r.unknown)) {
		const wait = "the ids of pod %s are not known, and no other pod gets new ones until it is gone: %s"
		return Range{}, false, fmt.Errorf(wait, other, r.unknown[other])
	}
	used := map[uint64]bool{}
	for _, have := range r.byPod {
		r.mark(used, have)
	}
	for slot := range r.config.slots() {
		if !used[slot] {
			got = Range{First: r.config.First + uint32(slot)*r.config.PerPod, Length: r.config.PerPod}
			r.byPod[pod] = got
			return got, true, nil
		}
	}
	c := r.config
	return Range{}, false, fmt.Errorf("all ids of pods (%d times %d from %d) are in use", c.slots(), c.PerPod, c.First)
}

// mark marks the slots of which a range has an id. Ranges that Take gave share no slot, so there are about as many
// marks as pods. A longer range, from another configuration, has more slots, at most all.
func (r *Ranges) mark(used map[uint64]bool, have Range) {
	first, per := uint64(r.config.First), uint64(r.config.PerPod)
	if have.end() <= first {
		return
	}
	last := min((have.end()-1-first)/per, r.config.slots()-1)
	for slot := (max(uint64(have.First), first) - first) / per; slot <= last; slot++ {
		used[slot] = true
	}
}

// Record records the range that a pod was found to have. If no pod can have that range, it returns an error, and the
// pod's range counts as unknown. It also returns an error if another pod has some of the ids: neither pod is protected
// from the other, and both keep their ranges.
func (r *Ranges) Record(pod string, have Range) error {
	if err := have.check(); err != nil {
		r.Unknown(pod, err.Error())
		return err
	}
	delete(r.unknown, pod)
	r.byPod[pod] = have
	for _, other := range r.Pods() {
		if other != pod && have.overlaps(r.byPod[other]) {
			return fmt.Errorf("ids %v: pod %s has %v", have, other, r.byPod[other])
		}
	}
	return nil
}

// Unknown records that a pod has ids, and that it is not known which.
func (r *Ranges) Unknown(pod, why string) {
	delete(r.byPod, pod)
	r.unknown[pod] = why
}

// Release records that no process of a pod is left, or that it was found to have no ids.
func (r *Ranges) Release(pod string) {
	delete(r.byPod, pod)
	delete(r.unknown, pod)
}
