package containerruntime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// probeOverlay mounts an overlay where containerd will mount overlays. There is no other way to see whether the file
// system supports them: ext4 does, and xfs with ftype=1; overlay itself does not. containerd would only report a plugin
// that did not load. On a full or read-only disk the probe returns no error, because an instance that ran before must
// start there, too.
func probeOverlay(dir string) (err error) {
	probe, err := os.MkdirTemp(dir, "overlay-probe-")
	if shortage.Is(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	at := func(name string) string { return filepath.Join(probe, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(name), 0o700); shortage.Is(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at("lower"), at("upper"), at("work"))
	// mounting makes a directory in workdir
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, layers); shortage.Is(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("mount an overlay below %s: %w: containers need one: choose a state directory on ext4 or xfs, "+
			"without : or , in its name", dir, err)
	}
	return unix.Unmount(at("merged"), 0)
}

// sandboxOOMScore is the oom_score_adj of pause containers in containerd, the lowest that it sets (kubelet: -998).
const sandboxOOMScore = "-998"

// oomScoreIsFloored tries whether this process may give a child a low oom_score_adj. The kernel requires
// CAP_SYS_RESOURCE in the first user namespace only for a value below the lowest that was ever set for the process, so
// neither the capabilities nor the present value show whether it is allowed (proc_pid_oom_score_adj(5)). It is tried on
// a child: if this process set its own value and crashed before setting it back, it would stay protected.
func oomScoreIsFloored() (bool, error) {
	probe := exec.Command(findProgram("sleep"), "10")
	if err := probe.Start(); err != nil {
		return false, fmt.Errorf("probe oom_score_adj: %w", err)
	}
	writing := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", probe.Process.Pid), []byte(sandboxOOMScore), 0)
	if err := probe.Process.Kill(); err != nil {
		return false, fmt.Errorf("probe oom_score_adj: end the probe: %w", err)
	}
	var exit *exec.ExitError
	if err := probe.Wait(); err != nil && !errors.As(err, &exit) {
		return false, fmt.Errorf("probe oom_score_adj: %w", err)
	}
	if errors.Is(writing, syscall.EACCES) || errors.Is(writing, syscall.EPERM) {
		return true, nil
	}
	if writing != nil {
		return false, fmt.Errorf("probe oom_score_adj: %w", writing)
	}
	return false, nil
}

func ownOOMScore() string {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
