package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// judge is an extender that is asked about evictions: it says what answer says.
type judge struct {
	t     *testing.T
	names bool // it is told UIDs only

	mu     sync.Mutex
	asked  []string // pod: node(victims) ...
	answer func(w http.ResponseWriter, offered map[string][]string)
}

func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderPreemptionArgs
	err := json.NewDecoder(r.Body).Decode(&args)
	if err != nil || r.URL.Path != "/preempt" || args.Pod == nil || (args.NodeNameToMetaVictims != nil) != j.names || (args.NodeNameToVictims != nil) == j.names {
		j.t.Errorf("asked %s with %+v, %v", r.URL, args, err)
		return
	}
	offered := map[string][]string{}
	for node, v := range args.NodeNameToMetaVictims {
		for _, pod := range v.Pods {
			offered[node] = append(offered[node], pod.UID)
		}
	}
	for node, v := range args.NodeNameToVictims {
		for _, pod := range v.Pods {
			if len(pod.Spec.Containers) != 1 {
				j.t.Errorf("victim %s is not whole", pod.Name)
			}
			offered[node] = append(offered[node], string(pod.UID))
		}
	}
	j.mu.Lock()
	j.asked = append(j.asked, fmt.Sprint(args.Pod.Name, ": ", offered))
	answer := j.answer
	j.mu.Unlock()
	answer(w, offered)
}

func (j *judge) say(answer func(w http.ResponseWriter, offered map[string][]string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.answer = answer
}

// leave answers with these victims by node.
func leave(left map[string][]string) func(http.ResponseWriter, map[string][]string) {
	return func(w http.ResponseWriter, _ map[string][]string) {
		r := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
		for node, uids := range left {
			r.NodeNameToMetaVictims[node] = &extenderv1.MetaVictims{}
			for _, uid := range uids {
				r.NodeNameToMetaVictims[node].Pods = append(r.NodeNameToMetaVictims[node].Pods, &extenderv1.MetaPod{UID: uid})
			}
		}
		_ = json.NewEncoder(w).Encode(r)
	}
}

// fullNodes starts a mind with three nodes, each full with one pod, the more important the later its name.
func fullNodes(t *testing.T, list ...schedulerconfig.Extender) (*cluster, *mind, *record.FakeRecorder) {
	c := newCluster(t)
	m, recorder, stop := startPrepared(c, 10, func(m *mind) {
		var err error
		if m.extenders, err = newExtenders(list); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(stop)
	for i, name := range []string{"a", "b", "c"} {
		m.nodeHandler().OnAdd(testNode(name, "1"), true)
		c.add(m, onNode(withPriority(testPod("on-"+name, "1"), int32(i+1)), name))
	}
	m.tell(context.Background(), synced(m))
	return c, m, recorder
}

func (c *cluster) where(pod *corev1.Pod) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[pod.UID].Spec.NodeName
}

func (c *cluster) evicted() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.removed, " ")
}

// hears waits for an Event that has part.
func hears(t *testing.T, recorder *record.FakeRecorder, part string) {
	t.Helper()
	for end := time.After(20 * time.Second); ; {
		select {
		case e := <-recorder.Events:
			if strings.Contains(e, part) {
				return
			}
		case <-end:
			t.Fatalf("no Event in 20 s says: %s", part)
		}
	}
}

// TestExtenderDecidesOnEvictions: an extender with a preemptVerb hears of every eviction that would make room, by UIDs or
// with whole pods, and only what it leaves happens.
func TestExtenderDecidesOnEvictions(t *testing.T) {
	for _, names := range []bool{true, false} {
		j := &judge{t: t, names: names, answer: leave(map[string][]string{"c": {"uid-on-c"}, "b": {"uid-on-b"}})}
		server := httptest.NewServer(j)
		t.Cleanup(server.Close)
		c, m, recorder := fullNodes(t, schedulerconfig.Extender{URL: server.URL, Preempt: "preempt", Timeout: 10 * time.Second, NamesOnly: names})
		high := withPriority(testPod("high", "1"), 10)
		c.add(m, high)
		eventually(t, "it is bound", func() bool { return c.where(high) != "" })
		if c.where(high) != "b" || c.evicted() != "on-b" {
			t.Errorf("on %s, evicted %s; want b, the cheaper of those that were left", c.where(high), c.evicted())
		}
		hears(t, recorder, "Preempted by pod uid-high on node b")
		j.mu.Lock()
		if want := []string{"high: map[a:[uid-on-a] b:[uid-on-b] c:[uid-on-c]]"}; !slices.Equal(j.asked, want) {
			t.Errorf("asked %q, want %q", j.asked, want)
		}
		j.mu.Unlock()
	}
}

// TestExtenderMayRefuseEvictions: while it leaves none, fails or answers nonsense nobody goes, the pod hears why it waits, and
// it is asked again; an ignorable one that fails is as if it were not there.
func TestExtenderMayRefuseEvictions(t *testing.T) {
	j := &judge{t: t, names: true}
	server := httptest.NewServer(j)
	t.Cleanup(server.Close)
	settings := schedulerconfig.Extender{URL: server.URL, Preempt: "preempt", Timeout: 10 * time.Second, NamesOnly: true}
	for _, q := range []struct {
		says string
		then func(http.ResponseWriter, map[string][]string)
	}{
		{"no candidate node for preemption", leave(nil)},
		{"preempt: status: 500 Internal Server Error", func(w http.ResponseWriter, _ map[string][]string) { w.WriteHeader(http.StatusInternalServerError) }},
		{"preempt: its answer cannot be read", func(w http.ResponseWriter, _ map[string][]string) { _, _ = io.WriteString(w, "<html>") }},
		{`preempt: expected at least one victim pod on node "b"`, leave(map[string][]string{"b": nil})},
		{`preempt: it names node "z", about which it was not asked`, leave(map[string][]string{"z": {"uid-on-b"}})},
		{`preempt: pod "uid-on-b" is not on node "a"`, leave(map[string][]string{"a": {"uid-on-b"}})},
		{`preempt: it names a victim on node "a" without its UID`, func(w http.ResponseWriter, _ map[string][]string) {
			_, _ = io.WriteString(w, `{"NodeNameToMetaVictims": {"a": {"Pods": [null]}}}`)
		}},
	} {
		j.say(q.then)
		c, m, recorder := fullNodes(t, settings)
		high := withPriority(testPod("high", "1"), 10)
		c.add(m, high)
		hears(t, recorder, "0/3 nodes are available: 3 Insufficient cpu. preemption: ")
		if strings.Contains(q.says, ": ") {
			hears(t, recorder, "3 Insufficient cpu. preemption: extender "+server.URL+": "+q.says)
		} else {
			hears(t, recorder, "3 Insufficient cpu. preemption: "+q.says)
		}
		if c.evicted() != "" {
			t.Errorf("%s: evicted %s", q.says, c.evicted())
		}
		j.say(leave(map[string][]string{"c": {"uid-on-c"}}))
		eventually(t, "it is bound when the extender leaves something", func() bool { return c.where(high) == "c" })

		settings := settings
		settings.Ignorable = true
		j.say(q.then)
		c, m, _ = fullNodes(t, settings)
		c.add(m, high)
		if want := "on-a"; strings.Contains(q.says, ": ") && !strings.Contains(q.says, "expected") { // what it leaves out is left out
			eventually(t, q.says+": the cheapest went", func() bool { return c.evicted() == want })
		}
	}
}
