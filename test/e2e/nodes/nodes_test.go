//go:build e2e

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	bridge     = "lan"
	server     = "192.168.77.1" // the machine with the cluster
	networkLen = 24
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(rig.Apart(func() int { return inside(m) }))
}

func inside(m *testing.M) int {
	if os.Geteuid() == 0 {
		if err := errors.Join(link.SetUp("lo"), link.EnsureBridge(bridge, address(server))); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL:", err)
			return 1
		}
	}
	return rig.Main(m, "nodes", rig.Options{Services: true, Storage: true, UpFlags: []string{
		"--bind-address", server, "--node-ip", server, "--pod-cidr", "10.85.0.0/16", "--apiserver-port", "6443",
	}})
}

func address(ip string) netip.Prefix { return netip.PrefixFrom(netip.MustParseAddr(ip), networkLen) }

// A machine is a network namespace on the bridge.
type machine struct {
	*rig.Cluster
	t         *testing.T
	name      string
	ip        string
	namespace string
	state     string
}

// newMachine connects a machine. At the end of the test nothing of its node may be left there.
func newMachine(t *testing.T, c *rig.Cluster, name string, number int) *machine {
	t.Helper()
	m := &machine{
		Cluster:   c,
		t:         t,
		name:      name,
		ip:        fmt.Sprintf("192.168.77.%d", number),
		namespace: fmt.Sprintf("pl-%d-%s", os.Getpid(), name),
		state:     filepath.Join(c.Dir, "machine-"+name),
	}
	if err := link.EnsureNamespace(m.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			m.dump()
		}
		if _, err := m.run("down", "--purge"); err != nil {
			t.Error(err)
		}
		if err := m.remains(); err != nil {
			t.Error(err)
		}
		if err := link.DeleteNamespace(m.namespace); err != nil {
			t.Error(err)
		}
	})
	err := link.Connect(link.Cable{
		Bridge:    bridge,
		Here:      "to-" + name,
		Namespace: m.namespace,
		There:     "eth0",
		Address:   address(m.ip),
		Gateway:   netip.MustParseAddr(server),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run runs a verb of plimsoll on the machine.
func (m *machine) run(verb string, args ...string) (string, error) {
	words := append([]string{"--net=" + link.NamespacePath(m.namespace), rig.Binary(m.t), verb, "--instance",
		m.instance(), "--state-dir", m.state}, args...)
	ctx, cancel := rig.StartClock().Limit(context.WithoutCancel(m.t.Context()), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nsenter", words...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("on machine %s: plimsoll %s: %w: %s", m.name, verb, err, out)
	}
	return string(out), nil
}

func (m *machine) instance() string { return m.Name + m.name }

// join makes the machine a node.
func (m *machine) join(args ...string) (string, error) {
	return m.run("join", append([]string{"https://" + server + ":6443", "--detach", "--node-name", m.name,
		"--node-ip", m.ip}, args...)...)
}

// with returns the flags that an invitation gives.
func (i invitation) with() []string {
	return []string{"--token", i.Token, "--discovery-token-ca-cert-hash", i.Hash}
}

type invitation struct {
	Token  string `json:"token"`
	Server string `json:"server"`
	Hash   string `json:"discoveryTokenCACertHash"`
}

func invite(t *testing.T, c *rig.Cluster, args ...string) (i invitation) {
	t.Helper()
	out, err := exec.Command(rig.Binary(t), append([]string{"token", "create", "-o", "json", "--instance",
		c.Name, "--state-dir", c.StateDir}, args...)...).Output()
	if err == nil {
		err = json.Unmarshal(out, &i)
	}
	if err != nil {
		t.Fatalf("token create: %v: %s", err, out)
	}
	return i
}

// children returns the processes of the machine's node, and its supervisor.
func (m *machine) children() (pids map[string]int, supervisor int) {
	m.t.Helper()
	out, err := m.run("status", "-o", "json")
	var status struct {
		Children      []rig.Child
		SupervisorPID int
	}
	if json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &status) != nil {
		m.t.Fatal(err)
	}
	pids = map[string]int{}
	for _, c := range status.Children {
		pids[c.Name] = c.PID
	}
	return pids, status.SupervisorPID
}

// remains returns an error with what a node has left on the machine.
func (m *machine) remains() error {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), m.state) {
			found = append(found, "process "+path+": "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	if _, err := os.Stat(m.state); err == nil {
		found = append(found, "directory "+m.state)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/plimsoll-" + m.instance())
	found = append(found, groups...)
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(text), m.state) {
		found = append(found, "mounts below "+m.state)
	}
	problem := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread is in the machine's namespace
		problem <- func() error {
			if err := link.Enter(m.namespace); err != nil {
				return err
			}
			links, err := net.Interfaces()
			if err != nil {
				return err
			}
			for _, l := range links {
				if l.Name != "lo" && l.Name != "eth0" {
					found = append(found, "link "+l.Name)
				}
			}
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			tables, err := conn.ListTables()
			for _, table := range tables {
				if !strings.HasPrefix(table.Name, "nat") && !strings.HasPrefix(table.Name, "filter") { // iptables makes those
					found = append(found, "nftables table "+table.Name)
				}
			}
			if err != nil {
				return err
			}
			routes, err := link.Routes()
			for _, r := range routes {
				found = append(found, fmt.Sprintf("route %v", r))
			}
			return err
		}()
	}()
	if err := <-problem; err != nil {
		return err
	}
	if found != nil {
		return fmt.Errorf("left on machine %s:\n  %s", m.name, strings.Join(found, "\n  "))
	}
	return nil
}

// dump prints the ends of the node's logs.
func (m *machine) dump() {
	logs, _ := filepath.Glob(filepath.Join(m.state, "log", "*.log"))
	for _, log := range logs {
		if out, err := exec.Command("tail", "-n", "15", log).Output(); err == nil {
			m.t.Logf("end of %s:\n%s", log, out)
		}
	}
}

// ready waits until a node is Ready.
func ready(t *testing.T, c *rig.Cluster, node string) {
	t.Helper()
	c.WaitCondition(t, node, corev1.NodeReady, corev1.ConditionTrue, time.Minute)
}

// TestJoin makes two machines nodes, and checks that pods on all three reach each other, a Service and its DNS name.
// Then it kills a supervisor, each other process and a whole machine, parts two machines, and cuts one off.
func TestJoin(t *testing.T) {
	c := rig.Shared(t)
	i := invite(t, c)
	if want := "https://" + server + ":6443"; i.Server != want {
		t.Errorf("token create says %s, want %s", i.Server, want)
	}
	b, d := newMachine(t, c, "b", 2), newMachine(t, c, "d", 3)
	for _, m := range []*machine{b, d} {
		began := time.Now()
		if _, err := m.join(i.with()...); err != nil {
			t.Fatal(err)
		}
		t.Logf("machine %s joined in %v", m.name, time.Since(began).Round(100*time.Millisecond))
		ready(t, c, m.name)
	}
	checkNetworks(t, c)
	namespace := c.Namespace(t)
	nodes := []string{c.NodeName, "b", "d"}
	ips := c.Servers(t, namespace, nodes...)
	c.Kubectl(t, "-n", namespace, "create", "service", "clusterip", "shop", "--tcp=80:8080")
	c.Kubectl(t, "-n", namespace, "set", "selector", "service/shop", "app=server")
	c.Reach(t, namespace, nodes, "http://"+ips[c.NodeName]+":8080/", "http://"+ips["b"]+":8080/",
		"http://"+ips["d"]+":8080/",
		"http://shop."+namespace+".svc.cluster.local/")

	t.Run("supervisor", func(t *testing.T) { killSupervisor(t, b) })
	t.Run("children", func(t *testing.T) { killChildren(t, c, b) })
	t.Run("whole node", func(t *testing.T) { killNode(t, c, b, namespace) })
	t.Run("partition", func(t *testing.T) { partition(t, c, b, d, namespace) })
	t.Run("cut off", func(t *testing.T) { cutOff(t, c, d, namespace, ips) })
	t.Run("removed", func(t *testing.T) { remove(t, c, d) })
	if out, err := b.run("status"); err != nil || !strings.Contains(out, "https://"+server+":6443, ready") {
		t.Errorf("status on machine b: %v\n%s", err, out)
	}
}

// checkNetworks compares the nodes' pod networks: each is a different /24 of --pod-cidr.
func checkNetworks(t *testing.T, c *rig.Cluster) {
	t.Helper()
	nodes, err := c.API.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	all := netip.MustParsePrefix("10.85.0.0/16")
	for _, n := range nodes.Items {
		p, err := netip.ParsePrefix(n.Spec.PodCIDR)
		if err != nil || p.Bits() != 24 || !all.Overlaps(p) || seen[p.String()] != "" {
			t.Errorf("node %s has pod network %q (other node: %q): %v", n.Name, n.Spec.PodCIDR, seen[n.Spec.PodCIDR], err)
		}
		seen[p.String()] = n.Name
	}
}

// killSupervisor: a node goes on without its supervisor, and join, without a token, adopts what runs.
func killSupervisor(t *testing.T, m *machine) {
	was, supervisor := m.children()
	if supervisor == 0 {
		t.Fatal("no supervisor")
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := m.join(); err != nil {
		t.Fatal(err)
	}
	is, now := m.children()
	if now == 0 || now == supervisor {
		t.Errorf("supervisor %d, was %d", now, supervisor)
	}
	for name, pid := range was {
		if is[name] != pid {
			t.Errorf("%s has pid %d, had %d: it was not adopted", name, is[name], pid)
		}
	}
}

// killChildren: each child that is killed is started again.
func killChildren(t *testing.T, c *rig.Cluster, m *machine) {
	was, _ := m.children()
	for _, name := range []string{"agent", "containerd", "kube-proxy"} {
		if was[name] == 0 {
			t.Fatalf("%s does not run: %v", name, was)
		}
		if err := syscall.Kill(was[name], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, 30*time.Second, name+" runs again", func(context.Context) error {
			if is, _ := m.children(); is[name] == 0 || is[name] == was[name] {
				return fmt.Errorf("pid %d, was %d", is[name], was[name])
			}
			return nil
		})
	}
	ready(t, c, m.name)
}

// cutOff: a machine that is cut off and returns is Ready again, and its pods are reached.
func cutOff(t *testing.T, c *rig.Cluster, m *machine, namespace string, ips map[string]string) {
	if err := link.SetDown("to-" + m.name); err != nil {
		t.Fatal(err)
	}
	c.WaitCondition(t, m.name, corev1.NodeReady, corev1.ConditionUnknown, 2*time.Minute)
	if err := link.SetUp("to-" + m.name); err != nil {
		t.Fatal(err)
	}
	ready(t, c, m.name)
	c.Reach(t, namespace, []string{c.NodeName}, "http://"+ips[m.name]+":8080/")
	c.Reach(t, namespace, []string{m.name}, "http://"+ips[c.NodeName]+":8080/")
}

// remove: a node that is removed is drained, and its machine keeps nothing of it.
func remove(t *testing.T, c *rig.Cluster, m *machine) {
	plimsoll := func(args ...string) (string, error) {
		out, err := exec.Command(rig.Binary(t), append(args, "--instance", c.Name, "--state-dir",
			c.StateDir)...).CombinedOutput()
		return string(out), err
	}
	if out, err := plimsoll("node", "remove", "nobody"); err == nil || !strings.Contains(out, "no node of that name") {
		t.Errorf("a node that does not exist: %v: %s", err, out)
	}
	if out, err := plimsoll("node", "remove", c.NodeName); err == nil || !strings.Contains(out,
		"the machine with the control plane") {
		t.Errorf("the cluster's own node: %v: %s", err, out)
	}
	if out, err := plimsoll("node", "remove", m.name); err == nil || !strings.Contains(out, "--force deletes") {
		t.Errorf("with a pod that nothing creates again: %v: %s", err, out)
	}
	if out, err := plimsoll("node", "remove", m.name, "--force"); err != nil || !strings.Contains(out, "it has") {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := c.API.CoreV1().Nodes().Get(t.Context(), m.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is there: %v", err)
	}
	rig.Eventually(t, 30*time.Second, "the machine keeps nothing", func(context.Context) error { return m.remains() })
	if routes, err := link.Routes(); err != nil || len(routes) != 1 {
		t.Errorf("routes %v, %v, want one to the other node", routes, err)
	}
}

// makeAway makes a node whose machine does not exist, until the test ends.
func makeAway(t *testing.T, c *rig.Cluster) {
	t.Helper()
	nodes := c.API.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "away"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), "away", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	patch := `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.77.99"}]}}`
	if _, err := nodes.Patch(t.Context(), node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
}

// TestOneName: of two machines that join at once with one name, one is a node. The other one is told why, keeps
// nothing, and has the name when the first has been removed.
func TestOneName(t *testing.T) {
	c := rig.Shared(t)
	i := invite(t, c)
	first, second := newMachine(t, c, "x", 10), newMachine(t, c, "y", 11)
	same := append(i.with(), "--node-name", "x")
	refused := make(chan error)
	go func() {
		_, err := second.join(same...)
		refused <- err
	}()
	_, err := first.join(same...)
	other := <-refused
	if err != nil {
		second, err, other = first, other, err
	}
	if err != nil {
		t.Fatalf("both machines were refused: %v, %v", err, other)
	}
	if other == nil || !strings.Contains(other.Error(), "has requested to be node x") &&
		!strings.Contains(other.Error(), "the cluster has a ") {
		t.Fatalf("the other machine: %v", other)
	}
	t.Log(other)
	if err := second.remains(); err != nil {
		t.Error(err)
	}
	removed := func() {
		t.Helper()
		out, err := exec.Command(rig.Binary(t), "node", "remove", "x", "--instance", c.Name, "--state-dir",
			c.StateDir).CombinedOutput()
		if err != nil {
			t.Fatal(err, string(out))
		}
	}
	removed()
	if _, err := second.join(same...); err != nil {
		t.Errorf("after the first was removed: %v", err)
	}
	removed()
}

// refusedNetworks: a machine with an address in the network of the cluster's pods or Services cannot join.
func refusedNetworks(t *testing.T, m *machine, i invitation) {
	for _, r := range []struct{ flag, address string }{
		{"--pod-cidr 10.85.0.0/16", "10.85.7.1/24"},
		{"--service-cidr " + rig.ServiceCIDR, strings.Replace(rig.ServiceCIDR, "0.0/16", "7.1/24", 1)},
	} {
		address := func(do string) {
			t.Helper()
			out, err := exec.Command("ip", "-n", m.namespace, "address", do, r.address, "dev", "eth0").CombinedOutput()
			if err != nil {
				t.Fatal(err, string(out))
			}
		}
		address("add")
		out, err := m.join(i.with()...)
		address("del")
		want := r.flag + " overlaps " + r.address + " of interface eth0: give this machine an address in another network"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\n%s\nwant %q", err, out, want)
		}
		if err := m.remains(); err != nil {
			t.Error(err)
		}
	}
}

// TestRefused: a machine that cannot join gets the reason, and keeps nothing of a node.
func TestRefused(t *testing.T) {
	c := rig.Shared(t)
	i := invite(t, c)
	m := newMachine(t, c, "r", 9)
	makeAway(t, c)
	id, secret, _ := strings.Cut(i.Token, ".")
	other := strings.Map(func(r rune) rune { return map[bool]rune{true: 'b', false: 'a'}[r == 'a'] }, secret)
	hash := "sha256:" + strings.Repeat("0", 64)
	for _, r := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown token", []string{"--token", "zzzzzz." + secret, "--discovery-token-ca-cert-hash", i.Hash},
			"use token zzzzzz"},
		{"a wrong token", []string{"--token", id + "." + other, "--discovery-token-ca-cert-hash", i.Hash},
			"its second part is wrong"},
		{"another authority", []string{"--token", i.Token, "--discovery-token-ca-cert-hash", hash}, "it is another cluster"},
		{"no token", nil, "--token"},
		{"a name that is taken", append(i.with(), "--node-name", c.NodeName), "has a Ready node of that name"},
		{"the name of a machine that is away", append(i.with(), "--node-name", "away"), "run `plimsoll node remove away`"},
		{"no port", append(i.with(), "--agent-port", "10256"), "has the same port"},
		{"a wrong hash", []string{"--token", i.Token, "--discovery-token-ca-cert-hash", "sha256:12"},
			"64 hexadecimal digits"},
	} {
		out, err := m.join(r.args...)
		if err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %v\n%s\nwant %q", r.name, err, out, r.want)
		}
		if strings.Contains(out, secret) || strings.Contains(out, other) {
			t.Errorf("%s: the output has the token's secret: %s", r.name, out)
		}
		if err := m.remains(); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}

	deleted := invite(t, c)
	gone, _, _ := strings.Cut(deleted.Token, ".")
	out, err := exec.Command(rig.Binary(t), "token", "delete", gone, "--instance", c.Name, "--state-dir",
		c.StateDir).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	if out, err := m.join(deleted.with()...); err == nil || !strings.Contains(err.Error(), "use token "+gone) ||
		!strings.Contains(err.Error(), "was deleted (on the server, `plimsoll token create` makes another)") {
		t.Errorf("a deleted token: %v\n%s", err, out)
	}
	refusedNetworks(t, m, i)

	brief := invite(t, c, "--ttl", "1s")
	time.Sleep(2 * time.Second) // a machine that joins before the end is a node, and stays one
	rig.Eventually(t, time.Minute, "an expired token is refused", func(context.Context) error {
		if _, err := m.join(brief.with()...); err == nil || !strings.Contains(err.Error(), "it has expired") {
			return fmt.Errorf("join: %v", err)
		}
		return nil
	})
	if _, err := c.API.CoreV1().Nodes().Get(t.Context(), "r", metav1.GetOptions{}); err == nil {
		t.Error("a machine that was refused is a node")
	}
	if err := m.remains(); err != nil {
		t.Error(err)
	}
}
