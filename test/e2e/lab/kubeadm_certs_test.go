//go:build e2e && lab

package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// clientPair is the node's client certificate on a kubeadm node.
const clientPair = "/var/lib/kubelet/pki/kubelet-client-current.pem"

// What kubeadm and kube-controller-manager sign is valid for a year by default (their CertificateValidityPeriod and
// --cluster-signing-duration). The agent renews its certificate between 70 and 90 per cent of that (core/nodecert), so
// one of the cluster's first day is due after 335 days, and has expired after 395. Kubeadm's is renewed in between.
const (
	day    = 24 * time.Hour
	year   = 365 * day
	isDue  = 335 * day
	isGone = 395 * day
)

// timeMovesOn moves the server's clock on, past the rotation of its node's certificate. The agent renews it, and the
// control plane's certificates are renewed with kubeadm. Then the clock moves on until no certificate of the beginning
// is valid any more, and the cluster still works: the API server reaches the kubelet, and new pods find each other.
//
// The node sleeps meanwhile. It wakes with a certificate that has expired, says what to do, and keeps its pods. When
// that was done, by docs/replace-the-kubelet.md, it is Ready, without a restart of anything. The result is a client as
// of then.
func timeMovesOn(t *testing.T, server, node kubeadmGuest, api kubernetes.Interface,
	web *corev1.Pod) kubernetes.Interface {
	t.Helper()
	node.Suspend(t)
	eventually(t, systemWithin, "no pods are placed on the node", func(ctx context.Context) error {
		asleep, err := api.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, taint := range asleep.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoSchedule {
				return nil
			}
		}
		return fmt.Errorf("its taints are %+v", asleep.Spec.Taints)
	})
	began, first := server.clock(t), server.certificate(t)
	server.SetClock(t, began.Add(isDue))
	took := eventually(t, podWithin, "the client certificate is renewed", func(context.Context) error {
		if now := server.certificate(t); now.NotAfter.Before(began.Add(isGone)) {
			return fmt.Errorf("valid until %v", now.NotAfter)
		}
		return nil
	})
	t.Logf("%s has renewed its client certificate %v after the clock moved", server.Name, took.Round(time.Second))
	server.wantNamesPair(t)
	api = server.client(t)
	server.wantLease(t, api, server.clock(t))
	findsService(t, api, "renewed")

	server.renewsControlPlane(t, began)
	server.SetClock(t, began.Add(isGone))
	api = server.client(t)
	server.wantLease(t, api, server.clock(t))
	server.wantReady(t, api)
	server.wantSystem(t, api)
	server.wantLogs(t, api)
	findsService(t, api, "late")
	if now := server.certificate(t); now.Equal(first) || now.NotAfter.Before(server.clock(t)) {
		t.Errorf("the node has a certificate of %v to %v", now.NotBefore, now.NotAfter)
	}

	node.Wake(t, server.clock(t))
	expired := node.certificate(t)
	if !expired.NotAfter.Before(node.clock(t)) {
		t.Fatalf("the certificate of %s is valid until %v, and it is %v", node.Name, expired.NotAfter, node.clock(t))
	}
	node.saysWhatToDo(t, expired)
	node.wantTask(t, web)
	node.resumesWith(t, server.bootstrapKubeconfig(t))
	node.wantLease(t, api, node.clock(t))
	node.wantReady(t, api)
	node.wantNamesPair(t)
	wantGoesOn(t, api, web)
	node.runs(t, api, "web-awake")
	return api
}

// renewsControlPlane renews every certificate of the control plane with kubeadm, and has the agent start the static
// pods again as kubeadm says: their manifests are moved away and back. They serve the new certificates then.
func (g kubeadmGuest) renewsControlPlane(t *testing.T, began time.Time) {
	t.Helper()
	g.wantExpire(t, func(c kubeadmCertificate) bool { return c.ExpirationDate.Before(began.Add(isGone)) })
	g.kubeadm(t, "certs", "renew", "all")
	g.wantExpire(t, func(c kubeadmCertificate) bool { return c.ExpirationDate.After(began.Add(isDue + year - day)) })
	since := g.clock(t)
	g.Run(t, "mv", "/etc/kubernetes/manifests", "/etc/kubernetes/manifests-away")
	eventually(t, systemWithin, "the control plane is off", func(ctx context.Context) error {
		const script = `mkdir -p /etc/kubernetes/manifests
ps axo comm | grep -E '^(etcd|kube-apiserver|kube-controller|kube-scheduler)$' || true`
		left, err := g.Output(ctx, "sh", "-c", script)
		if err == nil && left != "" {
			err = fmt.Errorf("%s", strings.Fields(left))
		}
		return err
	})
	g.Run(t, "sh", "-c", "mv /etc/kubernetes/manifests-away/* /etc/kubernetes/manifests/")
	api := g.client(t)
	static := map[string]int{}
	for name := range g.systemPods() {
		if strings.HasSuffix(name, g.Name) {
			static[name] = 1
		}
	}
	took := eventually(t, kubeadmWithin, "the control plane is back", func(ctx context.Context) error {
		return lacks(ctx, api, metav1.NamespaceSystem, static, since)
	})
	t.Logf("the control plane is Ready %v after its manifests were back", took.Round(time.Second))
	g.wantReady(t, api)
	if serves := g.served(t); serves.NotAfter.Before(began.Add(isDue + year - day)) {
		t.Errorf("kube-apiserver serves a certificate until %v", serves.NotAfter)
	}
}

// A kubeadmCertificate is one of "kubeadm certs check-expiration" (output.kubeadm.k8s.io/v1alpha3, Certificate).
type kubeadmCertificate struct {
	Name           string
	ExpirationDate time.Time
	Missing        bool
}

// wantExpire checks when the certificates of the control plane expire, as kubeadm knows it.
func (g kubeadmGuest) wantExpire(t *testing.T, right func(kubeadmCertificate) bool) {
	t.Helper()
	var said struct{ Certificates []kubeadmCertificate }
	text := g.Run(t, "sh", "-c", "kubeadm certs check-expiration --output json 2>/dev/null")
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if len(said.Certificates) == 0 {
		t.Fatalf("kubeadm knows no certificates: %s", text)
	}
	for _, c := range said.Certificates {
		if c.Missing || !right(c) {
			t.Errorf("%s expires at %v", c.Name, c.ExpirationDate)
		}
	}
}

// served returns the certificate that the API server serves.
func (g kubeadmGuest) served(t *testing.T) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port)),
		&tls.Config{InsecureSkipVerify: true}) // it is read, not used
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0]
}

// client returns a client with the administrator's rights. It takes the guest's time for the present.
func (g kubeadmGuest) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := g.admin(t)
	verify, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ahead := time.Until(g.clock(t))
	verify.Time = func() time.Time { return time.Now().Add(ahead) }
	http := &http.Client{Transport: &http.Transport{TLSClientConfig: verify}}
	t.Cleanup(http.CloseIdleConnections)
	api, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: config.Host}, http)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// clock is what the guest's clock says, in full seconds.
func (g kubeadmGuest) clock(t *testing.T) time.Time {
	t.Helper()
	seconds, err := strconv.ParseInt(g.Run(t, "date", "+%s"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(seconds, 0)
}

// certificate returns the client certificate that the node has.
func (g kubeadmGuest) certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	text := []byte(g.Run(t, "cat", clientPair))
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// wantNamesPair checks that the node's kubeconfig names the file of its client certificate.
func (g kubeadmGuest) wantNamesPair(t *testing.T) {
	t.Helper()
	if config := g.Run(t, "cat", "/etc/kubernetes/kubelet.conf"); strings.Count(config, clientPair) != 2 {
		t.Errorf("the kubeconfig does not name certificate and key in %s:\n%s", clientPair, config)
	}
}

// wantLease waits until the node has renewed its Lease after a moment.
func (g kubeadmGuest) wantLease(t *testing.T, api kubernetes.Interface, since time.Time) {
	t.Helper()
	eventually(t, podWithin, "the Lease of "+g.Name+" is renewed", func(ctx context.Context) error {
		lease, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, g.Name, metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime.Time.Before(since) {
			err = fmt.Errorf("at %v", lease.Spec.RenewTime)
		}
		return err
	})
}

// wantLogs checks that the API server reaches the kubelet.
func (g kubeadmGuest) wantLogs(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	pods := api.CoreV1().Pods(metav1.NamespaceSystem)
	eventually(t, podWithin, "the API server reaches the kubelet", func(ctx context.Context) error {
		text, err := pods.GetLogs("kube-scheduler-"+g.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err == nil && len(text) == 0 {
			err = errors.New("the log is empty")
		}
		return err
	})
}

// saysWhatToDo waits until the agent has logged that its certificate has expired, when, and what to do.
func (g kubeadmGuest) saysWhatToDo(t *testing.T, expired *x509.Certificate) {
	t.Helper()
	want := []string{"expired at " + expired.NotAfter.UTC().Format(time.RFC3339), "kubeadm token create"}
	eventually(t, podWithin, "the agent says what to do", func(ctx context.Context) error {
		const script = "journalctl --unit $0 --no-pager --output cat | grep 'no new client certificate' | tail -n 1"
		said, err := g.Output(ctx, "sh", "-c", script, g.unit)
		for _, text := range want {
			if err == nil && !strings.Contains(said, text) {
				err = fmt.Errorf("it says %q, want %q", said, text)
			}
		}
		if err == nil {
			t.Log(said)
		}
		return err
	})
}

// wantTask checks that a pod's container runs, as containerd has it.
func (g kubeadmGuest) wantTask(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	tasks, err := g.ctr(t.Context(), "tasks", "ls")
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	for line := range strings.Lines(tasks) {
		if strings.HasPrefix(line, id) && strings.Contains(line, "RUNNING") {
			return
		}
	}
	t.Errorf("container %s of %s does not run:\n%s", id, pod.Name, tasks)
}

// bootstrapKubeconfig makes a bootstrap kubeconfig on a server with the commands of docs/replace-the-kubelet.md, and
// returns it.
func (g kubeadmGuest) bootstrapKubeconfig(t *testing.T) string {
	t.Helper()
	g.follows(t, asAdmin+"cd /root\n"+docBlock(t, replaceKubelet, "--client-name kubelet-bootstrap"))
	return g.Run(t, "cat", "/root/bootstrap-kubelet.conf")
}

// resumesWith gives the node a bootstrap kubeconfig, and waits until it has a certificate that is valid. The agent is
// not started again.
func (g kubeadmGuest) resumesWith(t *testing.T, bootstrap string) {
	t.Helper()
	const path = "/etc/kubernetes/bootstrap-kubelet.conf"
	g.Write(t, path+".new", bootstrap)
	g.Run(t, "chmod", "600", path+".new")
	g.Run(t, "mv", path+".new", path)
	took := eventually(t, podWithin, g.Name+" has another certificate", func(context.Context) error {
		if now := g.certificate(t); now.NotAfter.Before(g.clock(t)) {
			return fmt.Errorf("valid until %v", now.NotAfter)
		}
		return nil
	})
	t.Logf("%s has a certificate %v after it got a token", g.Name, took.Round(time.Second))
	g.Run(t, "rm", path)
}
