//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// TestKubeadm makes a guest the first server of a cluster with upstream's kubeadm. Our program is its kubelet and its
// kube-scheduler, by these names; everything else is upstream's, and all images are built here. Everything that kubeadm
// starts is Ready. A pod that the scheduler places finds another by its Service's name. Then a second guest joins,
// whose kubelet is our program too. The first has containerd 2, the second Debian's 1.6. At last time moves on until
// all their certificates have expired.
func TestKubeadm(t *testing.T) {
	t.Parallel()
	server := newKubeadmGuest(t, "server", kubeadmOptions{Kubelet: ours, Containerd2: true})
	server.endpoint = apiName
	api := server.init(t, "")
	server.wantReady(t, api)
	server.wantSystem(t, api)
	findsService(t, api, "web")
	node := joins(t, server, api)
	server.getsKubectl(t)
	web := rolls(t, server, &node, api)
	api = timeMovesOn(t, server, node, api, web)
	server.wantNoRestart(t, server.unit)
	node.wantNoRestart(t, node.unit)
	server.schedulesAsService(t, api)
}

// findsService checks that a pod finds another by its Service's name. Both are on the server, where CoreDNS is: no
// route leads from one guest's pods to those of another.
func findsService(t *testing.T, api kubernetes.Interface, name string) {
	t.Helper()
	ns, onServer := metav1.NamespaceDefault, map[string]string{"node-role.kubernetes.io/control-plane": ""}
	web := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeSelector: onServer,
			Containers:   []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"http", "--port", "8080"}}},
		},
	}
	ask := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "asks-" + name},
		Spec: corev1.PodSpec{
			NodeSelector:  onServer,
			RestartPolicy: corev1.RestartPolicyOnFailure,
			Containers: []corev1.Container{{
				Name:  "c",
				Image: image.Demo,
				Args:  []string{"get", "--timeout", "30s", "http://" + name + "." + ns + ".svc.cluster.local/healthz"},
			}},
		},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: web.Labels,
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if _, err := api.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{web, ask} {
		// Its account may not be there yet.
		eventually(t, podWithin, "create "+pod.Name, func(ctx context.Context) error {
			_, err := api.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	wantPhase(t, api, ns, web.Name, corev1.PodRunning)
	wantPhase(t, api, ns, ask.Name, corev1.PodSucceeded)
}

// Bounds of what kubeadm does in a guest on busy CPUs (chosen: several times what it takes on two idle cores, where
// init takes about one minute).
const (
	kubeadmWithin = 20 * time.Minute
	systemWithin  = 10 * time.Minute
)

// eventually is rig.Eventually, with a poll each two seconds. With a poll each 0.1 s the lab's process in the guest
// took a fifth of an emulated CPU to start the commands of the polls (measured, 2026-11-29).
func eventually(t *testing.T, within time.Duration, what string, ask func(context.Context) error) time.Duration {
	t.Helper()
	return rig.EventuallyAt(t, 2*time.Second, within, what, ask)
}

// kubeletUnit and kubeletDropIn are what the packages of kubeadm and the kubelet install (kubernetes.io, "Configuring
// each kubelet in your cluster using kubeadm").
const (
	kubeletUnit = `[Unit]
Description=kubelet
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`
	kubeletDropIn = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf ` +
		`--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
)

// The programs that a guest may have as its kubelet, as paths there.
const (
	ours     = wire.CargoDir + "/plimsoll"
	upstream = "/usr/local/bin/upstream-kubelet"
)

// apiName is the API server's name in a cluster whose machines reach it at different addresses.
const apiName = "api.lab"

// kubeadmOptions are what guests of kubeadm differ in.
type kubeadmOptions struct {
	Kubelet     string // ours or upstream
	Containerd2 bool   // else Debian's containerd 1.6
}

// kubeadmGuest is a guest that has what the packages of kubeadm, the kubelet and containerd install, and all images.
type kubeadmGuest struct {
	*lab.Guest
	port     int    // of its API server, in the guest and here
	unit     string // of its kubelet
	endpoint string // by which the machines of the cluster know the API server; empty: its address

	// noElection has kube-scheduler and kube-controller-manager elect no leader. Else they end when they could not renew
	// their Lease in time, as on a busy machine.
	noElection bool
}

// tellsWhy prints what the guest of a failed test says about itself: its load and processes, which logs of containers
// it has, and the last lines of the kubelet and of the control plane. Of a server it prints what the API has too.
func (g kubeadmGuest) tellsWhy(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, script := range []string{
		"cat /proc/loadavg /proc/pressure/cpu /proc/pressure/memory",
		"ps axo pcpu,rss,time,args --sort=-pcpu | cut -c1-120 | head -20",
		"ls -lt /var/log/containers",
		"journalctl --no-pager --lines 40 --unit kubelet --unit plimsoll-agent | cut -c1-400",
		"tail -n 15 /var/log/pods/kube-system_kube-[acs]*/*/*.log | cut -c1-300",
	} {
		out, err := g.Output(ctx, "sh", "-c", script)
		t.Logf("%s: %s\n%s", g.Name, script, out)
		if err != nil {
			t.Log(err)
		}
	}
	if _, err := g.Output(ctx, "test", "-e", "/etc/kubernetes/admin.conf"); err != nil {
		return
	}
	api := g.client(t)
	nodes, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, node := range nodes.Items {
		t.Logf("node %s: taints %+v, conditions %+v", node.Name, node.Spec.Taints, node.Status.Conditions)
	}
	pods, err := api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, pod := range pods.Items {
		t.Logf("pod %s on %q: %s, conditions %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions)
	}
}

// newKubeadmGuest boots a guest. It skips the test if something that it needs is not built.
//
// The guest has a thread for each CPU, although it may hang with QEMU before 8.1 (seen once in some hundred guests;
// then run the test again). With one thread kube-apiserver may not get through its start in the time that it gives
// itself: kubeadm init took 7 to 8 minutes instead of 3, and in two of two runs of TestKubeadmSwap it was not done
// after 20 minutes, or the deployments were not Ready 10 minutes after it.
func newKubeadmGuest(t *testing.T, name string, o kubeadmOptions) kubeadmGuest {
	t.Helper()
	built := filepath.Dir(rig.Binary(t))
	bin := filepath.Join(built, "kubeadm")
	needs := map[string]string{
		"bin/kubeadm": filepath.Join(bin, "images.tar"),
		"bench-build": filepath.Join(built, "upstream-kubelet"),
	}
	if o.Containerd2 {
		needs["bin/containerd2"] = filepath.Join(built, "containerd2")
	}
	for target, path := range needs {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("%v: run make %s", err, target)
		}
	}
	g := kubeadmGuest{
		Guest: lab.Boot(t, "server", lab.Options{Init: lab.Systemd, Name: name, CPUThreads: true}),
		port:  freeport.ForTest(t),
		unit:  unitKubelet,
	}
	t.Cleanup(func() { g.tellsWhy(t) })
	began := time.Now()
	g.Publish(t, g.port)
	g.CopyIn(t, filepath.Join(bin, "kubeadm"), "/usr/bin/kubeadm")
	g.CopyIn(t, filepath.Join(bin, "images.tar"), "/root/images.tar")
	if o.Kubelet == upstream {
		g.CopyIn(t, filepath.Join(built, "upstream-kubelet"), upstream)
	}
	g.Run(t, "ln", "-s", o.Kubelet, "/usr/bin/kubelet")
	g.Write(t, "/etc/systemd/system/kubelet.service", kubeletUnit)
	g.Write(t, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", kubeletDropIn)
	g.resolves(t, g.IP)
	// As kubernetes.io, "Container Runtimes", tells users, and for kube-proxy, which sets parameters of connections.
	g.Write(t, "/etc/modules-load.d/kubernetes.conf", "overlay\nbr_netfilter\nnf_conntrack\n")
	g.Write(t, "/etc/sysctl.d/kubernetes.conf", "net.ipv4.ip_forward = 1\n")
	g.Write(t, "/etc/systemd/journald.conf.d/persistent.conf", "[Journal]\nStorage=persistent\n")
	g.Run(t, "cp", "/etc/containerd/config-systemd.toml", "/etc/containerd/config.toml")
	if o.Containerd2 {
		useContainerd2(t, g.Guest, filepath.Join(built, "containerd2"))
		g.Write(t, "/etc/containerd/config.toml", containerd2Config("true"))
	}
	g.Run(t, "systemctl", "daemon-reload")
	g.Run(t, "systemctl", "enable", "kubelet", "containerd")
	g.Run(t, "systemctl", "restart", "systemd-modules-load", "systemd-sysctl", "systemd-journald", "containerd")
	g.Run(t, "journalctl", "--flush") // else what was said before the first reboot is lost
	for _, file := range []string{"/root/images.tar", wire.CargoDir + "/images/" + image.PauseFile,
		wire.CargoDir + "/images/" + image.WorkloadFile} {
		if out, err := g.ctr(t.Context(), "images", "import", file); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Logf("%s has everything %v after it was up", name, time.Since(began).Round(time.Second))
	return g
}

// ctr runs the program of the containerd that runs, on the containers of pods.
func (g kubeadmGuest) ctr(ctx context.Context, args ...string) (string, error) {
	const script = `PATH=` + containerd2Dir + `:$PATH exec ctr -n k8s.io "$@"`
	return g.Output(ctx, append([]string{"sh", "-c", script, "ctr"}, args...)...)
}

// resolves writes what the guest knows of names, among them the API server's. The lab writes its own files at each
// boot.
func (g kubeadmGuest) resolves(t *testing.T, address string) {
	t.Helper()
	g.Write(t, "/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n%s %s\n", g.IP, g.Name, address, apiName))
	g.Write(t, "/etc/resolv.conf", fmt.Sprintf("nameserver %s\n", g.Host)) // CoreDNS wants one; no test asks it
}

// init runs kubeadm init, and returns a client with the administrator's rights. kubelet has further fields of the
// kubelets' configuration.
func (g kubeadmGuest) init(t *testing.T, kubelet string) kubernetes.Interface {
	t.Helper()
	endpoint := ""
	if g.endpoint != "" {
		endpoint = net.JoinHostPort(g.endpoint, strconv.Itoa(g.port))
	}
	elect := ""
	if g.noElection {
		const alone = `extraArgs: [{name: leader-elect, value: "false"}]`
		elect = fmt.Sprintf("scheduler: {%[1]s}\ncontrollerManager: {%[1]s}\n", alone)
	}
	g.Write(t, "/root/kubeadm.yaml", fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %[1]s, bindPort: %[2]d}
nodeRegistration: {taints: []}
timeouts: {controlPlaneComponentHealthCheck: %[3]v, kubeletHealthCheck: %[3]v, kubernetesAPICall: %[3]v}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %[4]s
controlPlaneEndpoint: %[5]q
apiServer: {certSANs: [127.0.0.1]}
%[7]s---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
%[6]s
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
`, g.IP, g.port, kubeadmWithin, g.Run(t, "kubeadm", "version", "--output", "short"), endpoint, kubelet,
		elect))
	g.kubeadm(t, "init", "--config", "/root/kubeadm.yaml")
	api, err := kubernetes.NewForConfig(g.admin(t))
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// admin is how the administrator of the cluster reaches its API server from here.
func (g kubeadmGuest) admin(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(g.Run(t, "cat", "/etc/kubernetes/admin.conf")))
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port))
	return config
}

// kubeadm runs kubeadm. If it fails, the test ends with what kubeadm and the kubelet say.
func (g kubeadmGuest) kubeadm(t *testing.T, args ...string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), kubeadmWithin)
	defer cancel()
	var said strings.Builder
	err := g.Exec(ctx, lab.Command{Args: append([]string{"kubeadm"}, args...), Stdout: &said, Stderr: &said})
	if err != nil {
		journal, _ := g.Output(t.Context(), "journalctl", "-u", "kubelet", "--no-pager", "-n", "200")
		t.Fatalf("kubeadm %s: %v\n%s\nkubelet:\n%s", args[0], err, said.String(), journal)
	}
	t.Logf("kubeadm %s took %v", args[0], time.Since(began).Round(time.Second))
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "WARNING") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// wantReady waits until the guest's node is Ready.
func (g kubeadmGuest) wantReady(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	eventually(t, podWithin, g.Name+" is Ready", func(ctx context.Context) error {
		node, err := api.CoreV1().Nodes().Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", node.Status.Conditions)
	})
}

// systemPods are the pods that kubeadm starts on a server: how many, by the beginnings of their names.
func (g kubeadmGuest) systemPods() map[string]int {
	return map[string]int{
		"etcd-" + g.Name: 1, "kube-apiserver-" + g.Name: 1, "kube-controller-manager-" + g.Name: 1,
		"kube-scheduler-" + g.Name: 1, "kube-proxy-": 1, "coredns-": 2,
	}
}

// wantSystem waits until every pod that kubeadm starts on a server is Ready.
func (g kubeadmGuest) wantSystem(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	eventually(t, systemWithin, "the pods of kubeadm are Ready", func(ctx context.Context) error {
		return lacks(ctx, api, metav1.NamespaceSystem, g.systemPods(), time.Time{})
	})
}

// lacks returns an error unless a namespace has so many Ready pods, by the beginnings of their names, all of whose
// containers have started at a moment or later.
func lacks(ctx context.Context, api kubernetes.Interface, ns string, want map[string]int, since time.Time) error {
	pods, err := api.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	missing := maps.Clone(want)
	var waits error
	for _, pod := range pods.Items {
		err := podReady(&pod)
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil && c.State.Running.StartedAt.Time.Before(since) {
				err = fmt.Errorf("%s runs since %v, not since %v", c.Name, c.State.Running.StartedAt, since)
			}
		}
		if err != nil {
			waits = fmt.Errorf("%s: %w", pod.Name, err)
			continue
		}
		for prefix := range missing {
			if strings.HasPrefix(pod.Name, prefix) {
				missing[prefix]--
			}
		}
	}
	for prefix, n := range missing {
		if n > 0 {
			return fmt.Errorf("%d of %s are missing: %w", n, prefix, waits)
		}
	}
	return nil
}

// wantNoRestart checks that systemd has started a service once and no more.
func (g kubeadmGuest) wantNoRestart(t *testing.T, service string) {
	t.Helper()
	if n := g.Run(t, "systemctl", "show", "-p", "NRestarts", "--value", service); n != "0" {
		t.Errorf("%s was restarted %s times:\n%s", service, n, g.Run(t, "journalctl", "-u", service, "--no-pager"))
	}
}

// wantPhase waits until a pod has a phase.
func wantPhase(t *testing.T, api kubernetes.Interface, ns, name string, phase corev1.PodPhase) {
	t.Helper()
	eventually(t, systemWithin, fmt.Sprintf("%s is %s", name, phase), func(ctx context.Context) error {
		pod, err := api.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != phase {
			err = fmt.Errorf("%s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return err
	})
}

// deploys makes a deployment of one pod, with one container of the demo image.
func deploys(t *testing.T, api kubernetes.Interface, name string, with func(*corev1.PodSpec)) {
	t.Helper()
	labels, grace := map[string]string{"app": name}, int64(5)
	pod := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []corev1.Container{{Name: "c", Image: image.Demo}},
	}
	with(&pod)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
	if _, err := api.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), d,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
