package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
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

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestPodResources: all pages are read, the lines of a family are together, ended pods are left out, and text of a
// pod's author is escaped. A process that does not lead answers nothing. oracle/ compares the lines with upstream's.
func TestPodResources(t *testing.T) {
	pod := func(name, scheduler string, phase corev1.PodPhase) corev1.Pod {
		p := testPod(name, "1500m")
		p.Spec.SchedulerName, p.Spec.NodeName, p.Status.Phase = scheduler, "n", phase
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("1Gi"), "example.com/none": resource.MustParse("0"),
		}
		return *p
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if r.URL.Query().Get("continue") == "" {
			list.Items = []corev1.Pod{pod("a", "x", corev1.PodRunning), pod("ended", "x", corev1.PodFailed)}
			list.Continue = "more"
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
	line := func(what, pod, resource, scheduler, unit, value string) string {
		return fmt.Sprintf(`kube_pod_resource_%s{namespace="default",node="n",pod="%s",priority="",resource="%s",`+
			`scheduler="%s",unit="%s"} %s`+"\n", what, pod, resource, scheduler, unit, value)
	}
	const odd = `odd\"\n\\` // escaped
	want := limitHead +
		line("limit", "a", "memory", "x", "bytes", "1.073741824e+09") +
		line("limit", "b", "memory", odd, "bytes", "1.073741824e+09") +
		requestHead +
		line("request", "a", "cpu", "x", "cores", "1.5") +
		line("request", "b", "cpu", odd, "cores", "1.5")
	if got := w.Body.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.Leads = func() bool { return false }
	w = httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resources", nil))
	if w.Body.Len() > 0 || w.Code != http.StatusOK {
		t.Errorf("another process leads: %d %s", w.Code, w.Body)
	}
}

// TestMetricsOfFailures: failures are counted under upstream's names. A pod that fits nowhere is counted for each
// plugin that rejected a node, until it is gone.
func TestMetricsOfFailures(t *testing.T) {
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
		l, _, stop := start(c, 16)
		defer stop()
		l.o.Metrics = m
		m.count(func() (loopState, bool) { return l.count(context.Background()) })
		l.nodeHandler().OnAdd(testNode("n", "1"), true)
		cordoned := testNode("cordoned", "1")
		cordoned.Spec.Unschedulable = true
		l.nodeHandler().OnAdd(cordoned, true)
		c.add(l, onNode(withPriority(testPod("low", "1"), 1), "n"))
		l.submit(context.Background(), synced(l))
		high := withPriority(testPod("high", "1"), 10)
		c.add(l, high)
		elapse(time.Minute)
		if count("NodeResourcesFit") != 1 || count("NodeUnschedulable") != 1 {
			t.Errorf("%v and %v pods rejected, want one by each", count("NodeResourcesFit"), count("NodeUnschedulable"))
		}
		for name, least := range map[string]float64{
			"scheduler_preemption_goroutines_execution_total": 2,
			"scheduler_async_api_call_execution_total":        1,
			"scheduler_event_handling_duration_seconds":       4,
			"scheduler_pod_scheduled_after_flush_total":       0,
		} {
			if got := total(t, m, name); got < least {
				t.Errorf("%s: %v", name, got)
			}
		}
		l.podHandler().OnDelete(high)
		synctest.Wait()
		if count("NodeResourcesFit") != 0 {
			t.Error("a pod that is gone is counted")
		}
	})
}

// TestFlushedIsCounted: a pod that only the check of long-waiting pods found is counted when it is bound.
func TestFlushedIsCounted(t *testing.T) {
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: 2}, nil, nil)
	for _, flushed := range []bool{true, false} {
		m.bindEnded(2, placed{Decision: corescheduler.Decision{Node: "n", Flushed: flushed}, began: 1},
			corescheduler.BindDone)
	}
	if n := total(t, m.o.Metrics, "scheduler_pod_scheduled_after_flush_total"); n != 1 {
		t.Errorf("%v counted, want one", n)
	}
}

// TestPodResourcesOneAtATime: while one request is served another is refused, and afterwards the next is served; if the
// pods cannot be listed, the response is aborted.
func TestPodResourcesOneAtATime(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan int)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(<-answer)
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}})
	}))
	defer api.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &PodResources{Client: client}
	ask := func() (code int, broken any) {
		defer func() { broken = recover() }()
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resources", nil))
		return w.Code, nil
	}
	for range 2 {
		first := make(chan int, 1)
		go func() {
			code, _ := ask()
			first <- code
		}()
		select {
		case <-asked:
		case code := <-first:
			t.Fatalf("no other request is in progress, but the first gets %d", code)
		}
		if code, _ := ask(); code != http.StatusServiceUnavailable {
			t.Errorf("while another request is in progress: %d", code)
		}
		answer <- http.StatusOK
		if code := <-first; code != http.StatusOK {
			t.Errorf("the first: %d", code)
		}
	}
	go func() {
		<-asked
		answer <- http.StatusForbidden
	}()
	if _, broken := ask(); broken != http.ErrAbortHandler {
		t.Errorf("pods cannot be listed: %v", broken)
	}
}

func TestUnits(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "cores", corev1.ResourceMemory: "bytes", corev1.ResourceStorage: "bytes",
		corev1.ResourceEphemeralStorage: "bytes", "hugepages-2Mi": "bytes", "attachable-volumes-x": "integer",
		"example.com/gpu": "",
	} {
		if got := unitOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
