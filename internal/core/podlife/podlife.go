// Package podlife is the life of one pod on its node: given what the pod should be and what the runtime has, it says
// what to start, stop and remove next, what to report, and when to look again.
//
// Model. A shell observes (Observation), calls Life.Step, performs the returned actions in order (neighbouring stops
// together), tells Life about actions that failed (Life.Failed), observes again, and repeats until a step has no
// actions; then it sleeps until Decision.Wake or the next event. One Life per pod, used by one goroutine at a time.
//
// Invariants:
//   - A container that runs as it should is never touched. One that only has another size than it should is resized,
//     and not restarted unless its resize policy asks for that.
//   - A container is started only in a ready sandbox, and only if no container of its name runs. An ephemeral one is
//     started only once, ever.
//   - A container whose postStart hook has not succeeded is not reported as running, and no main after it is started.
//     All else goes on: its hook keeps nobody from being stopped.
//   - A pod that reached Succeeded or Failed never runs again, and neither phase is reported while a process is alive.
//   - What a Life remembers (back-off, troubles) may be lost at any instant: a new Life fed the same observation harms
//     nothing, it only forgets how often it had to wait.
//   - The same action on the same thing is not planned twice within a second, whatever the runtime claims to have done.
//
// Sizes (core/resize) are levels, not events: a step compares what each cgroup has with what the pod's allocation asks
// for and plans the way between them. So a resize that was interrupted anywhere is taken up by whoever comes next. What
// demands a restart of the container is part of its identity, as its image is (Fixed). Whether there is room for what
// the specification asks for is not decided here (core/admission): Spec is what was granted.
//
// What the runtime forgot, the API may still know (Past): an end that was reported counts as an exit, and a container
// that was reported as running and is nowhere to be found was killed (137, ContainerStatusUnknown).
//
// Phases, reasons, messages, conditions and restart counts are upstream's (kubelet 1.36). Deliberate differences:
//   - A container that ended for good is not run again because the runtime forgot it; upstream runs it again.
//   - A container whose image changed is started again whatever its policy, even if the agent restarted between its
//     stop and its start; upstream then leaves it ended. The new image starts without the back-off of the old one: as
//     upstream.
//   - A failed start other than a pull is retried every 10 s; upstream waits 5 to 15 s at random.
//   - A termination grace of zero kills at once; upstream waits 2 s. Sidecars, whose turn comes when the grace may be
//     spent, get at least 2 s, as upstream gives everybody.
//   - Once a container was started after a sidecar, a restart of that sidecar holds up nothing; upstream holds up mains
//     that are down at the same moment.
//   - While a postStart hook runs, containers before it, ephemeral ones and all stops go on; upstream does nothing for
//     a pod then.
//   - A pod without restarts whose sandbox dies before its mains ran begins again; upstream leaves it Pending for ever.
//   - A pod whose containers have all ended is finished even if its active deadline passes before that was reported;
//     upstream reports DeadlineExceeded.
//   - Between a failed pull and its retry ErrImagePull is shown for 2 s, then ImagePullBackOff; upstream changes with
//     its next look at the pod.
//   - A resize is tried again every 10 s while memory in use forbids it; upstream tries every 5 to 15 s at random.
//     Drift of a cgroup that an agent finds when it adopts a pod is repaired without a word.
//   - A static pod that ends is reported Failed or Succeeded like any other.
//
// It does no I/O and knows nothing of images, volumes or networks: those belong to the shell, which reports their
// failures as the failure of the action that needed them. Do not use it for pods of other nodes.
package podlife

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// RestartPolicy says which exits of a container are followed by a restart.
type RestartPolicy int

// The restart policies of a pod or container.
const (
	Always RestartPolicy = iota
	OnFailure
	Never
)

// Kind is the place of a container in its pod.
type Kind int

// The kinds, in starting order.
const (
	Init    Kind = iota // runs to completion before the next starts
	Sidecar             // restartable init container: the next starts once it has started; stops after the mains
	Main
	Ephemeral // added to a pod that runs, to look at it: started once, whatever the others do, and no part of what the pod is
)

// ContainerSpec is what a container should be.
type ContainerSpec struct {
	Name   string
	Kind   Kind
	Policy RestartPolicy // the container's own where it has one (a sidecar: Always), else the pod's
	Hash   string        // of the parts whose change means a new container; compared with Container.Hash
	Image  string        // as the pod spells it; only for messages
	Fixed  string        // of the resources whose change means a restart (resize policy); compared with Container.Fixed
	Size   resize.Size   // of its cgroup

	PostStart bool // it has a postStart hook: the mains after it start once that has succeeded
}

// Spec is what a pod should be. Containers are in starting order: inits and sidecars as written, then mains, then
// ephemeral ones.
type Spec struct {
	Name           string // name_namespace(uid); only for messages
	Containers     []ContainerSpec
	Grace          time.Duration // time between SIGTERM and SIGKILL when nobody orders another
	ActiveDeadline time.Duration // from StartTime; zero: none
	Gates          []string      // readiness gates: condition types that must be true too
	Size           resize.Size   // of the pod's own cgroup
}

// SandboxState and ContainerState are the runtime's words.
type SandboxState int

// The states of a sandbox.
const (
	SandboxNotReady SandboxState = iota
	SandboxReady
)

// Sandbox is a pod sandbox that the runtime has.
type Sandbox struct {
	ID      string
	Attempt uint32
	State   SandboxState
	IPs     []string // primary first; empty with the host's network
}

// ContainerState is a container's state in the runtime.
type ContainerState int

// The states of a container.
const (
	Created ContainerState = iota
	Running
	Exited
	Unknown // the runtime lost track; it must be stopped before it counts as exited
)

// HookState is how far a container's postStart hook is. The hook is a user's code: it may take for ever, and the shell
// runs it beside everything else that it does for the pod.
type HookState int

// The states of a hook.
const (
	HookOver   HookState = iota // it succeeded; or there is none, or whoever began it is no more
	HookRuns                    // the container is not reported as running yet
	HookFailed                  // the container is to be stopped
)

// Container is a container that the runtime has.
type Container struct {
	ID, Name, SandboxID string
	Attempt             uint32
	State               ContainerState
	CreatedAt           unit.Wall
	StartedAt           unit.Wall // zero: never started
	FinishedAt          unit.Wall // zero: not finished
	ExitCode            int32
	Reason, Message     string // of the exit, as the runtime or the container's termination message has it
	Hash                string // empty: not ours to judge, never a reason to restart
	ImageID             string
	Fixed               string      // as it was when the container was made; empty: not ours to judge
	Size                resize.Size // that its cgroup has; parts that are not known are written, unless all are
	Hook                HookState   // while it runs
}

// Probes is what is known of the probes of a container's current run. Absent probes count as passed.
type Probes struct {
	Starting bool   // has a startup probe that has not succeeded yet
	Unready  bool   // has a readiness probe that does not succeed now
	Dead     bool   // its liveness or startup probe failed for good: restart it
	Message  string // of Dead, in upstream's words: Container c failed liveness probe

	Grace *time.Duration // between SIGTERM and SIGKILL if Dead; nil: the pod's own
}

// Past is what the API already says about a container: all that is left when the runtime forgot it.
type Past struct {
	ID, ImageID  string // of the run that RestartCount counts; empty: that run is still to come
	RestartCount uint32
	Running      bool        // that run was going on
	Ended        *Terminated // that run's end
	Over         bool        // and the API says that it is the last one: the container was reported as terminated
	Last         *Terminated // the end before that run
}

// begun reports whether the run that RestartCount counts has begun.
func (past Past) begun() bool { return past.ID != "" || past.Running || past.Ended != nil }

// StopOrder ends a pod.
type StopOrder struct {
	Deadline unit.Instant // processes alive then are killed; sidecars get 2 s more each
	Remove   bool         // the pod object is going: remove every trace; else keep containers for their logs
	Phase    Phase        // phase to report; empty: by exit codes
	Reason   string       // of the phase, e.g. Evicted
	Message  string
	Refused  bool // the node never let it in: its containers have no story
	Disrupts bool // the node ends it for reasons of its own: told as the condition DisruptionTarget to whoever counts failures
}

// Resizing is what is known of a resize beside sizes.
type Resizing struct {
	Generation int64          // of the pod, when the resize that is under way was granted; zero: none is
	Pending    *PendingResize // that the node has not granted; nil: none
}

// PendingResize is a resize that is not granted.
type PendingResize struct {
	Reason, Message string // Deferred or Infeasible
	Generation      int64  // of the pod that was judged
}

// Observation is everything a step may look at.
type Observation struct {
	Spec       Spec
	Terminal   Phase // Succeeded or Failed if the API already says so, else empty
	StartTime  unit.Wall
	Stop       *StopOrder // nil: run
	Sandboxes  []Sandbox
	Containers []Container
	Probes     map[string]Probes // by container name, for running containers
	Past       map[string]Past   // by container name
	Gates      map[string]string // status (True, False, Unknown) of the conditions that exist, by type
	HostIPs    []string          // reported as pod IPs when the pod shares the host's network
	Size       resize.Size       // that the pod's own cgroup has
	Resizing   Resizing
	Hold       *Hold // the node does not let the pod start yet, but will or refuse it; nil: it may start
}

// Hold is a wait that comes before anything of a pod starts. What runs is left alone.
type Hold struct {
	Reason, Message string       // of the condition PodReadyToStartContainers
	Until           unit.Instant // when the shell must judge again
}

// ActionKind says what to do.
type ActionKind int

// The actions, each with the fields of Action that it uses.
const (
	CreateSandbox   ActionKind = iota // Attempt; prepare volumes and cgroup first
	StopSandbox                       // ID; the network goes with it
	RemoveSandbox                     // ID
	StartContainer                    // Container, ID (of the sandbox), Attempt
	StopContainer                     // Container, ID, Grace, Event
	RemoveContainer                   // Container, ID, Attempt
	Resize                            // Steps, in order, up to the first that fails; none if memory in use refuses one of them
	Finish                            // nothing of the pod is left in the runtime: take down volumes and cgroup, report, forget
)

var actionNames = [...]string{"create sandbox", "stop sandbox", "remove sandbox", "start", "stop", "remove", "resize", "finish"}

func (k ActionKind) String() string { return actionNames[k] }

// Action is one thing to do. Container is a name, ID the runtime's id.
type Action struct {
	Kind      ActionKind
	Container string
	ID        string
	Attempt   uint32
	Grace     time.Duration
	Why       string
	Steps     []resize.Step
	Event     string // StopContainer: what users are told beyond that it stops; empty: nothing
}

// Phase is a pod's phase as the API spells it.
type Phase string

// The phases.
const (
	Pending   Phase = "Pending"
	Active    Phase = "Running"
	Succeeded Phase = "Succeeded"
	Failed    Phase = "Failed"
)

// Waiting is a container that does not run, and why.
type Waiting struct{ Reason, Message string }

// Terminated is an end of a container.
type Terminated struct {
	ID                    string
	ExitCode              int32
	Reason, Message       string
	StartedAt, FinishedAt unit.Wall
}

// ContainerStatus is what to report of one container. Exactly one of Waiting, Running and Ended is set.
type ContainerStatus struct {
	Name         string
	Kind         Kind
	ID, ImageID  string
	Waiting      *Waiting
	Running      *unit.Wall // since when
	Ended        *Terminated
	Last         *Terminated
	Ready        bool
	Started      bool
	RestartCount uint32
}

// Condition is a pod condition to report.
type Condition struct {
	Type            string
	True            bool
	Reason, Message string
	Generation      int64 // of the pod it speaks of; zero: the present one
}

// Status is what to report of the pod.
type Status struct {
	Phase           Phase
	Reason, Message string
	Containers      []ContainerStatus // in the order of Spec
	Conditions      []Condition
	IPs             []string
}

// Decision is the outcome of a step.
type Decision struct {
	Actions []Action
	Status  Status
	Wake    unit.Instant // look again then at the latest; zero: only when something happens
}
