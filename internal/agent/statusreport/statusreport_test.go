package statusreport

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A server that does not answer gets fewer and fewer requests, from the whole node together, and all of them at once
// when it answers again.
func TestServerThatDoesNotAnswerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reporter{}
		begun, asked := time.Now(), 0
		for time.Since(begun) < 2*time.Minute {
			if !r.allowed(t.Context()) {
				t.Fatal("not allowed though the context lives")
			}
			asked++
			r.answered(false)
			r.answered(false) // another writer's request failed at the same moment: it counts once
		}
		// 0.5, 1, 2, 4, 8 and then 10 s apart on average: 17 in two minutes, between 11 and 34 with jitter.
		if asked < 11 || asked > 34 {
			t.Errorf("asked %d times in two minutes, want 11 to 34", asked)
		}
		r.allowed(t.Context())
		r.answered(true)
		r.answered(false)
		if wait := time.Until(r.until); wait > 2*awayMin {
			t.Errorf("after an answer the first wait is %v, want at most %v", wait, 2*awayMin)
		}
	})
}

// A status that shows progress waits and is replaced by a newer one. A status that users wait for does not wait.
func TestProgressIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil, "node-1")
		o := &owner{}
		p := o.handle()
		o.status = corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{waitingFor("ContainerCreating")}}
		r.Enqueue(p)
		if r.take() != nil {
			t.Error("progress was in line at once")
		}
		o.status = corev1.PodStatus{Phase: corev1.PodRunning}
		r.Enqueue(p)
		if r.take() != p || r.take() != nil {
			t.Error("Running was not in line once, at once")
		}
		time.Sleep(2 * progressDelay) // virtual
		if r.take() != nil {
			t.Error("overtaken progress came later all the same")
		}
		o.status = corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{waitingFor("ContainerCreating")}}
		r.Enqueue(p)
		time.Sleep(2 * progressDelay)
		if r.take() != p {
			t.Error("progress that nothing overtook never came")
		}
		o.status.ContainerStatuses[0] = waitingFor("ErrImagePull")
		r.Enqueue(p)
		if r.take() != p {
			t.Error("trouble had to wait")
		}
	})
}

// While pods wait for others to start, progress waits longer, but not forever.
func TestProgressWaitsWhilePodsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		r := New(nil, "node-1")
		r.Busy = busy.Load
		o := &owner{status: corev1.PodStatus{
			Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waitingFor("ContainerCreating")},
		}}
		p := o.handle()
		r.Enqueue(p)
		time.Sleep(busyDelay - progressDelay) // virtual
		if r.take() != nil {
			t.Error("it was in line while the node is busy")
		}
		time.Sleep(2 * progressDelay)
		if r.take() != p {
			t.Errorf("it was not in line after %v", busyDelay)
		}
		r.takeChange(p) // as a writer does
		r.Enqueue(p)
		time.Sleep(2 * progressDelay)
		busy.Store(false)
		time.Sleep(2 * progressDelay)
		if r.take() != p {
			t.Error("it was not in line when the node was busy no more")
		}
	})
}

// A status counts from its change until the API server has it, failed writes included.
func TestWritesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		r := New(nil, "node-1")
		r.Written = func(after time.Duration) { took = append(took, after) }
		o := &owner{status: corev1.PodStatus{Phase: corev1.PodRunning}}
		p := o.handle()
		write := func(err error) { r.countWrite(p, r.takeChange(p), err) }
		r.Enqueue(p)
		time.Sleep(time.Second) // virtual
		r.Enqueue(p)            // a newer status: the API lacks the older one too
		time.Sleep(2 * time.Second)
		write(errors.New("no answer"))
		time.Sleep(2 * time.Second)
		write(nil)
		write(nil) // nothing changed since
		if len(took) != 1 || took[0] != 5*time.Second {
			t.Errorf("measured %v, want 5s once", took)
		}
	})
}

// owner is the owner of a pod. In these tests that is one goroutine.
type owner struct {
	object *corev1.Pod
	status corev1.PodStatus
}

func (o *owner) handle() *Pod {
	return NewPod("uid-1", func() (*corev1.Pod, corev1.PodStatus) { return o.object, o.status })
}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1", Generation: 3, ResourceVersion: "10"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "zeta", Image: "z:1"},
			{Name: "alpha", Image: "a:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func waitingFor(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

// A server may refuse a deletion with "not found" while it has the pod.
func TestDeletionIsBelievedWhenSeen(t *testing.T) {
	for _, c := range []struct {
		name   string
		delete int    // the server's answer to DELETE
		has    string // uid of the pod that a list shows; empty: none
		gone   bool
	}{
		{"deleted", http.StatusOK, "", true},
		{"gone before", http.StatusNotFound, "", true},
		{"another of that name", http.StatusConflict, "uid-2", true},
		{"admission's cache is behind", http.StatusNotFound, "uid-1", false},
		{"conflict over the pod itself", http.StatusConflict, "uid-1", false},
		{"refused", http.StatusForbidden, "uid-1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				code, pod := c.delete, testPod()
				pod.APIVersion, pod.Kind = "v1", "Pod"
				var answer any = pod
				if q.Method == http.MethodGet {
					list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
					if pod.UID = types.UID(c.has); c.has != "" {
						list.Items = append(list.Items, *pod)
					}
					code, answer = http.StatusOK, list
					if q.URL.Path != "/api/v1/namespaces/ns/pods" ||
						q.URL.Query().Get("fieldSelector") != "spec.nodeName=Node-1,metadata.name=web" {
						code = http.StatusForbidden // the Node authorizer's answer to every other request about such a pod
					}
				}
				if code != http.StatusOK {
					status := apierrors.NewGenericServerResponse(code, q.Method, corev1.Resource("pods"), pod.Name, "no", 0,
						false).Status()
					status.APIVersion, status.Kind = "v1", "Status"
					answer = status
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			if err := New(client, "Node-1").DeleteObject(t.Context(), testPod()); (err == nil) != c.gone {
				t.Errorf("deletion: %v", err)
			} else if err != nil {
				t.Log(err)
			}
		})
	}
}

// If the server refuses a status because of the containers' messages, the phase is written without them, and the pod is
// deleted when it must be.
func TestRefusedStatusDoesNotKeepThePod(t *testing.T) {
	for _, c := range []struct {
		code int
		why  string
		goes bool
	}{
		{http.StatusRequestEntityTooLarge, "limit is 3145728", true},
		{http.StatusUnprocessableEntity, "invalid", true},
		{http.StatusBadRequest, "bad", true},
		{http.StatusInternalServerError, "etcdserver: request is too large", true},
		{http.StatusInternalServerError, "rpc error: trying to send message larger than max", true},
		{http.StatusInternalServerError, "etcdserver: leader changed", false},
		{http.StatusTooManyRequests, "later", false},
	} {
		var phase corev1.PodPhase
		deleted := false
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			pod := testPod()
			pod.APIVersion, pod.Kind = "v1", "Pod"
			var answer any = pod
			if deleted = deleted || q.Method == http.MethodDelete; q.Method == http.MethodPatch {
				var sent corev1.Pod
				if err := json.NewDecoder(q.Body).Decode(&sent); err != nil {
					t.Error(err)
				}
				if len(sent.Status.ContainerStatuses) > 0 {
					status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure",
						Code: int32(c.code), Message: c.why}
					status.Reason = reasons[c.code]
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(c.code)
					_ = json.NewEncoder(w).Encode(status)
					return
				}
				phase = sent.Status.Phase
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Error(err)
			}
		}))
		client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		o := &owner{object: testPod()}
		o.status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta"}}}
		err = New(client, "Node-1").Delete(t.Context(), o.handle(), o.object)
		if goes := err == nil && deleted && phase == corev1.PodFailed; goes != c.goes {
			t.Errorf("%d %s: deleted %t, phase %q, %v", c.code, c.why, deleted, phase, err)
		}
		server.Close()
	}
}

// reasons are the API server's reasons for the codes.
var reasons = map[int]metav1.StatusReason{
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnprocessableEntity:   metav1.StatusReasonInvalid,
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusInternalServerError:   metav1.StatusReasonInternalError,
	http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
}

// The write of one pod's status hangs, and the status keeps changing: the others' statuses are written.
func TestWriteThatHangsHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil, "node-1")
		hung, other := (&owner{}).handle(), (&owner{}).handle()
		if !hung.beginWrite() { // by a writer that waits for the server
			t.Fatal("there is a write before the first")
		}
		running, stop := context.WithCancel(t.Context())
		go r.Run(running)
		for range 2 * writers {
			r.Enqueue(hung)
			synctest.Wait()
		}
		r.Enqueue(other)
		synctest.Wait()
		if r.mu.Lock(); len(r.queued) > 0 {
			t.Errorf("%d statuses wait for a write that hangs", len(r.queued))
		}
		r.mu.Unlock()
		stop()
		synctest.Wait()
		r.endWrite(hung)
		if r.take() != hung {
			t.Error("what changed during a write is not written after it")
		}
	})
}

// How a pod ended is written before its object is deleted; that its sandbox is gone is not.
func TestLastStatusBeforeDeletion(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.PodStatus)
		want   int
	}{
		{"a condition", func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}
		}, 0},
		{"its phase", func(s *corev1.PodStatus) { s.Phase = corev1.PodFailed }, 1},
		{"how a container ended", func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "zeta", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}},
			}}
		}, 1},
	} {
		patches, deletions := 0, 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch q.Method {
			case http.MethodPatch:
				patches++
			case http.MethodDelete:
				deletions++
			}
			pod := testPod()
			pod.APIVersion = "v1"
			pod.Kind = "Pod"
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(pod); err != nil {
				t.Error(err)
			}
		}))
		client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		o := &owner{object: testPod(), status: testPod().Status}
		c.change(&o.status)
		if err := New(client, "node-1").Delete(t.Context(), o.handle(), o.object); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		server.Close()
		if patches != c.want || deletions != 1 {
			t.Errorf("%s: %d patches and %d deletions, want %d and 1", c.name, patches, deletions, c.want)
		}
	}
}
