package runtimehandler

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestRuntimeHandler: a pod's runtimeClassName is looked up, and one that is not there is no reason to take the
// default.
func TestRuntimeHandler(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if q.URL.Path != "/apis/node.k8s.io/v1/runtimeclasses/sandboxed" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"RuntimeClass","apiVersion":"node.k8s.io/v1","metadata":{"name":"sandboxed"},"handler":"kata"}`))
	}))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "", "sandboxed": "kata", "none": "error"} {
		got, err := New(client).Of(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &name}})
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("runtimeClassName %q: handler %q (%v), want %q", name, got, err, want)
		}
	}
}

type runtimeThat func() (*runtimeapi.StatusResponse, error)

func (r runtimeThat) Status(
	context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return r()
}

// A handler can do what the runtime said last that it can; a runtime that does not answer changes nothing.
func TestLearn(t *testing.T) {
	h := New(nil)
	if h.RecursiveReadOnly("kata") {
		t.Error("a handler can do something before the runtime was asked")
	}
	err := h.Learn(t.Context(), runtimeThat(func() (*runtimeapi.StatusResponse, error) {
		return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Name: "kata", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}, {Name: ""},
		}}, nil
	}))
	if err != nil || !h.RecursiveReadOnly("kata") || h.RecursiveReadOnly("") || h.RecursiveReadOnly("other") {
		t.Errorf("kata %t, default %t (%v)", h.RecursiveReadOnly("kata"), h.RecursiveReadOnly(""), err)
	}
	hung := runtimeThat(func() (*runtimeapi.StatusResponse, error) { return nil, errors.New("hung") })
	if err := h.Learn(t.Context(), hung); err == nil || !h.RecursiveReadOnly("kata") {
		t.Errorf("after an error: kata %t, %v", h.RecursiveReadOnly("kata"), err)
	}
}
