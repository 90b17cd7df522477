// Package volume decides which calls make the volumes of a node's pods usable, and take them away again.
//
// # Model
//
// A Reconciler is told facts: which pod wants which volume (Want), which pods have ended (Release), what is there of
// them since before (Found), which volumes are attached to the node and reported as in use, which drivers are there,
// and how calls ended (Ended). Step answers with calls. For one volume they come in this order; one without stages has
// the inner two only:
//
//	attached, reported in use ──► Stage ──► Publish to a pod, to another, ... ──► Unpublish ... ──► Unstage
//	       (others do that)                 Expand, once it is published
//
// A volume is staged, and published to each pod: no, yes or uncertain. It is uncertain when a call that would change it
// ended in a way that leaves open whether the driver did, or still does, what was asked (OutcomeOf). It is certain
// again when the same call, or its opposite, succeeds; drivers must carry out either a second time.
//
// # Invariants
//
//   - One call at a time for each volume. A call that hangs keeps its volume, and no other.
//   - Publish is called for a pod that wants the volume and does not have it for certain. If the driver wants to be
//     called again and again (requiresRepublish), such a call is marked Again and changes nothing here.
//   - Unpublish is called for a pod that does not want the volume, Unstage if no pod wants it or may have it.
//   - A volume that is staged with another SELinux label than a pod wants is unstaged before the pod gets it.
//   - A volume that was found, and that no pod has wanted since, stays staged until all pods of the node are known.
//   - A volume is in use from the moment when a pod wants it until nothing of it is left, and that is reported before
//     the first call for it. So no controller detaches what a pod has.
//   - Once drivers are there and calls succeed, each pod has the volumes that it wants, and no other volume is left.
//
// A failed call is repeated with the kubelet's back-off. If another kind of call follows, it does not wait.
//
// It has no paths, secrets or mounts: the caller has them, and passes what it recorded before a crash to Found. It does
// not check that the containers of a released pod have ended: the caller knows.
package volume

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// CallMax bounds one call of a driver (upstream's csiTimeout, 2 min).
	CallMax = 2 * time.Minute

	// backoffMin and backoffMax bound the wait after a failure, which doubles each time (upstream's
	// goroutinemap/exponentialbackoff: 500 ms to 2m2s).
	backoffMin = 500 * time.Millisecond
	backoffMax = 2*time.Minute + 2*time.Second

	// LateAfter is how long a pod waits for a volume until its user is told, and until the user is told again
	// (upstream's podAttachAndMountTimeout, 2m3s).
	LateAfter = 2*time.Minute + 3*time.Second

	// republishAfter is how long after a call for a driver with requiresRepublish the next one follows. Upstream calls
	// with each periodic sync of the pod, every 60 to 90 s.
	republishAfter = time.Minute

	// lookAfter is how often the sizes of a volume that pods have are read. Upstream does so with each periodic sync of
	// the pod, every 60 to 90 s. Less often, and volumes grow later; more often, and the API server answers more.
	lookAfter = time.Minute

	// lookApart is the time between two looks, of all volumes: with more than 240 volumes each is looked at less often
	// than once in lookAfter. Chosen: four requests a second take a thousandth of a core (measured 2026-11-28). Raising
	// it, many volumes grow later; lowering it, a thousand volumes at rest take a part of a CPU here and of the API
	// server's.
	lookApart = 250 * time.Millisecond

	// lookRarely is how many times longer the time between two looks at a volume is while others tell which volumes are
	// to grow. Chosen: if those who tell stop without a word, the next volume grows after ten minutes, or 42 on a node
	// with a thousand. Raising it, later; lowering it, a thousand volumes at rest cost more.
	lookRarely = 10

	// lookTogether is the time between two groups of looks: a group costs one wake-up. Chosen: a group of a thousand
	// volumes has twenty looks then. Raising it, a volume is looked at later by as much; lowering it, the agent wakes more
	// often.
	lookTogether = 5 * time.Second
)

// Name is a volume's unique name on the node, upstream's UniqueVolumeName: kubernetes.io/csi/<driver>^<handle>. One
// that belongs to a single pod has the pod in it.
type Name string

// Pod is a pod's UID.
type Pod string

// Spec is what a volume needs.
type Spec struct {
	Driver    string // that is called; empty: the agent mounts it without a driver
	Stages    bool   // it is staged once before it is published
	Attaches  bool   // a controller attaches it to the node
	Exclusive bool   // one pod at a time may have it (ReadWriteOncePod)
	Republish bool   // the driver wants to be called again and again for each pod
	Grows     bool   // others may ask for a larger size: it is looked at again and again
	// Label is the SELinux label with which it is mounted for a pod; empty: without one. Only Exclusive volumes have
	// labels: pods that have a volume at the same time see one label.
	Label string

	// Expand is the size to which the volume is to grow on the node; 0: it need not grow.
	Expand unit.Bytes
}

// State is whether a volume is staged, or published to a pod.
type State uint8

// The states.
const (
	No State = iota
	Yes
	Uncertain
)

// Verb is what a call does.
type Verb uint8

// The verbs.
const (
	Stage Verb = iota
	Publish
	Unpublish
	Unstage
	Expand
)

// Call is one call, which is to be made once. It ends with Ended, after CallMax at the latest.
type Call struct {
	ID     int64
	Verb   Verb
	Volume Name
	Pod    Pod        // Stage and Expand: the pod that waits for it, or has the volume; Unstage: none
	Again  bool       // of Publish: the pod has the volume already
	Size   unit.Bytes // of Expand
}

// Notice is a message for a pod's user.
type Notice struct {
	Pod    Pod
	Volume Name
	Late   bool // the pod has waited for LateAfter, once more
	Why    Reason
}

// Decision is what to do now.
type Decision struct {
	Calls   []Call
	Notices []Notice
	Looks   []Look       // volumes whose sizes are to be read again; Want follows if Spec has changed
	Wake    unit.Instant // when to call Step again at the latest; zero: when something is learned
}

// Look is a volume whose sizes are to be read again.
type Look struct {
	Volume Name
	Told   bool // others have just told that it is to grow
}

// Reconciler decides about the volumes of one node.
type Reconciler struct {
	volumes  map[Name]*volume
	drivers  map[string]bool
	attached map[Name]bool
	reported map[Name]bool
	known    bool // all pods of the node have wanted what they want, or were released

	looking int  // volumes that are looked at again and again
	telling bool // others tell which volumes are to grow
	missed  bool // they did not tell of one; until they tell of another, they count as silent

	changed map[Name]bool // something was learned about it since the last Step
	waiting heap.Heap[*volume]
	lastID  int64
}

// volume is what is known of one volume.
type volume struct {
	name     Name
	spec     Spec
	uses     map[Pod]*use
	staged   State
	label    string     // with which it was staged last
	call     *Call      // that has not ended
	before   State      // of what the call takes away: before the call
	expanded unit.Bytes // Spec.Expand of the last Expand that is not to be repeated
	lookAt   unit.Instant
	told     telling
	wanted   bool    // some pod has wanted it since this Reconciler began
	again    backoff // of Stage and Unstage
	grow     backoff // of Expand

	wake unit.Instant
	at   int // in Reconciler.waiting
}

// telling is whether others say that a volume is to grow.
type telling uint8

const (
	untold telling = iota
	told           // and it was not looked at since
	heard          // and it was looked at
)

// use is what is known of a volume and one pod.
type use struct {
	wanted    bool
	label     string       // with which the pod has it, or wants it
	held      bool         // found; its containers may use it, until the pod is released
	since     unit.Instant // when it began to be wanted
	late      unit.Instant // when the user is told next that it is not there
	told      Reason       // of which the user was told
	published State
	publishAt unit.Instant // when it was published last
	again     backoff      // of Publish and Unpublish
}

// backoff is the wait after failures of one verb.
type backoff struct {
	verb  Verb
	wait  time.Duration // the present one; 0: the last call of the verb did not fail
	until unit.Instant
}

func (b *backoff) failed(now unit.Instant, verb Verb) {
	if b.verb != verb || b.wait == 0 {
		*b = backoff{verb: verb, wait: backoffMin}
	} else {
		b.wait = min(2*b.wait, backoffMax)
	}
	b.until = now.Add(b.wait)
}

// over returns whether verb may be called now; until is when, if not.
func (b *backoff) over(now unit.Instant, verb Verb) (over bool, until unit.Instant) {
	if b.wait == 0 || b.verb != verb || now >= b.until {
		return true, 0
	}
	return false, b.until
}

// New returns a Reconciler that knows of nothing.
func New() *Reconciler {
	r := &Reconciler{
		volumes: map[Name]*volume{}, drivers: map[string]bool{}, changed: map[Name]bool{},
		attached: map[Name]bool{}, reported: map[Name]bool{},
	}
	r.waiting = heap.New(
		func(a, b *volume) int {
			return cmp.Or(cmp.Compare(a.wake, b.wake), strings.Compare(string(a.name), string(b.name)))
		},
		func(v *volume) *int { return &v.at },
	)
	return r
}

func (r *Reconciler) volume(name Name) *volume {
	v := r.volumes[name]
	if v == nil {
		v = &volume{name: name, uses: map[Pod]*use{}}
		r.volumes[name] = v
	}
	r.changed[name] = true
	return v
}

func (v *volume) use(pod Pod) *use {
	u := v.uses[pod]
	if u == nil {
		u = &use{}
		v.uses[pod] = u
	}
	return u
}

// Want records that a pod wants a volume, and what the volume needs.
func (r *Reconciler) Want(now unit.Instant, pod Pod, name Name, spec Spec) {
	v := r.volume(name)
	v.wanted = true
	if spec.Expand != v.spec.Expand {
		v.grow = backoff{}
	}
	v.spec = spec
	u := v.use(pod)
	u.label = spec.Label
	if !u.wanted {
		u.wanted = true
		u.since = now
		u.late = now.Add(LateAfter)
		u.told = None
	}
}

// Release records that a pod wants nothing any more: its containers have ended.
func (r *Reconciler) Release(pod Pod) {
	for name, v := range r.volumes {
		if u := v.uses[pod]; u != nil && (u.wanted || u.held) {
			u.wanted = false
			u.held = false
			r.changed[name] = true
		}
	}
}

// Wants reports whether a pod wants a volume.
func (r *Reconciler) Wants(pod Pod, name Name) bool {
	v := r.volumes[name]
	return v != nil && v.uses[pod] != nil && v.uses[pod].wanted
}

// Released reports whether a pod has nothing any more, and nothing is on its way to it. Pods that want something are
// not.
func (r *Reconciler) Released(pod Pod) bool {
	for _, v := range r.volumes {
		if u := v.uses[pod]; u != nil && (u.wanted || u.published != No) {
			return false
		}
		if c := v.call; c != nil && c.Pod == pod && (c.Verb == Publish || c.Verb == Unpublish) {
			return false
		}
	}
	return true
}

// Calls reports whether a call is on its way that is for a pod.
func (r *Reconciler) Calls(pod Pod) bool {
	for _, v := range r.volumes {
		if v.call != nil && v.call.Pod == pod {
			return true
		}
	}
	return false
}

// Found records that a volume was staged before this Reconciler began: surely, or not.
func (r *Reconciler) Found(name Name, spec Spec, staged State) {
	v := r.volume(name)
	if !v.wanted {
		v.spec = spec
	}
	v.staged = staged
	v.label = spec.Label
}

// FoundPublished records that a volume was published to a pod before. Until the pod is released, it may be in use.
func (r *Reconciler) FoundPublished(name Name, pod Pod, spec Spec, published State) {
	v := r.volume(name)
	if !v.wanted {
		v.spec = spec
	}
	u := v.use(pod)
	u.published = published
	u.label = spec.Label
	u.held = published != No
}

// Known records that all pods of the node are known: what none of them has wanted is not needed.
func (r *Reconciler) Known() {
	if !r.known {
		r.known = true
		for name := range r.volumes {
			r.changed[name] = true
		}
	}
}

// Driver records that a driver has come or gone. What failed before it came is not waited for.
func (r *Reconciler) Driver(driver string, there bool) {
	if r.drivers[driver] == there {
		return
	}
	r.drivers[driver] = there
	if !there {
		delete(r.drivers, driver)
	}
	for name, v := range r.volumes {
		if v.spec.Driver != driver {
			continue
		}
		r.changed[name] = true
		if there {
			v.again.until = 0
			v.grow.until = 0
			for _, u := range v.uses {
				u.again.until = 0
			}
		}
	}
}

// Attached records the volumes that the Node's status says are attached.
func (r *Reconciler) Attached(names []Name) { r.attached = r.replace(r.attached, names) }

// Reported records the volumes that the Node's status says are in use, as the API server has it.
func (r *Reconciler) Reported(names []Name) { r.reported = r.replace(r.reported, names) }

// Told records whether others tell this node which volumes are to grow, and the volumes of which they say it now. Those
// are looked at as soon as pods have them, and all others rarely.
func (r *Reconciler) Told(telling bool, names []Name) {
	before := r.isTold()
	r.telling = telling
	now := make(map[Name]bool, len(names))
	for _, name := range names {
		now[name] = true
	}
	for name, v := range r.volumes {
		switch {
		case !now[name]:
			v.told = untold
		case v.told == untold:
			v.told = told
			r.missed = false
			r.changed[name] = true
		}
	}
	r.mindTelling(before)
}

// Missed records that a volume was found to grow, and that nobody had told.
func (r *Reconciler) Missed() {
	before := r.isTold()
	r.missed = true
	r.mindTelling(before)
}

// isTold reports whether others can be relied upon to tell which volumes are to grow.
func (r *Reconciler) isTold() bool { return r.telling && !r.missed }

// mindTelling has every volume looked at sooner if others tell no more.
func (r *Reconciler) mindTelling(before bool) {
	if !before || r.isTold() {
		return
	}
	for name, v := range r.volumes {
		if !v.lookAt.IsZero() {
			r.changed[name] = true
		}
	}
}

func (r *Reconciler) replace(old map[Name]bool, names []Name) map[Name]bool {
	next := make(map[Name]bool, len(names))
	for _, name := range names {
		next[name] = true
		if !old[name] && r.volumes[name] != nil {
			r.changed[name] = true
		}
	}
	return next
}

// Ended records how a call ended, and returns what it left: whether the volume is staged, or published to the call's
// pod. What the caller wrote down before the call is complete with Yes, and not needed any more with No. Ended ignores
// calls that it does not know.
func (r *Reconciler) Ended(now unit.Instant, id int64, name Name, outcome Outcome) State {
	v := r.volumes[name]
	if v == nil || v.call == nil || v.call.ID != id {
		return Uncertain
	}
	c := *v.call
	v.call = nil
	r.changed[name] = true
	b := v.backoffOf(c)
	if outcome == Done {
		*b = backoff{}
	} else {
		b.failed(now, c.Verb)
	}
	u := v.uses[c.Pod]
	switch c.Verb {
	case Stage:
		v.staged = after(v.staged, true, outcome)
		return v.staged
	case Unstage:
		v.staged = after(v.before, false, outcome)
		return v.staged
	case Publish:
		if outcome == Done {
			u.publishAt = now
		}
		if !c.Again {
			u.published = after(u.published, true, outcome)
		}
	case Unpublish:
		u.published = after(v.before, false, outcome)
	case Expand:
		if outcome == Done || outcome == Infeasible {
			v.expanded = c.Size
		}
		return Yes
	}
	return u.published
}

func (v *volume) backoffOf(c Call) *backoff {
	switch c.Verb {
	case Publish, Unpublish:
		return &v.use(c.Pod).again
	case Expand:
		return &v.grow
	}
	return &v.again
}

// InUse returns the volumes that a controller must not detach, in order. known says that the list is complete. Until
// then the volumes that were reported before must stay reported.
func (r *Reconciler) InUse() (names []Name, known bool) {
	for name, v := range r.volumes {
		if v.spec.Attaches {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, r.known
}

// idle reports whether nothing of a volume is here, is wanted or on its way.
func (v *volume) idle() bool {
	if v.staged != No || v.call != nil {
		return false
	}
	for _, u := range v.uses {
		if u.wanted || u.published != No {
			return false
		}
	}
	return true
}

// Has reports whether anything is known of a volume.
func (r *Reconciler) Has(name Name) bool { return r.volumes[name] != nil }

// Pods returns the pods that want a volume or may have it, in order.
func (r *Reconciler) Pods(name Name) []Pod {
	v := r.volumes[name]
	if v == nil {
		return nil
	}
	pods := slices.Collect(maps.Keys(v.uses))
	slices.Sort(pods)
	return pods
}
