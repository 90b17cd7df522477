package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// wire is an API server in memory. Run uses it through its own clients, throttle, watches and Recorders, in a bubble's
// time. It checks the requests: each write names the object for which it was decided, and there is none for a pod that
// has been bound.
type wire struct {
	t *testing.T

	mu      sync.Mutex
	version int
	objects map[string]map[string]object // by resource, then by namespace and name
	changes []wireChange
	floor   int           // the version up to which changes are no longer available
	changed chan struct{} // closed at the next change
	cut     chan struct{} // closed when watches are broken
	// unread returns the status code with which it refuses a read; zero, or nil: it does not.
	unread   func(q *http.Request, resource string) int
	missing  map[string]bool                                 // resources that it does not serve
	trouble  func(ctx context.Context, what string) wireFate // of writes; nil: none
	asked    map[string]int                                  // writes that arrived, by method and resource
	bound    map[types.UID]int
	told     map[string]int  // Events, by reason and object
	names    map[string]bool // of Events, with their reasons
	running  map[string]int  // writes in progress, by method and resource
	atOnce   int             // the most writes in progress
	detached bool            // broken watches are not accepted again
}

// wireChange is an event of a watch.
type wireChange struct {
	version  int
	resource string
	line     []byte
}

// wireFate is what happens to a request.
type wireFate struct {
	code int           // the answer instead of the effect; zero: the request has its effect
	err  error         // no answer, and no effect
	late time.Duration // delay before effect and answer
	lost bool          // it has its effect, and the answer is lost
}

func newWire(t *testing.T) *wire {
	return &wire{
		t: t, objects: map[string]map[string]object{}, changed: make(chan struct{}), cut: make(chan struct{}),
		missing: map[string]bool{}, asked: map[string]int{}, bound: map[types.UID]int{}, told: map[string]int{},
		running: map[string]int{}, names: map[string]bool{},
	}
}

// startRun runs Run with w, until the returned function is called, which checks that no pod was forgotten.
func startRun(w *wire, o Options) (m *Metrics, stop func()) {
	client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api.example", Transport: w, QPS: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	o.Client, o.Metrics = client, NewMetrics()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	return o.Metrics, func() {
		if n := total(w.t, o.Metrics, "scheduler_pod_scheduled_after_flush_total"); n != 0 {
			w.t.Errorf("%v pods fit, and only the check of long-waiting pods found them", n)
		}
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

// gvks are the kinds of objects on a wire.
var gvks = map[string]schema.GroupVersionKind{
	"pods":       {Version: "v1", Kind: "Pod"},
	"nodes":      {Version: "v1", Kind: "Node"},
	"namespaces": {Version: "v1", Kind: "Namespace"},
	"services":   {Version: "v1", Kind: "Service"},
	"deviceclasses": {
		Group: "resource.k8s.io", Version: "v1", Kind: "DeviceClass",
	},
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// put stores an object and sends the event to watches.
func (w *wire) put(resource string, o object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(resource, o)
}

// set is put with w.mu held.
func (w *wire) set(resource string, o object) {
	kind := "MODIFIED"
	if was := w.objects[resource][keyOf(o)]; was == nil {
		kind = "ADDED"
	}
	if w.objects[resource] == nil {
		w.objects[resource] = map[string]object{}
	}
	w.version++
	o.GetObjectKind().SetGroupVersionKind(gvks[resource])
	o.SetResourceVersion(strconv.Itoa(w.version))
	w.objects[resource][keyOf(o)] = o
	w.tell(resource, kind, o)
}

// drop deletes an object.
func (w *wire) drop(resource string, o object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unset(resource, o)
}

// unset is drop with w.mu held.
func (w *wire) unset(resource string, o object) {
	o = o.DeepCopyObject().(object)
	o.GetObjectKind().SetGroupVersionKind(gvks[resource])
	w.version++
	o.SetResourceVersion(strconv.Itoa(w.version))
	delete(w.objects[resource], keyOf(o))
	w.tell(resource, "DELETED", o)
}

func (w *wire) tell(resource, kind string, o object) {
	text := jsonOf(map[string]any{"type": kind, "object": o})
	w.changes = append(w.changes, wireChange{w.version, resource, append(text, '\n')})
	close(w.changed)
	w.changed = make(chan struct{})
}

func jsonOf(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// unwatched calls do while no watch is open. It drops the changes, so that only the next lists show them.
func (w *wire) unwatched(do func()) {
	w.mu.Lock()
	w.detached = true
	close(w.cut)
	w.cut = make(chan struct{})
	w.mu.Unlock()
	do()
	w.mu.Lock()
	w.changes, w.floor, w.detached = nil, w.version, false
	w.mu.Unlock()
}

// pod returns the pod with a name, nil if there is none.
func (w *wire) pod(name string) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod, _ := w.objects["pods"]["default/"+name].(*corev1.Pod)
	return pod
}

// on returns the node of a pod.
func (w *wire) on(name string) string {
	if pod := w.pod(name); pod != nil {
		return pod.Spec.NodeName
	}
	return ""
}

// eachBoundOnce checks that there are this many pods, each bound once, with an Event.
func (w *wire) eachBoundOnce(pods int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bound) != pods {
		w.t.Errorf("%d pods are bound, want %d", len(w.bound), pods)
	}
	for id, n := range w.bound {
		if name := strings.TrimPrefix(string(id), "uid-"); n != 1 || w.told["Scheduled "+name] == 0 {
			w.t.Errorf("%s is bound %d times, with %d Events", id, n, w.told["Scheduled "+name])
		}
	}
}

// why returns the condition of a waiting pod.
func (w *wire) why(name string) string {
	pod := w.pod(name)
	if pod == nil {
		return "it is gone"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}
