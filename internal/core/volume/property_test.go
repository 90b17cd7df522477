package volume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHistories plays random histories: pods come and go, drivers fail, answer late, hang and vanish, nodes attach and
// detach, and the agent crashes. A model knows what the drivers truly did. It checks each call against the invariants
// of the package; in the end everything heals, and each pod must have what it wants, and nothing else may be left.
// VOLUME_HISTORY=SEED plays one history.
func TestHistories(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 200
	}
	seed := uint64(time.Now().UnixNano())
	if one := os.Getenv("VOLUME_HISTORY"); one != "" {
		var err error
		if seed, err = strconv.ParseUint(one, 10, 64); err != nil {
			t.Fatal(err)
		}
		n = 1
	}
	total := map[Verb]int{}
	for i := range uint64(n) {
		m := newModel(t, seed+i)
		m.play()
		for verb, count := range m.count {
			total[verb] += count
		}
		if t.Failed() {
			for _, line := range m.log {
				t.Log(line)
			}
			t.Fatalf("VOLUME_HISTORY=%d repeats this", seed+i)
		}
	}
	for verb, name := range verbs {
		if total[verb] < n {
			t.Errorf("%s was called %d times in %d histories: the test tests little of it", name, total[verb], n)
		}
	}
}

// truth is what a driver really did for one volume.
type truth struct {
	spec      Spec
	staged    bool
	published map[Pod]bool
	record    record // what the shell wrote down
	late      []Call // that the driver carries out after it was given up
	size      unit.Bytes
	label     string               // it is staged with
	labels    bool                 // pods want it with labels, if it is for one pod at a time
	since     map[Pod]unit.Instant // when the agent was told that a pod wants it
}

// record is what a shell has on disk: it is written before a call, and completed or removed after it.
type record struct {
	staged    State
	published map[Pod]State
	label     string
}

type model struct {
	t       *testing.T
	rnd     *rand.Rand
	r       *Reconciler
	now     unit.Instant
	volumes map[Name]*truth
	uses    map[Pod][]Name        // what is in a pod's specification
	wants   map[Pod]map[Name]bool // of pods that are here: what was asked for
	inUse   []Name
	flying  map[int64]Call
	drivers map[string]bool
	kind    bool // drivers do as they should
	count   map[Verb]int
	log     []string
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), now: unit.Instant(time.Second), volumes: map[Name]*truth{},
		uses:    map[Pod][]Name{},
		wants:   map[Pod]map[Name]bool{},
		flying:  map[int64]Call{},
		drivers: map[string]bool{},
		count:   map[Verb]int{},
	}
	for i := range 1 + m.rnd.IntN(4) {
		m.volumes[Name(fmt.Sprintf("v%d", i))] = &truth{
			spec: Spec{
				Driver: fmt.Sprintf("d%d", m.rnd.IntN(2)), Stages: m.rnd.IntN(3) > 0, Attaches: m.rnd.IntN(2) == 0,
				Exclusive: m.rnd.IntN(4) == 0, Republish: m.rnd.IntN(4) == 0,
				Expand: unit.Bytes(m.rnd.IntN(2) * 100),
			},
			labels:    m.rnd.IntN(2) == 0,
			published: map[Pod]bool{},
			record:    record{published: map[Pod]State{}},
			since:     map[Pod]unit.Instant{},
		}
	}
	for i := range 4 {
		pod := Pod(fmt.Sprintf("p%d", i))
		for _, name := range m.names() {
			if m.rnd.IntN(3) > 0 {
				m.uses[pod] = append(m.uses[pod], name)
			}
		}
	}
	m.r = New()
	return m
}

func (m *model) say(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%8v ", m.now.Sub(0))+fmt.Sprintf(format, args...))
}

func (m *model) bad(format string, args ...any) {
	m.t.Helper()
	m.say(format, args...)
	m.t.Errorf(format, args...)
}

func (m *model) names() []Name {
	return slices.Sorted(maps.Keys(m.volumes))
}

func pick[T any](m *model, from []T) T { return from[m.rnd.IntN(len(from))] }

func (m *model) play() {
	for range 20 + m.rnd.IntN(150) {
		m.event()
		m.step()
		if m.t.Failed() {
			return
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(m.wants)) {
		for _, name := range m.uses[pod] {
			m.want(pod, name)
		}
	}
	m.heal("pods have what they want", func() bool {
		for pod, wants := range m.wants {
			for name := range wants {
				there := m.r.Waits(m.now, pod, name) == None
				if there && !m.volumes[name].published[pod] {
					m.bad("%s is there for %s, and is not published", name, pod)
				}
				if !there && !m.blocked(pod, name) {
					return false
				}
			}
		}
		return true
	})
	m.say("all pods go")
	for _, pod := range slices.Sorted(maps.Keys(m.wants)) {
		m.release(pod)
	}
	m.heal("nothing is left", func() bool { return len(m.r.volumes) == 0 })
	for name, v := range m.volumes {
		if v.staged || len(v.published) > 0 || v.record.staged != No || len(v.record.published) > 0 {
			m.bad("%s is left: %+v", name, v)
		}
	}
	if names, known := m.r.InUse(); len(names) > 0 || !known {
		m.bad("in use in the end: %v, known %v", names, known)
	}
}

// blocked reports whether another pod has an exclusive volume.
func (m *model) blocked(pod Pod, name Name) bool {
	v := m.volumes[name]
	for other := range v.published {
		if v.spec.Exclusive && other != pod {
			return true
		}
	}
	return false
}

func (m *model) event() {
	pod := Pod(fmt.Sprintf("p%d", m.rnd.IntN(4)))
	switch m.rnd.IntN(14) {
	case 0, 1, 2:
		if uses := m.uses[pod]; len(uses) > 0 {
			m.want(pod, pick(m, uses))
		}
	case 3, 4:
		m.release(pod)
	case 5:
		driver := fmt.Sprintf("d%d", m.rnd.IntN(2))
		m.drivers[driver] = m.rnd.IntN(4) > 0
		m.say("driver %s %v", driver, m.drivers[driver])
		m.r.Driver(driver, m.drivers[driver])
	case 6:
		m.report()
	case 7:
		m.attach()
	case 8:
		m.now = m.now.Add(time.Duration(m.rnd.Int64N(int64(3 * time.Minute))))
	case 9:
		if m.rnd.IntN(3) == 0 {
			m.crash()
		}
	case 10:
		m.r.Known()
	default:
		m.endOne()
	}
}

func (m *model) want(pod Pod, name Name) {
	m.say("%s wants %s %+v", pod, name, m.volumes[name].spec)
	if m.wants[pod] == nil {
		m.wants[pod] = map[Name]bool{}
	}
	m.wants[pod][name] = true
	if _, told := m.volumes[name].since[pod]; !told {
		m.volumes[name].since[pod] = m.now
	}
	m.r.Want(m.now, pod, name, m.volumes[name].specFor(pod))
}

// specFor returns what the volume needs for a pod: pods have one of two labels.
func (v *truth) specFor(pod Pod) Spec {
	spec := v.spec
	if v.labels && spec.Exclusive {
		spec.Label = "label" + string(pod[len(pod)-1]%2+'0')
	}
	return spec
}

// first returns the pod that has wanted the volume for longest; empty: none wants it.
func (v *truth) first() (first Pod) {
	for _, pod := range slices.Sorted(maps.Keys(v.since)) {
		if first == "" || v.since[pod] < v.since[first] {
			first = pod
		}
	}
	return first
}

func (m *model) release(pod Pod) {
	m.say("%s goes", pod)
	delete(m.wants, pod)
	for _, v := range m.volumes {
		delete(v.since, pod)
	}
	m.r.Release(pod)
}

// report has the API server know what is in use.
func (m *model) report() {
	m.inUse, _ = m.r.InUse()
	m.say("reported %v", m.inUse)
	m.r.Reported(m.inUse)
}

// attach has a controller attach what is in use, or some of it.
func (m *model) attach() {
	var names []Name
	for _, name := range m.inUse {
		if m.kind || m.rnd.IntN(4) > 0 {
			names = append(names, name)
		}
	}
	m.say("attached %v", names)
	m.r.Attached(names)
}

// endOne ends a call that is on its way, in some way.
func (m *model) endOne() {
	if len(m.flying) == 0 {
		return
	}
	c := m.flying[pick(m, slices.Sorted(maps.Keys(m.flying)))]
	delete(m.flying, c.ID)
	v := m.volumes[c.Volume]
	outcome := Done
	if !m.kind {
		outcome = pick(m, []Outcome{Done, Done, Failed, Unclear, Unclear, Unsent})
	}
	m.say("%v ended %v", c, outcome)
	switch {
	case outcome == Done:
		m.carryOut(c)
	case outcome == Unclear && m.rnd.IntN(2) == 0:
		m.carryOut(c)
	case outcome == Failed && c.Verb == Unpublish && m.rnd.IntN(2) == 0:
		m.carryOut(c) // it failed after it had unmounted
	case outcome == Unclear && m.rnd.IntN(2) == 0:
		v.late = append(v.late, c) // before its next call, as drivers do one thing at a time for a volume
	}
	left := m.r.Ended(m.now, c.ID, c.Volume, outcome)
	switch {
	case c.Verb == Stage || c.Verb == Unstage:
		v.record.staged = left
	case c.Verb == Expand:
	case left == No:
		delete(v.record.published, c.Pod)
	default:
		v.record.published[c.Pod] = left
	}
}

// carryOut does what a driver does.
func (m *model) carryOut(c Call) {
	v := m.volumes[c.Volume]
	switch c.Verb {
	case Stage:
		v.staged = true
		v.label = v.specFor(c.Pod).Label
	case Publish:
		v.published[c.Pod] = true
	case Unpublish:
		delete(v.published, c.Pod)
	case Unstage:
		v.staged = false
	case Expand:
		v.size = c.Size
	}
}

// crash begins a new agent, which finds the records.
func (m *model) crash() {
	m.say("crash")
	for _, id := range slices.Sorted(maps.Keys(m.flying)) {
		if m.rnd.IntN(2) == 0 {
			m.carryOut(m.flying[id])
		}
	}
	clear(m.flying)
	m.r = New()
	for driver, there := range m.drivers {
		m.r.Driver(driver, there)
	}
	for _, name := range m.names() {
		v := m.volumes[name]
		clear(v.since)
		if v.record.staged != No {
			spec := v.spec
			spec.Label = v.record.label
			m.r.Found(name, spec, v.record.staged)
		}
		for pod, state := range v.record.published {
			m.r.FoundPublished(name, pod, v.specFor(pod), state)
		}
	}
	m.step()
	for _, pod := range slices.Sorted(maps.Keys(m.wants)) {
		for _, name := range slices.Sorted(maps.Keys(m.wants[pod])) {
			m.want(pod, name)
		}
	}
	for i := range 4 { // of pods that are gone, the agent finds orphans
		if pod := Pod(fmt.Sprintf("p%d", i)); m.wants[pod] == nil {
			m.r.Release(pod)
		}
	}
}

// step steps, and judges each call.
func (m *model) step() {
	d := m.r.Step(m.now)
	if again := m.r.Step(m.now); len(again.Calls)+len(again.Notices) > 0 {
		m.bad("a second step at the same time: %+v", again)
	}
	for _, c := range d.Calls {
		m.count[c.Verb]++
		m.say("%v", c)
		m.judge(c)
		m.flying[c.ID] = c
	}
	if !d.Wake.IsZero() && d.Wake <= m.now {
		m.bad("woken at %v for %v", m.now, d.Wake)
	}
}

func (m *model) judge(c Call) {
	v := m.volumes[c.Volume]
	for _, other := range m.flying {
		if other.Volume == c.Volume {
			m.bad("%v beside %v", c, other)
		}
	}
	for _, late := range v.late {
		m.carryOut(late)
	}
	v.late = nil
	wanted := m.wants[c.Pod][c.Volume]
	switch c.Verb {
	case Stage:
		if v.record.staged == Yes {
			m.bad("%v: staged already", c)
		}
		if first := v.first(); v.specFor(c.Pod).Label != v.specFor(first).Label {
			m.bad("%v: %s waits for longer, for another label", c, first)
		}
		v.record.staged = Uncertain
		v.record.label = v.specFor(c.Pod).Label
	case Publish:
		switch {
		case !wanted:
			m.bad("%v: the pod does not want it", c)
		case v.record.published[c.Pod] == Yes != c.Again:
			m.bad("%v: published already, or not yet: %v", c, v.record.published[c.Pod])
		case v.spec.Stages && !v.staged && !c.Again:
			m.bad("%v: not staged", c)
		case v.spec.Stages && v.label != v.specFor(c.Pod).Label && !c.Again:
			m.bad("%v: staged with label %q", c, v.label)
		case m.blocked(c.Pod, c.Volume):
			m.bad("%v: another pod has it", c)
		}
		if !c.Again {
			v.record.published[c.Pod] = Uncertain
		}
	case Unpublish:
		if wanted {
			m.bad("%v: the pod wants it", c)
		}
		v.record.published[c.Pod] = Uncertain
	case Unstage:
		if pod := v.first(); pod != "" && v.specFor(pod).Label == v.record.label {
			m.bad("%v: %s, which waits for longest, wants it with label %q", c, pod, v.record.label)
		}
		if len(v.published) > 0 {
			m.bad("%v: published to %v", c, v.published)
		}
		v.record.staged = Uncertain
	case Expand:
		if !v.published[c.Pod] {
			m.bad("%v: not published", c)
		}
	}
	if first := c.Verb == Stage || c.Verb == Publish && !v.spec.Stages; first && v.spec.Attaches && !v.staged {
		if !m.r.attached[c.Volume] && len(v.published) == 0 {
			m.bad("%v: not attached", c)
		}
	}
	if names, _ := m.r.InUse(); v.spec.Attaches && !slices.Contains(names, c.Volume) {
		m.bad("%v: not in use", c)
	}
}

// heal has everything go well, until done or for a while.
func (m *model) heal(what string, done func() bool) {
	m.say("heal: %s", what)
	m.kind = true
	for _, d := range []string{"d0", "d1"} {
		m.drivers[d] = true
		m.r.Driver(d, true)
	}
	m.r.Known()
	for range 200 {
		m.report()
		m.attach()
		m.step()
		for len(m.flying) > 0 {
			m.endOne()
			m.step()
		}
		if done() {
			return
		}
		if wake := m.r.Step(m.now).Wake; !wake.IsZero() {
			m.now = max(m.now, wake)
		}
	}
	m.bad("not in the end: %s", what)
}
