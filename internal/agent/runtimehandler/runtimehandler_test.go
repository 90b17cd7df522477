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
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// TestRuntimeHandler: a pod's runtimeClassName is looked up. If the RuntimeClass does not exist, that is an error, and
// the default is not used.
func TestRuntimeHandler(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if q.URL.Path != "/apis/node.k8s.io/v1/runtimeclasses/sandboxed" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		_,
			_ = w.Write([]byte(`{"kind":"RuntimeClass","apiVersion":"node.k8s.io/v1","metadata":{"name":"sandboxed"},"handler":"kata"}`))
	}))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "", "sandboxed": "kata", "none": "error"} {
		got, err := New(client).For(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &name}})
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("runtimeClassName %q: handler %q (%v), want %q", name, got, err, want)
		}
	}
}

// runtimeThat is a runtime of some release that answers with its handlers or an error.
type runtimeThat struct {
	release  string
	handlers []*runtimeapi.RuntimeHandler
	err      error
}

func (r runtimeThat) Status(
	context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{RuntimeHandlers: r.handlers}, r.err
}

func (r runtimeThat) Version(
	context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption,
) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: r.release}, r.err
}

// A handler has the features that the runtime reported last. A runtime that does not answer changes nothing.
func TestLearn(t *testing.T) {
	h := New(nil)
	if h.RecursiveReadOnly("kata") || h.UserNamespaces("runc") || h.Known().Abilities != (podfields.Abilities{}) {
		t.Error("a handler can do something before the runtime was asked")
	}
	says := runtimeThat{release: "2.2.0", handlers: []*runtimeapi.RuntimeHandler{
		{Name: "kata", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
		{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}, {Name: ""},
	}}
	for i := range 2 {
		if changed, err := h.Learn(t.Context(), says); err != nil || changed != (i == 0) {
			t.Errorf("learned %d times: changed %t (%v)", i+1, changed, err)
		}
	}
	check := func(when string) {
		t.Helper()
		if !h.RecursiveReadOnly("kata") || h.RecursiveReadOnly("") || h.RecursiveReadOnly("other") {
			t.Errorf("%s: recursively read-only: kata %t", when, h.RecursiveReadOnly("kata"))
		}
		if !h.UserNamespaces("runc") || h.UserNamespaces("kata") || h.UserNamespaces("") {
			t.Errorf("%s: user namespaces: runc %t, kata %t", when, h.UserNamespaces("runc"), h.UserNamespaces("kata"))
		}
		all := podfields.Abilities{UserNamespaces: true, ImageVolumes: true}
		if k := h.Known(); k.Abilities != all || !k.ImageDirectories {
			t.Errorf("%s: %+v", when, k)
		}
	}
	check("learned")
	if changed, err := h.Learn(t.Context(), runtimeThat{err: errors.New("hung")}); err == nil || changed {
		t.Errorf("a runtime that hangs: changed %t (%v)", changed, err)
	}
	check("after an error")
	changed, err := h.Learn(t.Context(), runtimeThat{release: "1.6.20"})
	if err != nil || !changed || h.UserNamespaces("runc") {
		t.Errorf("an older release: changed %t (%v)", changed, err)
	}
}

// TestImageVolumes: whether a runtime mounts images depends on its release. An unknown runtime does not.
func TestImageVolumes(t *testing.T) {
	for _, c := range []struct {
		name, release      string
		whole, directories bool
	}{
		{"containerd", "1.6.20~ds1", false, false},
		{"containerd", "1.7.27", false, false},
		{"containerd", "v2.0.5", false, false},
		{"containerd", "v2.1.5", true, false},
		{"containerd", "v2.2.0-rc.1", true, true},
		{"containerd", "2.10.0", true, true},
		{"containerd", "3.0.0", true, true},
		{"containerd", "unknown", false, false},
		{"containerd", "", false, false},
		{"cri-o", "1.30.4", false, false},
		{"cri-o", "1.31.0", true, false},
		{"cri-o", "1.33.0", true, true},
		{"fake", "9.9", false, false},
	} {
		k := Of(c.name, c.release, nil)
		if k.ImageVolumes != c.whole || k.ImageDirectories != c.directories || k.UserNamespaces {
			t.Errorf("%s %s: %+v", c.name, c.release, k)
		}
	}
}
