package pods

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file answers questions of the rest of the agent about pods. All answers are snapshots.

// ErrNotFound is in the chain of errors about a pod or container that is not on this node.
var ErrNotFound = errors.New("not found")

// Run is one run of a container, for logs, exec and attach.
type Run struct {
	ID      string
	LogPath string
	Running bool
	Attempt uint32
	TTY     bool
	Stdin   bool

	StartedAt time.Time // zero: not known
}

// List returns the pods of this node, each with the status that the agent computed last.
func (r *Runner) List() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, e := range r.entries() {
		if pod := e.Current(); pod != nil {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// Version changes whenever List may return other pods, or pods with other resources.
func (r *Runner) Version() uint64 { return r.version.Load() }

// find returns the pod of that name; an empty uid matches the one that is not ending.
func (r *Runner) find(namespace, name string, uid types.UID) (*podentry.Entry, *corev1.Pod, error) {
	found := r.entryOf(uid)
	if found != nil {
		if pod := found.Object(); pod != nil && pod.Namespace == namespace && pod.Name == name {
			return found, pod, nil
		}
	}
	found = nil
	var foundPod *corev1.Pod
	for _, e := range r.entries() {
		pod := e.Object()
		if pod == nil || pod.Namespace != namespace || pod.Name != name {
			continue
		}
		if uid != "" && uid != pod.UID && uid != e.MirrorUID() {
			continue
		}
		if found == nil || foundPod.DeletionTimestamp != nil {
			found, foundPod = e, pod
		}
	}
	if found == nil {
		return nil, nil, fmt.Errorf("pod %q in namespace %q on node %q: %w", name, namespace, r.Node, ErrNotFound)
	}
	return found, foundPod, nil
}

// SandboxID returns the id of the pod's current sandbox.
func (r *Runner) SandboxID(namespace, name string, uid types.UID) (string, error) {
	e, _, err := r.find(namespace, name, uid)
	if err != nil {
		return "", err
	}
	id := e.ReadySandbox()
	if id == "" {
		return "", fmt.Errorf("pod %s/%s has no sandbox yet", namespace, name)
	}
	return id, nil
}

// ContainerRun returns the current run of a container, or the one before it.
func (r *Runner) ContainerRun(namespace, name, container string, uid types.UID, previous bool) (Run, error) {
	e, pod, err := r.find(namespace, name, uid)
	if err != nil {
		return Run{}, err
	}
	c := translate.ContainerNamed(pod, container)
	if c == nil {
		return Run{}, fmt.Errorf("container %q in pod %s/%s (it has %v): %w", container, namespace, name, containerNames(pod),
			ErrNotFound)
	}
	if s := e.ContainerStatus(container); s != nil {
		return r.runOf(pod, c, s, previous)
	}
	return Run{}, fmt.Errorf("container %q in pod %s/%s is waiting to start: its status is not known yet", container,
		namespace, name)
}

func (r *Runner) runOf(pod *corev1.Pod, c *corev1.Container, s *corev1.ContainerStatus, previous bool) (Run, error) {
	run := Run{Attempt: uint32(s.RestartCount), TTY: c.TTY, Stdin: c.Stdin}
	last := s.LastTerminationState.Terminated
	switch {
	case previous && last == nil:
		return Run{}, fmt.Errorf("previous terminated container %q in pod %q not found", c.Name, pod.Name)
	case previous:
		run.ID = translate.ContainerID(last.ContainerID)
		if s.State.Waiting == nil && run.Attempt > 0 {
			run.Attempt--
		}
	case s.State.Running != nil:
		run.ID = translate.ContainerID(s.ContainerID)
		run.Running = true
		run.StartedAt = s.State.Running.StartedAt.Time
	case s.State.Terminated != nil:
		run.ID = translate.ContainerID(s.State.Terminated.ContainerID)
	case last != nil: // waiting to restart: the caller wants the previous run
		run.ID = translate.ContainerID(last.ContainerID)
	default:
		reason := podlife.ReasonContainerCreating
		if s.State.Waiting != nil {
			reason = s.State.Waiting.Reason
		}
		return Run{}, fmt.Errorf("container %q in pod %q is waiting to start: %s", c.Name, pod.Name, reason)
	}
	run.LogPath = filepath.Join(r.requests().LogDirectory(pod), criconfig.LogPath(c.Name, run.Attempt))
	return run, nil
}

func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Name)
	}
	return names
}
