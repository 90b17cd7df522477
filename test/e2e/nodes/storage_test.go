//go:build e2e

package nodes

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate/csr"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestStorageRenewal: a machine that joined with a kubeconfig of user plimsoll:storage renews that certificate, and
// makes volumes after the one in the kubeconfig has expired. When the machine is removed, so are the objects that say
// how much room it has. A request of that user for another user's certificate is denied.
func TestStorageRenewal(t *testing.T) {
	c := rig.Shared(t)
	// It is renewed in its last third, which begins some seconds after the join.
	expires := time.Now().Add(150 * time.Second).Truncate(time.Second)
	given := storageKubeconfig(t, c, time.Now().Add(-4*time.Minute), expires)
	m := newMachine(t, c, "s", 9)
	if _, err := m.join(append(invite(t, c).with(), "--storage-kubeconfig", given)...); err != nil {
		t.Fatal(err)
	}
	ready(t, c, m.name)
	t.Run("denied", func(t *testing.T) { denied(t, c, given) })
	rig.Eventually(t, 2*time.Minute, "the certificate is renewed", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(m.state, "pki", "storage.crt"))
		if err != nil {
			return err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return fmt.Errorf("no certificate: %q", text)
		}
		is, err := x509.ParseCertificate(block.Bytes)
		if err != nil || is.Subject.CommonName != "plimsoll:storage" || !is.NotAfter.After(expires.Add(24*time.Hour)) {
			return fmt.Errorf("it is of %q, until %v: %v", is.Subject.CommonName, is.NotAfter, err)
		}
		return nil
	})
	if left := time.Until(expires); left < 0 {
		t.Errorf("it was renewed %v too late", -left)
	}
	old := clientOf(t, given)
	if err := os.Remove(given); err != nil { // it was needed once
		t.Fatal(err)
	}
	rig.Eventually(t, 3*time.Minute, "the API server refuses the old certificate", func(ctx context.Context) error {
		_, err := old.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if apierrors.IsUnauthorized(err) {
			return nil
		}
		return fmt.Errorf("it answered: %v", err)
	})

	namespace := c.Namespace(t)
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: late}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 16Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: `+m.name+`}
  containers:
  - name: main
    image: plimsoll.dev/workload:dev
    args: [write, /data/file, text]
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: late}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", namespace, "apply", "-f", path)
	c.Kubectl(t, "-n", namespace, "wait", "pod/late", "--for=jsonpath={.status.phase}=Succeeded", rig.KubectlWaits)
	c.Kubectl(t, "-n", namespace, "delete", "pod/late", "persistentvolumeclaim/late")
	rig.Eventually(t, time.Minute, "the volume is removed", func(context.Context) error {
		if left, err := os.ReadDir(filepath.Join(m.state, "volumes", "volumes")); err != nil || len(left) > 0 {
			return fmt.Errorf("%v, %v", left, err)
		}
		return nil
	})

	if n := rooms(t, c, m.name); n == 0 {
		t.Error("no CSIStorageCapacity is of the machine")
	}
	out, err := exec.Command(rig.Binary(t), "node", "remove", m.name, "--instance", c.Name, "--state-dir",
		c.StateDir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rig.Eventually(t, 30*time.Second, "the machine keeps nothing", func(context.Context) error { return m.remains() })
	rig.Eventually(t, time.Minute, "no CSIStorageCapacity of the machine", func(context.Context) error {
		if n := rooms(t, c, m.name); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// rooms returns how many CSIStorageCapacity objects are of a node.
func rooms(t *testing.T, c *rig.Cluster, node string) (n int) {
	t.Helper()
	all, err := c.API.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range all.Items {
		if room.NodeTopology != nil && room.NodeTopology.MatchLabels["plimsoll.dev/node"] == node {
			n++
		}
	}
	return n
}

// storageKubeconfig makes a kubeconfig as users copy it, but with a certificate that is valid for a given time.
func storageKubeconfig(t *testing.T, c *rig.Cluster, from, until time.Time) string {
	t.Helper()
	dir := filepath.Join(c.StateDir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "storage.crt"), filepath.Join(dir, "storage.key"))
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "plimsoll:storage"},
		NotBefore:    from,
		NotAfter:     until,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, own.Leaf.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(filepath.Join(dir, "storage.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		if user.ClientKeyData, err = os.ReadFile(filepath.Join(dir, "storage.key")); err != nil {
			t.Fatal(err)
		}
		user.ClientCertificateData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		user.ClientCertificate, user.ClientKey = "", ""
	}
	path := filepath.Join(t.TempDir(), "storage.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// denied: with the kubeconfig nobody gets the certificate of another user.
func denied(t *testing.T, c *rig.Cluster, kubeconfig string) {
	client := clientOf(t, kubeconfig)
	own, err := tls.LoadX509KeyPair(filepath.Join(c.StateDir, "pki", "storage.crt"),
		filepath.Join(c.StateDir, "pki", "storage.key"))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "plimsoll-admin",
		Organization: []string{"plimsoll:cluster-admins"}}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	name, _, err := csr.RequestCertificateWithContext(t.Context(), client,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "",
		certificatesv1.KubeAPIServerClientSignerName, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 30*time.Second, "the request is denied", func(ctx context.Context) error {
		r, err := c.API.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range r.Status.Conditions {
			if condition.Type == certificatesv1.CertificateDenied && condition.Status == corev1.ConditionTrue &&
				strings.Contains(condition.Message, "in its own name only") {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", r.Status.Conditions)
	})
}
