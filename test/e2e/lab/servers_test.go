//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// Bounds in guests on busy CPUs (chosen: several times what it takes on two idle cores).
const (
	upWithin    = 15 * time.Minute // of plimsoll up, or join
	movesWithin = 10 * time.Minute // until another server leads, or a pod of another server's cluster runs
)

// TestServersOfGuests makes two guests servers of one cluster, and a third one a node of it. Each is a member of the
// cluster's etcd. The first server is killed as a whole. Then the other one leads, the node goes to it, its pod goes
// on, and new pods run on both. The first server returns, and pods run on it.
//
// The etcd has no certificates here, as it has in TestServers (test/e2e/nodes). The test runs alone, because two
// emulated control planes leave nothing of two CPUs to others: 11 minutes alone.
func TestServersOfGuests(t *testing.T) {
	var network lab.Network
	one, two := newServerGuest(t, "server", "one", &network), newServerGuest(t, "server", "two", &network)
	node := newServerGuest(t, "tiny", "node", &network)
	members := []*serverGuest{one, two, node}
	for _, g := range members {
		g.startEtcd(t, members)
	}
	for _, g := range members {
		g.wantEtcd(t)
	}
	one.plimsoll(t, one.first(members)...)
	one.connect(t)
	two.plimsoll(t, two.named(one.invite(t, "--server"))...)
	two.connect(t)
	node.plimsoll(t, node.named(one.invite(t))...)
	for _, g := range members {
		two.wantNode(t, g.Name, corev1.ConditionTrue)
	}
	before := two.deploys(t, "before", node.Name)

	one.Kill()
	two.leads(t)
	two.deploys(t, "after", two.Name)
	two.deploys(t, "on-node", node.Name)
	two.wantNode(t, one.Name, corev1.ConditionUnknown)
	two.wantNode(t, node.Name, corev1.ConditionTrue)
	two.goesOn(t, before)
	if status := node.Run(t, "plimsoll", "status"); !strings.Contains(status, two.url()+", ready") {
		t.Errorf("the node does not use the other server:\n%s", status)
	}

	one.Restart(t)
	one.publish(t)
	one.startEtcd(t, members)
	one.wantEtcd(t)
	one.plimsoll(t, one.first(members)...)
	one.wantNode(t, one.Name, corev1.ConditionTrue)
	one.deploys(t, "last", one.Name)
	one.goesOn(t, before)
}

// apiServerPort is that of all servers.
const apiServerPort = 7443

// serverGuest is a guest that is a server of a cluster, or a node, and a member of its etcd.
type serverGuest struct {
	*lab.Guest
	port int // here, where its kube-apiserver answers
	api  kubernetes.Interface
}

func newServerGuest(t *testing.T, description, name string, network *lab.Network) *serverGuest {
	t.Helper()
	g := &serverGuest{
		Guest: lab.Boot(t, description, lab.Options{
			Init:    lab.Systemd,
			Name:    name,
			Network: network,
			Cargo:   []string{"plimsoll-controlplane"},
		}),
		port: freeport.ForTest(t),
	}
	g.publish(t)
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := g.Output(context.WithoutCancel(t.Context()), "sh", "-c", "tail -n 20 /var/lib/plimsoll/log/*.log")
			t.Logf("logs of %s: %v\n%s", g.Name, err, logs)
		}
	})
	return g
}

// publish makes its kube-apiserver answer here. It lasts until the guest is switched off.
func (g *serverGuest) publish(t *testing.T) { t.Helper(); g.PublishAs(t, g.port, apiServerPort) }

func (g *serverGuest) url() string {
	return "https://" + net.JoinHostPort(g.IP, strconv.Itoa(apiServerPort))
}

func (g *serverGuest) etcdURL(port int) string { return fmt.Sprintf("http://%s:%d", g.IP, port) }

// The ports of etcd, which are registered for it.
const (
	etcdClientPort = 2379
	etcdPeerPort   = 2380
)

// startEtcd starts the guest's member of etcd, for the first time or again. The members wait longer for each other than
// by default (100 ms and 1 s), because the guests are slow.
func (g *serverGuest) startEtcd(t *testing.T, members []*serverGuest) {
	t.Helper()
	var all []string
	for _, m := range members {
		all = append(all, m.Name+"="+m.etcdURL(etcdPeerPort))
	}
	g.Start(t, lab.Command{Args: []string{"plimsoll-controlplane", "etcd", "--name=" + g.Name, "--data-dir=/var/lib/etcd",
		"--heartbeat-interval=500", "--election-timeout=5000", "--initial-cluster=" + strings.Join(all, ","),
		"--listen-client-urls=" + g.etcdURL(etcdClientPort), "--advertise-client-urls=" + g.etcdURL(etcdClientPort),
		"--listen-peer-urls=" + g.etcdURL(etcdPeerPort), "--initial-advertise-peer-urls=" + g.etcdURL(etcdPeerPort)}})
}

// wantEtcd waits until the guest's member of etcd answers: plimsoll up refuses one that does not.
func (g *serverGuest) wantEtcd(t *testing.T) {
	t.Helper()
	rig.Eventually(t, movesWithin, "etcd of "+g.Name+" answers", func(ctx context.Context) error {
		_, err := g.Output(ctx, "plimsoll-controlplane", "etcdctl", "--endpoints", g.etcdURL(etcdClientPort), "endpoint",
			"health")
		return err
	})
}

// first are the arguments of the first server. Add-ons are not what is tested.
func (g *serverGuest) first(members []*serverGuest) []string {
	var all []string
	for _, m := range members {
		all = append(all, m.etcdURL(etcdClientPort))
	}
	return g.named([]string{"up", "--bind-address", g.IP, "--apiserver-port", strconv.Itoa(apiServerPort),
		"--etcd-servers", strings.Join(all, ","), "--without", "kube-proxy,coredns,metrics-server,csi"})
}

// named adds what every machine has of its own.
func (g *serverGuest) named(args []string) []string {
	return append(args, "--detach", "--node-name", g.Name, "--node-ip", g.IP, "--timeout", upWithin.String())
}

// invite returns the arguments by which another machine joins.
func (g *serverGuest) invite(t *testing.T, flags ...string) []string {
	t.Helper()
	return strings.Fields(g.Run(t, append([]string{"plimsoll", "token", "create"}, flags...)...))[1:]
}

// plimsoll runs a verb that starts the guest's part of the cluster.
func (g *serverGuest) plimsoll(t *testing.T, args ...string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), upWithin)
	defer cancel()
	command := lab.Command{Args: append([]string{"plimsoll"}, args...), Stdout: t.Output(), Stderr: t.Output()}
	if err := g.Exec(ctx, command); err != nil {
		t.Fatalf("plimsoll %s on %s: %v", args[0], g.Name, err)
	}
	t.Logf("plimsoll %s on %s took %v", args[0], g.Name, time.Since(began).Round(time.Second))
}

// connect makes a client of the guest's kube-apiserver.
func (g *serverGuest) connect(t *testing.T) {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(g.Run(t, "cat", "/var/lib/plimsoll/admin.kubeconfig")))
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port))
	config.Timeout = time.Minute // of one request
	if g.api, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
}

// wantNode waits until a node is Ready, or is not known to be.
func (g *serverGuest) wantNode(t *testing.T, name string, want corev1.ConditionStatus) {
	t.Helper()
	what := fmt.Sprintf("to %s, Ready of %s is %s", g.Name, name, want)
	took := rig.Eventually(t, movesWithin, what, func(ctx context.Context) error {
		node, err := g.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("%+v", node.Status.Conditions)
	})
	t.Logf("%s: after %v", what, took.Round(time.Second))
}

// leads waits until the guest has the Lease of each component of which one leads. An identity begins with the host's
// name.
func (g *serverGuest) leads(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "plimsoll-lifecycle"} {
		took := rig.Eventually(t, movesWithin, name+" of "+g.Name+" leads", func(ctx context.Context) error {
			lease, err := g.api.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if holder := lease.Spec.HolderIdentity; holder == nil || !strings.HasPrefix(*holder, g.Name+"_") {
				return fmt.Errorf("%+v", lease.Spec)
			}
			return nil
		})
		t.Logf("%s of %s leads after %v", name, g.Name, took.Round(time.Second))
	}
}

// deploys makes a Deployment whose pod runs on a node, and returns that pod when it is Ready.
func (g *serverGuest) deploys(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelHostname: node},
					Containers:   []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"}}},
				},
			},
		},
	}
	ns := metav1.NamespaceDefault
	rig.Eventually(t, movesWithin, "create "+name, func(ctx context.Context) error {
		_, err := g.api.AppsV1().Deployments(ns).Create(ctx, deployment, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier answer was lost
		}
		return err
	})
	var ready *corev1.Pod
	took := rig.Eventually(t, movesWithin, "the pod of "+name+" is Ready", func(ctx context.Context) error {
		pods, err := g.api.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		ready = &pods.Items[0]
		return podReady(ready)
	})
	t.Logf("%s on %s is Ready after %v", name, node, took.Round(time.Second))
	return ready
}

// goesOn checks that a pod is Ready and that its container was not started again.
func (g *serverGuest) goesOn(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	rig.Eventually(t, movesWithin, pod.Name+" goes on", func(ctx context.Context) error {
		now, err := g.api.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		was, is := pod.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if was.ContainerID != is.ContainerID || is.RestartCount != 0 {
			return fmt.Errorf("its container was %s, and is %s after %d restarts", was.ContainerID, is.ContainerID,
				is.RestartCount)
		}
		return podReady(now)
	})
}
