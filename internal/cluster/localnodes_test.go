package cluster

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
)

// severalOptions returns options of an instance with three nodes.
func severalOptions(t *testing.T) Options {
	t.Helper()
	o := testOptions(t)
	o.Nodes, o.NodeCIDR = 3, "10.87.0.0/24"
	o.BindAddress, o.NodeIP = "", ""
	o.fillNodes()
	return o
}

// TestLocalNodes: every local node has names, an address and directories of its own.
func TestLocalNodes(t *testing.T) {
	o := severalOptions(t)
	if o.BindAddress != "10.87.0.1" || o.NodeIP != "10.87.0.1" || !o.shared() || !o.divides() {
		t.Errorf("bind address %s, node IP %s, shared %v, divides %v", o.BindAddress, o.NodeIP, o.shared(), o.divides())
	}
	all := (layout{o}).localNodes()
	if len(all) != 2 {
		t.Fatalf("%d local nodes, want 2", len(all))
	}
	n := all[1]
	for what, pair := range map[string][2]string{
		"child":     {n.child, "node-3"},
		"name":      {n.name, "node-1-3"},
		"namespace": {n.namespace, "plimsoll-test-3"},
		"cable":     {n.cable, "pn-test-3"},
		"address":   {n.address.String(), "10.87.0.3"},
		"instance":  {n.o.Instance, "test.3"},
		"state":     {n.o.StateDir, filepath.Join(o.StateDir, "nodes", "3")},
		"run":       {n.o.RunDir, filepath.Join(o.RunDir, "nodes", "3")},
		"cgroup":    {layout{n.o}.podCgroup(), "/plimsoll-test.3"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s %s, want %s", what, pair[0], pair[1])
		}
	}
	o.Instance = DefaultInstance
	n = (layout{o}).localNode(2)
	if n.namespace != "plimsoll-2" || n.cable != "plimsoll-2" || (layout{n.o}).cgroupRoot() != "/plimsoll.2" {
		t.Errorf("of the default instance: namespace %s, cable %s, cgroup %s", n.namespace, n.cable, layout{n.o}.cgroupRoot())
	}
	if !o.isLocal("node-1-2") || o.isLocal("node-1-4") || !o.isLocal("node-1") {
		t.Error("isLocal does not tell this machine's nodes from others")
	}
}

// TestLocalNodeJoins: the command line of a local node's child is valid for join.
func TestLocalNodeJoins(t *testing.T) {
	o := severalOptions(t)
	o.RegistryMirrors = []string{"docker.io=https://mirror.example"}
	c := &cluster{layout: layout{o}, build: testBuilder(t, o)}
	if _, err := pki.Ensure(c.pki(), c.plan(), time.Now()); err != nil {
		t.Fatal(err)
	}
	n := c.localNode(2)
	spec, err := c.localNodeSpec(n)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Namespace != "plimsoll-test-2" || spec.End != unix.SIGUSR1 || spec.Argv[1] != "join" ||
		spec.Argv[2] != "https://10.87.0.1:6443" {
		t.Errorf("spec %+v", spec)
	}
	for _, want := range []string{
		"--node-name=node-1-2", "--node-ip=10.87.0.2", "--instance=test.2",
		"--registry-mirror=docker.io=https://mirror.example",
		"--storage-kubeconfig=" + filepath.Join(o.StateDir, "pki", "storage.kubeconfig"),
		"--registries-dir=" + filepath.Join(o.StateDir, "registries"), "--agent-port=10250", "--kube-proxy-health-port=0",
	} {
		if !slices.Contains(spec.Argv, want) {
			t.Errorf("argv %q lacks %s", spec.Argv, want)
		}
	}
	joins := n.o
	joins.Server = spec.Argv[2]
	joins.AgentPort = o.AgentPort
	joins.AgentHealthPort = o.AgentHealthPort
	if err := joins.FillJoined(); err != nil {
		t.Fatal(err)
	}
	if err := joins.ValidateJoined(); err != nil {
		t.Error(err)
	}
}

// TestValidateNodes: options that cannot be combined with --nodes are refused, with the flag and what to do.
func TestValidateNodes(t *testing.T) {
	if o := severalOptions(t); o.Validate() != nil {
		t.Error(o.Validate())
	}
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"--nodes -1: want 1 or more", func(o *Options) { o.Nodes = -1 }},
		{"--no-agent", func(o *Options) { o.Agent = false }},
		{"--no-controller-manager: kube-controller-manager signs the certificates",
			func(o *Options) { o.NoControllerManager = true }},
		{"--agent-binary", func(o *Options) { o.AgentBinary = "/kubelet" }},
		{"needs a runtime of its own", func(o *Options) { o.ContainerRuntimeEndpoint = "unix:///run/other.sock" }},
		{`--node-cidr "10.87.0.1/24"`, func(o *Options) { o.NodeCIDR = "10.87.0.1/24" }},
		{`--node-cidr "fd00::/64"`, func(o *Options) { o.NodeCIDR = "fd00::/64" }},
		{"in a label, whose limit is 63", func(o *Options) { o.NodeName = strings.Repeat("a", 62) }},
		{"overlaps --pod-cidr 10.85.0.0/16", func(o *Options) { o.NodeCIDR = "10.85.3.0/24" }},
		{"overlaps --service-cidr", func(o *Options) { o.NodeCIDR = "10.96.0.0/24" }},
		{"--nodes 300: --node-cidr 10.87.0.0/24 has addresses for 254", func(o *Options) { o.Nodes = 300 }},
		{"--pod-cidr 10.85.0.0/23 has room for 2: each node gets a /24", func(o *Options) { o.PodCIDR = "10.85.0.0/23" }},
		{"--bind-address 0.0.0.0: its nodes reach", func(o *Options) { o.BindAddress = "0.0.0.0" }},
		{"--node-ip 192.0.2.1: its nodes reach", func(o *Options) { o.NodeIP = "192.0.2.1" }},
		{"the loopback of this machine", func(o *Options) {
			o.RegistryMirrors = []string{"a.example=http://127.0.0.1:5000"}
		}},
		{"the loopback of this machine", func(o *Options) { o.RegistryMirrors = []string{"http://localhost:5000/v2"} }},
	} {
		o := severalOptions(t)
		c.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
}
