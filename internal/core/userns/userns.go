// Package userns decides which users of the host the users of a pod are, for pods with hostUsers: false (KEP-127).
//
// # Model
//
// Such a pod has a user namespace, in which the ids 0, 1, 2, ... are a run of ids of the host: its Range. Config says
// which ids of the host pods may have. They are cut into slots of PerPod ids each, and a pod gets the lowest slot of
// which no other pod has an id. User ids and group ids are mapped alike.
//
// What pods have is kept outside, one file for each pod. A new process records what it finds there before it gives a
// pod anything.
//
// # Invariants
//
//   - Take never gives two pods the same id, and never gives an id that a recorded pod has, however that got it.
//   - A pod keeps its range until it is released, whatever Config says by then.
//   - No range has id 0: users of a pod are never the host's root.
//   - While what one pod has is not known, no pod gets anything new.
//
// It reads and writes no file, and it maps nothing: internal/agent/userns and the container runtime do.
package userns

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Unit is what a range begins at a multiple of, in ids, and the usual length of one: the kubelet's (1.36.3), so that
// either agent can go on with the other's ranges. It has all ids of 16 bits, which images use.
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

// Default returns the configuration of a node on which nobody says which ids pods may have: all that are not below
// PerPod, as in the kubelet.
func Default(perPod uint32, pods int) Config {
	return Config{First: perPod, Length: idsEnd - uint64(perPod), PerPod: perPod, Pods: pods}
}

// Check returns why no pod can get ids by this configuration, or fewer pods than the node may have.
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

// Take returns what a pod has, or gives it the lowest free slot; fresh says that it did. It fails if there is none, and
// while what another pod has is not known: that may be any slot.
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

// mark marks the slots of which a range has an id. No two of the ranges that Take gave share one, so that all marks
// together are not many more than pods; a longer range, of another configuration, has more slots, at most all.
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

// Record says what a pod was found to have. It returns an error if no pod can have that, and then what the pod has is
// not known. It also returns an error if another pod has some of these ids: neither pod is safe from the other, and
// both keep what they have.
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

// Unknown says that a pod has ids, and that nobody knows which.
func (r *Ranges) Unknown(pod, why string) {
	delete(r.byPod, pod)
	r.unknown[pod] = why
}

// Release says that no process of a pod is left, or that it was found to have no ids.
func (r *Ranges) Release(pod string) {
	delete(r.byPod, pod)
	delete(r.unknown, pod)
}
