package scheduler

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// outsider is an extender: it rejects node a, prefers c, and binds if configured.
type outsider struct {
	t     *testing.T
	names bool // it gets names only
	bound func(extenderv1.ExtenderBindingArgs)

	mu     sync.Mutex
	broken bool
	all    bool // it rejects all nodes
	asked  []string
}

func (o *outsider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	}
	if r.URL.Path == "/ext/bind" {
		var args extenderv1.ExtenderBindingArgs
		_ = json.NewDecoder(r.Body).Decode(&args)
		o.bound(args)
		_ = json.NewEncoder(w).Encode(extenderv1.ExtenderBindingResult{})
		return
	}
	var args extenderv1.ExtenderArgs
	err := json.NewDecoder(r.Body).Decode(&args)
	if err != nil || (args.NodeNames != nil) != o.names || (args.Nodes != nil) == o.names {
		o.t.Errorf("request with %+v, %v", args, err)
	}
	o.asked = append(o.asked, r.URL.Path+" "+args.Pod.Name)
	var names []string
	if o.names {
		names = *args.NodeNames
	} else {
		for _, n := range args.Nodes.Items {
			names = append(names, n.Name)
		}
	}
	if r.URL.Path == "/ext/prioritize" {
		var list extenderv1.HostPriorityList
		for _, name := range names {
			list = append(list, extenderv1.HostPriority{Host: name, Score: map[string]int64{"c": 10}[name]})
		}
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	result := extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{}, Nodes: &corev1.NodeList{}}
	left := []string{}
	for _, name := range names {
		if name == "a" || o.all {
			result.FailedNodes[name] = "the outsider says no"
			continue
		}
		left = append(left, name)
		result.Nodes.Items = append(result.Nodes.Items, *testNode(name, "1"))
	}
	if o.names {
		result.Nodes, result.NodeNames = nil, &left
	}
	_ = json.NewEncoder(w).Encode(result)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// hasty returns a Placer with very short back-offs, so that tests with real servers need not wait for them.
func hasty(profiles []corescheduler.Profile) *corescheduler.Placer {
	return corescheduler.New(corescheduler.Options{
		Profiles: profiles, BackoffFirst: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
	})
}

// TestExtenders: a pod that concerns an extender goes where the extender allows and prefers, whether it gets names or
// whole nodes. The extender may bind the pod. It is not asked about other pods. Its reasons are reported. If it fails,
// the pod is tried again, unless the extender is ignorable.
func TestExtenders(t *testing.T) {
	for _, names := range []bool{true, false} {
		c := newCluster(t)
		o := &outsider{t: t, names: names}
		m, recorder, stop := startWithOutsider(t, c, o)
		byOutsider := 0
		o.bound = func(args extenderv1.ExtenderBindingArgs) {
			byOutsider++
			pod, _ := c.pod(context.Background(), args.PodNamespace, args.PodName)
			fact := translate.SchedulerPod(pod)
			if _, err := c.bind(context.Background(), corescheduler.Decision{Pod: fact, Node: args.Node}); err != nil {
				t.Error(err)
			}
		}
		m.submit(context.Background(), synced(m))
		add := func(name string) *corev1.Pod {
			pod := testPod(name, "1")
			pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			c.add(m, pod)
			return pod
		}
		for _, name := range []string{"p1", "p2", "p3"} {
			pod := add(name)
			eventually(t, name+" is bound", func() bool { return c.where(pod) != "" })
			if c.where(pod) != "c" {
				t.Errorf("%s is on %s, want c", name, c.where(pod))
			}
		}
		other := testPod("other", "1")
		c.add(m, other)
		eventually(t, "the other pod is bound", func() bool { return c.where(other) != "" })
		o.mu.Lock()
		asked := strings.Join(o.asked, ", ")
		if strings.Contains(asked, "other") || !strings.Contains(asked, "/ext/filter p1, /ext/prioritize p1") {
			t.Errorf("requests: %s", asked)
		}
		if (byOutsider == 3) != names {
			t.Errorf("the extender has bound %d pods", byOutsider)
		}
		o.all = true
		o.mu.Unlock()
		rejected := add("rejected")
		hears(t, recorder, "0/3 nodes are available: 3 the outsider says no.")
		o.mu.Lock()
		o.all, o.broken = false, true
		o.mu.Unlock()
		hears(t, recorder, "/ext: filter: status: 500 Internal Server Error")
		o.mu.Lock()
		o.broken = false
		o.mu.Unlock()
		eventually(t, "it is bound when the extender works again", func() bool { return c.where(rejected) == "c" })
		stop()
	}
}

// startWithOutsider starts a scheduling loop with the nodes a, b and c and the extender o, which concerns pods that
// request example.com/gpu. If o gets names only, it binds these pods. stop stops the loop and the extender.
func startWithOutsider(t *testing.T, c *cluster, o *outsider) (m *loop, recorder *record.FakeRecorder, stop func()) {
	server := httptest.NewServer(o)
	client := schedulerconfig.Extender{
		URL:        server.URL + "/ext",
		Filter:     "filter",
		Prioritize: "prioritize",
		Weight:     100,
		Timeout:    10 * time.Second,
		NamesOnly:  o.names,
		Manages:    map[string]bool{"example.com/gpu": true},
	}
	if o.names {
		client.Bind = "bind"
	}
	nodes := map[string]*corev1.Node{}
	m, recorder, stopLoop := startPrepared(c, 10, func(m *loop) {
		var err error
		if m.extenders, err = newExtenders([]schedulerconfig.Extender{client}); err != nil {
			t.Fatal(err)
		}
		m.placer = hasty(m.o.Profiles)
		m.node = func(name string) *corev1.Node { return nodes[name] }
		for _, name := range []string{"a", "b", "c"} {
			nodes[name] = testNode(name, "100")
			nodes[name].Status.Allocatable["example.com/gpu"] = resource.MustParse("100")
		}
	})
	for _, n := range nodes {
		m.nodeHandler().OnAdd(n, true)
	}
	return m, recorder, func() {
		stopLoop()
		server.Close()
	}
}

// TestIgnorableExtender: an ignorable extender that cannot be reached does not delay pods.
func TestIgnorableExtender(t *testing.T) {
	c := newCluster(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	m, _, stop := startPrepared(c, 10, func(m *loop) {
		m.extenders, _ = newExtenders([]schedulerconfig.Extender{
			{URL: gone.URL, Filter: "filter", Timeout: time.Second, NamesOnly: true, Ignorable: true},
		})
	})
	defer stop()
	m.nodeHandler().OnAdd(testNode("n", "1"), true)
	m.submit(context.Background(), synced(m))
	pod := testPod("p", "1")
	c.add(m, pod)
	eventually(t, "it is bound", func() bool { return c.where(pod) == "n" })
}
