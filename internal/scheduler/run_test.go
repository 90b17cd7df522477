package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// wirePod is a pod of a wire. Its UID is derived from its name.
func wirePod(name, cpu string, priority int32) *corev1.Pod {
	return withPriority(testPod(name, cpu), priority)
}

// during sets how w treats writes, until it is called with nil.
func (w *wire) during(trouble func(ctx context.Context, what string) wireFate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble = trouble
}

// TestRunThroughTrouble: whatever an API server does with writes for ten minutes, requests are made with pauses. Soon
// after it works again, each pod is bound once, the pod of high priority has preempted, pods that fit nowhere have
// their condition, and no Event is missing.
func TestRunThroughTrouble(t *testing.T) {
	always := func(fate wireFate) func(context.Context, string) wireFate {
		return func(context.Context, string) wireFate { return fate }
	}
	for name, trouble := range map[string]func(context.Context, string) wireFate{
		"refuses connections": always(wireFate{err: syscall.ECONNREFUSED}),
		"resets connections":  always(wireFate{err: syscall.ECONNRESET}),
		"has too much to do":  always(wireFate{code: http.StatusTooManyRequests}),
		"fails":               always(wireFate{code: http.StatusInternalServerError}),
		"is not available":    always(wireFate{code: http.StatusServiceUnavailable}),
		"is late":             always(wireFate{late: 25 * time.Second}),
		"is too late":         always(wireFate{late: 2 * answerMax}),
		"loses answers":       always(wireFate{lost: true}),
		"hangs": func(ctx context.Context, _ string) wireFate {
			<-ctx.Done()
			return wireFate{err: ctx.Err()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t)
				full := testNode("full", "1")
				full.Labels = map[string]string{"on": "full"}
				w.put("nodes", full)
				w.put("nodes", testNode("n", "20"))
				w.put("pods", onNode(wirePod("low", "1", 1), "full"))
				_, stop := startRun(w, Options{})
				defer stop()
				elapse(time.Second)
				w.during(trouble)
				for i := range 20 {
					w.put("pods", wirePod(fmt.Sprint("p", i), "1", 5))
				}
				high := wirePod("high", "1", 10)
				high.Spec.NodeSelector = full.Labels
				w.put("pods", high)
				w.put("pods", wirePod("big", "1000", 0))
				elapse(10 * time.Minute)
				w.mu.Lock()
				for what, n := range w.asked {
					if n > 22*70*3 {
						t.Errorf("%s was asked for %d times in ten minutes", what, n)
					}
				}
				t.Logf("asked %v, %d at once", w.asked, w.atOnce)
				w.mu.Unlock()
				w.during(nil)
				elapse(2 * time.Minute)
				w.eachBoundOnce(21)
				if why := w.why("big"); !strings.Contains(why, "Insufficient cpu") {
					t.Errorf("the condition of the big pod: %s", why)
				}
				if w.pod("low") != nil || w.on("high") != "full" {
					t.Errorf("the victim: %v; high is on %q", w.pod("low"), w.on("high"))
				}
				w.mu.Lock()
				if w.told["FailedScheduling big"] == 0 || w.told["Preempted low"] != 1 {
					t.Errorf("Events %v", w.told)
				}
				w.mu.Unlock()
			})
		})
	}
}

// TestRunAfterAGap: changes while the watches were broken count afterwards. A deleted pod leaves room, a pod with the
// same name is another pod, and a deleted node gets no pods.
func TestRunAfterAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		for _, name := range []string{"a", "b", "c"} {
			w.put("nodes", testNode(name, "1"))
			w.put("pods", onNode(wirePod("on-"+name, "1", 0), name))
		}
		_, stop := startRun(w, Options{})
		defer stop()
		elapse(time.Second)
		for i := range 3 {
			w.put("pods", wirePod(fmt.Sprint("waits", i), "1", 0))
		}
		elapse(time.Minute)
		if n := len(w.bound); n != 0 {
			t.Fatalf("%d are bound although all nodes are full", n)
		}
		w.unwatched(func() {
			elapse(time.Second)
			w.drop("pods", w.pod("on-a"))
			other := wirePod("on-b", "1", 0)
			other.UID = "uid-of-another"
			w.drop("pods", w.pod("on-b"))
			w.put("pods", other)
			w.drop("nodes", testNode("c", "1"))
		})
		elapse(time.Minute)
		w.drop("pods", w.pod("on-c"))
		elapse(time.Minute)
		places := map[string]int{}
		for _, name := range []string{"waits0", "waits1", "waits2", "on-b"} {
			places[w.on(name)]++
		}
		if places["a"] != 1 || places["b"] != 1 || places[""] != 2 {
			t.Errorf("by node: %v; want one each on a and b", places)
		}
	})
}

// TestRunSendsLastEvents: Events about what was done are sent even if the scheduler is stopped meanwhile.
func TestRunSendsLastEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.put("nodes", testNode("n", "1000"))
		w.during(func(context.Context, string) wireFate { return wireFate{late: 5 * time.Millisecond} })
		_, stop := startRun(w, Options{})
		elapse(time.Second)
		for i := range 100 {
			w.put("pods", wirePod(fmt.Sprint("p", i), "1", 0))
		}
		for len(w.boundNow()) < 100 {
			elapse(time.Millisecond)
		}
		stop()
		elapse(time.Minute)
		w.eachBoundOnce(100)
	})
}

// boundNow returns the names of the bound pods.
func (w *wire) boundNow() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.bound {
		names = append(names, string(id))
	}
	return names
}

// TestServedLater: a kind that the API server does not serve yet, or that cannot be read while the server is not
// available, is watched as soon as it is served. Nothing is placed until it is known whether it is served.
func TestServedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.missing["deviceclasses"], w.missing["noderesourcetopologies"] = true, true
		w.detached = true
		w.put("nodes", testNode("n", "1"))
		_, stop := startRun(w, Options{})
		defer stop()
		w.put("pods", wirePod("p", "1", 0))
		elapse(time.Minute)
		if w.on("p") != "" {
			t.Error("it is placed before it is known what agents report")
		}
		w.mu.Lock()
		w.detached = false
		w.mu.Unlock()
		elapse(time.Minute)
		if w.on("p") != "n" {
			t.Error("it is not placed although there are no reports to wait for")
		}
		gpu := "example.com/gpu"
		asks := wirePod("asks", "0", 0)
		asks.Spec.Containers[0].Resources.Requests[corev1.ResourceName(gpu)] = *testNode("", "1").Status.Allocatable.Cpu()
		class := &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu},
		}
		w.put("deviceclasses", class)
		w.mu.Lock()
		delete(w.missing, "deviceclasses")
		w.mu.Unlock()
		elapse(servedRetry + time.Second)
		w.put("pods", asks)
		elapse(time.Minute)
		if why := w.why("asks"); !strings.Contains(why, `device class "gpus"`) {
			t.Errorf("its condition: %s", why)
		}
	})
}

// TestNothingBeforeReports: nothing is placed while it is not known whether there are reports of NUMA nodes.
func TestNothingBeforeReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.unread = func(_ *http.Request, resource string) int {
			if resource == "noderesourcetopologies" {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		w.put("nodes", testNode("n", "1"))
		w.put("pods", wirePod("p", "1", 0))
		_, stop := startRun(w, Options{})
		defer stop()
		elapse(10 * time.Minute)
		if on := w.on("p"); on != "" {
			t.Errorf("it is on %s", on)
		}
		w.mu.Lock()
		w.unread = nil
		w.mu.Unlock()
		elapse(time.Minute)
		if on := w.on("p"); on != "n" {
			t.Errorf("it is on %q", on)
		}
	})
}

// TestReportsThatMayNotBeRead: if the scheduler is not allowed to read reports of NUMA nodes or device classes, it
// places pods without them, and asks again now and then.
func TestReportsThatMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		asked := 0
		w.unread = func(_ *http.Request, resource string) int {
			if resource == "noderesourcetopologies" || resource == "deviceclasses" {
				asked++
				return http.StatusForbidden
			}
			return 0
		}
		w.put("nodes", testNode("n", "1"))
		w.put("pods", wirePod("p", "1", 0))
		_, stop := startRun(w, Options{})
		defer stop()
		elapse(time.Second)
		if on := w.on("p"); on != "n" {
			t.Errorf("it is on %q", on)
		}
		elapse(10*time.Minute - 2*time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if asked != 2*10 {
			t.Errorf("%d requests in ten minutes, want %d", asked, 2*10)
		}
	})
}

// TestRunKnowsNamespaces: a pod has affinity to pods in namespaces with a label. It is placed as soon as a namespace
// has that label.
func TestRunKnowsNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		team := map[string]string{"team": "red"}
		for _, name := range []string{"a", "b"} {
			node := testNode(name, "10")
			node.Labels = map[string]string{corev1.LabelHostname: name}
			w.put("nodes", node)
		}
		other := onNode(wirePod("other", "1", 0), "b")
		other.Namespace, other.Labels = "theirs", map[string]string{"app": "web"}
		w.put("pods", other)
		w.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})
		_, stop := startRun(w, Options{Profiles: []corescheduler.Profile{{Name: "mine"}, {Name: "other"}}})
		defer stop()
		pod := wirePod("p", "1", 0)
		pod.Spec.SchedulerName = "mine"
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: other.Labels}, TopologyKey: corev1.LabelHostname,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: team},
			}},
		}}
		w.put("pods", pod)
		elapse(time.Second)
		if why := w.why("p"); w.on("p") != "" || !strings.Contains(why, "didn't match pod affinity rules") {
			t.Errorf("no pod is in a namespace of the team, but it is on %q: %s", w.on("p"), why)
		}
		w.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: team}})
		elapse(time.Minute)
		if w.on("p") != "b" {
			t.Errorf("it is on %q, want b: %s", w.on("p"), w.why("p"))
		}
		w.drop("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})
		late := pod.DeepCopy()
		late.Name, late.UID = "late", "uid-late"
		elapse(time.Second)
		w.put("pods", late)
		elapse(time.Minute)
		if w.on("late") != "" {
			t.Errorf("the namespace was deleted, but it is on %q", w.on("late"))
		}
	})
}

// TestRunForgetsGroups: pods of a Service are spread over nodes. Those of a deleted Service are not.
func TestRunForgetsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		for _, name := range []string{"a", "b"} {
			node := testNode(name, "10")
			node.Labels = map[string]string{corev1.LabelHostname: name}
			w.put("nodes", node)
		}
		web := func(name string) *corev1.Pod {
			pod := wirePod(name, "100m", 0)
			pod.Labels = map[string]string{"app": "web"}
			return pod
		}
		for i := range 4 {
			w.put("pods", onNode(web(fmt.Sprint("on-a", i)), "a"))
		}
		w.put("pods", onNode(wirePod("fills", "8", 0), "b")) // without the Service, a is the better node
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.ServiceSpec{Selector: web("").Labels},
		}
		w.put("services", service)
		_, stop := startRun(w, Options{})
		defer stop()
		w.put("pods", web("spread"))
		elapse(time.Minute)
		w.drop("services", service)
		elapse(time.Second)
		w.put("pods", web("not-spread"))
		elapse(time.Minute)
		if w.on("spread") != "b" || w.on("not-spread") != "a" {
			t.Errorf("with a Service it went to %q, want b, without to %q, want a", w.on("spread"), w.on("not-spread"))
		}
	})
}

// TestRunEvicts: a victim's condition passes the throttle with its deletion's priority, before less urgent requests.
func TestRunEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.put("nodes", testNode("n", "1"))
		w.put("pods", onNode(wirePod("low", "1", 1), "n"))
		metrics, stop := startRun(w, Options{})
		defer stop()
		w.put("pods", wirePod("high", "1", 10))
		elapse(time.Minute)
		w.eachBoundOnce(1)
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		writes := map[string]float64{}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				if f.GetName() == "plimsoll_api_writes_total" {
					writes[x.GetLabel()[1].GetValue()] += x.GetCounter().GetValue()
				}
			}
		}
		if writes["evict"] != 2 || writes["bind"] != 1 || writes["status"] != 1 {
			t.Errorf("writes by kind: %v; want a mark and a deletion, a bind, and a condition", writes)
		}
	})
}

// TestRunEndsForGood: when Run has returned, no further request is made, even if the API server has not accepted all
// Events.
func TestRunEndsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.put("nodes", testNode("n", "1"))
		w.during(func(_ context.Context, what string) wireFate {
			if strings.Contains(what, "events") {
				return wireFate{code: http.StatusServiceUnavailable}
			}
			return wireFate{}
		})
		_, stop := startRun(w, Options{})
		w.put("pods", wirePod("p", "1", 0))
		elapse(time.Minute)
		asked := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.asked["POST events"]
		}
		before := asked()
		stop()
		end := asked()
		elapse(time.Hour)
		if before == 0 || asked() != end {
			t.Errorf("%d Events were sent, %d more after the end", before, asked()-end)
		}
	})
}

// direct sends requests to a handler without a network.
type direct struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (d direct) RoundTrip(q *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, q)
	return answer.Result(), nil
}

// TestRunSendsWholeNodes checks that extenders get nodes as the API server has them.
func TestRunSendsWholeNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		for _, name := range []string{"a", "b", "c"} {
			w.put("nodes", testNode(name, "10"))
		}
		out := &outsider{t: t}
		_, stop := startRun(w, Options{Extenders: []schedulerconfig.Extender{{
			URL: "http://x.example/ext", Filter: "filter", Prioritize: "prioritize", Weight: 10,
			Config: rest.Config{Transport: direct{out}}, Timeout: time.Second,
		}}})
		defer stop()
		w.put("pods", wirePod("p", "1", 0))
		elapse(time.Minute)
		if on := w.on("p"); on != "c" || len(out.asked) != 2 {
			t.Errorf("it is on %q, want c; requests to the extender: %q", on, out.asked)
		}
	})
}
