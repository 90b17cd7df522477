package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

// api is an API server that lists and watches objects which a test sets, and that knows what agents answer. It accepts
// GET only.
type api struct {
	t    *testing.T
	at   string // its address
	stop func() // makes it unreachable, with all its connections

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]runtime.Object // by resource, then by namespace and name
	watchers map[string]map[chan event]bool
	agents   map[string]string // answers by node and path: "n1 /stats/summary"
	asked    map[string]bool   // "list pods", "watch nodes"
	away     bool              // it answers 503
}

type event struct {
	kind watch.EventType
	of   runtime.Object
}

// kinds are all kinds that it serves.
var kinds = []kube.Kind{kube.Pods, kube.Nodes, kube.Events, kube.Namespaces, kube.DisruptionBudgets, kube.Topologies,
	kube.StorageClasses, kube.Volumes, kube.VolumeClaims, kube.CSINodes, kube.CSIDrivers, kube.CSIStorageCapacities,
	kube.VolumeAttachments, kube.Services, kube.ReplicationControllers, kube.ReplicaSets, kube.StatefulSets}

func newAPI(t *testing.T) *api {
	a := &api{
		t:        t,
		objects:  map[string]map[string]runtime.Object{},
		watchers: map[string]map[chan event]bool{},
		agents:   map[string]string{},
		asked:    map[string]bool{},
	}
	server := httptest.NewServer(a)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	a.at = server.URL
	return a
}

func resourceOf(o runtime.Object) string {
	for _, k := range kinds {
		if fmt.Sprintf("%T", k.New()) == fmt.Sprintf("%T", o) {
			return k.Resource
		}
	}
	panic(fmt.Sprintf("%T is not served", o))
}

func keyOf(o runtime.Object) string {
	m := o.(metav1.Object)
	return m.GetNamespace() + "/" + m.GetName()
}

// set creates or changes objects.
func (a *api) set(objects ...runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		of, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			a.t.Fatal(err)
		}
		o = o.DeepCopyObject()
		o.GetObjectKind().SetGroupVersionKind(of[0])
		a.version++
		o.(metav1.Object).SetResourceVersion(strconv.Itoa(a.version))
		resource, key, kind := resourceOf(o), keyOf(o), watch.Added
		if a.objects[resource] == nil {
			a.objects[resource] = map[string]runtime.Object{}
		}
		if a.objects[resource][key] != nil {
			kind = watch.Modified
		}
		a.objects[resource][key] = o
		a.tell(resource, event{kind, o})
	}
}

// remove deletes an object.
func (a *api) remove(o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource, key := resourceOf(o), keyOf(o)
	gone := a.objects[resource][key].DeepCopyObject()
	a.version++
	gone.(metav1.Object).SetResourceVersion(strconv.Itoa(a.version))
	delete(a.objects[resource], key)
	a.tell(resource, event{watch.Deleted, gone})
}

func (a *api) tell(resource string, e event) {
	for w := range a.watchers[resource] {
		w <- e
	}
}

func (a *api) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		a.t.Errorf("%s %s: the console may only read", r.Method, r.URL)
		http.Error(out, "read only", http.StatusMethodNotAllowed)
		return
	}
	a.mu.Lock()
	away := a.away
	a.mu.Unlock()
	if away {
		http.Error(out, "away", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/readyz" {
		fmt.Fprint(out, "ok")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	if parts[0] == "apis" {
		group, parts = parts[1], parts[3:]
	} else {
		parts = parts[2:]
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 2 && parts[2] == "proxy" {
		a.agent(out, parts[1], "/"+strings.Join(parts[3:], "/"))
		return
	}
	for _, k := range kinds {
		if k.Group == group && k.Resource == parts[0] {
			a.answer(out, r, k, namespace, parts[1:])
			return
		}
	}
	http.NotFound(out, r)
}

func (a *api) agent(out http.ResponseWriter, node, path string) {
	a.mu.Lock()
	text, known := a.agents[node+" "+path]
	a.mu.Unlock()
	if !known {
		http.Error(out, "no agent here", http.StatusNotFound)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	fmt.Fprint(out, text)
}

func (a *api) answer(out http.ResponseWriter, r *http.Request, k kube.Kind, namespace string, name []string) {
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		a.t.Error(err)
	}
	keep := func(o runtime.Object) bool {
		return (namespace == "" || o.(metav1.Object).GetNamespace() == namespace) && selector.Matches(fieldsOf(o))
	}
	verb := "list"
	if r.URL.Query().Get("watch") != "" {
		verb = "watch"
	} else if len(name) > 0 {
		verb = "get"
	}
	full := strings.TrimSuffix(k.Resource+"."+k.Group, ".")
	a.mu.Lock()
	a.asked[verb+" "+full] = true
	a.mu.Unlock()
	switch verb {
	case "get":
		a.mu.Lock()
		o := a.objects[k.Resource][namespace+"/"+name[0]]
		a.mu.Unlock()
		if o == nil {
			writeObject(out, http.StatusNotFound, &metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: name[0] + " not found",
			})
			return
		}
		writeObject(out, http.StatusOK, o)
	case "list":
		list := k.NewList()
		a.mu.Lock()
		all := a.all(k, keep)
		list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(a.version))
		a.mu.Unlock()
		if n, _ := strconv.Atoi(r.URL.Query().Get("limit")); n == 1 { // whether it may
			all = all[:min(1, len(all))]
		}
		if err := meta.SetList(list, all); err != nil {
			a.t.Error(err)
		}
		of, _, err := scheme.Scheme.ObjectKinds(list)
		if err != nil {
			a.t.Error(err)
			return
		}
		list.GetObjectKind().SetGroupVersionKind(of[0])
		writeObject(out, http.StatusOK, list)
	case "watch":
		a.watch(out, r, k, keep)
	}
}

// all returns objects in order. a.mu is locked.
func (a *api) all(k kube.Kind, keep func(runtime.Object) bool) (out []runtime.Object) {
	for _, key := range slices.Sorted(maps.Keys(a.objects[k.Resource])) {
		if o := a.objects[k.Resource][key]; keep(o) {
			out = append(out, o)
		}
	}
	return out
}

func (a *api) watch(out http.ResponseWriter, r *http.Request, k kube.Kind, keep func(runtime.Object) bool) {
	events := make(chan event, 100000)
	a.mu.Lock()
	if a.watchers[k.Resource] == nil {
		a.watchers[k.Resource] = map[chan event]bool{}
	}
	a.watchers[k.Resource][events] = true
	var first []runtime.Object
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	if initial {
		first = a.all(k, keep)
	}
	version := a.version
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers[k.Resource], events)
		a.mu.Unlock()
	}()
	out.Header().Set("Content-Type", "application/json")
	flusher := out.(http.Flusher)
	e := json.NewEncoder(out)
	send := func(kind watch.EventType, o runtime.Object) bool {
		text, err := json.Marshal(o)
		return err == nil && e.Encode(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: text}}) == nil
	}
	for _, o := range first {
		send(watch.Added, o)
	}
	if initial {
		end := k.New()
		of, _, _ := scheme.Scheme.ObjectKinds(end)
		end.GetObjectKind().SetGroupVersionKind(of[0])
		end.(metav1.Object).SetResourceVersion(strconv.Itoa(version))
		end.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watch.Bookmark, end)
	}
	flusher.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case one := <-events:
			if !keep(one.of) {
				one.kind = watch.Deleted // it is not selected any more
			}
			if !send(one.kind, one.of) {
				return
			}
			flusher.Flush()
		}
	}
}

// fieldsOf returns the fields by which an API server selects objects.
func fieldsOf(o runtime.Object) fields.Set {
	switch o := o.(type) {
	case *corev1.Pod:
		return fields.Set{"status.phase": string(o.Status.Phase), "spec.nodeName": o.Spec.NodeName}
	case *corev1.Event:
		return fields.Set{
			"involvedObject.kind":      o.InvolvedObject.Kind,
			"involvedObject.namespace": o.InvolvedObject.Namespace,
			"involvedObject.name":      o.InvolvedObject.Name,
			"involvedObject.uid":       string(o.InvolvedObject.UID),
		}
	}
	return fields.Set{}
}

func writeObject(out http.ResponseWriter, code int, o runtime.Object) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	_ = json.NewEncoder(out).Encode(o) // an error means that the client is gone
}
