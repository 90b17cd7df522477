package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestKeptPods lists and watches pods over HTTP, and checks what is kept of them and that each change is passed on
// once.
func TestKeptPods(t *testing.T) {
	pod := func(name, version, node string) *corev1.Pod {
		p := testPod(name, "100m")
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		p.ResourceVersion, p.Spec.NodeName, p.Generation = version, node, 3
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady},
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"},
		}
		p.Status.NominatedNodeName = "n2"
		return p
	}
	events := make(chan any)
	server := httptest.NewServer(servePods([]corev1.Pod{*pod("a", "1", "n"), *pod("b", "1", "")}, events))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	profiles := []corescheduler.Profile{{Name: DefaultName}}
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName, Profiles: profiles}, nil, nil)
	store, controller := client.Informer(kube.Pods, kube.Selection{Keep: KeepPod}, m.podHandler())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // before the server closes, which waits for the watch
	go controller.RunWithContext(ctx)
	hear := func() {
		t.Helper()
		select {
		case f := <-m.facts:
			f(1)
		case <-time.After(time.Minute):
			t.Fatal("no fact in a minute")
		}
	}
	expect := func(want string) {
		t.Helper()
		nodes, pods, _ := m.placer.Sizes()
		if got := fmt.Sprint(nodes, pods, m.placer.Pending()["active"]); got != want {
			t.Errorf("nodes, pods and active ones: %s, want %s", got, want)
		}
	}
	hear()
	hear()
	expect("0 1 1")
	got := podIn(store, corescheduler.Pod{ID: "uid-b", Namespace: "default", Name: "b"})
	want := pod("b", "1", "")
	want.TypeMeta, want.Spec = metav1.TypeMeta{}, corev1.PodSpec{SchedulerName: DefaultName}
	want.Status.Conditions = want.Status.Conditions[1:]
	if !reflect.DeepEqual(got, want) {
		t.Errorf("kept %+v, want %+v", got, want)
	}
	if podIn(store, corescheduler.Pod{ID: "uid-of-another", Namespace: "default", Name: "b"}) != nil {
		t.Error("another pod with that name was found")
	}
	events <- map[string]any{"type": "MODIFIED", "object": pod("b", "2", "n")}
	hear()
	expect("0 2 0")
	events <- map[string]any{"type": "DELETED", "object": pod("a", "3", "n")}
	hear()
	expect("0 1 0")
}

// servePods answers a list with pods, and a watch with events.
func servePods(pods []corev1.Pod, events <-chan any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_ = json.NewEncoder(w).Encode(&corev1.PodList{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items:    pods,
			})
			return
		}
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			w.WriteHeader(http.StatusUnprocessableEntity) // so the client lists instead
			return
		}
		for {
			select {
			case e := <-events:
				_ = json.NewEncoder(w).Encode(e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
}

// TestKeptConditions: only the conditions that a scheduler writes are kept.
func TestKeptConditions(t *testing.T) {
	pod := testPod("p", "1")
	for _, kind := range []corev1.PodConditionType{
		corev1.PodReady, corev1.DisruptionTarget, corev1.PodInitialized, corev1.PodScheduled,
	} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
	}
	kept := KeepPod(pod).(*KeptPod).object().Status.Conditions
	if len(kept) != 2 || kept[0].Type != corev1.DisruptionTarget || kept[1].Type != corev1.PodScheduled {
		t.Errorf("kept %+v", kept)
	}
}
