package kube

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestReadOnly asks a read-only client for every verb of Client, and for requests that act though they are GET. Only
// get, list and watch reach the server. That holds for clients that are made of it, too.
func TestReadOnly(t *testing.T) {
	var mu sync.Mutex
	var reached []string
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, q.Method+" "+q.URL.Path)
		out.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	of, err := NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := of.ReadOnly("/stats/summary")
	if err != nil {
		t.Fatal(err)
	}
	gathering, err := c.Gathering(GatherBursts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, pod := t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
	core := c.REST(corev1.SchemeGroupVersion)
	proxy := func(verb *rest.Request, path string) error {
		return verb.AbsPath("/api/v1/nodes/n/proxy" + path).Do(ctx).Error()
	}
	for what, err := range map[string]error{
		"create": c.Create(ctx, Pods, "a", "", pod, pod),
		"bind":   c.Create(ctx, Pods, "a", "b", pod, pod, "binding"),
		"update": c.Update(ctx, Pods, "a", "b", pod, pod),
		"status": c.Update(ctx, Pods, "a", "b", pod, pod, "status"),
		"patch":  c.Patch(ctx, Nodes, "", "n", types.MergePatchType, []byte("{}"), nil),
		"delete": c.Delete(ctx, Pods, "a", "b", metav1.DeleteOptions{}),
		"evict":  c.Evict(ctx, &policyv1.Eviction{ObjectMeta: pod.ObjectMeta}),
		"exec":   core.Get().Namespace("a").Resource("pods").Name("b").SubResource("exec").Do(ctx).Error(),
		"run":    proxy(core.Get(), "/run/a/b/c"),
		"post":   proxy(core.Post(), "/stats/summary"),
		"hidden": proxy(core.Get(), "/run/nodes/n/proxy/stats/summary"),
		"below":  proxy(core.Get(), "/stats/summary/x"),
		"pod":    core.Get().AbsPath("/api/v1/namespaces/a/pods/b/proxy/stats/summary").Do(ctx).Error(),
		"upgrade": core.Get().Resource("pods").SetHeader("Upgrade", "websocket").SetHeader("Connection", "Upgrade").Do(ctx).
			Error(),
		"gathering": gathering.Delete(ctx, Pods, "a", "b", metav1.DeleteOptions{}),
	} {
		if refused := (ErrWrites{}); !errors.As(err, &refused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(reached) > 0 {
		t.Errorf("reached the server: %v", reached)
	}
	_ = c.Get(ctx, Pods, "a", "b", pod)
	_ = c.List(ctx, Nodes, "", metav1.ListOptions{}, &corev1.NodeList{})
	if _, err := c.Watch(ctx, Nodes, "", metav1.ListOptions{}); err == nil {
		t.Error("the server refuses, and the watch has no error")
	}
	_ = c.Ready(ctx)
	_ = proxy(core.Get(), "/stats/summary")
	want := []string{"GET /api/v1/namespaces/a/pods/b", "GET /api/v1/nodes", "GET /api/v1/nodes", "GET /readyz",
		"GET /api/v1/nodes/n/proxy/stats/summary"}
	if !slices.Equal(reached, want) {
		t.Errorf("reached the server: %q, want %q", reached, want)
	}
}
