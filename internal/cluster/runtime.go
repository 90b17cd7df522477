package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// newRuntime returns the container runtime of an instance: our own containerd, or the one that the options name.
func newRuntime(l layout) (*containerruntime.Instance, error) {
	images, err := l.imageDir()
	if err != nil {
		return nil, err
	}
	mirrors := make([]containerruntime.Mirror, len(l.o.RegistryMirrors))
	for i, text := range l.o.RegistryMirrors {
		if mirrors[i], err = containerruntime.ParseMirror(text); err != nil {
			return nil, fmt.Errorf("--registry-mirror %q: %w", text, err)
		}
	}
	var addons []string
	for _, a := range l.o.podAddons() {
		addons = append(addons, a.archive)
	}
	services, err := netip.ParsePrefix(l.o.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("--service-cidr %q: %w", l.o.ServiceCIDR, err)
	}
	pods, err := l.podCIDR()
	if err != nil {
		return nil, err
	}
	return containerruntime.New(containerruntime.Options{
		Addons:     addons,
		Forwards:   l.o.forwards(),
		Services:   services,
		StateDir:   l.o.StateDir,
		RunDir:     l.o.RunDir,
		ImageDir:   images,
		Bridge:     l.bridge(),
		PodCIDR:    pods,
		AllPods:    l.o.PodCIDR,
		CgroupRoot: l.podCgroup(),
		Mirrors:    mirrors,
		Registries: l.registries(),
		External:   l.o.ContainerRuntimeEndpoint,
	})
}

// imageDir is the directory of the archives of our own images. By default it is next to this program, where the build
// puts it.
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

// containerd returns the child that runs our own runtime; false if the options name another runtime.
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

// checkPodCgroup returns an error if another node agent uses the pods' cgroup, because each would remove the other's
// pods. The processes there are those of this instance's pods if it has children, or if its runtime has state from
// since the machine was booted.
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
	return fmt.Errorf("use cgroup %s for pods: %d processes are in it, the first is pid %d: "+
		"if they are another node agent's pods, stop it and them or choose another --instance; "+
		"if an `up` of ours that failed left them, run `plimsoll down`",
		c.podCgroup(), len(pids), pids[0])
}

// makePodCgroup creates the cgroup root, without which upstream's kubelet does not start. Our own agent creates it
// itself.
func (l layout) makePodCgroup() error {
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		return err
	}
	return tree.Apply(l.podCgroup(), qos.Values{})
}
