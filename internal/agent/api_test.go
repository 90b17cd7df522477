package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// TestNodeIsNotBehindItsPods: the largest number of pod statuses in flight gets no answer, and more statuses wait. The
// node's own status and Lease are sent nevertheless.
func TestNodeIsNotBehindItsPods(t *testing.T) {
	nodeCame := make(chan string, 10)
	podCame, end := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/pods/") {
			podCame <- struct{}{}
			<-end
		} else {
			nodeCame <- r.Method + " " + r.URL.Path
		}
		w.WriteHeader(http.StatusConflict)
	}))
	defer server.Close()
	defer close(end)
	file := kubeconfigOf(t, server.URL)
	config, _, err := kubeletconfig.Load("")
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{
		o:       Options{Kubeconfig: file, Config: config, NodeName: "n"},
		metrics: metrics.New("n"),
	}
	if err := a.dialAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 5 * writesInFlight {
		go func() {
			_ = a.client.Patch(t.Context(), kube.Pods, "x", fmt.Sprint("p", i), types.MergePatchType, []byte("{}"), nil,
				"status")
		}()
	}
	for range writesInFlight {
		<-podCame
	}
	// a status write that hangs is in flight for that long
	soon, cancel := context.WithTimeout(t.Context(), kube.AnswerMaxDefault/2)
	defer cancel()
	for range 5 {
		_ = a.heartbeats.Patch(soon, kube.Nodes, "", "n", types.MergePatchType, []byte("{}"), nil, "status")
		_ = a.heartbeats.Patch(soon, kube.Leases, "kube-node-lease", "n", types.MergePatchType, []byte("{}"), nil)
	}
	if len(nodeCame) != 10 {
		t.Errorf("%d writes of the node came, want 10", len(nodeCame))
	}
}

// kubeconfigOf writes a kubeconfig for an API server.
func kubeconfigOf(t *testing.T, server string) string {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRatesAreTheConfigurations: pods and Events each have the configured rate limit, and the node's own status has
// none.
func TestRatesAreTheConfigurations(t *testing.T) {
	file := kubeconfigOf(t, "http://127.0.0.1:1")
	for _, c := range []struct {
		events string // eventRecordQPS in the configuration
		want   float32
	}{{"eventRecordQPS: 13", 13}, {"eventRecordQPS: 0", -1}} {
		config, warnings,
			err := kubeletconfig.Parse([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
			"kubeAPIQPS: 7\nkubeAPIBurst: 11\neventBurst: 17\n"+c.events+"\n"), "/")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%v, %v", warnings, err)
		}
		got, err := (&Agent{
			o:       Options{Kubeconfig: file, Config: config, NodeName: "n"},
			metrics: metrics.New("n"),
		}).clients()
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []struct {
			what   string
			client *kube.Client
			qps    float32
			burst  int
		}{{"the node's status", got.heartbeats, -1, 0}, {"pods", got.pods, 7, 11}, {"events", got.events, c.want, 17}} {
			if rest := limit.client.RESTConfig(); rest.QPS != limit.qps || rest.Burst != limit.burst {
				t.Errorf("%s: %s: %v a second and %d at once, want %v and %d", c.events, limit.what, rest.QPS, rest.Burst,
					limit.qps, limit.burst)
			}
		}
	}
}

// TestEventsRemembered: an ordinary node remembers a quarter of what a kubelet does, and a full one enough to count the
// Events of containers that fail again and again.
func TestEventsRemembered(t *testing.T) {
	for podsMax, want := range map[int32]int{0: 1024, 110: 1024, 200: 1024, 500: 2000, 1000: 4000, 5000: 4096} {
		if got := eventsRemembered(podsMax); got != want {
			t.Errorf("%d pods: %d Events, want %d", podsMax, got, want)
		}
	}
}
