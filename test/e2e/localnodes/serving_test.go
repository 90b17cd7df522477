//go:build e2e

package localnodes

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestServingCertificates: with serverTLSBootstrap the agents request the certificates of their servers themselves. The
// one of node 2 is approved and renewed, and of 100 connections a second none fails meanwhile. The first node requests
// none: it has a pair of `up`, which is for its names and addresses.
func TestServingCertificates(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
		"serverTLSBootstrap: true\nfailSwapOn: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "2", "--agent-config", config, "--cluster-signing-duration", "3m", "--without",
		"coredns,metrics-server,csi")
	second := c.NodeName + "-2"
	namespace := c.Namespace(t)
	c.Servers(t, namespace, c.NodeName, second)
	s := serverOf(t, c, second)
	rig.Eventually(t, 30*time.Second, "the second node has a certificate", func(ctx context.Context) error {
		_, err := s.ask(ctx)
		return err
	})
	rounds := s.askUntilRenewed(t)
	t.Logf("renewed after %d connections", rounds)
	for _, node := range []string{c.NodeName, second} {
		rig.Eventually(t, 30*time.Second, "the API server trusts the server of "+node, func(context.Context) error {
			_, err := c.TryKubectl(t, "-n", namespace, "exec", "on-"+node, "--", "/workload", "env", "HOSTNAME")
			return err
		})
	}
	requests, err := c.API.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	signed := 0
	for _, r := range requests.Items {
		if !strings.HasPrefix(r.Name, "node-csr-") || r.Spec.SignerName != certificatesv1.KubeletServingSignerName {
			continue
		}
		switch {
		case r.Spec.Username == "system:node:"+second && len(r.Status.Certificate) > 0:
			signed++
		case r.Spec.Username == "system:node:"+c.NodeName:
			t.Errorf("the first node has made a request: %+v", r.Status)
		}
	}
	if signed < 2 {
		t.Errorf("%d requests of %s were signed, want 2 or more", signed, second)
	}
}

// A nodeServer is the port of a node's agent.
type nodeServer struct {
	url    string
	config *tls.Config
}

func serverOf(t *testing.T, c *rig.Cluster, name string) *nodeServer {
	t.Helper()
	node, err := c.API.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &nodeServer{}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			s.url = "https://" + net.JoinHostPort(a.Address, strconv.Itoa(c.AgentPort)) + "/healthz"
		}
	}
	if s.config, err = rest.TLSConfigFor(c.Config); err != nil || s.url == "" {
		t.Fatalf("%s: address %q, %v", name, s.url, err)
	}
	return s
}

// ask makes a request on a connection of its own, and returns the serial number of the server's certificate, which must
// be of the cluster's authority and for the node's address.
func (s *nodeServer) ask(ctx context.Context) (serial string, err error) {
	transport := &http.Transport{TLSClientConfig: s.config.Clone(), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s", response.Status)
	}
	return response.TLS.PeerCertificates[0].SerialNumber.String(), nil
}

// askUntilRenewed makes 100 requests a second, the next whether or not the one before was answered, until the server
// shows another certificate. It returns how many there were.
func (s *nodeServer) askUntilRenewed(t *testing.T) int {
	t.Helper()
	first, err := s.ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	renewed := make(chan struct{})
	var once sync.Once
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(3 * time.Minute) // due 36 to 132 s after the first
	for n := 0; ; n++ {
		select {
		case <-renewed:
			return n
		case <-bound:
			t.Fatalf("not renewed within 3 minutes, after %d requests", n)
		case <-tick.C:
		}
		asking.Go(func() {
			serial, err := s.ask(context.WithoutCancel(t.Context()))
			switch {
			case err != nil:
				t.Errorf("request %d: %v", n, err)
			case serial != first:
				once.Do(func() { close(renewed) })
			}
		})
	}
}
