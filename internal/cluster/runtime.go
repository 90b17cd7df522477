package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// newRuntime is the container runtime of an instance: our own containerd, or the one that was named.
func newRuntime(l layout) (*containerruntime.Instance, error) {
	images, err := l.imageDir()
	if err != nil {
		return nil, err
	}
	return containerruntime.New(containerruntime.Options{
		StateDir:   l.o.StateDir,
		RunDir:     l.o.RunDir,
		ImageDir:   images,
		Bridge:     l.bridge(),
		PodCIDR:    l.o.PodCIDR,
		CgroupRoot: l.podCgroup(),
		External:   l.o.ContainerRuntimeEndpoint,
	})
}

// imageDir holds the archives of our own images: beside this program, where the build puts them.
func (l layout) imageDir() (string, error) {
	if l.o.ImageDir != "" {
		return filepath.Abs(l.o.ImageDir)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find images: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "images"), nil
}

// containerd is our own runtime as a child, if it is ours to run.
func (c *cluster) containerd() (supervise.Spec, bool) {
	if c.runtime == nil || c.runtime.Command() == nil {
		return supervise.Spec{}, false
	}
	argv := c.runtime.Command()
	env := environment("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
	env[0] = "PATH=" + c.runtime.ProgramDir() + ":" + searchPath
	return supervise.Spec{
		Name: childContainerd, Argv: argv, Dir: c.o.RunDir, Log: c.log(childContainerd), Grace: graceStore,
		Inputs: argv[len(argv)-1:], // its configuration
		Env:    env,
	}, true
}

const cgroupMount = "/sys/fs/cgroup"

// checkPodCgroup refuses to share the pods' cgroup with another node agent: each would remove the other's pods. If we have
// children, or our runtime has state since the machine started, the processes there are our own pods'.
func (c *cluster) checkPodCgroup() error {
	if len(c.supervisor.Status()) > 0 {
		return nil
	}
	if _, err := os.Stat(c.runtimeState()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		return err
	}
	pids, err := tree.PIDs(c.podCgroup())
	if err != nil || len(pids) == 0 {
		return err
	}
	return fmt.Errorf("use cgroup %s for pods: %d processes are in it, the first is pid %d: if they are another node agent's pods, stop it and them or choose another --instance; if an `up` of ours that failed left them, run `plimsoll down`",
		c.podCgroup(), len(pids), pids[0])
}

// makePodCgroup makes what upstream's kubelet wants to find: it refuses to start when its cgroup root does not exist. Our
// own agent makes it itself.
func (l layout) makePodCgroup() error {
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		return err
	}
	return tree.Apply(l.podCgroup(), qos.Values{})
}
