//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestUnits runs the three services of the Debian package under a real systemd, with the rights that their units leave
// them, on a cluster that has no other scheduler, lifecycle controller and node: a pod is placed and runs. The agent
// has the files of a kubeadm node.
func TestUnits(t *testing.T) {
	t.Parallel()
	c := rig.New(t, "units", rig.Options{NoNode: true, UpFlags: []string{"--no-scheduler", "--no-lifecycle"}})
	ns := c.Namespace(t)
	g := lab.Boot(t, "tiny", lab.Options{Init: lab.Systemd, Name: "units"})
	n := c.Join(t, g, rig.JoinOptions{CgroupDriver: "systemd"})
	n.Agent.Stop()
	for _, command := range []string{
		`ln -s "$(command -v plimsoll)" /usr/bin/plimsoll`,
		"mkdir -p /etc/kubernetes /var/lib/kubelet /etc/default",
		"ln -s /etc/plimsoll/kubeconfig /etc/kubernetes/kubelet.conf",
		"cp /etc/plimsoll/config.yaml /var/lib/kubelet/config.yaml",
	} {
		g.Run(t, "sh", "-c", command)
	}
	g.Write(t, "/var/lib/kubelet/kubeadm-flags.env", fmt.Sprintf("KUBELET_KUBEADM_ARGS=%q\n", "--node-ip="+n.IP))
	g.Write(t, "/etc/default/kubelet", `KUBELET_EXTRA_ARGS="--node-labels=from=extra-args --v=4"`+"\n")
	for _, part := range []string{"scheduler", "lifecycle"} {
		// On an emulated machine beside others, a process may get no CPU for 10 s, after which its Lease would be lost.
		g.Write(t, "/etc/default/plimsoll-"+part, fmt.Sprintf("PLIMSOLL_%s_ARGS=%q\n", strings.ToUpper(part),
			"--leader-elect-lease-duration=3m --leader-elect-renew-deadline=2m"))
		g.Write(t, "/etc/plimsoll/"+part+".conf", guestKubeconfig(t, c, n, part))
		g.Run(t, "chmod", "600", "/etc/plimsoll/"+part+".conf")
	}
	services := []string{"plimsoll-agent", "plimsoll-scheduler", "plimsoll-lifecycle"}
	for _, s := range services {
		g.CopyIn(t, filepath.Join("../../../release/units", s+".service"), "/etc/systemd/system/"+s+".service")
	}
	g.Run(t, "systemctl", "daemon-reload")
	g.Run(t, append([]string{"systemctl", "start"}, services...)...)
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionTrue, podWithin)
	createReady(t, c, ns, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "placed"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"}}},
		},
	})
	for _, lease := range []string{"kube-scheduler", "plimsoll-lifecycle"} {
		l, err := c.API.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), lease, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || !strings.HasPrefix(*l.Spec.HolderIdentity, n.Name) {
			t.Errorf("Lease %s: %+v, %v", lease, l, err)
		}
	}
	node, err := c.API.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil || node.Labels["from"] != "extra-args" {
		t.Errorf("the flags of /etc/default/kubelet have no effect: %v, %v", node.Labels, err)
	}
	unitsHaveFewRights(t, g, services)

	g.Write(t, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=sleep infinity\n")
	g.Run(t, "systemctl", "daemon-reload")
	g.Run(t, "systemctl", "start", "kubelet")
	if s := g.Run(t, "systemctl", "show", "-p", "ActiveState", "--value", "plimsoll-agent"); s == "active" {
		t.Error("agent and kubelet run at the same time")
	}
	g.Run(t, "systemctl", "start", "plimsoll-agent")
	if s := g.Run(t, "systemctl", "show", "-p", "ActiveState", "--value", "kubelet"); s == "active" {
		t.Error("kubelet and agent run at the same time")
	}
}

// guestKubeconfig is the kubeconfig of a component of the instance, whole in one file, as a guest reaches the server.
func guestKubeconfig(t *testing.T, c *rig.Cluster, n *rig.GuestNode, component string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(c.StateDir, "pki", component+".kubeconfig"))
	if err == nil {
		err = clientcmdapi.FlattenConfig(config)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.Config.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + net.JoinHostPort(n.Host, port)
		cluster.TLSServerName = "localhost"
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Bits of CapEff in /proc/PID/status (capability.h).
const (
	capSysModule = 1 << 16
	capSysAdmin  = 1 << 21
	capSysBoot   = 1 << 22
	capSysTime   = 1 << 25
)

// unitsHaveFewRights checks what the kernel says of the services: all run since they were started, the agent as root
// without what it does not need, the others as users without anything.
func unitsHaveFewRights(t *testing.T, g *lab.Guest, services []string) {
	t.Helper()
	for _, s := range services {
		if restarts := strings.TrimSpace(g.Run(t, "systemctl", "show", "-p", "NRestarts", "--value", s)); restarts != "0" {
			t.Errorf("%s was restarted %s times:\n%s", s, restarts, g.Run(t, "journalctl", "-u", s, "--no-pager"))
		}
		pid := strings.TrimSpace(g.Run(t, "systemctl", "show", "-p", "MainPID", "--value", s))
		fields := map[string]string{}
		for line := range strings.Lines(g.Run(t, "cat", "/proc/"+pid+"/status")) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		caps, err := strconv.ParseUint(fields["CapEff"], 16, 64)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		uid, _, _ := strings.Cut(fields["Uid"], "\t")
		switch {
		case s == "plimsoll-agent":
			if uid != "0" || caps&capSysAdmin == 0 || caps&(capSysModule|capSysBoot|capSysTime) != 0 {
				t.Errorf("%s: uid %s, capabilities %x", s, uid, caps)
			}
		case uid == "0" || caps != 0 || fields["NoNewPrivs"] != "1" || fields["Seccomp"] != "2":
			t.Errorf("%s: uid %s, capabilities %x, no new privileges %s, seccomp %s", s, uid, caps, fields["NoNewPrivs"],
				fields["Seccomp"])
		}
		score, err := g.Output(context.Background(), "systemd-analyze", "security", "--no-pager", s)
		if lines := strings.Split(strings.TrimSpace(score), "\n"); err == nil {
			t.Log(lines[len(lines)-1])
		}
	}
}
