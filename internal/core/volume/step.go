package volume

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Reason is why a pod does not have a volume that it wants.
type Reason string

// The reasons, in upstream's words where it has some.
const (
	None        Reason = ""
	Calling     Reason = "the driver is being called"
	Leaving     Reason = "the volume is being taken away from pods before"
	NotReported Reason = "Volume has not been added to the list of VolumesInUse in the node's volume status"
	NotAttached Reason = "Volume not attached according to node status"
	NoDriver    Reason = "the driver is not in the list of registered CSI drivers"
	Exclusive   Reason = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
	Backoff     Reason = "the last call failed; it is made again after a while"
)

// Step returns what to do now. now must not go backwards.
func (r *Reconciler) Step(now unit.Instant) Decision {
	var d Decision
	for r.waiting.Len() > 0 && r.waiting.First().wake <= now {
		v := r.waiting.First()
		r.waiting.Remove(v)
		r.changed[v.name] = true
	}
	names := slices.Collect(maps.Keys(r.changed))
	clear(r.changed)
	slices.Sort(names)
	for _, name := range names {
		v := r.volumes[name]
		if v == nil {
			continue
		}
		s := step{r: r, v: v, now: now, into: &d}
		s.decide()
		if v.idle() {
			r.waiting.Remove(v)
			delete(r.volumes, name)
			continue
		}
		v.wake = s.wake
		if v.wake.IsZero() {
			r.waiting.Remove(v)
		} else {
			r.waiting.Set(v)
		}
	}
	if r.waiting.Len() > 0 {
		d.Wake = r.waiting.First().wake
	}
	return d
}

// step is one volume's part of a Step.
type step struct {
	r    *Reconciler
	v    *volume
	now  unit.Instant
	wake unit.Instant
	into *Decision
}

func (s *step) decide() {
	pods := s.v.inOrder()
	s.takeAway(pods)
	s.give(pods)
	s.expand(pods)
	s.republish(pods)
	s.look()
	for _, pod := range pods {
		if u := s.v.uses[pod]; !u.wanted && u.published == No && (s.v.call == nil || s.v.call.Pod != pod) {
			delete(s.v.uses, pod)
		}
	}
	s.notify(pods)
}

// inOrder returns the pods of a volume in the order of compare.
func (v *volume) inOrder() []Pod {
	pods := slices.Collect(maps.Keys(v.uses))
	slices.SortFunc(pods, v.compare)
	return pods
}

// compare orders pods: those that have wanted the volume for longest come first.
func (v *volume) compare(a, b Pod) int {
	return cmp.Or(cmp.Compare(v.uses[a].since, v.uses[b].since), cmp.Compare(a, b))
}

// call makes a call if none is on its way, its driver is there and it need not wait. It returns why not.
func (s *step) call(b *backoff, c Call) Reason {
	v := s.v
	if v.call != nil {
		return Calling
	}
	if v.spec.Driver != "" && !s.r.drivers[v.spec.Driver] {
		return NoDriver
	}
	if over, until := b.over(s.now, c.Verb); !over {
		s.wake = s.wake.Earlier(until)
		return Backoff
	}
	s.r.lastID++
	c.ID = s.r.lastID
	c.Volume = v.name
	v.call = &c
	s.into.Calls = append(s.into.Calls, c)
	return Calling
}

// undo makes a call that takes something away. From now on it is not there for certain.
func (s *step) undo(b *backoff, state *State, c Call) {
	if s.v.call == nil && s.call(b, c) == Calling {
		s.v.before = *state
		*state = Uncertain
	}
}

// takeAway unpublishes the volume from pods that do not want it, and unstages it if none does.
func (s *step) takeAway(pods []Pod) {
	v := s.v
	needed := false
	for _, pod := range pods {
		u := v.uses[pod]
		needed = needed || u.wanted || u.published != No
		if !u.wanted && !u.held && u.published != No {
			s.undo(&u.again, &u.published, Call{Verb: Unpublish, Pod: pod})
		}
	}
	if !needed && v.staged != No && (v.wanted || s.r.known) {
		s.undo(&v.again, &v.staged, Call{Verb: Unstage})
	}
}

// give stages the volume, and publishes it to the pods that want it.
func (s *step) give(pods []Pod) {
	v := s.v
	for _, pod := range pods {
		u := v.uses[pod]
		if !u.wanted || u.published == Yes || s.mayHave(pod) != None {
			continue
		}
		switch {
		case v.hasOtherLabel(u):
			s.undo(&v.again, &v.staged, Call{Verb: Unstage})
		case v.spec.Stages && v.staged != Yes:
			if v.call == nil && s.call(&v.again, Call{Verb: Stage, Pod: pod}) == Calling {
				v.label = u.label
			}
		default:
			s.call(&u.again, Call{Verb: Publish, Pod: pod})
		}
	}
}

// hasOtherLabel reports whether the volume must be unstaged before a pod can have it: it may be staged with another
// label, and no pod has it.
func (v *volume) hasOtherLabel(u *use) bool {
	if !v.spec.Stages || v.staged == No || v.label == u.label {
		return false
	}
	for _, other := range v.uses {
		if other.published != No {
			return false
		}
	}
	return true
}

// mayHave returns why a volume must not be staged or published for a pod now.
func (s *step) mayHave(pod Pod) Reason {
	v := s.v
	if v.spec.Attaches && v.staged != Yes && !v.isPublished() {
		switch {
		case !s.r.reported[v.name]:
			return NotReported
		case !s.r.attached[v.name]:
			return NotAttached
		}
	}
	if v.spec.Exclusive && v.isTaken(pod) {
		return Exclusive
	}
	return None
}

// isTaken reports whether another pod has an exclusive volume, or waits for longer and needs another label: if both
// were served, the volume would be staged for one and unstaged for the other in turns.
func (v *volume) isTaken(pod Pod) bool {
	u := v.uses[pod]
	for other, w := range v.uses {
		switch {
		case other == pod:
		case w.published != No:
			return true
		case w.wanted && u.published == No && w.label != u.label && v.compare(other, pod) < 0:
			return true
		}
	}
	return false
}

// isPublished reports whether some pod has the volume for certain.
func (v *volume) isPublished() bool {
	for _, u := range v.uses {
		if u.published == Yes {
			return true
		}
	}
	return false
}

// expand has the volume grow once a pod has it.
func (s *step) expand(pods []Pod) {
	v := s.v
	if v.spec.Expand == 0 || v.spec.Expand == v.expanded {
		return
	}
	for _, pod := range pods {
		if u := v.uses[pod]; u.wanted && u.published == Yes {
			s.call(&v.grow, Call{Verb: Expand, Pod: pod, Size: v.spec.Expand})
			return
		}
	}
}

// republish calls drivers again that want it.
func (s *step) republish(pods []Pod) {
	if !s.v.spec.Republish {
		return
	}
	for _, pod := range pods {
		u := s.v.uses[pod]
		if !u.wanted || u.published != Yes {
			continue
		}
		if due := u.publishAt.Add(republishAfter); s.now < due {
			s.wake = s.wake.Earlier(due)
		} else {
			s.call(&u.again, Call{Verb: Publish, Pod: pod, Again: true})
		}
	}
}

// look has the sizes of a volume that pods have read again: at once if others tell that it is to grow, and now and
// then. Volumes that came at the same time take turns. The more volumes there are, the longer is the time until a
// volume's next turn.
func (s *step) look() {
	v, r := s.v, s.r
	if !v.spec.Grows || !v.wanted || !v.isPublished() {
		if !v.lookAt.IsZero() {
			r.looking--
		}
		v.lookAt = 0
		return
	}
	if v.lookAt.IsZero() {
		r.looking++
	}
	after := r.lookAfter(v)
	if v.lookAt.IsZero() || v.lookAt > together(s.now.Add(after)) { // it is new, or others tell no more
		v.lookAt = together(s.now.Add(after/2 + spread(v.name, after/2)))
	}
	if news := v.told == told; news || s.now >= v.lookAt {
		s.into.Looks = append(s.into.Looks, Look{Volume: v.name, Told: news})
		next := together(v.lookAt.Add(after))
		if news || next <= s.now { // this look came early or late
			next = together(s.now.Add(after))
		}
		v.lookAt = next
		if news {
			v.told = heard
		}
	}
	s.wake = s.wake.Earlier(v.lookAt)
}

// lookAfter returns the time between two looks at a volume.
func (r *Reconciler) lookAfter(v *volume) time.Duration {
	after := max(lookAfter, time.Duration(r.looking)*lookApart)
	if r.isTold() && v.told == untold {
		after *= lookRarely
	}
	return after
}

// together returns the first time of a group of looks that is not before at.
func together(at unit.Instant) unit.Instant {
	if past := at % unit.Instant(lookTogether); past != 0 {
		return at.Add(lookTogether - time.Duration(past))
	}
	return at
}

// spread returns a part of a time, which is always the same for a name: by its hash (FNV-1a, 32 bits).
func spread(name Name, of time.Duration) time.Duration {
	const offset, prime = 2166136261, 16777619
	hash := uint32(offset)
	for _, b := range []byte(name) {
		hash = (hash ^ uint32(b)) * prime
	}
	return time.Duration(uint64(of) * uint64(hash) >> 32)
}

// notify tells users what their pods wait for: at once if the wait does not end by itself, otherwise when it takes
// long.
func (s *step) notify(pods []Pod) {
	for _, pod := range pods {
		u := s.v.uses[pod]
		if u == nil || !u.wanted || u.published == Yes {
			continue
		}
		why := s.v.why(s.r, s.now, pod)
		if s.now >= u.late {
			u.late = s.now.Add(LateAfter)
			s.into.Notices = append(s.into.Notices, Notice{Pod: pod, Volume: s.v.name, Late: true, Why: why})
		}
		s.wake = s.wake.Earlier(u.late)
		if (why == NoDriver || why == Exclusive) && u.told != why {
			u.told = why
			s.into.Notices = append(s.into.Notices, Notice{Pod: pod, Volume: s.v.name, Why: why})
		}
	}
}

// why returns why a pod does not have the volume; None: it has it.
func (v *volume) why(r *Reconciler, now unit.Instant, pod Pod) Reason {
	u := v.uses[pod]
	if u.published == Yes {
		return None
	}
	if v.call != nil {
		if v.call.Verb == Unpublish || v.call.Verb == Unstage {
			return Leaving
		}
		return Calling
	}
	s := step{r: r, v: v, now: now}
	if why := s.mayHave(pod); why != None {
		return why
	}
	if v.spec.Driver != "" && !r.drivers[v.spec.Driver] {
		return NoDriver
	}
	b, verb := &u.again, Publish
	switch {
	case v.hasOtherLabel(u):
		b, verb = &v.again, Unstage
	case v.spec.Stages && v.staged != Yes:
		b, verb = &v.again, Stage
	}
	if over, _ := b.over(now, verb); !over {
		return Backoff
	}
	return Calling
}

// Waits returns why a pod does not have a volume that it wants; None: it has it, for certain. A volume that is to grow
// is there when the driver was asked once.
func (r *Reconciler) Waits(now unit.Instant, pod Pod, name Name) Reason {
	v := r.volumes[name]
	if v == nil || v.uses[pod] == nil {
		return Calling
	}
	if why := v.why(r, now, pod); why != None {
		return why
	}
	if v.spec.Expand != 0 && v.spec.Expand != v.expanded && v.grow.wait == 0 {
		return Calling
	}
	return None
}
