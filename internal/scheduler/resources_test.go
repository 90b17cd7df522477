package scheduler

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestPodResources: all pages are read, each family stands together, ended pods are left out, and what a pod's author
// wrote is escaped. oracle/ holds the lines against upstream's. Who leads no more says nothing.
func TestPodResources(t *testing.T) {
	pod := func(name, scheduler string, phase corev1.PodPhase) corev1.Pod {
		p := testPod(name, "1500m")
		p.Spec.SchedulerName, p.Spec.NodeName, p.Status.Phase = scheduler, "n", phase
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"), "example.com/none": resource.MustParse("0")}
		return *p
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if r.URL.Query().Get("continue") == "" {
			list.Items, list.Continue = []corev1.Pod{pod("a", "x", corev1.PodRunning), pod("ended", "x", corev1.PodFailed)}, "more"
		} else {
			list.Items = []corev1.Pod{pod("b", "odd\"\n\\", corev1.PodPending)}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer api.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &PodResources{Client: client}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resources", nil))
	want := limitHead + `kube_pod_resource_limit{namespace="default",node="n",pod="a",priority="",resource="memory",scheduler="x",unit="bytes"} 1.073741824e+09
kube_pod_resource_limit{namespace="default",node="n",pod="b",priority="",resource="memory",scheduler="odd\"\n\\",unit="bytes"} 1.073741824e+09
` + requestHead + `kube_pod_resource_request{namespace="default",node="n",pod="a",priority="",resource="cpu",scheduler="x",unit="cores"} 1.5
kube_pod_resource_request{namespace="default",node="n",pod="b",priority="",resource="cpu",scheduler="odd\"\n\\",unit="cores"} 1.5
`
	if got := w.Body.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.Leads = func() bool { return false }
	w = httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resources", nil))
	if w.Body.Len() > 0 || w.Code != http.StatusOK {
		t.Errorf("another leads: %d %s", w.Code, w.Body)
	}
}

// TestMetricsOfTrouble: what fails is counted under upstream's names, and a pod that fits nowhere under the plugins
// that rejected nodes for it, until it is gone.
func TestMetricsOfTrouble(t *testing.T) {
	m := NewMetrics()
	count := func(plugin string) (n float64) {
		families, err := m.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				if f.GetName() == "scheduler_unschedulable_pods" && strings.Contains(x.String(), `"`+plugin+`"`) {
					n += x.GetGauge().GetValue()
				}
			}
		}
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.protects = true
		mind, _, stop := start(c, 16)
		defer stop()
		mind.o.Metrics = m
		m.count(func() (census, bool) { return mind.count(context.Background()) })
		mind.nodeHandler().OnAdd(testNode("n", "1"), true)
		cordoned := testNode("cordoned", "1")
		cordoned.Spec.Unschedulable = true
		mind.nodeHandler().OnAdd(cordoned, true)
		c.add(mind, onNode(withPriority(testPod("low", "1"), 1), "n"))
		mind.tell(context.Background(), synced(mind))
		high := withPriority(testPod("high", "1"), 10)
		c.add(mind, high)
		time.Sleep(time.Minute)
		synctest.Wait()
		if count("NodeResourcesFit") != 1 || count("NodeUnschedulable") != 1 {
			t.Errorf("%v and %v pods rejected, want one by each", count("NodeResourcesFit"), count("NodeUnschedulable"))
		}
		for name, least := range map[string]float64{"scheduler_preemption_goroutines_execution_total": 2, "scheduler_async_api_call_execution_total": 1,
			"scheduler_event_handling_duration_seconds": 4, "scheduler_pod_scheduled_after_flush_total": 0} {
			if got := total(t, m, name); got < least {
				t.Errorf("%s: %v", name, got)
			}
		}
		mind.podHandler().OnDelete(high)
		synctest.Wait()
		if count("NodeResourcesFit") != 0 {
			t.Error("counted, and gone")
		}
	})
}

// TestFlushedIsCounted: a pod that only the look after a long wait found is counted when it is bound.
func TestFlushedIsCounted(t *testing.T) {
	m := newMind(Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: 2}, nil, nil)
	for _, flushed := range []bool{true, false} {
		m.settle(2, placed{Decision: placement.Decision{Node: "n", Flushed: flushed}, began: 1}, placement.BindDone)
	}
	if n := total(t, m.o.Metrics, "scheduler_pod_scheduled_after_flush_total"); n != 1 {
		t.Errorf("%v counted, want one", n)
	}
}
