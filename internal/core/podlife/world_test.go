package podlife

import (
	"fmt"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// world is a runtime, an API server and the shell of one Life, in virtual time.
type world struct {
	now        unit.Instant
	wall       unit.Wall
	life       *Life
	o          Observation // Containers and Sandboxes are set from the fields below
	containers []*box
	sandboxes  []*Sandbox
	programs   map[string]program
	failures   []*failure
	lastID     int
	busy       unit.Instant // until then the shell waits for stops
	finished   bool
	generation int64
	fragile    int // number of sandboxes that die as soon as they exist
	group      resize.Size
	uses       map[string]unit.Bytes // of memory, by container

	steps   int // at the present moment
	status  Status
	wake    unit.Instant
	said    func(format string, args ...any) // prints what happens now
	checked func(d Decision, o Observation)  // may be nil: called with every decision
	asked   func(a Action)                   // may be nil: called before every action
}

// box is a container of the world.
type box struct {
	Container
	exitAt unit.Instant // zero: never
	exit   int32
	hookAt unit.Instant // when its postStart hook ends; zero: never
	hook   int32        // and its exit code
	start  Action       // the action that started it
}

// program says how the runs of one container end: the nth run by the nth entry, later ones by the last.
type program struct {
	runs []run
	term run // reaction to SIGTERM; for < 0: none
	hook run // result of its postStart hook, if its spec has one
}

// run is a run that ends with a code after a time; for < 0: never.
type run struct {
	code int32
	for_ time.Duration
}

// failure makes actions fail.
type failure struct {
	action, container string
	times             int
	reason, message   string
	leaves            string // what a failing start leaves behind: "", created, exited; all: no failure, no effect
}

const (
	epoch     = unit.Instant(time.Hour)
	wallEpoch = unit.Wall(1_800_000_000 * time.Second)
)

func newWorld() *world {
	w := &world{now: epoch, wall: wallEpoch, life: New(0), programs: map[string]program{}, said: func(string, ...any) {}}
	w.o.StartTime = wallEpoch
	w.uses = map[string]unit.Bytes{}
	w.o.Past, w.o.Probes, w.o.Gates = map[string]Past{}, map[string]Probes{}, map[string]string{}
	return w
}

func (w *world) since() time.Duration { return w.now.Sub(epoch) }

func (w *world) observe() Observation {
	o := w.o
	o.Containers, o.Sandboxes, o.Size = nil, nil, w.group
	for _, b := range w.containers {
		o.Containers = append(o.Containers, b.Container)
	}
	for _, s := range w.sandboxes {
		o.Sandboxes = append(o.Sandboxes, *s)
	}
	return o
}

// runUntil lets time pass. It returns an error when the pod keeps the shell busy without end.
func (w *world) runUntil(end unit.Instant) error {
	for !w.finished {
		if w.now >= w.busy {
			if acted, err := w.step(); err != nil {
				return err
			} else if acted {
				continue
			}
		}
		next := w.nextEvent()
		if next.IsZero() || next > end {
			break
		}
		w.advance(next)
	}
	w.advance(max(end, w.now))
	return nil
}

func (w *world) nextEvent() unit.Instant {
	next := w.wake
	if w.now < w.busy {
		next = w.busy
	}
	for _, b := range w.containers {
		if b.State == Running {
			next = next.Earlier(b.exitAt)
			if b.Hook == HookRuns {
				next = next.Earlier(b.hookAt)
			}
		}
	}
	return next
}

func (w *world) advance(to unit.Instant) {
	if to > w.now {
		w.steps = 0
	}
	w.wall += unit.Wall(to - w.now)
	w.now = to
	for _, b := range w.containers {
		if b.State == Running && !b.exitAt.IsZero() && b.exitAt <= w.now {
			w.end(b, b.exit)
		}
		if b.State == Running && b.Hook == HookRuns && !b.hookAt.IsZero() && b.hookAt <= w.now {
			w.endHook(b)
		}
	}
}

// endHook reports the end of a postStart hook, as the shell does.
func (w *world) endHook(b *box) {
	b.Hook = HookOver
	if b.hook != 0 {
		b.Hook = HookFailed
		w.life.Failed(w.now, b.start, "PostStartHookError", fmt.Sprintf("command exited with %d", b.hook))
	}
}

func (w *world) end(b *box, code int32) {
	b.State, b.ExitCode, b.FinishedAt = Exited, code, w.wall
	delete(w.o.Probes, b.Name) // a prober drops a run that has ended
}

// step is one sync of the shell.
func (w *world) step() (acted bool, err error) {
	if w.steps++; w.steps > 50 {
		return false, fmt.Errorf("at %s: 50 steps without rest, last actions %v", w.since(), w.status)
	}
	o := w.observe()
	d := w.life.Step(w.now, w.wall, o)
	if w.checked != nil {
		w.checked(d, o)
	}
	w.status, w.wake = d.Status, d.Wake
	for _, st := range d.Status.Containers {
		w.o.Past[st.Name] = pastFrom(st)
	}
	if w.o.Resizing.Generation != 0 && w.condition(ResizeInProgress) == nil {
		w.o.Resizing.Generation = 0
		w.said("resize completed")
	}
	initialized := w.condition("Initialized")
	w.o.Initialized = initialized != nil && initialized.True
	if d.Status.Phase == Succeeded || d.Status.Phase == Failed {
		w.o.Terminal = d.Status.Phase
	}
	for i := 0; i < len(d.Actions); {
		ok := w.perform(d.Actions[i])
		for i++; i < len(d.Actions) && d.Actions[i].Kind == StopContainer && d.Actions[i-1].Kind == StopContainer; i++ {
			ok = w.perform(d.Actions[i]) && ok
		}
		if !ok || w.busy > w.now {
			break
		}
	}
	return len(d.Actions) > 0 && w.busy <= w.now, nil
}

// condition returns the reported condition of that type, or nil.
func (w *world) condition(kind string) *Condition {
	for i := range w.status.Conditions {
		if w.status.Conditions[i].Type == kind {
			return &w.status.Conditions[i]
		}
	}
	return nil
}

// pastFrom returns what agent/pods makes of a status that it wrote.
func pastFrom(st ContainerStatus) Past {
	p := Past{
		ID:           st.ID,
		ImageID:      st.ImageID,
		RestartCount: st.RestartCount,
		Running:      st.Running != nil,
		Ended:        st.Ended,
		Last:         st.Last,
		Over:         st.Ended != nil,
	}
	if st.Waiting != nil && p.ID != "" && p.Last != nil && p.Last.ID == p.ID {
		p.Ended, p.Last = p.Last, nil
	}
	return p
}

// perform performs an action, and reports whether it succeeded.
func (w *world) perform(a Action) bool {
	if w.asked != nil {
		w.asked(a)
	}
	line := describe(a, w.nameOf(a.ID))
	if a.Kind == Resize {
		return w.resize(a, line)
	}
	if f := w.failing(a); f != nil && f.leaves == "all" {
		w.said("%s: claims success", line)
		return true
	} else if f != nil {
		w.said("%s: fails: %s", line, f.reason)
		if f.leaves != "" {
			b := w.create(a)
			if f.leaves == "exited" {
				w.end(b, 128)
				b.Reason = "StartError"
			}
		}
		w.life.Failed(w.now, a, f.reason, f.message)
		return false
	}
	w.said("%s", line)
	switch a.Kind {
	case CreateSandbox:
		w.group = w.o.Spec.Size
		w.lastID++
		s := &Sandbox{ID: fmt.Sprintf("s%d", w.lastID), Attempt: a.Attempt, State: SandboxReady, IPs: []string{"10.0.0.1"}}
		if w.fragile > 0 {
			w.fragile--
			s.State = SandboxNotReady
		}
		w.sandboxes = append(w.sandboxes, s)
	case StopSandbox:
		for _, s := range w.sandboxes {
			if s.ID == a.ID {
				s.State = SandboxNotReady
			}
		}
	case RemoveSandbox:
		w.sandboxes = slices.DeleteFunc(w.sandboxes, func(s *Sandbox) bool { return s.ID == a.ID })
		w.containers = slices.DeleteFunc(w.containers, func(b *box) bool { return b.SandboxID == a.ID })
	case StartContainer:
		w.start(w.create(a))
	case StopContainer:
		w.stop(a)
	case RemoveContainer:
		w.containers = slices.DeleteFunc(w.containers, func(b *box) bool { return b.ID == a.ID })
	case BeginPreStop:
		for _, b := range w.containers {
			b.PreStop = b.PreStop || b.ID == a.ID
		}
	case Finish:
		w.finished = true
	}
	return true
}

func (w *world) failing(a Action) *failure {
	for _, f := range w.failures {
		if f.times > 0 && f.action == a.Kind.String() && (f.container == "" || f.container == a.Container) {
			f.times--
			return f
		}
	}
	return nil
}

func (w *world) create(a Action) *box {
	w.lastID++
	b := &box{Container: Container{
		ID:        fmt.Sprintf("c%d", w.lastID),
		Name:      a.Container,
		SandboxID: a.ID,
		Attempt:   a.Attempt,
		State:     Created,
		CreatedAt: w.wall,
		Hash:      w.spec(a.Container).Hash, ImageID: "sha256:" + w.spec(a.Container).Image,
		Fixed: w.spec(a.Container).Fixed, Size: w.spec(a.Container).Size,
	}}
	b.start = a
	w.containers = append(w.containers, b)
	return b
}

func (w *world) start(b *box) {
	b.State, b.StartedAt = Running, w.wall
	if w.spec(b.Name).PostStart {
		b.Hook = HookRuns
		if h := w.programs[b.Name].hook; h.for_ >= 0 {
			b.hookAt, b.hook = w.now.Add(h.for_), h.code
		}
	}
	runs := w.programs[b.Name].runs
	if len(runs) == 0 {
		return
	}
	if r := runs[min(int(b.Attempt), len(runs)-1)]; r.for_ >= 0 {
		b.exitAt, b.exit = w.now.Add(r.for_), r.code
		if r.for_ == 0 {
			w.end(b, r.code)
		}
	}
}

// stop makes the shell wait until the container has died of SIGTERM or, at the end of the grace period, of SIGKILL.
func (w *world) stop(a Action) {
	for _, b := range w.containers {
		if b.ID != a.ID || !b.alive() {
			continue
		}
		b.State = Running
		term := w.programs[b.Name].term
		dies, code := w.now.Add(a.Grace), int32(137)
		if term.for_ >= 0 && term.for_ <= a.Grace && a.Grace > 0 {
			dies, code = w.now.Add(term.for_), term.code
		}
		if b.exitAt.IsZero() || dies < b.exitAt {
			b.exitAt, b.exit = dies, code
		}
		w.busy = max(w.busy, b.exitAt)
	}
	w.advance(w.now)
}

func (w *world) spec(name string) *ContainerSpec {
	for i := range w.o.Spec.Containers {
		if w.o.Spec.Containers[i].Name == name {
			return &w.o.Spec.Containers[i]
		}
	}
	return &ContainerSpec{}
}

// box returns the newest container of that name, or nil.
func (w *world) box(name string) *box {
	var newest *box
	for _, b := range w.containers {
		if b.Name == name && (newest == nil || b.Attempt >= newest.Attempt) {
			newest = b
		}
	}
	return newest
}

func (w *world) nameOf(id string) string {
	for _, b := range w.containers {
		if b.ID == id {
			return fmt.Sprintf("%s#%d", b.Name, b.Attempt)
		}
	}
	for _, s := range w.sandboxes {
		if s.ID == id {
			return fmt.Sprintf("#%d", s.Attempt)
		}
	}
	return id
}

// reboot ends every process, including the agent, as a reboot of the machine does. With lost, the runtime loses
// everything too.
func (w *world) reboot(lost bool) {
	for _, b := range w.containers {
		if b.alive() {
			w.end(b, 255)
		}
	}
	for _, s := range w.sandboxes {
		s.State = SandboxNotReady
	}
	if lost {
		w.containers, w.sandboxes = nil, nil
	}
	w.restartAgent()
}

func (w *world) restartAgent() {
	w.life, w.busy, w.wake = New(0), 0, w.now
	for _, b := range w.containers {
		b.Hook, b.PreStop = HookOver, false // the process that waited for it no longer exists
	}
	if w.o.Stop != nil { // the new agent sees the deletion in the API
		stop := *w.o.Stop
		w.o.Stop = &stop
	}
}

// order ends the pod within a grace period as agent/pods does: a later order may only shorten the time left.
func (w *world) order(grace time.Duration, o StopOrder) {
	o.Deadline = w.now.Add(grace)
	if old := w.o.Stop; old != nil {
		merged := *old
		merged.Remove = merged.Remove || o.Remove
		if o.Deadline < merged.Deadline {
			merged.Deadline = o.Deadline
			w.busy = w.now
		}
		o = merged
	} else {
		w.busy = w.now
	}
	w.o.Stop = &o
}
