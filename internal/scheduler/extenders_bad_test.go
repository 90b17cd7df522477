package scheduler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// configured reads a file with one extender.
func configured(t *testing.T, format string, args ...any) *schedulerconfig.Config {
	t.Helper()
	c, _, err := schedulerconfig.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n- " + fmt.Sprintf(format, args...)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// authority makes a CA, a serving certificate for localhost and a client's, in a directory.
func authority(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Ensure(dir, pki.Plan{
		Authorities: []pki.Authority{{Name: "ca"}},
		Leaves: []pki.Leaf{
			{Name: "server", Authority: "ca", CommonName: "extender", Server: true, DNSNames: []string{"extender.example"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}},
			{Name: "client", Authority: "ca", CommonName: "system:kube-scheduler", Client: true},
		},
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExtenderTLS asks a real server over TLS, as each way to say it in the file has it.
func TestExtenderTLS(t *testing.T) {
	dir, foreign := authority(t), authority(t)
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	data := func(path string) string { return base64.StdEncoding.EncodeToString(read(path)) }
	start := func(clients tls.ClientAuthType) string {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{NodeNames: &[]string{"a"}})
		}))
		pair, err := tls.X509KeyPair(read(pki.CertPath(dir, "server")), read(pki.KeyPath(dir, "server")))
		if err != nil {
			t.Fatal(err)
		}
		ca := x509.NewCertPool()
		ca.AppendCertsFromPEM(read(pki.CertPath(dir, "ca")))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: clients, ClientCAs: ca}
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	open, closed := start(tls.NoClientCert), start(tls.RequireAndVerifyClientCert)
	ca, cert, key := pki.CertPath(dir, "ca"), pki.CertPath(dir, "client"), pki.KeyPath(dir, "client")
	for _, q := range []struct{ name, url, settings, failure string }{
		{"the CA's file", open, fmt.Sprintf("tlsConfig: {caFile: %s}", ca), ""},
		{"the CA itself", open, fmt.Sprintf("tlsConfig: {caData: %s}", data(ca)), ""},
		{"no CA, https in the URL", open, "weight: 1", "certificate signed by unknown authority"},
		{"no CA, enableHTTPS: as upstream, anybody", open, "enableHTTPS: true", ""},
		{"enableHTTPS with a CA", open, fmt.Sprintf("enableHTTPS: true, tlsConfig: {caFile: %s}", ca), ""},
		{"enableHTTPS with the wrong CA", open, fmt.Sprintf("enableHTTPS: true, tlsConfig: {caFile: %s}", pki.CertPath(foreign, "ca")), "x509"},
		{"insecure", open, "tlsConfig: {insecure: true}", ""},
		{"a name that it has", open, fmt.Sprintf("tlsConfig: {caFile: %s, serverName: extender.example}", ca), ""},
		{"a name that it has not", open, fmt.Sprintf("tlsConfig: {caFile: %s, serverName: other.example}", ca), "not other.example"},
		{"a client certificate in files", closed, fmt.Sprintf("tlsConfig: {caFile: %s, certFile: %s, keyFile: %s}", ca, cert, key), ""},
		{"a client certificate as data", closed, fmt.Sprintf("tlsConfig: {caData: %s, certData: %s, keyData: %s}", data(ca), data(cert), data(key)), ""},
		{"no client certificate", closed, fmt.Sprintf("tlsConfig: {caFile: %s}", ca), "certificate required"},
		{"another's client certificate", closed, fmt.Sprintf("tlsConfig: {caFile: %s, certFile: %s, keyFile: %s}", ca,
			pki.CertPath(foreign, "client"), pki.KeyPath(foreign, "client")), "tls: "},
	} {
		t.Run(q.name, func(t *testing.T) {
			c := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, %s}", q.url, q.settings)
			list, err := newExtenders(c.Extenders)
			if err != nil {
				t.Fatal(err)
			}
			passed, err := list[0].filter(t.Context(), &extenderv1.ExtenderArgs{Pod: testPod("p", "1"), NodeNames: &[]string{"a", "b"}}, []string{"a", "b"}, map[string]string{})
			switch {
			case q.failure == "" && (err != nil || len(passed) != 1 || passed[0] != "a"):
				t.Errorf("passed %q, %v", passed, err)
			case q.failure != "" && (err == nil || !strings.Contains(err.Error(), q.failure)):
				t.Errorf("passed %q, %v; want %s", passed, err, q.failure)
			}
		})
	}
}

// TestBadExtenders: whatever one does that is asked, the pod hears why it waits within the extender's time, what is read
// is bounded, and where it may be ignored the pod goes on.
func TestBadExtenders(t *testing.T) {
	wait := func(r *http.Request) { // until who asks goes away, which shows when all was read
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for _, q := range []struct {
		name, says string
		do         http.HandlerFunc
	}{
		{"hangs", "Client.Timeout exceeded", func(_ http.ResponseWriter, r *http.Request) { wait(r) }},
		{"begins and hangs", "Client.Timeout", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"NodeNames": ["n"`)
			w.(http.Flusher).Flush()
			wait(r)
		}},
		{"garbage", "its answer cannot be read: invalid character", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>it works</html>") }},
		{"another type", "its answer cannot be read: json: cannot unmarshal", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"NodeNames": {"n": 1}}`) }},
		{"nothing", "its answer cannot be read: EOF", func(http.ResponseWriter, *http.Request) {}},
		{"cut off", "its answer cannot be read: unexpected EOF", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"NodeNames": [`) }},
		{"without end", "its answer is longer than", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"Error": "`)
			for piece := strings.Repeat("x", 1<<16); r.Context().Err() == nil; {
				if _, err := io.WriteString(w, piece); err != nil {
					return
				}
			}
		}},
		{"a megabyte of excuses", "filter: xxxx", func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{Error: strings.Repeat("x", 1<<20-100)})
		}},
		{"a node twice", `it names node "n", about which it was not asked, or twice`, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"NodeNames": ["n", "n"]}`)
		}},
		{"hangs up", "EOF", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"no such verb", "status: 404 Not Found", http.NotFound},
	} {
		for _, ignorable := range []bool{false, true} {
			t.Run(fmt.Sprint(q.name, " ignorable ", ignorable), func(t *testing.T) {
				server := httptest.NewServer(q.do)
				t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
				within := time.Minute
				if strings.Contains(q.says, "Timeout") {
					within = 300 * time.Millisecond
				}
				config := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, ignorable: %v, httpTimeout: %v}", server.URL, ignorable, within)
				c := newCluster(t)
				m, recorder, stop := startPrepared(c, 10, func(m *mind) { m.extenders, _ = newExtenders(config.Extenders) })
				defer stop()
				m.nodeHandler().OnAdd(testNode("n", "1"), true)
				m.tell(context.Background(), synced(m))
				pod := testPod("p", "1")
				c.add(m, pod)
				if ignorable {
					eventually(t, "it is bound", func() bool { return c.where(pod) == "n" })
					return
				}
				hears(t, recorder, "Warning FailedScheduling extender "+server.URL+": filter: ")
				hears(t, recorder, q.says)
				if c.where(pod) != "" {
					t.Error("it is bound")
				}
				for _, p := range c.told() {
					if len(p) > 4*messageMax {
						t.Errorf("the pod's condition has %d bytes", len(p))
					}
				}
			})
		}
	}
}

func (c *cluster) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.patches...)
}

// TestReasonsOfExtendersAreBounded: one that has another long reason for each of a thousand nodes does not fill the
// pod's condition with them.
func TestReasonsOfExtendersAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		_ = json.NewDecoder(r.Body).Decode(&args)
		result := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}}
		for _, name := range *args.NodeNames {
			result.FailedNodes[name] = name + strings.Repeat("é", 500)
		}
		_ = json.NewEncoder(w).Encode(result)
	}))
	t.Cleanup(server.Close)
	config := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true}", server.URL)
	c := newCluster(t)
	m, recorder, stop := startPrepared(c, 10, func(m *mind) { m.extenders, _ = newExtenders(config.Extenders) })
	defer stop()
	for i := range 1000 {
		m.nodeHandler().OnAdd(testNode(fmt.Sprint("n", i), "1"), true)
	}
	m.tell(context.Background(), synced(m))
	c.add(m, testPod("p", "1"))
	hears(t, recorder, "0/1000 nodes are available: ")
	eventually(t, "its condition", func() bool { return len(c.told()) > 0 })
	patch := c.told()[0]
	if len(patch) > reasonsMax*(reasonMax+20)+1000 || !strings.Contains(patch, fmt.Sprint(1000-reasonsMax, " node(s) were rejected by extender "+server.URL)) {
		t.Errorf("%d bytes: %.300s", len(patch), patch)
	}
}

// TestHangingExtenderHoldsUpNobodyElse: while one answers nobody, it is asked about a few pods at once, and pods that it
// does not concern are bound.
func TestHangingExtenderHoldsUpNobodyElse(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-ended
	}))
	t.Cleanup(func() { close(ended); server.Close() })
	config := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, managedResources: [{name: example.com/gpu, ignoredByScheduler: true}], httpTimeout: 1m}", server.URL)
	c := newCluster(t)
	m, _, stop := startPrepared(c, 10, func(m *mind) {
		m.extenders, _ = newExtenders(config.Extenders)
		m.placer = placement.New(placement.Options{Profiles: config.Profiles})
	})
	defer stop()
	m.nodeHandler().OnAdd(testNode("n", "1000"), true)
	m.tell(context.Background(), synced(m))
	for i := range 100 {
		c.add(m, askingFor(testPod(fmt.Sprint("asks", i), "1"), "example.com/gpu"))
	}
	eventually(t, "as many questions as are allowed", func() bool { mu.Lock(); defer mu.Unlock(); return now == askers })
	for i := range 100 {
		other := testPod(fmt.Sprint("other", i), "1")
		c.add(m, other)
		eventually(t, "a pod that it does not concern is bound", func() bool { return c.where(other) == "n" })
	}
	mu.Lock()
	defer mu.Unlock()
	if most != askers {
		t.Errorf("%d questions at once, want %d", most, askers)
	}
}

func askingFor(pod *corev1.Pod, name corev1.ResourceName) *corev1.Pod {
	pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1")
	return pod
}

// TestManagedResources: of a resource that the scheduler is to ignore nodes need not have any, the extender decides; of
// one that it manages besides, nodes must.
func TestManagedResources(t *testing.T) {
	for _, ignored := range []bool{true, false} {
		var mu sync.Mutex
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked++
			mu.Unlock()
			_, _ = io.WriteString(w, `{"NodeNames": ["b"]}`)
		}))
		t.Cleanup(server.Close)
		config := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, managedResources: [{name: example.com/gpu, ignoredByScheduler: %v}]}", server.URL, ignored)
		c := newCluster(t)
		m, recorder, stop := startPrepared(c, 10, func(m *mind) {
			m.extenders, _ = newExtenders(config.Extenders)
			m.placer = placement.New(placement.Options{Profiles: config.Profiles})
		})
		defer stop()
		for _, name := range []string{"a", "b"} {
			m.nodeHandler().OnAdd(testNode(name, "10"), true)
		}
		m.tell(context.Background(), synced(m))
		pod := askingFor(testPod("p", "1"), "example.com/gpu")
		c.add(m, pod)
		if ignored {
			eventually(t, "it is bound", func() bool { return c.where(pod) == "b" })
		} else {
			hears(t, recorder, "0/2 nodes are available: 2 Insufficient example.com/gpu.")
		}
		mu.Lock()
		if (asked == 1) != ignored {
			t.Errorf("ignored %v: asked %d times", ignored, asked)
		}
		mu.Unlock()
	}
}
