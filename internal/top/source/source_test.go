package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// api answers as an API server with metrics-server and agents does, and records the requests.
type api struct {
	t *testing.T

	mu      sync.Mutex
	objects map[string][]runtime.Object // by resource
	forbid  map[string]bool             // "list pods"
	agents  map[string]any              // what agents answer, by path
	metrics map[string]string           // bodies of metrics.k8s.io; empty: it does not exist
	asked   map[string]bool
	streams map[string][]chan metav1.WatchEvent
}

func newAPI(t *testing.T) *api {
	return &api{
		t:       t,
		objects: map[string][]runtime.Object{},
		forbid:  map[string]bool{},
		agents:  map[string]any{},
		metrics: map[string]string{},
		asked:   map[string]bool{},
		streams: map[string][]chan metav1.WatchEvent{},
	}
}

// start returns a Source of the API that has read it once.
func (a *api) start(looks top.Page, node string) *Source {
	a.t.Helper()
	listening := httptest.NewServer(a)
	a.t.Cleanup(func() { listening.CloseClientConnections(); listening.Close() })
	return a.startAt(listening.URL, looks, node)
}

func (a *api) startAt(address string, looks top.Page, node string) *Source {
	a.t.Helper()
	client, err := kube.NewClientForConfig(&rest.Config{Host: address, QPS: -1})
	if err != nil {
		a.t.Fatal(err)
	}
	s := &Source{Client: client, Asker: &explain.Asker{Client: client}}
	if err := s.Start(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	s.Look(a.t.Context(), looks, node)
	if err := s.Synced(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(out http.ResponseWriter, q *http.Request) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	group, rest := "", parts[min(2, len(parts)):]
	if parts[0] == "apis" {
		group, rest = "."+parts[1], parts[3:]
	}
	switch {
	case q.URL.Path == "/readyz":
		fmt.Fprint(out, "ok")
	case len(rest) > 2 && rest[2] == "proxy":
		a.agent(out, rest)
	default:
		verb, resource := "list", rest[0]
		if q.URL.Query().Get("watch") != "" {
			verb = "watch"
		}
		if group == ".metrics.k8s.io" && len(rest) == 4 { // namespaces/NAMESPACE/pods/NAME
			verb, resource = "get", rest[2]
		}
		what := verb + " " + resource + group
		a.mu.Lock()
		a.asked[what] = true
		forbidden := a.forbid[what]
		a.mu.Unlock()
		switch {
		case forbidden:
			a.refuse(out, http.StatusForbidden, metav1.StatusReasonForbidden, "user reader may not "+what)
		case q.URL.Query().Get("sendInitialEvents") == "true":
			a.refuse(out, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no streams")
		case group == ".metrics.k8s.io":
			body := a.metrics[strings.Join(rest, "/")]
			if body == "" {
				a.refuse(out, http.StatusNotFound, metav1.StatusReasonNotFound, "no such resource")
				return
			}
			fmt.Fprint(out, body)
		case verb == "watch":
			a.stream(out, q, rest[0])
		default:
			a.list(out, rest[0])
		}
	}
}

func (a *api) agent(out http.ResponseWriter, rest []string) {
	path := "/" + strings.Join(rest[3:], "/")
	if answer, has := a.agents[path]; has {
		_ = json.NewEncoder(out).Encode(answer)
		return
	}
	a.refuse(out, http.StatusForbidden, metav1.StatusReasonForbidden, "nodes/proxy is not for user reader")
}

func (a *api) refuse(out http.ResponseWriter, code int, reason metav1.StatusReason, why string) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	_ = json.NewEncoder(out).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: why})
}

func (a *api) list(out http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := a.objects[resource]
	if items == nil {
		items = []runtime.Object{}
	}
	kind := map[string]string{"nodes": "NodeList", "pods": "PodList", "events": "EventList"}[resource]
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(map[string]any{"kind": kind, "apiVersion": "v1",
		"metadata": map[string]any{"resourceVersion": "7"}, "items": items})
}

// stream sends changes until the client goes. A watch of topologies begins with the object.
func (a *api) stream(out http.ResponseWriter, q *http.Request, resource string) {
	changes := make(chan metav1.WatchEvent, 16)
	a.mu.Lock()
	a.streams[resource] = append(a.streams[resource], changes)
	if resource == topology.Resource {
		for _, o := range a.objects[resource] {
			changes <- metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Object: o}}
		}
	}
	a.mu.Unlock()
	out.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(out).Flush()
	for {
		select {
		case <-q.Context().Done():
			return
		case e := <-changes:
			_ = json.NewEncoder(out).Encode(e)
			_ = http.NewResponseController(out).Flush()
		}
	}
}

// change sends a change to all who watch, when somebody does.
func (a *api) change(kind, resource string, o runtime.Object) {
	a.t.Helper()
	until(a.t, "a watch of "+resource, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, s := range a.streams[resource] {
			s <- metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Object: o}}
		}
		return len(a.streams[resource]) > 0
	})
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func nodeObject(name string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "8"}}
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110")}
	}
	n.Status.Capacity, n.Status.Allocatable = list("8", "16Gi"), list("7500m", "15Gi")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.NodeInfo.KubeletVersion = "v1.36.3+plimsoll.0.1.0"
	if change != nil {
		change(n)
	}
	return n
}

func podObject(name, node, cpu string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "8"}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse("1Gi")}}}}
	p.Status.Phase = corev1.PodRunning
	return p
}

// filled is an API with two nodes, three pods, an Event and metrics.
func filled(t *testing.T) *api {
	a := newAPI(t)
	a.objects["nodes"] = []runtime.Object{nodeObject("n1", nil), nodeObject("n2", func(n *corev1.Node) {
		n.Status.NodeInfo.KubeletVersion = "v1.36.3"
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
			{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoExecute}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown},
			{Type: corev1.NodePIDPressure, Status: corev1.ConditionTrue},
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}}
	})}
	waits := podObject("waits", "", "64")
	waits.Status.Phase = corev1.PodPending
	broken := podObject("broken", "n1", "500m")
	broken.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", RestartCount: 4, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	a.objects["pods"] = []runtime.Object{podObject("db", "n1", "2"), broken, waits}
	a.objects["events"] = []runtime.Object{&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", UID: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "broken"}, Reason: "BackOff",
		Message: "again", Count: 3, Type: "Warning", LastTimestamp: metav1.NewTime(time.Now()),
		Source: corev1.EventSource{Component: "kubelet"}}}
	a.metrics["nodes"] = `{"items": [{"metadata": {"name": "n1"}, "timestamp": "2026-11-26T12:00:00Z",
		"usage": {"cpu": "1500m", "memory": "2Gi"}}, {"metadata": {"name": "gone"}, "usage": {"cpu": "1"}}]}`
	a.metrics["pods"] = `{"items": [{"metadata": {"namespace": "shop", "name": "db"}, "timestamp": "2026-11-26T12:00:00Z",
		"containers": [{"usage": {"cpu": "300m", "memory": "1Gi"}}, {"usage": {"cpu": "200m", "memory": "1Gi"}}]}]}`
	return a
}

// TestState: what is watched and measured is in the State, and changes follow.
func TestState(t *testing.T) {
	a := filled(t)
	s := a.start(top.Nodes, "")
	s.Measure(t.Context())
	got := s.State()
	if len(got.Nodes) != 2 || got.PodCount != 3 || got.Waiting != 1 || len(got.Lacks) != 0 ||
		!got.Synced || got.Away != "" {
		t.Fatalf("%+v", got)
	}
	n1, n2 := got.Nodes[0], got.Nodes[1]
	want := top.Amounts{CPU: 2500, Memory: 2 * unit.GiB, Pods: 2}
	if *n1.Requested != want || n1.Used.CPU != 1500 || n1.Used.Memory != 2*unit.GiB || !n1.Ours || n1.State != "Ready" ||
		n1.Reserved() != (top.Amounts{CPU: 500, Memory: unit.GiB}) {
		t.Errorf("n1 is %+v, requested %+v", n1, n1.Requested)
	}
	if n2.State != "Unknown" || !slices.Equal(n2.Pressure, []string{"memory", "pid"}) || n2.Used.Known() || n2.Ours ||
		!n2.Cordoned || !slices.Equal(n2.Taints, []string{"team=blue:NoExecute"}) {
		t.Errorf("n2 is %+v", n2)
	}
	if len(got.Decisions) != 1 || got.Decisions[0].About != "shop/broken" ||
		got.Decisions[0].Text != "BackOff: again (3 times)" {
		t.Errorf("decisions %+v", got.Decisions)
	}
	a.change("ADDED", "pods", podObject("more", "n2", "1"))
	a.change("DELETED", "pods", podObject("db", "n1", "2"))
	placed := podObject("waits", "n2", "64")
	a.change("MODIFIED", "pods", placed)
	until(t, "the sums", func() bool {
		got := s.State()
		return got.Nodes[0].Requested.CPU == 500 && got.Nodes[1].Requested.CPU == 65000 &&
			got.Waiting == 0 && got.PodCount == 3
	})
	a.change("DELETED", "nodes", nodeObject("n2", nil))
	until(t, "the node to go", func() bool { return len(s.State().Nodes) == 1 })
	if s.Look(t.Context(), top.Pods, ""); len(s.State().Pods) != 3 {
		t.Errorf("pods %+v", s.State().Pods)
	}
	s.Measure(t.Context())
	for _, p := range s.State().Pods {
		if p.Name == "broken" && (p.State != "CrashLoopBackOff" || p.Restarts != 4 || p.ID != "shop/broken") {
			t.Errorf("%+v", p)
		}
	}
	if u := s.podUse["shop/db"]; u.CPU != 500 || u.Memory != 2*unit.GiB {
		t.Errorf("pod uses %+v", u)
	}
}

// TestManyPods: of more pods than metrics.k8s.io may be asked for at once, those on the screen are.
func TestManyPods(t *testing.T) {
	a := filled(t)
	a.metrics["namespaces/shop/pods/db"] = `{"timestamp":"2026-11-26T10:00:00Z","containers":[
		{"usage":{"cpu":"250m","memory":"1Gi"}},{"usage":{"cpu":"50m","memory":"1Gi"}}]}`
	s := a.start(top.Pods, "")
	s.measuredMax = 1
	s.Measure(t.Context())
	v := &top.View{Width: 100, Height: 20, Page: top.Pods}
	v.Lines(s.State())
	if got := strings.Join(v.Shown(), " "); got != "shop/broken shop/db shop/waits" {
		t.Fatalf("on the screen: %s", got)
	}
	if s.See(v.Shown()); !s.scrolled() {
		t.Error("the pods on the screen are not asked for")
	}
	if s.measurePods(t.Context()); s.scrolled() {
		t.Error("they are asked for again")
	}
	got := s.State()
	for _, p := range got.Pods {
		want := top.Usage{}
		if p.Name == "db" {
			want = top.Usage{At: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC), CPU: 300, Memory: 2 * unit.GiB}
		}
		if p.Used != want {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	if len(got.Lacks) != 1 || !strings.Contains(got.Lacks[0].Why, "only those on the screen") {
		t.Errorf("lacks %+v", got.Lacks)
	}
	a.forbid["get pods.metrics.k8s.io"] = true
	s.measurePods(t.Context())
	if got := s.State().Lacks; len(got) != 1 || !strings.Contains(got[0].Why, "may not get pods") {
		t.Errorf("lacks %+v", got)
	}
}

// TestOrderIsKept: pods that come, change and go leave the pods of a State in the order of their ids.
func TestOrderIsKept(t *testing.T) {
	s := &Source{nodes: map[string]*node{}, pods: map[string]*podSlot{}}
	h := s.podHandler()
	rng := rand.New(rand.NewPCG(3, 4))
	here := map[string]string{} // state by name
	for round := range 200 {
		for range rng.IntN(20) {
			name := fmt.Sprint("p", rng.IntN(60))
			p := podObject(name, "n1", "1")
			if p.Status.Phase = corev1.PodPending; rng.IntN(2) == 0 {
				p.Status.Phase = corev1.PodRunning
			}
			if rng.IntN(3) == 0 {
				h.OnDelete(keepPod(p))
				delete(here, "shop/"+name)
				continue
			}
			h.OnAdd(keepPod(p), false)
			here["shop/"+name] = string(p.Status.Phase)
		}
		if round%50 == 49 {
			s.sorted = podList{} // the page was left
		}
		var got, want []string
		for _, slot := range s.sorted.inOrder(s.pods) {
			got = append(got, slot.id+" "+slot.kept.pod.State)
		}
		for _, name := range slices.Sorted(maps.Keys(here)) {
			want = append(want, name+" "+here[name])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: %q, want %q", round, got, want)
		}
	}
}

// TestRoleIsWhatIsAsked: the role in deploy/ allows the requests that are made, and no others.
func TestRoleIsWhatIsAsked(t *testing.T) {
	a := filled(t)
	s := a.start(top.Pods, "")
	s.Measure(t.Context())
	s.measuredMax = 1
	s.See([]string{"shop/db"})
	s.Measure(t.Context())
	s.Look(t.Context(), top.OneNode, "n1")
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(deploy.Top), &role); err != nil {
		t.Fatal(err)
	}
	may := map[string]bool{}
	for _, rule := range role.Rules {
		for _, r := range rule.Resources {
			for _, verb := range rule.Verbs {
				may[verb+" "+strings.TrimSuffix(r+"."+rule.APIGroups[0], ".")] = true
			}
		}
	}
	agents := []string{"get nodes/stats", "get journals.plimsoll.dev"} // agents ask for these
	for _, what := range agents {
		if !may[what] {
			t.Errorf("%s is not allowed", what)
		}
		delete(may, what)
	}
	until(t, fmt.Sprintf("requests: %v", slices.Sorted(maps.Keys(may))), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return reflect.DeepEqual(a.asked, may)
	})
}

// TestForbidden: what may not be read is named, and the rest is there. Without nodes there is nothing.
func TestForbidden(t *testing.T) {
	a := filled(t)
	a.forbid["list pods"], a.forbid["list events"] = true, true
	a.metrics["nodes"] = ""
	s := a.start(top.Nodes, "")
	s.Measure(t.Context())
	got := s.State()
	if !got.Blind || got.Nodes[0].Requested != nil || got.Nodes[0].Used.Known() || len(got.Lacks) != 3 {
		t.Errorf("%+v", got)
	}
	a.forbid["list nodes"] = true
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "deploy/rbac-top.yaml") {
		t.Errorf("error %v", err)
	}
}

// TestAway: when the API server goes away, the State says since when and why, and keeps what was known.
func TestAway(t *testing.T) {
	a := filled(t)
	listening := httptest.NewServer(a)
	s := a.startAt(listening.URL, top.Nodes, "")
	until(t, "an answer", func() bool { return s.State().Away == "" })
	listening.CloseClientConnections()
	listening.Close()
	until(t, "the absence", func() bool { return s.State().Away != "" })
	if got := s.State(); len(got.Nodes) != 2 || got.PodCount != 3 || got.Since.IsZero() || got.Since.After(got.Now) {
		t.Errorf("%+v", got)
	}
}

// TestDetail: of the node in view, its agent and its NodeResourceTopology object are asked; of another agent there is
// no journal, and a node that publishes nothing has no map.
func TestDetail(t *testing.T) {
	a := filled(t)
	at := time.Now().UTC().Format(time.RFC3339)
	a.agents["/stats/summary"] = json.RawMessage(`{"node": {"nodeName": "n1",
		"cpu": {"time": "` + at + `", "usageNanoCores": 2500000000, "psi": {"some": {"avg10": 12.5}, "full": {"avg10": 1}}},
		"memory": {"time": "` + at + `", "workingSetBytes": 1073741824, "psi": {"some": {"avg10": 3}, "full": {"avg10": 2}}}},
		"pods": [{"podRef": {"name": "db", "namespace": "shop", "uid": "uid-db"},
		"cpu": {"time": "` + at + `", "usageNanoCores": 250000000}, "memory": {"workingSetBytes": 5}}]}`)
	a.agents["/journal"] = journal.Answer{Records: []journal.Record{{Number: 1, Time: time.Now(),
		Kind: journal.OutOfMemory, Pods: []journal.Pod{{Namespace: "shop", Name: "db"}}, Text: "killed for memory"}}}
	a.objects[topology.Resource] = []runtime.Object{published(t)}
	s := a.start(top.OneNode, "n1")
	s.Ask(t.Context(), true)
	until(t, "the map", func() bool { return len(s.State().Detail.NUMA) > 0 })
	d := s.State().Detail
	stall := top.Stall{CPUSome: 12.5, MemorySome: 3, MemoryFull: 2, IOSome: -1, IOFull: -1}
	if len(d.Samples) != 1 || d.Samples[0].Stall != stall || d.Samples[0].Used.CPU != 2500 || d.NoSamples != "" {
		t.Errorf("samples %+v, %s", d.Samples, d.NoSamples)
	}
	if len(d.Decisions) != 2 || !slices.ContainsFunc(d.Decisions, func(d top.Decision) bool {
		return d.Bad && d.About == "shop/db" && d.Text == "killed for memory"
	}) {
		t.Errorf("decisions %+v, %s", d.Decisions, d.NoJournal)
	}
	var owned []string
	for _, c := range d.NUMA[0].CPUs {
		owned = append(owned, fmt.Sprintf("%d%s%v", c.ID, c.Owner, c.Kept))
	}
	if got := strings.Join(owned, " "); got != "0true 1false 2shop/db/appfalse 3shop/db/appfalse" {
		t.Errorf("CPUs %s", got)
	}
	for _, p := range s.State().Pods {
		if p.Name == "db" && (p.Used.CPU != 250 || p.Used.Memory != 5) {
			t.Errorf("%+v", p)
		}
	}
	if s.Ask(t.Context(), false); len(s.State().Detail.Samples) != 1 {
		t.Error("the same measurement counts twice")
	}

	s.Look(t.Context(), top.OneNode, "n2")
	delete(a.agents, "/stats/summary")
	s.Ask(t.Context(), true)
	if d := s.State().Detail; d.NoSamples == "" || !strings.Contains(d.NoJournal, "no journal") || len(d.Samples) != 0 {
		t.Errorf("%+v", d)
	}
	if s.Look(t.Context(), top.Nodes, ""); s.State().Detail != nil {
		t.Error("the node is asked on")
	}
}

// published is the object of a node with one NUMA node and four CPUs: one is reserved, the last two belong to pod db.
func published(t *testing.T) *topology.Object {
	t.Helper()
	m := machine.Machine{
		CPUs:   idset.Of(0, 1, 2, 3),
		Memory: 4 * unit.GiB,
		NUMANodes: []machine.NUMANode{{ID: 0, CPUs: idset.Of(0, 1, 2, 3), Memory: 4 * unit.GiB,
			Distances: map[machine.NUMAID]int{0: 10}}},
		Sockets: map[machine.SocketID]idset.Set{0: idset.Of(0, 1, 2, 3)},
		Dies:    []idset.Set{idset.Of(0, 1, 2, 3)},
		L3:      map[machine.CacheID]idset.Set{0: idset.Of(0, 1, 2, 3)},
		Cores:   []idset.Set{idset.Of(0), idset.Of(1), idset.Of(2), idset.Of(3)},
		NodeFS:  machine.Filesystem{Capacity: unit.GiB},
		ImageFS: machine.Filesystem{Capacity: unit.GiB},
	}
	config := numa.Config{}
	config.CPU.Static = true
	config.CPU.Reserved = idset.Of(0)
	encoder, err := topology.NewEncoder("n1", m, config)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := numa.New(m, config)
	if err != nil {
		t.Fatal(err)
	}
	state := layout.NewState()
	if problems := state.Adopt(numa.Assignment{Pod: "uid-db", Containers: []numa.Assigned{
		{Container: "app", CPUs: idset.Of(2, 3)}}}); len(problems) > 0 {
		t.Fatal(problems)
	}
	return encoder.Encode(state)
}

// TestManyEvents: only the newest decisions are kept, whatever their number.
func TestManyEvents(t *testing.T) {
	var r ring
	for i := range 5000 {
		r.add(types.UID(fmt.Sprint(i)), top.Decision{Time: time.Unix(int64(i), 0)})
	}
	all := r.sorted()
	if len(all) < decisionsMax || len(all) >= 2*decisionsMax || all[len(all)-1].Time.Unix() != 4999 {
		t.Errorf("%d decisions are kept", len(all))
	}
	for i := range 5000 { // all at once
		r.add(types.UID(fmt.Sprint("x", i)), top.Decision{Time: time.Unix(9999, 0)})
	}
	if len(r.by) >= 2*decisionsMax {
		t.Errorf("%d decisions are kept", len(r.by))
	}
}

// BenchmarkRefresh is one refresh with its frame, after a change, with 5,000 nodes and 150,000 pods.
func BenchmarkRefresh(b *testing.B) {
	client, err := kube.NewClientForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		b.Fatal(err)
	}
	s := &Source{Client: client, nodes: map[string]*node{}, pods: map[string]*podSlot{}, lacks: map[string]top.Lack{}}
	nodes, pods := s.nodeHandler(), s.podHandler()
	for i := range 5000 {
		nodes.OnAdd(keepNode(nodeObject(fmt.Sprintf("node-%d", i), nil)), true)
	}
	for i := range 150000 {
		pods.OnAdd(keepPod(podObject(fmt.Sprintf("pod-%d", i), fmt.Sprintf("node-%d", i%5000), "100m")), true)
	}
	for _, c := range []struct {
		name string
		view top.View
	}{
		{"nodes", top.View{Page: top.Nodes}},
		{"pods", top.View{Page: top.Pods}},
		{"pods by memory", top.View{Page: top.Pods, Sort: map[top.Page]string{top.Pods: "memory-requested"}}},
		{"pods by age", top.View{Page: top.Pods, Sort: map[top.Page]string{top.Pods: "age"}}},
		{"pods by node", top.View{Page: top.Pods, Sort: map[top.Page]string{top.Pods: "node"}}},
		{"pods with a filter", top.View{Page: top.Pods, Filter: "77"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s.looks = c.view.Page
			v := &c.view
			v.Width, v.Height = 150, 50
			number := 0
			for b.Loop() {
				number++
				nodes.OnUpdate(nil, keepNode(nodeObject("node-7", nil)))
				pods.OnUpdate(nil, keepPod(podObject("pod-7", "node-7", "200m")))
				pods.OnAdd(keepPod(podObject(fmt.Sprint("came-", number), "node-8", "100m")), false)
				pods.OnDelete(keepPod(podObject(fmt.Sprint("came-", number-1), "node-8", "100m")))
				v.Lines(s.State())
			}
		})
	}
}
