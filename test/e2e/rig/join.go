//go:build e2e

package rig

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// GuestNode is a guest of the lab that is a node of an instance. Its agent listens on the guest's loopback interface.
// The port is forwarded from the same port of the host, and no other node has it, so that the API server reaches the
// agent by the InternalDNS localhost.
type GuestNode struct {
	*lab.Guest
	Port    int
	Runtime *lab.Process // containerd; nil if systemd runs it
	Agent   *lab.Process

	cluster *Cluster
	driver  string
	config  map[string]any
}

// JoinOptions are options of a guest's agent.
type JoinOptions struct {
	CgroupDriver string         // cgroupfs, if empty, or systemd
	Config       map[string]any // fields of its KubeletConfiguration; they override ours
	AgentFlags   []string       // additional flags
}

// guestDir is the directory of a guest's node configuration.
const guestDir = "/etc/plimsoll"

// readyWithin bounds the time until a guest's node is Ready (chosen: some 10 s on two idle cores, without hardware
// virtualization).
const readyWithin = 3 * time.Minute

// Join makes a booted guest a node, and waits until it is Ready. The node ends with the test.
func (c *Cluster) Join(t *testing.T, g *lab.Guest, o JoinOptions) *GuestNode {
	t.Helper()
	began := time.Now()
	n := &GuestNode{Guest: g, Port: freeport.ForTest(t), cluster: c, driver: o.CgroupDriver, config: o.Config}
	if n.driver == "" {
		n.driver = "cgroupfs"
	}
	t.Cleanup(func() { n.leave(t) })
	n.identify(t)
	n.Configure(t, o.Config)
	if n.driver == "systemd" {
		g.Run(t, "cp", "/etc/containerd/config-systemd.toml", "/etc/containerd/config.toml")
	}
	n.StartRuntime(t)
	for _, file := range []string{image.PauseFile, image.WorkloadFile} {
		g.Run(t, "ctr", "-n", "k8s.io", "images", "import", wire.CargoDir+"/images/"+file)
	}
	n.StartAgent(t, o.AgentFlags...)
	n.WaitReady(t)
	t.Logf("%s is a Ready node %v after it was up", n.Name, time.Since(began).Round(100*time.Millisecond))
	return n
}

// leave ends the guest and deletes its Node. If the Nodes of ended tests stayed, most of a zone would be silent, and
// the lifecycle controller would rightly evict no pods for the next tests.
func (n *GuestNode) leave(t *testing.T) {
	t.Helper()
	n.PowerOff()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	err := n.cluster.API.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("delete the Node of a guest that ended: %v", err)
	}
}

// identify gives the guest a node's certificates, signed by the instance's CA, and a kubeconfig.
func (n *GuestNode) identify(t *testing.T) {
	t.Helper()
	const (
		ca      = "ca"
		client  = "guest-client"
		serving = "guest-serving"
	)
	dir := t.TempDir()
	authority := filepath.Join(n.cluster.StateDir, "pki")
	for _, file := range []string{pki.CertPath("", ca), pki.KeyPath("", ca)} {
		text, err := os.ReadFile(filepath.Join(authority, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	user := "system:node:" + n.Name
	if _, err := pki.Ensure(dir, pki.Plan{
		Authorities: []pki.Authority{{Name: ca}},
		Leaves: []pki.Leaf{
			{Name: client, Authority: ca, CommonName: user, Organization: "system:nodes", Client: true},
			{Name: serving, Authority: ca, CommonName: user, Organization: "system:nodes", Server: true,
				DNSNames: []string{n.Name, "localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(n.IP)}},
		},
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		pki.CertPath(dir, ca): "ca.crt", pki.CertPath(dir, serving): "serving.crt", pki.KeyPath(dir, serving): "serving.key",
		pki.CertPath(dir, client): "client.crt", pki.KeyPath(dir, client): "client.key",
	} {
		n.CopyIn(t, from, guestDir+"/"+to)
	}
	_, port, err := net.SplitHostPort(n.cluster.Config.Host[len("https://"):])
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["host"] = &clientcmdapi.Cluster{Server: "https://" + net.JoinHostPort(n.Host, port),
		TLSServerName: "localhost", CertificateAuthority: guestDir + "/ca.crt"}
	config.AuthInfos["node"] = &clientcmdapi.AuthInfo{ClientCertificate: guestDir + "/client.crt", ClientKey: guestDir +
		"/client.key"}
	config.Contexts["host"] = &clientcmdapi.Context{Cluster: "host", AuthInfo: "node"}
	config.CurrentContext = "host"
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	n.Write(t, guestDir+"/kubeconfig", string(text))
}

// Configure writes the agent's KubeletConfiguration; fields override ours. An agent reads it when it starts.
func (n *GuestNode) Configure(t *testing.T, fields map[string]any) {
	t.Helper()
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "port": n.Port,
		"tlsCertFile": guestDir + "/serving.crt", "tlsPrivateKeyFile": guestDir + "/serving.key",
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": false},
			"webhook": map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": guestDir + "/ca.crt"}},
		"authorization": map[string]any{"mode": "Webhook"},
		"cgroupDriver":  n.driver, "failSwapOn": false, "clusterDomain": "cluster.local",
		"containerRuntimeEndpoint": "unix://" + wire.Runtime,
	}
	maps.Copy(config, fields)
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	n.Write(t, guestDir+"/config.yaml", string(text))
}

// StartRuntime starts containerd, under systemd as its unit, and waits until it answers.
func (n *GuestNode) StartRuntime(t *testing.T) {
	t.Helper()
	if n.Init() == lab.Systemd {
		n.Run(t, "systemctl", "restart", "containerd")
	} else {
		n.Runtime = n.Start(t, lab.Command{Args: []string{"containerd"}})
	}
	Eventually(t, readyWithin, "containerd answers", func(ctx context.Context) error {
		_, err := n.Output(ctx, "ctr", "version")
		return err
	})
}

// StartAgent forwards the agent's port from the host, which is necessary once per boot, and starts the agent.
func (n *GuestNode) StartAgent(t *testing.T, flags ...string) {
	t.Helper()
	n.Forward(t, n.Port)
	n.StartAgentOnly(t, flags...)
}

// StartAgentOnly starts another agent in the same boot.
func (n *GuestNode) StartAgentOnly(t *testing.T, flags ...string) {
	t.Helper()
	n.Agent = n.Start(t, lab.Command{Args: n.AgentArgs(flags...)})
}

// AgentArgs returns the command line of the guest's agent.
func (n *GuestNode) AgentArgs(flags ...string) []string {
	return append([]string{"plimsoll", "agent", "--kubeconfig", guestDir + "/kubeconfig",
		"--config", guestDir + "/config.yaml", "--node-ip", n.IP}, flags...)
}

// WaitReady waits until the node is Ready.
func (n *GuestNode) WaitReady(t *testing.T) {
	t.Helper()
	Eventually(t, readyWithin, n.Name+" is Ready", func(ctx context.Context) error {
		select {
		case <-n.Agent.Ended():
			t.Fatalf("the agent of %s ended: %v", n.Name, n.Agent.Err())
		default:
		}
		return n.cluster.condition(ctx, n.Name, corev1.NodeReady, corev1.ConditionTrue)
	})
}

// WaitCondition waits until a node's condition has the wanted status.
func (c *Cluster) WaitCondition(t *testing.T, node string, kind corev1.NodeConditionType, want corev1.ConditionStatus,
	within time.Duration) {
	t.Helper()
	Eventually(t, within, fmt.Sprintf("%s of %s is %s", kind, node, want), func(ctx context.Context) error {
		return c.condition(ctx, node, kind, want)
	})
}

func (c *Cluster) condition(ctx context.Context, name string, kind corev1.NodeConditionType,
	want corev1.ConditionStatus) error {
	node, err := c.API.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == kind {
			if condition.Status == want {
				return nil
			}
			return fmt.Errorf("%s is %s: %s: %s", kind, condition.Status, condition.Reason, condition.Message)
		}
	}
	return fmt.Errorf("no condition %s", kind)
}
