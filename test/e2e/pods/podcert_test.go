//go:build e2e

package pods

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// issuer is a signer that answers when the test says so.
type issuer struct {
	bench
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

const issuerName = "example.com/e2e"

// withIssuer starts an instance whose API server and agent have the feature gate.
func withIssuer(t *testing.T) issuer {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config, program := filepath.Join(dir, "kubelet.yaml"), filepath.Join(dir, "controlplane")
	for path, text := range map[string]string{
		config: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailSwapOn: false\n" +
			"featureGates: {PodCertificateRequest: true}\n",
		program: `#!/bin/sh
[ "$1" = kube-apiserver ] && set -- "$@" --feature-gates=PodCertificateRequest=true \
	--runtime-config=certificates.k8s.io/v1beta1=true
exec "` + rig.Binary(t) + `-controlplane" "$@"
`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := rig.New(t, "pcert", rig.Options{UpFlags: []string{"--agent-config", config, "--controlplane-binary", program}})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := issuer{bench: bench{c, t, c.Namespace(t)}, key: key}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	i.root = i.sign(template, template, key.Public())
	return i
}

func (i issuer) sign(template, parent *x509.Certificate, public any) *x509.Certificate {
	i.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return certificate
}

// pod creates a pod with a certificate in three files.
func (i issuer) pod(name, keyType string) *corev1.Pod {
	i.t.Helper()
	spec := lasting(workload("c", "http"))
	spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(1234)), FSGroup: ptr(int64(4321))}
	spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{
			SignerName: issuerName, KeyType: keyType, MaxExpirationSeconds: ptr(int32(3600)),
			CredentialBundlePath: "both.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
			UserAnnotations: map[string]string{"example.com/for": name},
		}}},
	}}}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return i.create(name, spec)
}

// requests returns the requests for a pod.
func (i issuer) requests(
	ctx context.Context, pod *corev1.Pod,
) (own []certificatesv1beta1.PodCertificateRequest, err error) {
	all, err := i.API.CertificatesV1beta1().PodCertificateRequests(i.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range all.Items {
		if r.Spec.PodUID == pod.UID {
			own = append(own, r)
		}
	}
	return own, nil
}

// asked waits for the count-th request for a pod, which has no answer yet.
func (i issuer) asked(pod *corev1.Pod, count int, within time.Duration) (r *certificatesv1beta1.PodCertificateRequest) {
	i.t.Helper()
	took := rig.Eventually(i.t, within, "request of pod "+pod.Name, func(ctx context.Context) error {
		own, err := i.requests(ctx, pod)
		if err != nil {
			return err
		}
		if len(own) != count {
			return fmt.Errorf("%d requests, want %d", len(own), count)
		}
		for n := range own {
			if len(own[n].Status.Conditions) == 0 {
				r = &own[n]
				return nil
			}
		}
		return errors.New("all have an answer")
	})
	if r.Spec.UnverifiedUserAnnotations["example.com/for"] != pod.Name || *r.Spec.MaxExpirationSeconds != 3600 {
		i.t.Errorf("requested %+v", r.Spec)
	}
	i.t.Logf("request %d of pod %s after %v", count, pod.Name, took.Round(100*time.Millisecond))
	return r
}

func (i issuer) answer(r *certificatesv1beta1.PodCertificateRequest, condition metav1.Condition) {
	i.t.Helper()
	condition.Status, condition.LastTransitionTime = metav1.ConditionTrue, metav1.Now()
	r.Status.Conditions = []metav1.Condition{condition}
	requests := i.API.CertificatesV1beta1().PodCertificateRequests(i.ns)
	if _, err := requests.UpdateStatus(i.t.Context(), r, metav1.UpdateOptions{}); err != nil {
		i.t.Fatal(err)
	}
}

// issue issues a certificate that is to be renewed as soon as the API server allows: 10 min after its beginning, which
// may be 5 min ago.
func (i issuer) issue(r *certificatesv1beta1.PodCertificateRequest) {
	i.t.Helper()
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		i.t.Fatal(err)
	}
	from := time.Now().Add(-290 * time.Second).Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: r.Spec.PodName},
		NotBefore: from, NotAfter: from.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	leaf := i.sign(template, i.root, request.PublicKey)
	text := "leaf\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})) +
		"root\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.root.Raw}))
	r.Status.CertificateChain = text
	for to, at := range map[**metav1.Time]time.Time{
		&r.Status.NotBefore: from, &r.Status.BeginRefreshAt: from.Add(10 * time.Minute),
		&r.Status.NotAfter: from.Add(time.Hour),
	} {
		*to = &metav1.Time{Time: at}
	}
	i.answer(r, metav1.Condition{Type: "Issued", Reason: "Issued", Message: "here it is"})
}

// sees checks that a pod's key and chain match and are for it, and returns the key.
func (i issuer) sees(name string) string {
	i.t.Helper()
	read := func(file string) string { return i.in(name, "cat", "/v/"+file) + "\n" }
	key, chain, both := read("key.pem"), read("chain.pem"), read("both.pem")
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		i.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(i.root)
	client := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := pair.Leaf.Verify(client); err != nil {
		i.t.Error(err)
	}
	if pair.Leaf.Subject.CommonName != name || len(pair.Certificate) != 2 || both != key+chain ||
		strings.Contains(chain, "root\n") {
		i.t.Errorf("the pod sees %q, and %q", chain, pair.Leaf.Subject)
	}
	return key
}

// A pod with a certificate starts when its signer has issued it, and sees a key and a chain that belong together. The
// next agent uses them and requests nothing. If a request is denied, an Event and a condition say so, and the request
// is not repeated. A pod that waits for its certificate ends at once when it is deleted.
func TestPodCertificate(t *testing.T) {
	i := withIssuer(t)
	p := i.pod("p", "ECDSAP256")
	r := i.asked(p, 1, soon)
	i.event("p", "FailedMount", issuerName, "PodCertificateRequest "+i.ns+"/"+r.Name+" has no answer yet")
	i.issue(r)
	began := time.Now()
	i.ready("p")
	t.Logf("ready %v after the certificate was issued", time.Since(began).Round(100*time.Millisecond))
	key := i.sees("p")
	log, err := os.ReadFile(i.LogFile("agent"))
	content := strings.Split(key, "\n")[1]
	if err != nil || strings.Contains(string(log), "PRIVATE") || strings.Contains(string(log), content) {
		t.Errorf("the agent's log has the key, or: %v", err)
	}

	agent := i.PID(t, "agent")
	if err := syscall.Kill(agent, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	later := i.pod("later", "ED25519") // the next agent has seen both when this one asks
	r = i.asked(later, 1, soon)
	if now := i.PID(t, "agent"); now == agent {
		t.Error("the agent is the same")
	}
	i.issue(r)
	i.ready("later")
	i.sees("later")
	if own, err := i.requests(t.Context(), p); err != nil || len(own) != 1 || i.sees("p") != key {
		t.Errorf("after a restart of the agent: %d requests, %v", len(own), err)
	}

	denied := i.pod("denied", "RSA3072")
	i.answer(i.asked(denied, 1, soon), metav1.Condition{
		Type: "Denied", Reason: "UnsupportedKeyType", Message: "want ED25519",
	})
	texts := []string{issuerName, `reason "UnsupportedKeyType"`, `message "want ED25519"`, "replace the pod"}
	i.event("denied", "PodCertificateDenied", texts...)
	i.until("denied", "says why it waits", soon, func(p *corev1.Pod) error {
		c := condition(p, corev1.PodReadyToStartContainers)
		if c.Reason != "PodCertificateDenied" || !containsAll(c.Message, texts) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	waits := i.pod("waits", "ECDSAP384")
	i.asked(waits, 1, soon)
	i.delete("waits", -1, 5*time.Second)
	if own, err := i.requests(t.Context(), denied); err != nil || len(own) != 1 {
		t.Errorf("denied: %d requests, %v", len(own), err)
	}
	i.delete("denied", -1, 5*time.Second)
}

// A certificate is renewed when its signer wants that: the running container sees a new key and a chain for it.
func TestPodCertificateRenewal(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes six minutes, since the API server takes no earlier renewal: set PLIMSOLL_E2E_LONG=1 (make test-long)")
	}
	i := withIssuer(t)
	p := i.pod("p", "ECDSAP521")
	i.issue(i.asked(p, 1, soon))
	i.ready("p")
	key, began := i.sees("p"), time.Now()
	r := i.asked(p, 2, 10*time.Minute)
	if took := time.Since(began); took < 5*time.Minute {
		t.Errorf("renewed after %v", took)
	}
	i.issue(r)
	rig.Eventually(t, soon, "the pod sees a new key", func(context.Context) error {
		if i.in("p", "cat", "/v/key.pem")+"\n" == key {
			return errors.New("it is the same")
		}
		return nil
	})
	i.sees("p")
	if restarts := container(i.ready("p"), "c").RestartCount; restarts != 0 {
		t.Errorf("%d restarts", restarts)
	}
}
