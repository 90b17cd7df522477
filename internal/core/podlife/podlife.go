// Package podlife decides about the life of one pod on its node. From the pod's specification and what the runtime has,
// it decides what to start, stop and remove next, what to report, and when to check again.
//
// # Model
//
// A shell observes (Observation) and calls Life.Step. It performs the returned actions in order (consecutive stops at
// the same time), and passes failed actions to Life.Failed. Then it observes again, and repeats this until a step
// returns no actions. Then it sleeps until Decision.Wake or the next event. There is one Life per pod, used by one
// goroutine at a time.
//
// # Invariants
//
//   - A container that runs as specified is never touched. One that differs only in its size is resized, and restarted
//     only if its resize policy requires that.
//   - A container is started only in a ready sandbox, and only if no container of its name runs. An ephemeral container
//     is started only once.
//   - A container whose postStart hook has not succeeded is not reported as running, and no main container after it is
//     started. Everything else continues; in particular a running hook delays no stop.
//   - A pod that reached Succeeded or Failed never runs again, and neither phase is reported while a process is alive.
//   - What a Life remembers (back-off, troubles) may be lost at any time. A new Life with the same observation decides
//     correctly; it only loses the back-off.
//   - The same action on the same object is not planned twice within a second, whatever the runtime reports about it.
//
// Sizes (core/resize) are level-triggered: a step compares the size of each cgroup with the one that follows from the
// pod's allocated resources, and plans the steps between them. So a resize that was interrupted at any point is
// continued by the next step, also of another process. Changes that require a restart of the container are part of its
// identity, as its image is (Fixed). Whether the node has room for what the specification asks for is decided in
// core/admission: Spec contains the allocated resources.
//
// What the runtime has lost, the API may still show (Past): an end that was reported counts as an exit, and a container
// that was reported as running and does not exist was killed (137, ContainerStatusUnknown).
//
// Phases, reasons, messages, conditions and restart counts are upstream's (kubelet 1.36). These differences are
// deliberate:
//
//   - A container that ended and needs no restart is not run again because the runtime lost it; upstream runs it again.
//   - A container whose image changed is started again whatever its restart policy, even if the agent restarted between
//     its stop and its start; upstream then does not start it. As upstream, the new image starts without the back-off
//     of the old one.
//   - A failed start other than a pull is retried every 10 s; upstream waits 5 to 15 s at random.
//   - A termination grace period of zero kills at once; upstream waits 2 s. Sidecars are stopped when the grace period
//     may be over, so each gets at least 2 s, as every container does upstream.
//   - Once a container was started after a sidecar, a restart of that sidecar delays nothing; upstream delays main
//     containers that are down at the same moment.
//   - While a postStart hook runs, containers before it, ephemeral ones and all stops continue; upstream then does
//     nothing for the pod.
//   - A pod without restarts whose sandbox dies before its main containers ran begins again; upstream leaves it Pending
//     forever.
//   - A pod whose containers have all ended is finished even if its active deadline passes before that was reported;
//     upstream reports DeadlineExceeded.
//   - Between a failed pull and its retry, ErrImagePull is shown for 2 s, then ImagePullBackOff; upstream changes at
//     its next sync of the pod.
//   - A resize is tried again every 10 s while memory in use forbids it; upstream tries every 5 to 15 s at random. A
//     cgroup that differs when an agent adopts the pod is corrected without an Event.
//   - A static pod that ends is reported as Failed or Succeeded like any other.
//   - A restart of all containers (ExitRule.All) waits for the back-off of the container whose exit asks for it;
//     upstream starts such a pod anew as often as it exits. Ended runs stay in the runtime for their logs and are
//     reported as they ended; upstream removes them and reports them as killed.
//
// The package does no I/O and does not know images, volumes or networks: these belong to the shell, which reports their
// failures as failures of the action that needed them. It is only for pods of this node.
package podlife

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// RestartPolicy says after which exits a container is restarted.
type RestartPolicy int

// The restart policies of a pod or container.
const (
	Always RestartPolicy = iota
	OnFailure
	Never
)

// ExitRule says what follows the exits that it matches.
type ExitRule struct {
	Codes  []int32
	Except bool // it matches every code that is not in Codes
	// All: all containers of the pod are started anew in its sandbox, init containers first; otherwise only this one is.
	All bool
}

// Kind is the role of a container in its pod.
type Kind int

// The kinds, in the order in which they start.
const (
	Init Kind = iota // runs to completion before the next starts
	// Restartable init container: the next starts once it has started; it is stopped after the main containers.
	Sidecar
	Main
	Ephemeral // added to a running pod for debugging: started once, and without effect on the pod's phase and readiness
)

// ContainerSpec is the desired state of a container.
type ContainerSpec struct {
	Name   string
	Kind   Kind
	Policy RestartPolicy // the container's own if it has one (a sidecar: Always), otherwise the pod's
	Rules  []ExitRule    // the first that matches an exit decides instead of Policy
	Hash   string        // of the parts whose change requires a new container; compared with Container.Hash
	Image  string        // as written in the pod; only for messages
	Fixed  string        // the resources whose change requires a restart (resize policy); compared with Container.Fixed
	Size   resize.Size   // desired size of its cgroup

	PostStart bool // it has a postStart hook: the main containers after it start once the hook has succeeded
	PreStop   bool // it has a preStop hook
}

// Spec is the desired state of a pod. Containers are in the order in which they start: init containers and sidecars as
// written, then main containers, then ephemeral ones.
type Spec struct {
	Name           string // name_namespace(uid); only for messages
	Containers     []ContainerSpec
	Grace          time.Duration // time between SIGTERM and SIGKILL, unless a StopOrder says otherwise
	ActiveDeadline time.Duration // after StartTime; zero: none
	Gates          []string      // readiness gates: condition types that must be True too
	Size           resize.Size   // desired size of the pod's own cgroup
}

// SandboxState is a sandbox's state in the runtime.
type SandboxState int

// The states of a sandbox.
const (
	SandboxNotReady SandboxState = iota
	SandboxReady
)

// Sandbox is a pod sandbox in the runtime.
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
	Unknown // the runtime lost track of it; it must be stopped before it counts as exited
)

// HookState is the state of a container's postStart hook. The hook is a user's code and may never end. The shell runs
// it concurrently with everything else for the pod.
type HookState int

// The states of a hook.
const (
	HookOver   HookState = iota // it succeeded; or there is none, or the process that began it no longer exists
	HookRuns                    // it runs: the container is not reported as running yet
	HookFailed                  // it failed: the container is stopped
)

// Container is a container in the runtime.
type Container struct {
	ID, Name, SandboxID string
	Attempt             uint32
	State               ContainerState
	CreatedAt           unit.Wall
	StartedAt           unit.Wall // zero: never started
	FinishedAt          unit.Wall // zero: not finished
	ExitCode            int32
	Reason, Message     string // of the exit, from the runtime or the container's termination message
	Hash                string // of the spec it was made from; empty: not known, and never a reason to restart
	ImageID             string
	Fixed               string      // of the spec when it was made; empty: not known
	Size                resize.Size // actual size of its cgroup; unknown parts are written, unless all are unknown
	Hook                HookState   // valid while it runs
	PreStop             bool        // its preStop hook was begun
}

// Probes is the result of the probes of a container's current run. A missing probe counts as passed.
type Probes struct {
	Starting bool   // its startup probe has not succeeded yet
	Unready  bool   // its readiness probe does not succeed now
	Dead     bool   // its liveness or startup probe has failed: it must be restarted
	Message  string // why Dead, in upstream's words: Container c failed liveness probe

	Grace *time.Duration // between SIGTERM and SIGKILL if Dead; nil: the pod's
}

// Past is what the API already shows of a container. It is all that is known if the runtime has lost the container.
type Past struct {
	ID, ImageID  string // of the run that RestartCount counts; empty: that run has not begun
	RestartCount uint32
	Running      bool        // that run had not ended
	Ended        *Terminated // that run's end
	Over         bool        // and the API shows that it was the last run: the container was reported as terminated
	Last         *Terminated // end of the run before that
}

// begun reports whether the run that RestartCount counts has begun.
func (past Past) begun() bool { return past.ID != "" || past.Running || past.Ended != nil }

// StopOrder is the order to end a pod.
type StopOrder struct {
	Deadline unit.Instant // processes alive then are killed; each sidecar gets 2 s more
	// The pod object was deleted: remove containers and sandboxes; otherwise keep containers for their logs.
	Remove   bool
	Phase    Phase  // phase to report; empty: by exit codes
	Reason   string // for the pod's status, e.g. Evicted
	Message  string
	Rejected bool // the node rejected the pod: if nothing of it ran, no container statuses are reported
	// Disruption is the message of the condition DisruptionTarget, which says that the node ends the pod for its own
	// reasons; empty: it is not reported.
	Disruption string
}

// Resizing is what is known about a resize in addition to sizes.
type Resizing struct {
	// Generation of the pod whose resources were allocated by the resize in progress; zero: there is none.
	Generation int64
	Pending    *PendingResize // a resize that the node has not allocated; nil: none
}

// PendingResize is a resize that the node has not allocated.
type PendingResize struct {
	Reason, Message string // Deferred or Infeasible
	Generation      int64  // generation of the pod that was evaluated
}

// Observation is everything that a step depends on.
type Observation struct {
	Spec       Spec
	Terminal   Phase // Succeeded or Failed if the API shows that already, otherwise empty
	StartTime  unit.Wall
	Stop       *StopOrder // nil: run the pod
	Sandboxes  []Sandbox
	Containers []Container
	Probes     map[string]Probes // by container name, for running containers
	Past       map[string]Past   // by container name
	Gates      map[string]string // status (True, False, Unknown) of existing conditions, by type
	// Initialized: the API shows the condition of that name as true. Then it stays, whatever runs again.
	Initialized bool
	HostIPs     []string    // reported as the pod's IPs when it uses the host's network
	Size        resize.Size // actual size of the pod's own cgroup
	Resizing    Resizing
	Hold        *Hold // why the pod must wait before anything of it is started; nil: it may start
}

// Hold is the reason why nothing of a pod is started yet. Running containers are not affected.
type Hold struct {
	Reason, Message string       // of the condition PodReadyToStartContainers
	Until           unit.Instant // when the shell must evaluate the hold again
}

// ActionKind says what to do.
type ActionKind int

// The actions, each with the fields of Action that it uses.
const (
	CreateSandbox   ActionKind = iota // Attempt; before it, prepare volumes and cgroup
	StopSandbox                       // ID; this also removes the network
	RemoveSandbox                     // ID
	StartContainer                    // Container, ID (of the sandbox), Attempt
	StopContainer                     // Container, ID, Grace, Event
	RemoveContainer                   // Container, ID, Attempt
	// Container, ID, Grace. The hook runs while other containers are stopped. The StopContainer that follows in its turn
	// waits for the hook within its own Grace, and does not run it again.
	BeginPreStop
	// Steps, in order, up to the first that fails; none if memory in use forbids one of them.
	Resize
	// The runtime has nothing of the pod: remove volumes and cgroup, report, drop the pod.
	Finish
)

var actionNames = [...]string{
	"create sandbox", "stop sandbox", "remove sandbox", "start", "stop", "remove", "begin hook", "resize", "finish",
}

func (k ActionKind) String() string { return actionNames[k] }

// Action is one thing to do. Container is a name, ID is the runtime's id.
type Action struct {
	Kind      ActionKind
	Container string
	ID        string
	Attempt   uint32
	Grace     time.Duration
	// Why is the reason for the log.
	Why   string
	Steps []resize.Step
	// For StopContainer: the pod's grace period is over, so that no preStop hook is run.
	NoHook bool
	Event  string // for StopContainer: text of the Event in addition to the one about the stop; empty: none
}

// Phase is a pod's phase, spelled as in the API.
type Phase string

// The phases.
const (
	Pending   Phase = "Pending"
	Active    Phase = "Running"
	Succeeded Phase = "Succeeded"
	Failed    Phase = "Failed"
)

// Waiting says why a container does not run.
type Waiting struct{ Reason, Message string }

// Terminated is the end of a run of a container.
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
