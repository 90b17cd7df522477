package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Each end is counted once, whether the status has it as the state or as the last state.
func TestCountEnds(t *testing.T) {
	ended := func(id string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code,
			Reason: "Error"}}
	}
	status := func(state, last corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta", State: state,
			LastTerminationState: last}}}
	}
	r := testRunner()
	r.Metrics = metrics.New("n")
	none, waits := corev1.ContainerState{},
		corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	story := []corev1.PodStatus{
		status(none, none), status(ended("c1", 139), none), status(none, ended("c1", 139)), status(waits, ended("c2", 139)),
		status(ended("c3", 1), ended("c2", 139)),
	}
	for i := 1; i < len(story); i++ {
		r.countEnds(story[i-1], story[i])
	}
	r.countEnds(corev1.PodStatus{}, corev1.PodStatus{InitContainerStatuses: story[1].ContainerStatuses})
	families, err := r.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() == "kubelet_terminated_containers_total" {
			for _, m := range f.Metric {
				got = append(got, fmt.Sprint(m.Label[0].GetValue(), " ", m.Label[1].GetValue(), " ", m.Label[2].GetValue(), " ",
					m.Counter.GetValue()))
			}
		}
	}
	if want := []string{"container 1 Error 1", "container 139 Error 2", "init_container 139 Error 1"}; !slices.Equal(got,
		want) {
		t.Errorf("counted %q, want %q", got, want)
	}
}

// patches is an API server that accepts every patch and records the bodies.
type patches struct {
	mu     sync.Mutex
	bodies []string
}

func (p *patches) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.bodies = append(p.bodies, q.Method+" "+string(body))
	p.mu.Unlock()
	pod := testPod()
	pod.APIVersion = "v1"
	pod.Kind = "Pod"
	pod.ResourceVersion = "12"
	answer, err := json.Marshal(pod)
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(strings.NewReader(string(answer))),
		Request:    q,
	}, err
}

// sent returns the patches since the last call, once no more come.
func (p *patches) sent() []string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	bodies := p.bodies
	p.bodies = nil
	return bodies
}

// Another client writes a condition on which the pod's readiness depends. Nothing is written before a worker has
// observed the pod, and then only the agent's own conditions.
func TestForeignWriteIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &patches{}
		client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api", Transport: server, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		r := testRunner()
		r.report = statusreport.New(client, r.Node)
		r.pods, r.Volumes = map[types.UID]*podentry.Entry{}, &volume.Manager{}
		ctx, cancel := context.WithCancel(t.Context())
		go r.report.Run(ctx)
		pod := testPod()
		e := r.take(pod, false)
		status := r.statuses().Status(pod, podstatus.Facts{
			Last: pod.Status,
			Decided: podlife.Status{
				Phase: podlife.Active, Conditions: []podlife.Condition{{Type: "Ready", True: true}},
			},
		})
		e.SetStatus(pod, status, podlife.Observation{}, podlife.Status{})
		later := testPod()
		later.ResourceVersion = "11"
		later.Status.Conditions = []corev1.PodCondition{{Type: "example.com/lb", Status: corev1.ConditionFalse}}
		r.take(later, false)
		if sent := server.sent(); len(sent) > 0 {
			t.Errorf("a status is written that no worker has looked at since: %s", sent)
		}
		if shown := e.Current().Status.Conditions; len(shown) != 2 {
			t.Errorf("the node shows the conditions %+v, want its own and theirs", shown)
		}
		r.report.Recheck(e.Report())
		sent := server.sent()
		if len(sent) != 1 || !strings.HasPrefix(sent[0], http.MethodPatch) || strings.Contains(sent[0], "example.com") {
			t.Errorf("written: %s, want one patch with what the API lacks", sent)
		}
		cancel()
	})
}
