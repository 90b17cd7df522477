package explain

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// watched is a cluster in which a pod fits nowhere, and one is on a node.
const watched = `
apiVersion: v1
kind: Node
metadata: {name: n1, uid: n1}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "10"}, capacity: {cpu: "3", memory: 4Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "4"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: placed}
spec: {nodeName: n1, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
`

// asIfRun makes l look as a Live that has all first lists of s.
func asIfRun(l *Live, s *server) {
	l.start = func(source) {}
	for _, o := range s.objects["nodes"] {
		l.nodeSeen(keepNode(o.DeepCopyObject()).(*LiveNode))
	}
	for _, o := range s.objects["pods"] {
		l.livePodSeen(keepPod(o.DeepCopyObject()).(*LivePod))
	}
}

// TestWatcher: a component that watches the cluster gives the answers that reading gives, and the cluster is not read
// then. It is read if the component has not seen it yet, does not answer questions, or does not know the pod.
func TestWatcher(t *testing.T) {
	s := newServer(t)
	s.add(watched)
	live := NewLive(askerOf(t, s, ""))
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, live.Handler())
	component := httptest.NewTLSServer(mux)
	defer component.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: component.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	from, err := URLSource(component.URL, &rest.Config{}, ca)
	if err != nil {
		t.Fatal(err)
	}
	reads, asks := askerOf(t, s, ""), askerOf(t, s, "")
	asks.Sources = []Source{from}
	same := func(from, unseen string) {
		t.Helper()
		for name, question := range map[string]func(*Asker) (any, error){
			"pending": func(a *Asker) (any, error) { return a.Waiting(t.Context()) },
			"node":    func(a *Asker) (any, error) { return a.Node(t.Context(), "n1") },
			"pod":     func(a *Asker) (any, error) { return a.Pod(t.Context(), "default", "waits", "") },
		} {
			want, err := question(reads)
			if err != nil {
				t.Fatal(err)
			}
			clear(s.asked)
			got, err := question(asks)
			if err != nil {
				t.Fatal(err)
			}
			if s.asked["list pods"] != (from == "") {
				t.Errorf("%s: asked were %v", name, s.asked)
			}
			a, b := parts(t, got), parts(t, want)
			if said, _ := a["from"].(string); said != from {
				t.Errorf("%s: from %q, want %q", name, said, from)
			}
			delete(a, "from")
			text, _ := json.Marshal(a["unseen"])
			if !strings.Contains(string(text), unseen) {
				t.Errorf("%s: unseen %s, want %q", name, text, unseen)
			}
			for _, all := range []map[string]any{a, b} {
				delete(all, "unseen") // the journal of a component that has none
				delete(all, "notes")  // that the scheduler's was not asked
			}
			x, _ := json.MarshalIndent(a, "", " ")
			y, _ := json.MarshalIndent(b, "", " ")
			if string(x) != string(y) {
				t.Errorf("%s: the component says\n%s\nread it is\n%s", name, x, y)
			}
		}
	}
	same("", "not seen yet")
	asIfRun(live, s)
	same(from.Name, "")
	asks.Judges = true // the caller has a configuration of its own
	same("", "")
	asks.Judges = false

	s.add("apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: c, image: i}]}\n")
	clear(s.asked)
	pod, err := asks.Pod(t.Context(), "default", "new", "")
	if err != nil || pod.From != "" || pod.Verdict == nil || pod.Verdict.Feasible != 1 || !s.asked["list pods"] {
		t.Errorf("a pod that the component has not seen: %+v, %v; asked were %v", pod, err, s.asked)
	}
	component.Config.Handler = http.NotFoundHandler()
	if _, err := asks.Waiting(t.Context()); err != nil {
		t.Error(err)
	}
	if w, err := asks.Waiting(t.Context()); err != nil || w.From != "" || len(w.Unseen) > 0 {
		t.Errorf("a component that answers no questions: %+v, %v", w, err)
	}
}

// parts returns the fields of an answer.
func parts(t *testing.T, answer any) (out map[string]any) {
	t.Helper()
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNothingWaits: while no pod waits, only the pods of the node in question are read.
func TestNothingWaits(t *testing.T) {
	s := newServer(t)
	s.add(watched)
	s.objects["pods"] = s.objects["pods"][1:]
	s.add("apiVersion: v1\nkind: Node\nmetadata: {name: n2}\n")
	s.add("apiVersion: v1\nkind: Node\nmetadata: {name: n3}\n")
	s.add("apiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec: {nodeName: n2, containers: [{name: c, image: i}]}\n")
	a := askerOf(t, s, "")
	w, err := a.Waiting(t.Context())
	if err != nil || w.Nodes != 3 || w.Pods != 0 {
		t.Errorf("%+v, %v", w, err)
	}
	clear(s.asked)
	n, err := a.Node(t.Context(), "n1")
	if err != nil || n.PodCount != 1 || n.Pods[0].Pod != "default/placed" || n.Waiting != 0 || len(n.Load) != 3 ||
		n.Load[0].Free != "1" || len(n.Unseen)+len(n.Notes) > 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if s.asked["list namespaces"] {
		t.Errorf("asked were %v", s.asked)
	}
}
