package explain

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

// server answers GET requests as an API server does, from manifests: in pages of two objects, whatever the client's
// limit is, and by the fields that are asked for here. It records the requests.
type server struct {
	t       *testing.T
	objects map[string][]runtime.Object // by resource and group
	forbid  map[string]bool             // resources that may not be read
	expired bool                        // every page but the first is too old
	asked   map[string]bool             // "list pods", "get nodes"

	mu sync.Mutex // held while a request is served
}

// kinds are all kinds that a question may read.
var kinds = []kube.Kind{kube.Pods, kube.Nodes, kube.Events, kube.Namespaces, kube.DisruptionBudgets, kube.Topologies,
	kube.StorageClasses, kube.Volumes, kube.VolumeClaims, kube.CSINodes, kube.CSIDrivers, kube.CSIStorageCapacities,
	kube.VolumeAttachments, kube.Services, kube.ReplicationControllers, kube.ReplicaSets, kube.StatefulSets}

func newServer(t *testing.T) *server {
	return &server{t: t, objects: map[string][]runtime.Object{}, forbid: map[string]bool{}, asked: map[string]bool{}}
}

// add adds manifests. The UID of a pod is its namespace and name.
func (s *server) add(text string) {
	s.t.Helper()
	objects, err := manifests.Parse([]byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range objects {
		if pod, is := o.(*corev1.Pod); is {
			manifests.DefaultPod(pod)
			if pod.Namespace == "" {
				pod.Namespace = "default"
			}
			pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
			if pod.Status.Phase == "" {
				pod.Status.Phase = corev1.PodPending
			}
		}
		known := false
		for _, k := range kinds {
			if reflect.TypeOf(k.New()) == reflect.TypeOf(o) {
				s.objects[resourceText(k)] = append(s.objects[resourceText(k)], o)
				known = true
			}
		}
		if !known {
			s.t.Fatalf("%T: no question reads it", o)
		}
	}
}

// client returns a client of the server.
func (s *server) client() *kube.Client {
	s.t.Helper()
	listening := httptest.NewServer(s)
	s.t.Cleanup(listening.Close)
	c, err := kube.NewClientForConfig(&rest.Config{Host: listening.URL, QPS: -1})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// ServeHTTP implements http.Handler. Requests are served one at a time.
func (s *server) ServeHTTP(out http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
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
	for _, k := range kinds {
		if k.Group != group || k.Resource != parts[0] {
			continue
		}
		verb := "list"
		if len(parts) > 1 {
			verb = "get"
		}
		what := verb + " " + resourceText(k)
		s.asked[what] = true
		switch {
		case s.forbid[resourceText(k)]:
			s.refuse(out, http.StatusForbidden, metav1.StatusReasonForbidden, "user reader may not "+what)
		case k.Resource == kube.Topologies.Resource && len(s.objects[resourceText(k)]) == 0:
			s.refuse(out, http.StatusNotFound, metav1.StatusReasonNotFound, "the server has no such resource")
		case verb == "get":
			s.get(out, k, namespace, parts[1])
		default:
			s.list(out, q, k, namespace)
		}
		return
	}
	s.t.Errorf("unexpected request %s %s", q.Method, q.URL)
	s.refuse(out, http.StatusNotFound, metav1.StatusReasonNotFound, "no such path")
}

func (s *server) get(out http.ResponseWriter, k kube.Kind, namespace, name string) {
	for _, o := range s.objects[resourceText(k)] {
		m := o.(metav1.Object)
		if m.GetName() == name && m.GetNamespace() == namespace {
			s.write(out, http.StatusOK, o)
			return
		}
	}
	s.refuse(out, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", k.Resource, name))
}

// page is how many objects an answer has.
const page = 2

func (s *server) list(out http.ResponseWriter, q *http.Request, k kube.Kind, namespace string) {
	selector, err := fields.ParseSelector(q.URL.Query().Get("fieldSelector"))
	if err != nil {
		s.t.Error(err)
	}
	var all []runtime.Object
	for _, o := range s.objects[resourceText(k)] {
		if namespace != "" && o.(metav1.Object).GetNamespace() != namespace || !selector.Matches(fieldsOf(o)) {
			continue
		}
		all = append(all, o)
	}
	from, size := 0, len(all)
	if text := q.URL.Query().Get("continue"); text != "" {
		if s.expired {
			s.refuse(out, http.StatusGone, metav1.StatusReasonExpired, "the page is too old")
			return
		}
		if from, err = strconv.Atoi(text); err != nil {
			s.t.Error(err)
		}
	}
	if q.URL.Query().Get("limit") != "" {
		size = min(len(all), from+page)
	}
	list := k.NewList()
	if err := meta.SetList(list, all[from:size]); err != nil {
		s.t.Error(err)
	}
	list.(metav1.ListInterface).SetResourceVersion("7")
	if size < len(all) {
		list.(metav1.ListInterface).SetContinue(strconv.Itoa(size))
	}
	s.write(out, http.StatusOK, list)
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
			"reason":                   o.Reason,
		}
	}
	return fields.Set{}
}

func (s *server) refuse(out http.ResponseWriter, code int, reason metav1.StatusReason, why string) {
	s.write(out, code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     int32(code),
		Reason:   reason,
		Message:  why,
	})
}

func (s *server) write(out http.ResponseWriter, code int, o runtime.Object) {
	if _, is := o.(*metav1.Status); !is {
		of, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			s.t.Error(err)
			return
		}
		o.GetObjectKind().SetGroupVersionKind(of[0])
	}
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	if err := json.NewEncoder(out).Encode(o); err != nil {
		s.t.Error(err)
	}
}
