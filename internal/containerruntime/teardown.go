package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
)

// Bounds of a teardown's parts, chosen; an idle machine with willing containers needs 0.2 s in all.
const (
	stopGraceMax  = 10 * time.Second // of a container, if its own grace period is longer
	removeMax     = 30 * time.Second // to stop and remove all pods once their containers are down; 80 took 9 s at load 15
	settleMax     = 10 * time.Second // for a start that was under way in the runtime; one takes 0.2 s, at load 30 3 s
	daemonStopMax = 5 * time.Second  // containerd's own orderly exit; then SIGKILL
	killMax       = 5 * time.Second  // until killed processes have left their cgroups
)

// Teardown removes whatever the instance has on the machine but its images: pods (each container has its grace
// period, at most stopGraceMax), containerd, mounts, cgroups, network links, rules, leases and sockets. It goes on
// after a failure and returns all of them; run again, it takes up what is left, and on a clean machine does nothing.
//
// Whoever supervises Command must have stopped doing so: a containerd that still runs is used and then ended, and
// when none runs one is started for the purpose, because only it can end containers in order. Where that fails (its
// binary is gone, it does not start, a pod does not go) the processes are killed by cgroup, and if that leaves nothing
// it is no error.
//
// An external runtime only loses the pods below our cgroup.
func (i *Instance) Teardown(ctx context.Context) error {
	if i.external() {
		return wrapTeardown(i.removeForeignPods(ctx), i.removeCgroups(ctx))
	}
	if os.Geteuid() != 0 {
		return errors.New("tear down container runtime: needs root, as starting it did")
	}
	sockets := i.shimSockets() // first: containerd forgets the pods whose shims are dead
	inOrder := i.removePods(ctx)
	strays := i.killProcesses(ctx)
	if strays != nil { // else what was not removed in order is gone all the same
		strays = errors.Join(inOrder, strays)
	}
	mounts := mount.UnmountInside(i.options.containerdState(), i.options.containerdRoot())
	return wrapTeardown(
		strays, mounts,
		i.removeCgroups(ctx),
		removeLinks(i.options.Bridge),
		nat.Delete(i.options.Bridge),
		i.restoreForwarding(),
		i.removeFiles(mounts == nil, sockets),
	)
}

func wrapTeardown(problems ...error) error {
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("tear down container runtime: %w", err)
	}
	return nil
}

// removePods stops and removes all pods through containerd, ours that runs or one for the purpose, and ends it.
func (i *Instance) removePods(ctx context.Context) error {
	if _, err := os.Stat(i.options.containerdState()); errors.Is(err, fs.ErrNotExist) {
		return nil // it never ran since the machine started, or was torn down
	}
	client, err := cri.Dial(i.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	if err := i.reach(ctx, client); err != nil {
		return err
	}
	return removePods(ctx, client, func(podFacts) bool { return true })
}

// reach makes containerd answer, by starting one if need be. killProcesses ends it.
func (i *Instance) reach(ctx context.Context, client *cri.Client) error {
	ctx, cancel := context.WithTimeout(ctx, daemonStopMax)
	defer cancel()
	running := i.daemons()
	for _, p := range running {
		p.close()
	}
	if len(running) == 0 {
		if i.missing != nil {
			return i.missing
		}
		ended, err := startDetached(i.Command())
		if err != nil {
			return err
		}
		go func() {
			select {
			case <-ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	for {
		// Not its version: containerd tells that before it has read back which pods it has.
		_, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err == nil || !sleep(ctx, pollPeriod) {
			return err
		}
	}
}

// killProcesses ends containerd in order, then whatever shim or container is left by SIGKILL.
func (i *Instance) killProcesses(ctx context.Context) error {
	err := endAll(ctx, i.daemons(), daemonStopMax)
	if shims := i.shims(); len(shims) > 0 {
		err = errors.Join(err, killAll(ctx, shims))
	}
	tree, openErr := cgroup.Open(cgroupMount)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	return errors.Join(err, killGroup(ctx, tree, i.options.CgroupRoot))
}

const cgroupMount = "/sys/fs/cgroup"

// killGroup kills processes of a cgroup until it has none: between looking and killing a process may fork.
func killGroup(ctx context.Context, tree *cgroup.Tree, group string) error {
	ctx, cancel := context.WithTimeout(ctx, killMax)
	defer cancel()
	for {
		pids, err := tree.PIDs(group)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if pid == os.Getpid() {
				return fmt.Errorf("kill cgroup %s: this process is in it: leave it first", group)
			}
			if p, err := openProcess(pid); err == nil { // else it is gone
				err := p.kill()
				p.close()
				if err != nil {
					return err
				}
			}
		}
		if !sleep(ctx, pollPeriod) {
			return fmt.Errorf("kill cgroup %s: processes %v: still there after %s", group, pids, killMax)
		}
	}
}

// removeCgroups retries while the kernel still counts processes that were killed a moment ago.
func (i *Instance) removeCgroups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killMax)
	defer cancel()
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		return err
	}
	for {
		err := tree.Remove(i.options.CgroupRoot)
		if err == nil || !errors.Is(err, cgroup.ErrBusy) || !sleep(ctx, pollPeriod) {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// removeFiles leaves images and containerd's metadata for the next start. Directories that others may share go only
// when they are empty; and nothing goes while a mount below would lose its content.
func (i *Instance) removeFiles(unmounted bool, sockets []string) error {
	if !unmounted {
		return nil
	}
	o := i.options
	var problems []error
	files := append(sockets, o.socket(), o.socket()+".ttrpc", o.containerdState(), o.runcRoot(), o.forwardRecord())
	for _, path := range files {
		problems = append(problems, os.RemoveAll(path))
	}
	problems = append(problems, removeLeases(o.leaseDir()))
	for _, dir := range []string{o.RunDir, shimSocketDir, filepath.Dir(shimSocketDir)} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// removeLeases removes all below the directory of leases and leaves the directory: the next start may find no room for
// another.
func removeLeases(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// shimSocketDir is where shims of containerd 1.x and 2.x listen, whatever containerd's own state directory is
// (socketRoot in its shim package). Their names are hashes; each shim's bundle says which is its own.
const shimSocketDir = "/run/containerd/s"

func (i *Instance) shimSockets() []string {
	files, err := filepath.Glob(filepath.Join(i.options.containerdState(), "io.containerd.runtime.v2.task/*/*/address"))
	if err != nil {
		return nil // a pattern that the run directory's name broke
	}
	var sockets []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		path := strings.TrimPrefix(strings.TrimSpace(string(text)), "unix://")
		if err == nil && filepath.Dir(path) == shimSocketDir {
			sockets = append(sockets, path)
		}
	}
	return sockets
}
