package pods

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/containerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// requests is what translates pods for the runtime.
func (r *Runner) requests() criconfig.Node {
	return criconfig.Node{
		SeccompDir:     filepath.Join(r.RootDir, "seccomp"),
		SeccompDefault: r.SeccompAll,
		MaskedPaths:    r.MaskedPaths,
		LogDir:         r.LogDir,
	}
}

// configs is what builds the requests for sandboxes and containers.
func (r *Runner) configs() containerconfig.Builder {
	return containerconfig.Builder{
		Node:        r.requests(),
		HostIPs:     r.HostIPs,
		Allocatable: r.Allocatable,
		DNS:         r.DNS,
		Env:         r.Env,
		Volumes:     r.Volumes,
		Groups:      r.Groups,
		Holdings:    r.Holdings,
		Devices:     r.Devices,
	}
}

// sandboxOf is what has to be known of a pod's sandbox next to the pod, as it is here with its allocated resources.
func sandboxOf(pod *corev1.Pod, attempt uint32, parent string) containerconfig.Sandbox {
	return containerconfig.Sandbox{Attempt: attempt, CgroupParent: parent, Allocation: noteOf(pod)}
}

// runningByName are the ids of containers that run, by name.
func runningByName(containers map[string]podlife.Container) map[string]string {
	running := map[string]string{}
	for id, c := range containers {
		if c.State == podlife.Running {
			running[c.Name] = id
		}
	}
	return running
}

// Bounds of what a container may leave as its last words (upstream: 4096 bytes from the file, 2048 bytes or 80 lines
// from the log).
const (
	terminationMessageMax = 4096
	terminationLogBytes   = 2048
	terminationLogLines   = 80
)

// readBounded returns at most limit bytes of a file, as text; a file that is not there has nothing to say, nor has what
// a container put in its place.
func readBounded(path string, limit int64) string {
	if path == "" {
		return ""
	}
	content, err := untrusted.Head(path, limit)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(content), "?")
}

// logs is the directory of the logs of containers.
func (r *Runner) logs() podlog.Directory { return podlog.Directory(r.LogDir) }

// removeLog removes the log of one run. Of a pod that only the runtime knows (nil) it removes the link: the log goes
// with its directory.
func (r *Runner) removeLog(pod *corev1.Pod, a podlife.Action) {
	dir := ""
	if pod != nil {
		dir = filepath.Join(r.requests().LogDirectory(pod), a.Container)
	}
	r.logs().RemoveRun(dir, a.ID, a.Attempt)
}
