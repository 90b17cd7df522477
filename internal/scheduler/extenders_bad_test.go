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
	"k8s.io/client-go/tools/record"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
	"github.com/plimsoll-dev/plimsoll/test/atonce"
)

// configured reads a file with one extender.
func configured(t *testing.T, format string, args ...any) *schedulerconfig.Config {
	t.Helper()
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n- "
	c, _, err := schedulerconfig.Parse([]byte(head + fmt.Sprintf(format, args...)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// extended starts a scheduling loop with one extender, and the profiles of a file with it.
func extended(t *testing.T, format string, args ...any) (*cluster, *loop, *record.FakeRecorder) {
	t.Helper()
	config := configured(t, format, args...)
	c := newCluster(t)
	m, recorder, stop := startPrepared(c, 10, func(m *loop) {
		var err error
		if m.extenders, err = newExtenders(config.Extenders); err != nil {
			t.Fatal(err)
		}
		m.placer = hasty(config.Profiles)
	})
	t.Cleanup(stop)
	return c, m, recorder
}

// authority creates a CA, a serving certificate for localhost and a client certificate in a directory.
func authority(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Ensure(dir, pki.Plan{
		Authorities: []pki.Authority{{Name: "ca"}},
		Leaves: []pki.Leaf{
			{
				Name: "server", Authority: "ca", CommonName: "extender", Server: true,
				DNSNames: []string{"extender.example"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
			},
			{Name: "client", Authority: "ca", CommonName: "system:kube-scheduler", Client: true},
		},
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func readFile(t *testing.T, path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// extenderOverTLS starts an extender that lets node a pass, with the certificates in dir. It returns its URL.
func extenderOverTLS(t *testing.T, dir string, clients tls.ClientAuthType) (url string) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{NodeNames: &[]string{"a"}})
	}))
	pair, err := tls.X509KeyPair(readFile(t, pki.CertPath(dir, "server")), readFile(t, pki.KeyPath(dir, "server")))
	if err != nil {
		t.Fatal(err)
	}
	ca := x509.NewCertPool()
	ca.AppendCertsFromPEM(readFile(t, pki.CertPath(dir, "ca")))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: clients, ClientCAs: ca}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// TestExtenderTLS sends requests to a real server over TLS, with each way to configure it in the file.
func TestExtenderTLS(t *testing.T) {
	dir, foreign := authority(t), authority(t)
	data := func(path string) string { return base64.StdEncoding.EncodeToString(readFile(t, path)) }
	open, closed := extenderOverTLS(t, dir, tls.NoClientCert), extenderOverTLS(t, dir, tls.RequireAndVerifyClientCert)
	ca, cert, key := pki.CertPath(dir, "ca"), pki.CertPath(dir, "client"), pki.KeyPath(dir, "client")
	inFiles := func(ca, of string) string { // the client's files in that directory
		return fmt.Sprintf("caFile: %s, certFile: %s, keyFile: %s", ca, pki.CertPath(of, "client"), pki.KeyPath(of, "client"))
	}
	for _, q := range []struct{ name, url, tls, more, failure string }{
		{name: "the CA's file", url: open, tls: "caFile: " + ca},
		{name: "the CA itself", url: open, tls: "caData: " + data(ca)},
		{name: "no CA, https in the URL", url: open, failure: "certificate signed by unknown authority"},
		{name: "no CA, enableHTTPS: as upstream, anybody", url: open, more: "enableHTTPS: true"},
		{name: "enableHTTPS with a CA", url: open, more: "enableHTTPS: true", tls: "caFile: " + ca},
		{
			name: "enableHTTPS with the wrong CA", url: open, more: "enableHTTPS: true",
			tls: "caFile: " + pki.CertPath(foreign, "ca"), failure: "x509",
		},
		{name: "insecure", url: open, tls: "insecure: true"},
		{name: "a name that it has", url: open, tls: "serverName: extender.example, caFile: " + ca},
		{
			name: "a name that it has not", url: open, tls: "serverName: other.example, caFile: " + ca,
			failure: "not other.example",
		},
		{name: "a client certificate in files", url: closed, tls: inFiles(ca, dir)},
		{
			name: "a client certificate as data", url: closed,
			tls: fmt.Sprintf("caData: %s, certData: %s, keyData: %s", data(ca), data(cert), data(key)),
		},
		{name: "no client certificate", url: closed, tls: "caFile: " + ca, failure: "certificate required"},
		{name: "another's client certificate", url: closed, tls: inFiles(ca, foreign), failure: "tls: "},
	} {
		t.Run(q.name, func(t *testing.T) {
			settings := "weight: 1"
			if q.tls != "" {
				settings += ", tlsConfig: {" + q.tls + "}"
			}
			if q.more != "" {
				settings += ", " + q.more
			}
			c := configured(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, %s}", q.url, settings)
			list, err := newExtenders(c.Extenders)
			if err != nil {
				t.Fatal(err)
			}
			named := []string{"a", "b"}
			args := &extenderv1.ExtenderArgs{Pod: testPod("p", "1"), NodeNames: &named}
			passed, err := list[0].filter(t.Context(), args, named, map[string]string{})
			switch {
			case q.failure == "" && (err != nil || len(passed) != 1 || passed[0] != "a"):
				t.Errorf("passed %q, %v", passed, err)
			case q.failure != "" && (err == nil || !strings.Contains(err.Error(), q.failure)):
				t.Errorf("passed %q, %v; want %s", passed, err, q.failure)
			}
		})
	}
}

// TestBadExtenders: whatever an extender answers, the pod's condition says within the extender's timeout why it waits,
// the number of bytes that are read is limited, and the pod is placed anyway if the extender is ignorable.
func TestBadExtenders(t *testing.T) {
	wait := func(r *http.Request) { // until the client is gone, which is noticed only after the whole request was read
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
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
		{"garbage", "invalid answer: invalid character", write("<html>it works</html>")},
		{"another type", "invalid answer: json: cannot unmarshal", write(`{"NodeNames": {"n": 1}}`)},
		{"nothing", "invalid answer: EOF", write("")},
		{"cut off", "invalid answer: unexpected EOF", write(`{"NodeNames": [`)},
		{"without end", "answer longer than", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"Error": "`)
			for piece := strings.Repeat("x", 1<<16); r.Context().Err() == nil; {
				if _, err := io.WriteString(w, piece); err != nil {
					return
				}
			}
		}},
		{"a megabyte of reasons", "filter: xxxx", func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{Error: strings.Repeat("x", 1<<20-100)})
		}},
		{
			"a node twice", `answer names node "n", which was not in the request or is named twice`,
			write(`{"NodeNames": ["n", "n"]}`),
		},
		{"hangs up", "EOF", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"no such verb", "status: 404 Not Found", http.NotFound},
	} {
		for _, ignorable := range []bool{false, true} {
			t.Run(fmt.Sprint(q.name, " ignorable ", ignorable), func(t *testing.T) {
				testBadExtender(t, q.do, q.says, ignorable)
			})
		}
	}
}

// testBadExtender checks that an extender which is not ignorable and answers with do leaves a pod pending with an Event
// that says why.
func testBadExtender(t *testing.T, do http.HandlerFunc, says string, ignorable bool) {
	t.Helper()
	server := httptest.NewServer(do)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	within := time.Minute
	if strings.Contains(says, "Timeout") {
		within = 300 * time.Millisecond
	}
	c, m, recorder := extended(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, "+
		"ignorable: %v, httpTimeout: %v}", server.URL, ignorable, within)
	m.nodeHandler().OnAdd(testNode("n", "1"), true)
	m.submit(context.Background(), synced(m))
	pod := testPod("p", "1")
	c.add(m, pod)
	if ignorable {
		eventually(t, "it is bound", func() bool { return c.where(pod) == "n" })
		return
	}
	hears(t, recorder, "Warning FailedScheduling extender "+server.URL+": filter: ")
	hears(t, recorder, says)
	if c.where(pod) != "" {
		t.Error("it is bound")
	}
	for _, p := range c.told() {
		if len(p) > 4*messageMax {
			t.Errorf("the pod's condition has %d bytes", len(p))
		}
	}
}

// TestReasonsOfExtendersAreBounded: an extender with a different long reason for each of a thousand nodes does not fill
// the pod's condition.
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
	c, m, recorder := extended(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true}", server.URL)
	for i := range 1000 {
		m.nodeHandler().OnAdd(testNode(fmt.Sprint("n", i), "1"), true)
	}
	m.submit(context.Background(), synced(m))
	c.add(m, testPod("p", "1"))
	hears(t, recorder, "0/1000 nodes are available: ")
	eventually(t, "its condition", func() bool { return len(c.told()) > 0 })
	patch := c.told()[0]
	others := fmt.Sprint(1000-reasonsMax, " node(s) were rejected by extender "+server.URL)
	if len(patch) > reasonsMax*(reasonMax+20)+1000 || !strings.Contains(patch, others) {
		t.Errorf("%d bytes: %.300s", len(patch), patch)
	}
}

// TestHangingExtenderDelaysNoOtherPods: an extender that does not answer is asked about a few pods at once, and pods
// that it does not concern are bound.
func TestHangingExtenderDelaysNoOtherPods(t *testing.T) {
	var questions atonce.Counter
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		questions.Begins()
		<-ended
	}))
	t.Cleanup(func() { close(ended); server.Close() })
	c, m, _ := extended(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, httpTimeout: 1m, "+
		"managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]}", server.URL)
	m.nodeHandler().OnAdd(testNode("n", "1000"), true)
	m.submit(context.Background(), synced(m))
	for i := range 100 {
		c.add(m, askingFor(testPod(fmt.Sprint("asks", i), "1"), "example.com/gpu"))
	}
	eventually(t, "as many requests as are allowed", func() bool { return questions.Now() == extenderWorkers })
	for i := range 100 {
		other := testPod(fmt.Sprint("other", i), "1")
		c.add(m, other)
		eventually(t, "a pod that it does not concern is bound", func() bool { return c.where(other) == "n" })
	}
	if most := questions.Most(); most != extenderWorkers {
		t.Errorf("%d requests at once, want %d", most, extenderWorkers)
	}
}

func askingFor(pod *corev1.Pod, name corev1.ResourceName) *corev1.Pod {
	pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1")
	return pod
}

// TestManagedResources: nodes need not have a resource that the scheduler ignores, because the extender decides; of
// other managed resources, nodes must have enough.
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
		c, m, recorder := extended(t, "{urlPrefix: %q, filterVerb: filter, nodeCacheCapable: true, "+
			"managedResources: [{name: example.com/gpu, ignoredByScheduler: %v}]}", server.URL, ignored)
		for _, name := range []string{"a", "b"} {
			m.nodeHandler().OnAdd(testNode(name, "10"), true)
		}
		m.submit(context.Background(), synced(m))
		pod := askingFor(testPod("p", "1"), "example.com/gpu")
		c.add(m, pod)
		if ignored {
			eventually(t, "it is bound", func() bool { return c.where(pod) == "b" })
		} else {
			hears(t, recorder, "0/2 nodes are available: 2 Insufficient example.com/gpu.")
		}
		mu.Lock()
		if (asked == 1) != ignored {
			t.Errorf("ignored %v: %d requests", ignored, asked)
		}
		mu.Unlock()
	}
}

// saying is an extender with this answer, called with node names or with whole nodes.
func saying(t *testing.T, status int, text string, names bool) *extender {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status == 0 {
			panic(http.ErrAbortHandler) // no answer
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	list, err := newExtenders([]schedulerconfig.Extender{{
		URL:        server.URL,
		Filter:     "filter",
		Prioritize: "prioritize",
		Bind:       "bind",
		Weight:     1,
		NamesOnly:  names,
		Timeout:    10 * time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

// TestAnswersOfTheOtherKind: an extender that gets names must answer with names, one that gets nodes with nodes. One
// that returns none has rejected all.
func TestAnswersOfTheOtherKind(t *testing.T) {
	const node = `{"Nodes": {"items": [{"metadata": {"name": "a"}}]}}`
	for _, q := range []struct {
		names  bool
		text   string
		passed int
	}{
		{true, `{"NodeNames": ["a"]}`, 1}, {true, `{}`, 0}, {true, node, 1},
		{false, node, 1}, {false, `{}`, 0}, {false, `{"NodeNames": ["a"]}`, 0},
	} {
		rejected := map[string]string{}
		passed, err := saying(t, http.StatusOK, q.text, q.names).filter(t.Context(), nil, []string{"a", "b"}, rejected)
		if err != nil || len(passed) != q.passed || len(rejected) != 2-q.passed {
			t.Errorf("by names %v, %s: %v, %v, %v; want %d", q.names, q.text, passed, rejected, err, q.passed)
		}
	}
}

// TestBindsOfExtenders: if the extender refuses a bind, the pod is not bound. If it gives no answer, the pod may be
// bound.
func TestBindsOfExtenders(t *testing.T) {
	for _, q := range []struct {
		status int
		text   string
		want   corescheduler.Outcome
		why    string
	}{
		{http.StatusOK, `{}`, corescheduler.BindDone, ""},
		{http.StatusOK, `{"Error": "no licence"}`, corescheduler.BindRefused, "no licence"},
		{http.StatusInternalServerError, ``, corescheduler.BindRefused, "500 Internal Server Error"},
		{http.StatusOK, `<html>`, corescheduler.BindLost, "invalid answer"},
		{0, ``, corescheduler.BindLost, "EOF"},
	} {
		outcome, err := saying(t, q.status, q.text, true).bind(t.Context(), corescheduler.Decision{Node: "n"})
		if outcome != q.want || (err != nil) != (q.why != "") || err != nil && !strings.Contains(err.Error(), q.why) {
			t.Errorf("%d %s: %v, %v; want %v, %s", q.status, q.text, outcome, err, q.want, q.why)
		}
	}
}

// TestScoresThatFail: if scores cannot be had, they are left out. If only one node is left, none are requested. A node
// that is deleted before whole nodes are sent is left out of the request.
func TestScoresThatFail(t *testing.T) {
	pod := testPod("p", "1")
	m, _ := idle(pod)
	e := saying(t, http.StatusInternalServerError, "", false)
	e.Filter = ""
	m.extenders = []*extender{e}
	m.node = func(name string) *corev1.Node {
		if name == "gone" {
			return nil
		}
		return testNode(name, "1")
	}
	o, err := m.askAll(t.Context(), pod, extenderRequest{pod: translate.SchedulerPod(pod), nodes: []string{"a", "gone"}})
	if err != nil || len(o.Nodes) != 2 || o.Nodes["a"] != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if args := m.about(e, pod, []string{"a", "gone"}); len(args.Nodes.Items) != 1 || args.Nodes.Items[0].Name != "a" {
		t.Errorf("nodes in the request: %+v", args.Nodes.Items)
	}
	m.extenders = []*extender{saying(t, http.StatusOK, `[{"Host": "a", "Score": 5}, {"Host": "z", "Score": 5}]`, true)}
	m.extenders[0].Filter = ""
	for _, q := range []struct {
		nodes []string
		score int64
	}{{[]string{"a", "b"}, 5 * extenderScale}, {[]string{"a"}, 0}} {
		o, err := m.askAll(t.Context(), pod, extenderRequest{pod: translate.SchedulerPod(pod), nodes: q.nodes})
		if err != nil || len(o.Nodes) != len(q.nodes) || o.Nodes["a"] != q.score {
			t.Errorf("of %v: %+v, %v; want %d", q.nodes, o, err, q.score)
		}
	}
}
