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
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
)

// Bounds of the parts of a teardown, chosen. An idle machine with containers that stop at once needs 0.2 s in total.
const (
	stopGraceMax = 10 * time.Second // for stopping a container whose termination grace period is longer
	// removeMax is for stopping and removing all pods after their containers have stopped; 80 pods took 9 s at load 15.
	removeMax = 30 * time.Second
	// for the end of a start in progress in the runtime, which takes 0.2 s, and 3 s at load 30
	startMax      = 10 * time.Second
	daemonStopMax = 5 * time.Second // for containerd to end after SIGTERM; then SIGKILL
	killMax       = 5 * time.Second // for killed processes to leave their cgroups
)

// Teardown removes everything that the instance has on the machine except its images: pods (each container has its
// termination grace period, at most stopGraceMax), containerd, mounts, cgroups, network links, rules, leases and
// sockets. It continues after a failure and returns all failures. Another call continues with what is left; on a clean
// machine it does nothing.
//
// The supervisor of Command must have stopped before. A containerd that still runs is used and then ended. If none
// runs, one is started, because only containerd can stop containers with their termination grace periods. If that fails
// (its binary is missing, it does not start, a pod cannot be removed), all processes in the cgroup are killed. If
// nothing is left then, Teardown returns no error.
//
// From an external runtime only the pods below the instance's cgroup are removed.
func (i *Instance) Teardown(ctx context.Context) error {
	if i.external() {
		return wrapTeardown(i.removeForeignPods(ctx), i.removeCgroups(ctx))
	}
	if os.Geteuid() != 0 {
		return errors.New("tear down container runtime: needs root, as starting it did")
	}
	sockets := i.shimSockets() // read before, because containerd forgets pods whose shims are dead
	inOrder := i.removePods(ctx)
	strays := i.killProcesses(ctx)
	if strays != nil { // if it is nil, all processes are killed, and the first error does not matter
		strays = errors.Join(inOrder, strays)
	}
	mounts := mount.UnmountInside(i.options.containerdState(), i.options.containerdRoot())
	return wrapTeardown(
		strays, mounts,
		i.removeCgroups(ctx),
		link.DeleteBridge(i.options.Bridge),
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

// removePods stops and removes all pods through the instance's containerd, which is started if it does not run.
func (i *Instance) removePods(ctx context.Context) error {
	if _, err := os.Stat(i.options.containerdState()); errors.Is(err, fs.ErrNotExist) {
		return nil // it has not run since the machine booted, or was torn down
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

// reach waits until containerd answers, and starts one if necessary. killProcesses ends it.
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
		// Pods are listed instead of asking for the version, which containerd answers before it has loaded its pods.
		_, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err == nil || !sleep(ctx, pollPeriod) {
			return err
		}
	}
}

// killProcesses ends containerd, by SIGTERM if that suffices, then kills the remaining shims and containers.
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

// killGroup kills the processes of a cgroup until none is left, because a process may fork between listing and killing.
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
			if p, err := openProcess(pid); err == nil { // otherwise it has ended
				err := p.kill()
				p.close()
				if err != nil {
					return err
				}
			}
		}
		if !sleep(ctx, pollPeriod) {
			return fmt.Errorf("kill cgroup %s: processes %v: still exist after %s", group, pids, killMax)
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

// removeFiles removes the instance's files except images and containerd's metadata, which the next start needs. It
// removes directories that other programs may use only if they are empty. It removes nothing while something is still
// mounted there, whose content would be deleted.
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

// removeLeases removes everything below the directory of leases, but not the directory itself: on a full disk the next
// start could not create it.
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
// (socketRoot in its shim package). Their names are hashes; each shim's bundle has the name of its socket.
const shimSocketDir = "/run/containerd/s"

func (i *Instance) shimSockets() []string {
	files, err := filepath.Glob(filepath.Join(i.options.containerdState(), "io.containerd.runtime.v2.task/*/*/address"))
	if err != nil {
		return nil // the run directory's name makes the pattern invalid
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
