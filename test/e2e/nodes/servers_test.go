//go:build e2e

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const etcdURL = "https://" + server + ":2379"

// An etcd runs where the tests do, and accepts only clients with a certificate.
type etcd struct {
	controlplane string
	pki          string
}

func startEtcd(t *testing.T, dir string) etcd {
	t.Helper()
	e := etcd{controlplane: rig.Binary(t) + "-controlplane", pki: filepath.Join(dir, "etcd-pki")}
	plan := pki.Plan{
		Authorities: []pki.Authority{{Name: "ca", CommonName: "etcd"}, {Name: "other", CommonName: "another"}},
		Leaves: []pki.Leaf{
			{Name: "server", Authority: "ca", CommonName: "etcd", Server: true, IPs: []net.IP{net.ParseIP(server)}},
			{Name: "client", Authority: "ca", CommonName: "kube-apiserver", Client: true},
			{Name: "stranger", Authority: "other", CommonName: "kube-apiserver", Client: true},
		},
	}
	if _, err := pki.Ensure(e.pki, plan, time.Now()); err != nil {
		t.Fatal(err)
	}
	peer := "http://127.0.0.1:2380"
	store := exec.Command(e.controlplane, "etcd", "--name=store", "--data-dir="+filepath.Join(dir, "etcd"),
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=store="+peer, "--client-cert-auth",
		"--trusted-ca-file="+pki.CertPath(e.pki, "ca"), "--cert-file="+pki.CertPath(e.pki, "server"),
		"--key-file="+pki.KeyPath(e.pki, "server"))
	store.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		// The signal comes when the thread that started it ends, and remains ends threads: none but this one may start it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := store.Start()
		started <- err
		if err == nil {
			_ = store.Wait() // its exit code does not matter
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-ended:
			t.Error("etcd had ended before us")
		default:
			_ = store.Process.Signal(syscall.SIGTERM) // it may end just now
			<-ended
		}
	})
	rig.Eventually(t, time.Minute, "etcd answers", func(ctx context.Context) error {
		_, err := e.ctl(ctx, "endpoint", "health")
		return err
	})
	return e
}

// ctl runs etcdctl.
func (e etcd) ctl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"etcdctl", "--endpoints=" + etcdURL, "--cacert=" + pki.CertPath(e.pki, "ca"),
		"--cert=" + pki.CertPath(e.pki, "client"), "--key=" + pki.KeyPath(e.pki, "client")}, args...)
	out, err := exec.CommandContext(ctx, e.controlplane, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("etcdctl: %w: %s", err, out)
	}
	return string(out), nil
}

// flags are those of `up` for this etcd.
func (e etcd) flags(ca, client string) []string {
	flags := []string{"--etcd-servers", etcdURL, "--etcd-cafile", pki.CertPath(e.pki, ca)}
	if client != "" {
		flags = append(flags, "--etcd-certfile", pki.CertPath(e.pki, client), "--etcd-keyfile", pki.KeyPath(e.pki, client))
	}
	return flags
}

// up makes the machine a server: the first one, or with an invitation a further one.
func (m *machine) up(flags ...string) (string, error) {
	return m.run("up", append([]string{"--detach", "--node-name", m.name, "--node-ip", m.ip}, flags...)...)
}

// port is that of all servers: not the default one, which further servers must find out.
const port = "7443"

// first are the flags of the first server. Add-ons that run as pods are not what is tested.
func (m *machine) first(more []string) []string {
	return append([]string{"--bind-address", m.ip, "--apiserver-port", port, "--service-cidr", "10.94.0.0/16", "--without",
		"coredns,metrics-server,csi"}, more...)
}

func (m *machine) url() string { return "https://" + m.ip + ":" + port }

// kubectl runs kubectl at the machine's kube-apiserver.
func (m *machine) kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.t.Context()), time.Minute)
	defer cancel()
	args = append([]string{"kubectl", "--kubeconfig", filepath.Join(m.state, "admin.kubeconfig")}, args...)
	out, err := exec.CommandContext(ctx, rig.Binary(m.t)+"-controlplane", args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl on machine %s: %w: %s", m.name, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func (m *machine) mustKubectl(args ...string) string {
	m.t.Helper()
	out, err := m.kubectl(args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// eventually waits until kubectl prints what is wanted.
func (m *machine) eventually(within time.Duration, what, want string, args ...string) {
	m.t.Helper()
	took := rig.Eventually(m.t, within, what, func(context.Context) error {
		out, err := m.kubectl(args...)
		if err == nil && out != want {
			err = fmt.Errorf("%q, want %q", out, want)
		}
		return err
	})
	m.t.Logf("%s: after %v", what, took.Round(100*time.Millisecond))
}

// A serverInvitation is what token create --server says.
type serverInvitation struct {
	invitation
	Key string `json:"certificateKey"`
}

func (i serverInvitation) with() []string {
	return append(i.invitation.with(), "--certificate-key", i.Key)
}

func (m *machine) invite(flags ...string) (i serverInvitation) {
	m.t.Helper()
	out, err := m.run("token", append([]string{"create", "-o", "json"}, flags...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		m.t.Fatalf("token create: %v: %s", err, out)
	}
	return i
}

// die kills every process of the machine, its supervisor first, as when a machine is switched off; its containers go
// on.
func (m *machine) die() {
	m.t.Helper()
	children, supervisor := m.children()
	for _, pid := range append([]int{supervisor}, slices.Collect(maps.Values(children))...) {
		if pid == 0 {
			m.t.Fatalf("machine %s: a process does not run: supervisor %d, %v", m.name, supervisor, children)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			m.t.Fatal(err)
		}
	}
}

const (
	readyOf   = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	identity  = `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} {end}`
	available = `jsonpath={.status.availableReplicas}`
)

// shortDir makes a temporary directory whose name is short enough for the sockets below it, and removes it at the end.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestServers makes two machines servers of one cluster on an etcd outside, and a third one a node. One server is
// killed: the pods stay, the node goes to the other server, and what is new is scheduled there. The killed server comes
// back, and the other one is killed.
func TestServers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	rig.Binary(t)
	dir := shortDir(t)
	store := startEtcd(t, dir)
	c := &rig.Cluster{Name: fmt.Sprintf("s%d-", os.Getpid()%100000), Dir: dir}
	one, two, node := newMachine(t, c, "one", 11), newMachine(t, c, "two", 12), newMachine(t, c, "node", 13)
	t.Run("etcd refuses", func(t *testing.T) { refusedByEtcd(t, one, store) })

	if out, err := one.up(one.first(store.flags("ca", "client"))...); err != nil {
		t.Fatal(err, out)
	}
	invited := one.invite("--server")
	t.Run("servers refuse", func(t *testing.T) { refusedByServers(t, one, two, store, invited) })
	oneServer(t, one, two, node, invited)
	if out, err := two.up(append([]string{"--server", one.url()}, invited.with()...)...); err != nil {
		t.Fatal(err, out)
	}
	if out, err := node.run("join", append([]string{one.url(), "--detach", "--node-name", "node", "--node-ip", node.ip},
		one.invite().invitation.with()...)...); err != nil {
		t.Fatal(err, out)
	}
	for _, name := range []string{"one", "two", "node"} {
		two.eventually(time.Minute, name+" is Ready", "True", "get", "node", name, "-o", readyOf)
	}
	rig.Eventually(t, time.Minute, "the node knows both servers", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(node.state, "servers.json"))
		if err == nil && !(strings.Contains(string(text), one.url()) && strings.Contains(string(text), two.url())) {
			err = fmt.Errorf("it knows %s", text)
		}
		return err
	})
	one.deploy("before", "node")
	pods := one.mustKubectl("get", "pods", "-l", "app=before", "-o", identity)

	one.die()
	id, _, _ := strings.Cut(two.invite().Token, ".") // it waits until another kube-controller-manager leads
	if signed := two.mustKubectl("get", "configmap", "cluster-info", "-n", "kube-public", "-o",
		"jsonpath={.data.jws-kubeconfig-"+id+"}"); signed == "" {
		t.Errorf("token %s was made, and no machine can use it yet", id)
	}
	two.deploy("after", "two")
	two.eventually(time.Minute, "the node is Ready without its server", "True", "get", "node", "node", "-o", readyOf)
	if out, err := node.run("status"); err != nil || !strings.Contains(out, two.url()+", ready") {
		t.Errorf("the node does not use the other server: %v\n%s", err, out)
	}
	if now := two.mustKubectl("get", "pods", "-l", "app=before", "-o", identity); now != pods {
		t.Errorf("pods were %s, are %s", pods, now)
	}
	two.deploy("on-node", "node")

	again := "give --etcd-servers again"
	if out, err := one.up("--bind-address", one.ip); err == nil || !strings.Contains(err.Error(), again) {
		t.Errorf("up without the etcd of before: %v\n%s", err, out)
	}
	if out, err := one.up(one.first(append(store.flags("ca", "client"), "--apiserver-port", "6443"))...); err == nil ||
		!strings.Contains(err.Error(), "give --apiserver-port "+port) || !strings.Contains(err.Error(), two.ip) {
		t.Errorf("up with another port than the other server: %v\n%s", err, out)
	}
	if out, err := one.up(one.first(store.flags("ca", "client"))...); err != nil {
		t.Fatal(err, out)
	}
	one.eventually(time.Minute, "one is Ready again", "True", "get", "node", "one", "-o", readyOf)
	rig.Eventually(t, 2*time.Minute, "the node knows both servers again", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(node.state, "servers.json"))
		if err == nil && !strings.Contains(string(text), one.url()) {
			err = fmt.Errorf("it knows %s", text)
		}
		return err
	})
	two.die()
	one.deploy("last", "one")
	one.eventually(time.Minute, "the node is Ready, back at one", "True", "get", "node", "node", "-o", readyOf)
	if now := one.mustKubectl("get", "pods", "-l", "app=before", "-o", identity); now != pods {
		t.Errorf("pods were %s, are %s", pods, now)
	}
	if out, err := two.up("--server", one.url()); err != nil { // without a token: it has been a server
		t.Fatal(err, out)
	}
	two.eventually(time.Minute, "two is Ready again", "True", "get", "node", "two", "-o", readyOf)
}

// deploy makes a Deployment of two pods on a node, and waits until they are available.
func (m *machine) deploy(name, node string) {
	m.t.Helper()
	manifest := filepath.Join(m.Dir, name+".yaml")
	text := strings.NewReplacer("NAME", name, "NODE", node).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      nodeSelector: {kubernetes.io/hostname: NODE}
      containers:
      - {name: app, image: "plimsoll.dev/workload:dev", args: [sleep, infinity]}
`)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	rig.Eventually(m.t, time.Minute, "Deployment "+name+" is created", func(context.Context) error {
		_, err := m.kubectl("apply", "-f", manifest)
		return err
	})
	m.eventually(time.Minute, "Deployment "+name+" is available", "2", "get", "deployment", name, "-o", available)
}

// refusedByEtcd: what is wrong with the etcd is said before anything is started.
func refusedByEtcd(t *testing.T, m *machine, store etcd) {
	for _, r := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"another authority", store.flags("other", "client"), "is not the authority of its certificate"},
		{"no client certificate", store.flags("ca", ""), "it wants a client certificate"},
		{"another authority's client", store.flags("ca", "stranger"), "it does not accept --etcd-certfile"},
		{"nobody there", []string{"--etcd-servers", "https://" + server + ":2"}, "does etcd run there?"},
	} {
		out, err := m.up(m.first(r.flags)...)
		if err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %v\n%s\nwant %q", r.name, err, out, r.want)
		}
	}
}

// refusedByServers: who cannot be a server is told why.
func refusedByServers(t *testing.T, one, two *machine, store etcd, i serverInvitation) {
	nodes := one.invite()
	further := func(flags ...string) []string { return append([]string{"--server", one.url()}, flags...) }
	wrong := i
	wrong.Key = strings.Repeat("0", len(i.Key))
	mixed := i
	mixed.Token = nodes.Token
	for _, r := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"a cluster of its own on that etcd", two.first(store.flags("ca", "client")), "plimsoll token create --server"},
		{"no token", further(), "plimsoll token create --server"},
		{"a wrong key", further(wrong.with()...), "it is not the key that was printed with this token"},
		{"a token for nodes", further(mixed.with()...), "it is for nodes, not for servers"},
		{"half a key", further(append(i.invitation.with(), "--certificate-key", "12")...), "64 hexadecimal digits"},
		{"what the cluster decides", further(append(i.with(), "--pod-cidr", "10.1.0.0/16")...),
			"the cluster has decided it"},
		{"a port of its own", further(append(i.with(), "--apiserver-port", "6443")...),
			"--apiserver-port 6443: the servers of this cluster have port " + port},
		{"a name that is taken", further(append(i.with(), "--node-name", one.name)...), "has a Ready node of that name"},
		{"a server that is not there", append([]string{"--server", two.url()}, i.with()...), "connect"},
	} {
		out, err := two.up(r.flags...)
		if err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %v\n%s\nwant %q", r.name, err, out, r.want)
		}
		if _, secret, _ := strings.Cut(i.Token, "."); strings.Contains(out, secret) || strings.Contains(out, i.Key) {
			t.Errorf("%s: the output has a secret: %s", r.name, out)
		}
	}
	if out, err := two.run("down", "--purge"); err != nil {
		t.Error(err, out)
	}
}

// oneServer: of two machines that become servers at once with one name, one does. The other one is told why, and keeps
// nothing. The name is free as soon as the node is deleted.
func oneServer(t *testing.T, one, two, third *machine, i serverInvitation) {
	flags := append([]string{"--server", one.url(), "--node-name", two.name}, i.with()...)
	refused := make(chan error)
	go func() {
		_, err := third.up(flags...)
		refused <- err
	}()
	_, err := two.up(flags...)
	winner, loser, other := two, third, <-refused
	if err != nil {
		winner, loser, other, err = third, two, err, other
	}
	if err != nil {
		t.Fatalf("both machines were refused: %v, %v", err, other)
	}
	if other == nil || !strings.Contains(other.Error(), "has requested to be node two") &&
		!strings.Contains(other.Error(), "the cluster has a ") {
		t.Fatalf("the other machine: %v", other)
	}
	t.Log(other)
	if err := loser.remains(); err != nil {
		t.Error(err)
	}
	const claim = "join:two"
	one.eventually(time.Minute, "the claim belongs to the node", "Node two", "get", "csr", claim, "-o",
		"jsonpath={.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}")
	if out, err := winner.run("down", "--purge"); err != nil {
		t.Fatal(err, out)
	}
	one.mustKubectl("delete", "node", two.name)
	one.eventually(time.Minute, "the claim is gone", "", "get", "csr", claim, "-o", "name", "--ignore-not-found")
}
