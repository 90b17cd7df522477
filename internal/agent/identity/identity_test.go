package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// start runs an identity until the test ends, or until end is called.
func start(t *testing.T, o Options) (i *Identity, end func()) {
	t.Helper()
	i, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	end = func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return i, end
}

// getNode asks for the node with the identity.
func getNode(ctx context.Context, t *testing.T, i *Identity) error {
	t.Helper()
	client, err := i.Client(-1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return client.Get(ctx, kube.Nodes, "", node, &corev1.Node{})
}

// TestBootstrap: a node with a token gets a certificate, and files that the kubelet and client-go read. A request that
// came before waits and is sent as the node. The next agent uses the files and asks for nothing.
func TestBootstrap(t *testing.T) {
	c := newCluster(t)
	c.set(ignore)
	i, end := start(t, c.options())
	early := make(chan error, 1)
	go func() { early <- getNode(t.Context(), t, i) }()
	eventually(t, "a request is made", func() bool { return len(c.made()) == 1 })
	if _, err := os.Stat(c.path("kubelet.conf")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a kubeconfig before there is a certificate: %v", err)
	}
	c.set(c.approve(-time.Minute, time.Hour))
	if err := <-early; err != nil {
		t.Errorf("the request that waited: %v", err)
	}
	if !slices.Equal(c.users, []string{"system:node:" + node}) {
		t.Errorf("the node was asked for by %q", c.users)
	}
	config := loginOf(t, c.path("kubelet.conf"))
	if config.CertFile != c.path("pki/kubelet-client-current.pem") || config.KeyFile != config.CertFile {
		t.Errorf("the kubeconfig leads to %s and %s", config.CertFile, config.KeyFile)
	}
	target, err := os.Readlink(config.CertFile)
	if err != nil || !filepath.IsAbs(target) {
		t.Errorf("the current pair is %q, %v", target, err)
	}
	for _, path := range []string{target, c.path("kubelet.conf")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	eventually(t, "the key of the request is gone", func() bool {
		_, err := os.Stat(c.path("pki/kubelet-client.key.tmp"))
		return errors.Is(err, fs.ErrNotExist)
	})
	end()
	if err := os.Remove(c.path("bootstrap.conf")); err != nil { // as kubeadm does
		t.Fatal(err)
	}
	next, _ := start(t, c.options())
	if err := getNode(t.Context(), t, next); err != nil || len(c.made()) != 1 {
		t.Errorf("the next agent: %v, %d requests", err, len(c.made()))
	}
}

// TestCrashWhileWaiting: the agent after one that crashed waits for the same request, and finds an answer that came in
// between.
func TestCrashWhileWaiting(t *testing.T) {
	c := newCluster(t)
	c.set(ignore)
	_, end := start(t, c.options())
	eventually(t, "a request is made", func() bool { return len(c.made()) == 1 })
	end()
	c.set(c.approve(-time.Minute, time.Hour))
	i, _ := start(t, c.options())
	if err := getNode(t.Context(), t, i); err != nil {
		t.Error(err)
	}
	if made := c.made(); len(made) != 1 {
		t.Errorf("%d requests: %q", len(made), made)
	}
}

// TestBadAnswers: whatever becomes of a request, the error says what and what to do, nothing is written, and the node
// gets its certificate once the reason is gone.
func TestBadAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*testing.T, *cluster)
		want  []string
		again bool // another request needs another key
	}{
		"denied": {
			spoil: func(_ *testing.T, c *cluster) { c.set(deny) },
			want:  []string{"was denied: Unknown: no such machine", "find out who denied it"},
			again: true,
		},
		"another authority": {
			spoil: func(t *testing.T, c *cluster) {
				other := newAuthority(t, "other")
				c.set(c.signBy(other, -time.Minute, time.Hour))
			},
			want:  []string{"does not accept the client certificate", "CN=other", "--client-ca-file"},
			again: true,
		},
		"expired token": {
			spoil: func(_ *testing.T, c *cluster) { c.token = "another" },
			want:  []string{"Unauthorized", "it has expired, or is of another cluster"},
		},
		"wrong clock": {
			spoil: func(_ *testing.T, c *cluster) { c.set(c.approve(-2*time.Hour, -time.Hour)) },
			want:  []string{"expired at", "this machine's clock is at", "set the clock"},
			again: true,
		},
		"another cluster's API server": {
			spoil: func(t *testing.T, c *cluster) { c.write("ca.crt", string(newAuthority(t, "other").pem())) },
			want:  []string{"unknown authority", "compare it with the cluster's"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			test.spoil(t, c)
			i, _ := start(t, c.options())
			eventually(t, "an error", func() bool { return i.keeper.why().Error() != "it is requested" })
			for _, want := range test.want {
				if !strings.Contains(i.keeper.why().Error(), want) {
					t.Errorf("%v: does not say %q", i.keeper.why(), want)
				}
			}
			for _, path := range []string{"kubelet.conf", "pki/kubelet-client-current.pem"} {
				if _, err := os.Stat(c.path(path)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s was written: %v", path, err)
				}
			}
			if _, err := os.Stat(c.path("pki/kubelet-client.key.tmp")); errors.Is(err, fs.ErrNotExist) != test.again {
				t.Errorf("the key of the request: %v", err)
			}
			c.mu.Lock()
			c.token = token
			c.mu.Unlock()
			c.write("ca.crt", string(c.ca.pem()))
			c.set(c.approve(-time.Minute, time.Hour))
			if test.again {
				return // the next request is due in a minute: core/nodecert's scenarios
			}
			eventually(t, "a certificate", func() bool { return i.Leaf() != nil })
		})
	}
}

// TestNoFiles: without a kubeconfig and without a bootstrap kubeconfig there is no node; the error names both.
func TestNoFiles(t *testing.T) {
	c := newCluster(t)
	o := c.options()
	o.Bootstrap = c.path("none.conf")
	_, err := New(o)
	if err == nil || !strings.Contains(err.Error(), o.Kubeconfig) || !strings.Contains(err.Error(), o.Bootstrap) ||
		!strings.Contains(err.Error(), "kubeadm token create") {
		t.Errorf("%v", err)
	}
}

// TestSlept: a node whose certificate expired while it was off asks as the bootstrap kubeconfig says. Without that, the
// agent runs on, and logs in as soon as there is one.
func TestSlept(t *testing.T) {
	c := newCluster(t)
	files := store{dir: c.path("pki"), name: clientFiles}
	signer, key, err := files.pending()
	if err != nil {
		t.Fatal(err)
	}
	old := c.ca.sign(t, x509.Certificate{Subject: nodeTemplate(node).Subject}, signer.Public(), -2*time.Hour, -time.Hour)
	if err := files.save(old, key, time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := writeKubeconfig(c.path("kubelet.conf"), loginOf(t, c.path("bootstrap.conf")), files.current()); err != nil {
		t.Fatal(err)
	}
	bootstrap, err := os.ReadFile(c.path("bootstrap.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.path("bootstrap.conf")); err != nil {
		t.Fatal(err)
	}
	i, _ := start(t, c.options())
	eventually(t, "the error", func() bool {
		said := i.keeper.why().Error()
		return strings.Contains(said, "kubelet.conf expired at ") && strings.Contains(said, "kubeadm token create")
	})
	c.write("bootstrap.conf", string(bootstrap))
	eventually(t, "a new certificate", func() bool { return i.Leaf() != nil && i.Leaf().NotAfter.After(time.Now()) })
	if err := getNode(t.Context(), t, i); err != nil {
		t.Error(err)
	}
}

// TestRotation: while certificates are renewed all the time, no request of several clients fails, and requests are sent
// with the new certificates.
func TestRotation(t *testing.T) {
	c := newCluster(t)
	c.set(c.approve(-99*time.Minute, time.Minute)) // to be renewed at once
	i, end := start(t, c.options())
	var sent, renewed atomic.Int64
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		client, err := i.Client(-1, 0)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			var last *x509.Certificate
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := client.Get(t.Context(), kube.Nodes, "", node, &corev1.Node{}); err != nil {
					t.Errorf("request %d: %v", sent.Load(), err)
					return
				}
				if now := i.Leaf(); now != last {
					last = now
					renewed.Add(1)
				}
				sent.Add(1)
			}
		})
	}
	eventually(t, "twenty renewals and 500 requests", func() bool {
		return t.Failed() || len(c.made()) > 20 && renewed.Load() > 20 && sent.Load() > 500
	})
	close(stop)
	clients.Wait()
	end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened < 20 {
		t.Errorf("%d connections for %d certificates: the new ones were not used", c.opened, len(c.order))
	}
}

// TestFilesOfOthers: what another program puts in place is used by running clients: a pair, and the authority.
func TestFilesOfOthers(t *testing.T) {
	c := newCluster(t)
	i, _ := start(t, c.options())
	if err := getNode(t.Context(), t, i); err != nil {
		t.Fatal(err)
	}
	first := i.Leaf()
	files := store{dir: c.path("pki"), name: clientFiles}
	signer, key, err := files.pending()
	if err != nil {
		t.Fatal(err)
	}
	chain := c.ca.sign(t, x509.Certificate{Subject: nodeTemplate(node).Subject}, signer.Public(), -time.Minute,
		2*time.Hour)
	if err := files.save(chain, key, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other pair is used", func() bool {
		return getNode(t.Context(), t, i) == nil && !i.Leaf().Equal(first)
	})
	c.write("ca.crt", string(newAuthority(t, "other").pem())) // half of a change: the API server is not known any more
	eventually(t, "the other authority is used", func() bool { return getNode(t.Context(), t, i) != nil })
	c.write("ca.crt", "")
	if err := i.login.Check(); err == nil || !strings.Contains(err.Error(), "ca.crt: the file is empty") {
		t.Errorf("an empty authority: %v", err)
	}
	c.write("ca.crt", "half")
	c.write("ca.crt", string(c.ca.pem()))
	eventually(t, "the authority is used", func() bool { return getNode(t.Context(), t, i) == nil })
}

// TestPairInKubeconfig: a pair in the kubeconfig itself, as kubeadm writes it, is stored where the kubelet would, and
// renewed at once.
func TestPairInKubeconfig(t *testing.T) {
	c := newCluster(t)
	signer, key, err := store{dir: c.path("elsewhere"), name: "x"}.pending()
	if err != nil {
		t.Fatal(err)
	}
	chain := c.ca.sign(t, x509.Certificate{Subject: nodeTemplate(node).Subject}, signer.Public(), -time.Minute, time.Hour)
	c.write("user.crt", string(chain))
	c.write("user.key", string(key))
	c.write("kubelet.conf", c.kubeconfig("client-certificate: "+c.path("user.crt")+", client-key: "+c.path("user.key")))
	o := c.options()
	o.Bootstrap = ""
	c.set(ignore)
	i, _ := start(t, o)
	stored := c.path("pki/kubelet-client-current.pem")
	if pair, err := tls.LoadX509KeyPair(stored, stored); err != nil || !pair.Leaf.Equal(i.Leaf()) {
		t.Errorf("the pair was not stored: %v", err)
	}
	eventually(t, "a request", func() bool { return len(c.made()) == 1 })
	before := i.Leaf()
	c.set(c.approve(-time.Minute, 2*time.Hour))
	eventually(t, "a renewed certificate", func() bool { return !i.Leaf().Equal(before) })
}
