//go:build e2e && lab

package lab

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The planted client certificate is renewed 30 s to 210 s after it was planted, which is 70 to 90 per cent of its
// lifetime (core/nodecert), and expires 300 s after it. Chosen: a kubelet starts within half a minute on two busy
// cores.
const (
	plantedLife = 15 * time.Minute
	plantedUsed = plantedLife*7/10 - 30*time.Second
)

// renewsWithin bounds the time until a planted certificate is renewed.
const renewsWithin = plantedLife - plantedUsed

// plantCertificate stops the kubelet and gives the node a client certificate that is due soon, signed by the cluster's
// authority, in place of the one that it has.
func (s *kubeadmSwap) plantCertificate() {
	s.t.Helper()
	authority, err := tls.X509KeyPair([]byte(s.Run(s.t, "cat", "/etc/kubernetes/pki/ca.crt")),
		[]byte(s.Run(s.t, "cat", "/etc/kubernetes/pki/ca.key")))
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	begin := s.clock(s.t).Add(-plantedUsed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(begin.UnixNano()),
		Subject:      pkix.Name{CommonName: "system:node:" + s.Name, Organization: []string{"system:nodes"}},
		NotBefore:    begin,
		NotAfter:     begin.Add(plantedLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	var text bytes.Buffer
	for _, block := range []*pem.Block{
		{Type: "CERTIFICATE", Bytes: certificate},
		{Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := pem.Encode(&text, block); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Run(s.t, "systemctl", "stop", unitKubelet)
	planted := strings.Replace(clientPair, "current", "planted", 1)
	s.Write(s.t, planted, text.String())
	s.Run(s.t, "chmod", "600", planted)
	s.Run(s.t, "ln", "-sfn", planted, clientPair)
}

// renews waits until the agent has another client certificate in the kubelet's file, which the kubeconfig names. Of
// some 100 requests a second to the agent's port none fails meanwhile. The agent asks the API server each second
// whether their sender may do so, with the certificate that it has then. None of its own requests is refused.
func (s *kubeadmSwap) renews(was *x509.Certificate) {
	s.t.Helper()
	s.wantNamesPair(s.t)
	stop := s.load()
	took := eventually(s.t, renewsWithin, "the client certificate is renewed", func(ctx context.Context) error {
		if now := s.certificate(s.t); now.Equal(was) {
			return fmt.Errorf("serial number %v, of %v to %v", now.SerialNumber, now.NotBefore, now.NotAfter)
		}
		return ctx.Err()
	})
	// The Lease is renewed every 10 s: twice with the new certificate.
	renewed := s.clock(s.t).Add(15 * time.Second)
	s.wantLease(s.t, s.api, renewed)
	asked, over := stop()
	now := s.certificate(s.t)
	s.t.Logf("renewed after %v: valid from %v to %v; %d requests in %v", took.Round(time.Second), now.NotBefore,
		now.NotAfter, asked, over.Round(time.Second))
	if now.Subject.String() != was.Subject.String() {
		s.t.Errorf("the new certificate is of %v, the old one of %v", now.Subject, was.Subject)
	}
	metrics, err := s.ask(s.t.Context(), kubeletClient(), "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "rest_client_requests_total{") &&
			(strings.Contains(line, `code="401"`) || strings.Contains(line, `code="403"`)) {
			s.t.Errorf("requests of the agent were refused: %s", line)
		}
	}
}

// kubeletClient is for the kubelet's port, whose certificate nobody has signed.
func kubeletClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
		MaxIdleConnsPerHost: loadAtOnce,
	}}
}

// loadAtOnce is how many requests of load may be under way (chosen: those of half a second).
const loadAtOnce = 50

// load makes 100 requests a second to the kubelet's port, the next whether or not the one before was answered, until
// the returned function is called. That returns how many there were, and in what time.
func (s *kubeadmSwap) load() (stop func() (int, time.Duration)) {
	ctx, cancel := context.WithCancel(s.t.Context())
	client, began := kubeletClient(), time.Now()
	places := make(chan struct{}, loadAtOnce)
	var asking sync.WaitGroup
	asked := 0
	asking.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			places <- struct{}{}
			asked++
			n := asked
			asking.Go(func() {
				defer func() { <-places }()
				if _, err := s.ask(context.WithoutCancel(ctx), client, "/healthz"); err != nil {
					s.t.Errorf("request %d: %v", n, err)
				}
			})
		}
	})
	stop = sync.OnceValues(func() (int, time.Duration) {
		cancel()
		over := time.Since(began)
		asking.Wait()
		client.CloseIdleConnections()
		return asked, over
	})
	s.t.Cleanup(func() { stop() })
	return stop
}
