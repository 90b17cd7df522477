package scheduler

import (
	"context"
	"encoding/json"
	"errors"
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

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// judge is an extender for preemption, with a given answer.
type judge struct {
	t     *testing.T
	names bool // it gets UIDs only

	mu     sync.Mutex
	asked  []string // pod: node(victims) ...
	answer func(w http.ResponseWriter, offered map[string][]string)
}

func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderPreemptionArgs
	err := json.NewDecoder(r.Body).Decode(&args)
	byNames, whole := args.NodeNameToMetaVictims != nil, args.NodeNameToVictims != nil
	if err != nil || r.URL.Path != "/preempt" || args.Pod == nil || byNames != j.names || whole == j.names {
		j.t.Errorf("request to %s with %+v, %v", r.URL, args, err)
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
				j.t.Errorf("victim %s is not a whole object", pod.Name)
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
			victims := &extenderv1.MetaVictims{}
			for _, uid := range uids {
				victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: uid})
			}
			r.NodeNameToMetaVictims[node] = victims
		}
		_ = json.NewEncoder(w).Encode(r)
	}
}

// fullNodes starts a scheduling loop with three nodes, each full with one pod, with priorities in the order of names.
func fullNodes(t *testing.T, list ...schedulerconfig.Extender) (*cluster, *loop, *record.FakeRecorder) {
	c := newCluster(t)
	m, recorder, stop := startPrepared(c, 10, func(m *loop) {
		var err error
		if m.extenders, err = newExtenders(list); err != nil {
			t.Fatal(err)
		}
		m.placer = hasty(m.o.Profiles)
	})
	t.Cleanup(stop)
	for i, name := range []string{"a", "b", "c"} {
		m.nodeHandler().OnAdd(testNode(name, "1"), true)
		c.add(m, onNode(withPriority(testPod("on-"+name, "1"), int32(i+1)), name))
	}
	m.submit(context.Background(), synced(m))
	return c, m, recorder
}

// hears waits for an Event with part in its text.
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

// TestExtenderDecidesAboutPreemption: an extender with a preemptVerb gets every possible preemption, with UIDs or whole
// pods, and one of those that it leaves is carried out.
func TestExtenderDecidesAboutPreemption(t *testing.T) {
	for _, names := range []bool{true, false} {
		j := &judge{t: t, names: names, answer: leave(map[string][]string{"c": {"uid-on-c"}, "b": {"uid-on-b"}})}
		server := httptest.NewServer(j)
		t.Cleanup(server.Close)
		c, m, recorder := fullNodes(t, schedulerconfig.Extender{
			URL: server.URL, Preempt: "preempt", Timeout: 10 * time.Second, NamesOnly: names,
		})
		high := withPriority(testPod("high", "1"), 10)
		c.add(m, high)
		eventually(t, "it is bound", func() bool { return c.where(high) != "" })
		if c.where(high) != "b" || c.evicted() != "on-b" {
			t.Errorf("on %s, evicted %s; want b, the cheaper of those that were left", c.where(high), c.evicted())
		}
		hears(t, recorder, "Preempted by pod uid-high on node b")
		j.mu.Lock()
		if want := []string{"high: map[a:[uid-on-a] b:[uid-on-b] c:[uid-on-c]]"}; !slices.Equal(j.asked, want) {
			t.Errorf("requests %q, want %q", j.asked, want)
		}
		j.mu.Unlock()
	}
}

// TestExtenderMayPreventPreemption: while an extender leaves no preemption, fails or sends an invalid answer, no pod is
// evicted, the condition says why the pod waits, and the extender is asked again. An ignorable extender that fails is
// skipped.
func TestExtenderMayPreventPreemption(t *testing.T) {
	j := &judge{t: t, names: true}
	server := httptest.NewServer(j)
	t.Cleanup(server.Close)
	settings := schedulerconfig.Extender{URL: server.URL, Preempt: "preempt", Timeout: 10 * time.Second, NamesOnly: true}
	write := func(status int, text string) func(http.ResponseWriter, map[string][]string) {
		return func(w http.ResponseWriter, _ map[string][]string) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for _, q := range []struct {
		says string
		then func(http.ResponseWriter, map[string][]string)
	}{
		{"no candidate node for preemption", leave(nil)},
		{"preempt: status: 500 Internal Server Error", write(http.StatusInternalServerError, "")},
		{"preempt: invalid answer", write(http.StatusOK, "<html>")},
		{`preempt: expected at least one victim pod on node "b"`, leave(map[string][]string{"b": nil})},
		{`preempt: answer names node "z", which was not in the request`, leave(map[string][]string{"z": {"uid-on-b"}})},
		{`preempt: pod "uid-on-b" is not on node "a"`, leave(map[string][]string{"a": {"uid-on-b"}})},
		{
			`preempt: expected at least one victim pod on node "b"`,
			write(http.StatusOK, `{"NodeNameToMetaVictims": {"b": null}}`),
		},
		{
			`preempt: answer names a victim on node "a" without its UID`,
			write(http.StatusOK, `{"NodeNameToMetaVictims": {"a": {"Pods": [null]}}}`),
		},
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
		// nodes missing in the answer are left out
		if strings.Contains(q.says, ": ") && !strings.Contains(q.says, "expected") {
			eventually(t, q.says+": the cheapest victim is evicted", func() bool { return c.evicted() == "on-a" })
		}
	}
}

// TestVictimsThatAreNotSent: an extender that gets whole victims is not asked about victims that are gone. If all are
// gone, or one cannot be read, no extender is asked and no pod is evicted. If one extender leaves no preemption, the
// next is not asked.
func TestVictimsThatAreNotSent(t *testing.T) {
	start := func(preempt ...string) (j *judge, c *cluster, m *loop, high func(), recorder *record.FakeRecorder) {
		j = &judge{t: t, answer: leave(nil)}
		server := httptest.NewServer(j)
		t.Cleanup(server.Close)
		var list []schedulerconfig.Extender
		for _, verb := range preempt {
			list = append(list, schedulerconfig.Extender{URL: server.URL, Preempt: verb, Timeout: 10 * time.Second})
		}
		c, m, recorder = fullNodes(t, list...)
		return j, c, m, func() { c.add(m, withPriority(testPod("high", "1"), 10)) }, recorder
	}
	asked := func(j *judge) []string {
		j.mu.Lock()
		defer j.mu.Unlock()
		return slices.Clone(j.asked)
	}

	j, c, _, high, recorder := start("preempt")
	c.unset(testPod("on-a", "1"))
	high()
	hears(t, recorder, "preemption: no candidate node for preemption")
	if got := asked(j); len(got) == 0 || got[0] != "high: map[b:[uid-on-b] c:[uid-on-c]]" {
		t.Errorf("one victim is gone: requests %q", got)
	}

	j, c, _, high, recorder = start("preempt")
	for _, name := range []string{"on-a", "on-b", "on-c"} {
		c.unset(testPod(name, "1"))
	}
	high()
	hears(t, recorder, "all victims are gone")
	if got := asked(j); len(got) != 0 {
		t.Errorf("all victims are gone: requests %q", got)
	}

	j, c, m, high, recorder := start("preempt")
	m.submit(t.Context(), func(unit.Instant) { m.api = unreadable{c, "on-b"} })
	high()
	hears(t, recorder, "preempt: read victim default/on-b: no")
	if got := asked(j); len(got) != 0 {
		t.Errorf("one victim cannot be read: requests %q", got)
	}

	j, c, _, high, recorder = start("preempt", "never")
	high()
	hears(t, recorder, "preemption: no candidate node for preemption")
	if c.evicted() != "" {
		t.Errorf("evicted %s", c.evicted())
	}
	if got := asked(j); len(got) == 0 {
		t.Error("no extender is asked") // the judge would fail the test for the other verb
	}
}

// unreadable is a cluster where one pod cannot be read.
type unreadable struct {
	*cluster
	name string
}

func (u unreadable) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if name == u.name {
		return nil, errors.New("no")
	}
	return u.cluster.pod(ctx, namespace, name)
}

// TestIgnorableExtenderLeavesOut: a node without victims in the answer is left out; the rest of the answer is used.
func TestIgnorableExtenderLeavesOut(t *testing.T) {
	j := &judge{t: t, names: true, answer: leave(map[string][]string{"a": nil, "b": nil, "c": {"uid-on-c"}})}
	server := httptest.NewServer(j)
	t.Cleanup(server.Close)
	c, m, _ := fullNodes(t, schedulerconfig.Extender{
		URL: server.URL, Preempt: "preempt", Timeout: 10 * time.Second, NamesOnly: true, Ignorable: true,
	})
	high := withPriority(testPod("high", "1"), 10)
	c.add(m, high)
	eventually(t, "it is bound", func() bool { return c.where(high) != "" })
	if c.where(high) != "c" || c.evicted() != "on-c" {
		t.Errorf("on %s, evicted %s; want c, which is left", c.where(high), c.evicted())
	}
}
