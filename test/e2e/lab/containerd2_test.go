//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestContainerd2 runs an agent with containerd 2, which reports its cgroup driver and sends events of containers. The
// agent's configuration names the other driver both times.
func TestContainerd2(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(filepath.Dir(rig.Binary(t)), "containerd2")
	if _, err := os.Stat(bin); err != nil {
		t.Skipf("%v: run make bin/containerd2", err)
	}
	c := rig.Shared(t)
	g := lab.Boot(t, "tiny", lab.Options{Init: lab.Systemd, Name: "containerd2"})
	useContainerd2(t, g, bin)
	g.Run(t, "systemctl", "daemon-reload")
	g.Write(t, "/etc/containerd/config.toml", containerd2Config("true"))

	n := runningNode{t: t, c: c, ns: c.Namespace(t), names: systemdNames}
	n.GuestNode = c.Join(t, g, rig.JoinOptions{CgroupDriver: "cgroupfs"})
	if node, err := c.API.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{}); err != nil ||
		!strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "containerd://2.") {
		t.Fatalf("the runtime is %s, %v", node.Status.NodeInfo.ContainerRuntimeVersion, err)
	}
	n.takes("systemd")
	n.resizes() // the names say that they are slices and scopes
	n.c.Kubectl(t, "--namespace", n.ns, "delete", "pod", "sized", "--wait")
	n.hearsEvents()

	n.Agent.Stop()
	n.Write(t, "/etc/containerd/config.toml", containerd2Config("false"))
	n.StartRuntime(t)
	n.Configure(t, map[string]any{"cgroupDriver": "systemd"})
	n.StartAgentOnly(t)
	n.takes("cgroupfs")
	n.names = cgroupfsNames
	n.resizes()
	n.hearsEvents()
}

// useContainerd2 makes systemd start the containerd of a directory once it has read its units again. The configuration
// is still to be written.
func useContainerd2(t *testing.T, g *lab.Guest, bin string) {
	t.Helper()
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		g.CopyIn(t, filepath.Join(bin, program), containerd2Dir+"/"+program)
	}
	g.Write(t, "/etc/systemd/system/containerd.service.d/two.conf", containerd2Unit)
}

const containerd2Dir = "/usr/local/bin"

// containerd2Unit makes systemd start our containerd instead of Debian's, with a PATH where it finds its shim.
const containerd2Unit = `[Service]
Environment=PATH=` + containerd2Dir + `:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=
ExecStart=` + containerd2Dir + `/containerd
`

// containerd2Config is containerd-config.toml(5) of release 2.0 and later. By default containerd 2.4 reads the CPU time
// of each container and sandbox once a second. The agent does not use it. With it each shim took 4 % of an emulated CPU
// (measured, 2026-11-29).
func containerd2Config(systemdCgroup string) string {
	return `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + image.Pause + `"
[plugins."io.containerd.cri.v1.runtime"]
  stats_collect_period = "1m"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = ` + systemdCgroup + `
`
}

// says waits until the agent has logged a text.
func (n runningNode) says(text string) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "the agent says "+text, func(context.Context) error {
		if !strings.Contains(n.Agent.Output(), text) {
			return errors.New("not yet")
		}
		return nil
	})
}

// takes checks that the agent uses the runtime's driver and not the configured one.
func (n runningNode) takes(driver string) {
	n.t.Helper()
	n.says("using the container runtime's cgroup driver, not the configured one cgroupDriver=" + driver)
}

// hearsEvents checks that the agent got events of containers from the runtime's stream.
func (n runningNode) hearsEvents() {
	n.t.Helper()
	n.says("the container runtime sends events of containers")
}
