//go:build e2e

// Package localnodes tests `plimsoll up --nodes N`, which makes several nodes of this machine: what is restarted after
// a crash, what survives `down` and `up`, and that nothing of the nodes is left afterwards.
//
// The test process has its own network namespace, so that every link, route and table in it belongs to the instance.
package localnodes

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(rig.Apart(func() int {
		if os.Geteuid() == 0 {
			// Without any route to Services this machine's own requests for names fail before kube-proxy sees them.
			err := link.SetUp("lo")
			if err == nil {
				err = exec.Command("ip", "route", "add", rig.ServiceCIDR, "dev", "lo").Run()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "FAIL:", err)
				return 1
			}
		}
		return m.Run()
	}))
}

// start starts an instance with several nodes. At the end of the test nothing of it may be left.
func start(t *testing.T, nodes string, flags ...string) *rig.Cluster {
	t.Helper()
	return startWith(t, rig.Options{Services: true}, nodes, flags...)
}

// startWith is start with options.
func startWith(t *testing.T, o rig.Options, nodes string, flags ...string) *rig.Cluster {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Cleanup(func() {
			if err := remains(); err != nil {
				t.Error(err)
			}
		})
	}
	o.UpFlags = append([]string{"--nodes", nodes, "--pod-cidr", "10.85.0.0/16"}, flags...)
	return rig.New(t, "local", o)
}

// TestRenewal: a node renews its client certificate and its serving certificate long before they expire, and stays
// Ready.
func TestRenewal(t *testing.T) {
	c := start(t, "2", "--cluster-signing-duration", "3m", "--without", "coredns,metrics-server,csi")
	node := c.NodeName + "-2"
	namespace := c.Namespace(t)
	c.Servers(t, namespace, node)
	certificates := []string{"agent", "agent-serving"}
	was := map[string]*x509.Certificate{}
	for _, name := range certificates {
		was[name] = certificate(t, c, name)
	}
	// Renewal is due after 20 s, and is checked once a minute.
	rig.Eventually(t, 100*time.Second, "both are renewed", func(context.Context) error {
		for _, name := range certificates {
			if is := certificate(t, c, name); is.SerialNumber.Cmp(was[name].SerialNumber) == 0 {
				return fmt.Errorf("%s is that of %v, until %v", name, is.NotBefore, is.NotAfter)
			}
		}
		return nil
	})
	for _, name := range certificates {
		if is := certificate(t, c, name); !is.NotAfter.After(was[name].NotAfter) || time.Until(was[name].NotAfter) <= 0 {
			t.Errorf("%s lasts until %v, the one before until %v", name, is.NotAfter, was[name].NotAfter)
		}
	}
	c.WaitCondition(t, node, corev1.NodeReady, corev1.ConditionTrue, 30*time.Second)
	rig.Eventually(t, 30*time.Second, "the API server trusts the agent's server", func(context.Context) error {
		_, err := c.TryKubectl(t, "-n", namespace, "exec", "on-"+node, "--", "/workload", "env", "HOSTNAME")
		return err
	})
	requests, err := c.API.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	renewals := 0
	for _, r := range requests.Items {
		if r.Spec.Username == "system:node:"+node && len(r.Status.Certificate) > 0 {
			renewals++
		}
	}
	if renewals < 3 { // the first of its server, and one of each later
		t.Errorf("%d requests of the node were signed, want 3 or more", renewals)
	}
}

// certificate returns a certificate of node 2.
func certificate(t *testing.T, c *rig.Cluster, name string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.StateDir, "nodes", "2", "pki", name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s: no certificate", name)
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// remains returns an error with what is left of local nodes.
func remains() error {
	var found []string
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Name != "lo" {
			found = append(found, "link "+l.Name)
		}
	}
	for _, pattern := range []string{
		"/run/netns/plimsoll-local-*", "/sys/fs/cgroup/*/plimsoll-local-*", "/sys/fs/cgroup/plimsoll-local-*",
	} {
		paths, _ := filepath.Glob(pattern)
		found = append(found, paths...)
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
	routes, failed := link.Routes()
	for _, r := range routes {
		found = append(found, fmt.Sprintf("route %v", r))
	}
	if err := errors.Join(err, failed); err != nil || found == nil {
		return err
	}
	return fmt.Errorf("left of local nodes:\n  %s", strings.Join(found, "\n  "))
}

// TestNodes: three nodes run pods that reach each other, recover from crashes, get images, survive down and up, and
// become two.
func TestNodes(t *testing.T) {
	began := time.Now()
	c := start(t, "3")
	t.Logf("up after %v", time.Since(began).Round(100*time.Millisecond))
	nodes := []string{c.NodeName, c.NodeName + "-2", c.NodeName + "-3"}
	for _, node := range nodes {
		c.WaitCondition(t, node, corev1.NodeReady, corev1.ConditionTrue, 10*time.Second)
	}
	namespace := c.Namespace(t)
	ips := c.Servers(t, namespace, nodes...)
	c.Kubectl(t, "-n", namespace, "create", "service", "clusterip", "shop", "--tcp=80:8080")
	c.Kubectl(t, "-n", namespace, "set", "selector", "service/shop", "app=server")
	urls := []string{"http://shop." + namespace + ".svc.cluster.local/"}
	for _, node := range nodes {
		urls = append(urls, "http://"+ips[node]+":8080/")
	}
	c.Reach(t, namespace, nodes, urls...)

	t.Run("status", func(t *testing.T) { status(t, c) })
	t.Run("supervisor", func(t *testing.T) { killNodeSupervisor(t, c, nodes[1]) })
	t.Run("child", func(t *testing.T) { killChild(t, c, "node-3/agent", nodes[2]) })
	t.Run("all supervisors", func(t *testing.T) { killSupervisors(t, c) })
	t.Run("refusals", func(t *testing.T) { refusals(t, c) })
	t.Run("images", func(t *testing.T) { images(t, c, namespace, nodes) })
	c.Reach(t, namespace, nodes, urls...)
	t.Run("again", func(t *testing.T) { downAndUp(t, c, namespace, nodes) })
	t.Run("fewer", func(t *testing.T) { fewer(t, c, nodes) })
}

// status: each node's children are shown, and no token is left once all nodes have joined.
func status(t *testing.T, c *rig.Cluster) {
	for _, child := range []string{
		"agent", "node-2", "node-2/agent", "node-2/containerd", "node-2/kube-proxy", "node-3/agent",
	} {
		if c.PID(t, child) == 0 {
			t.Errorf("%s does not run", child)
		}
	}
	out, err := c.Plimsoll("status")
	if err != nil || !strings.Contains(out, "node-3/kube-proxy ") || strings.Count(out, "true") < 3 {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// killNodeSupervisor: the supervisor of a node is started again, and adopts what runs.
func killNodeSupervisor(t *testing.T, c *rig.Cluster, node string) {
	was, agent := c.PID(t, "node-2"), c.PID(t, "node-2/agent")
	kill(t, was)
	rig.Eventually(t, 30*time.Second, "node-2 runs again", func(context.Context) error {
		if is := c.PID(t, "node-2"); is == 0 || is == was {
			return fmt.Errorf("pid %d, was %d", is, was)
		}
		return nil
	})
	c.WaitCondition(t, node, corev1.NodeReady, corev1.ConditionTrue, time.Minute)
	if is := c.PID(t, "node-2/agent"); is != agent {
		t.Errorf("its agent has pid %d, had %d", is, agent)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("it does not run")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// killChild: a node's supervisor starts its child again.
func killChild(t *testing.T, c *rig.Cluster, child, node string) {
	was := c.PID(t, child)
	kill(t, was)
	rig.Eventually(t, 30*time.Second, child+" runs again", func(context.Context) error {
		if is := c.PID(t, child); is == 0 || is == was {
			return fmt.Errorf("pid %d, was %d", is, was)
		}
		return nil
	})
	c.WaitCondition(t, node, corev1.NodeReady, corev1.ConditionTrue, time.Minute)
}

// killSupervisors: after all supervisors were killed, up adopts everything that runs.
func killSupervisors(t *testing.T, c *rig.Cluster) {
	_, supervisor, err := c.Children()
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]int{}
	for _, child := range []string{"kube-apiserver", "agent", "node-2/agent", "node-2/containerd", "node-3/kube-proxy"} {
		was[child] = c.PID(t, child)
	}
	for _, pid := range []int{supervisor, c.PID(t, "node-2"), c.PID(t, "node-3")} {
		kill(t, pid)
	}
	if out, err := c.Up(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for child, pid := range was {
		if is := c.PID(t, child); is != pid {
			t.Errorf("%s has pid %d, had %d", child, is, pid)
		}
	}
}

// refusals: what cannot be done with these nodes is refused with an error that says so.
func refusals(t *testing.T, c *rig.Cluster) {
	for _, r := range []struct {
		want string
		args []string
	}{
		{"which no other machine reaches", []string{"token", "create"}},
		{"up` with fewer --nodes", []string{"node", "remove", c.NodeName + "-2"}},
	} {
		if out, err := c.Plimsoll(r.args[0], r.args[1:]...); err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%v: %v, %s", r.args, err, out)
		}
	}
	tokens := metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"}
	secrets, err := c.API.CoreV1().Secrets("kube-system").List(t.Context(), tokens)
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d tokens are left, %v", len(secrets.Items), err)
	}
}

// images: an image that is loaded is on each node.
func images(t *testing.T, c *rig.Cluster, namespace string, nodes []string) {
	archive := filepath.Join(filepath.Dir(rig.Binary(t)), "images", "workload.tar")
	if out, err := c.Plimsoll("image", "rm", "plimsoll.dev/workload:dev"); err == nil {
		t.Errorf("an image that is used was removed: %s", out)
	}
	if out, err := c.Plimsoll("image", "load", archive); err != nil || strings.Count(out, "loaded ") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	out, err := c.Plimsoll("image", "ls")
	if err != nil || strings.Count(out, "plimsoll.dev/workload:dev") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	for _, node := range nodes {
		n, err := c.API.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
			return slices.Contains(i.Names, "plimsoll.dev/workload:dev")
		}) {
			t.Errorf("node %s lists %v", node, n.Status.Images)
		}
	}
}

// downAndUp: the nodes and their pods are the same ones afterwards.
func downAndUp(t *testing.T, c *rig.Cluster, namespace string, nodes []string) {
	before := uids(t, c, nodes)
	if out, err := c.Plimsoll("down"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := remains(); err != nil {
		t.Error(err)
	}
	if out, err := c.Plimsoll("status"); err == nil {
		t.Errorf("status of an instance that is down: %s", out)
	}
	if out, err := c.Up(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if after := uids(t, c, nodes); !slices.Equal(before, after) {
		t.Errorf("the nodes were %v, are %v", before, after)
	}
	for _, node := range nodes {
		c.Kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "pod/on-"+node, rig.KubectlWaits)
	}
	c.Reach(t, namespace, nodes, "http://shop."+namespace+".svc.cluster.local/")
}

func uids(t *testing.T, c *rig.Cluster, nodes []string) (all []string) {
	t.Helper()
	for _, node := range nodes {
		n, err := c.API.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(n.UID))
	}
	return all
}

// fewer: up with fewer --nodes removes a node.
func fewer(t *testing.T, c *rig.Cluster, nodes []string) {
	if out, err := c.Plimsoll("down"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := c.UpWith(rig.Binary(t), "--nodes", "2"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := c.API.CoreV1().Nodes().Get(t.Context(), nodes[2], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node %s is there: %v", nodes[2], err)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "nodes", "3")); err == nil {
		t.Error("its state is there")
	}
	c.WaitCondition(t, nodes[1], corev1.NodeReady, corev1.ConditionTrue, 10*time.Second)
}

// TestTaken: a network or a port that is in use is refused, and nothing is left of the attempt.
func TestTaken(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network links")
	}
	if err := link.EnsureBridge("taken", netip.MustParsePrefix("10.83.0.1/24")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(link.Delete("taken"), remains()); err != nil {
			t.Error(err)
		}
	})
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		want  string
		flags []string
	}{
		{"overlaps 10.83.0.0/24, a network that this machine has", []string{"--node-cidr", "10.83.0.0/24"}},
		{"--pod-cidr 10.83.0.0/16 overlaps 10.83.0.1/24 of interface taken: choose another --pod-cidr",
			[]string{"--pod-cidr", "10.83.0.0/16"}},
		{"listen on 10.87.0.1 port " + port, []string{"--apiserver-port", port}},
		{"--node-cidr 10.87.0.0/30 has addresses for 2", []string{"--node-cidr", "10.87.0.0/30", "--nodes", "3"}},
	} {
		flags := append([]string{"--nodes", "2", "--pod-cidr", "10.84.0.0/16"}, r.flags...)
		c, err := rig.Start("taken", rig.Options{UpFlags: flags})
		if errors.Is(err, rig.ErrCannot) {
			t.Skip(err)
		}
		if err == nil || !strings.Contains(err.Error(), r.want) || strings.Contains(err.Error(), "left of instance") {
			t.Errorf("%v: %v, %v", r.flags, c, err)
		}
	}
}
