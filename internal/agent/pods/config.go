package pods

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/containerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// requests returns the translator of pods into the runtime's requests.
func (r *Runner) requests() criconfig.Node {
	return criconfig.Node{
		SeccompDir:     filepath.Join(r.RootDir, "seccomp"),
		SeccompDefault: r.SeccompAll,
		MaskedPaths:    r.MaskedPaths,
		LogDir:         r.LogDir,
	}
}

// configs returns the builder of configurations of sandboxes and containers.
func (r *Runner) configs() containerconfig.Builder {
	return containerconfig.Builder{
		Node:        r.requests(),
		HostIPs:     r.HostIPs,
		Allocatable: r.Allocatable,
		DNS:         r.DNS,
		Env:         r.Env,
		Volumes:     r.Volumes,
		Groups:      r.Groups,
		Assignments: r.Assignments,
		Users:       r.Users,
		Devices:     r.Devices,
	}
}

// sandboxOf returns the inputs of a sandbox's configuration other than the pod. pod has its allocated resources.
func sandboxOf(pod *corev1.Pod, attempt uint32, parent string) containerconfig.Sandbox {
	return containerconfig.Sandbox{Attempt: attempt, CgroupParent: parent, Allocation: allocation.NoteOf(pod)}
}

// runningByName returns the IDs of running containers, by name.
func runningByName(containers map[string]podlife.Container) map[string]string {
	running := map[string]string{}
	for id, c := range containers {
		if c.State == podlife.Running {
			running[c.Name] = id
		}
	}
	return running
}

// removeLog removes the log of one run of a container. If pod is nil, only the runtime knows the pod. Then removeLog
// removes the symbolic link only, and the log is removed together with its directory.
func (r *Runner) removeLog(pod *corev1.Pod, a podlife.Action) {
	dir := ""
	if pod != nil {
		dir = filepath.Join(r.requests().LogDirectory(pod), a.Container)
	}
	r.logs().RemoveRun(dir, a.ID, a.Attempt)
}
