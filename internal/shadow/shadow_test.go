package shadow

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	coreshadow "github.com/plimsoll-dev/plimsoll/internal/core/shadow"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// server answers lists with the objects of an empty cluster, and keeps watches open. It refuses some resources.
type server struct {
	t      *testing.T
	refuse map[string]bool
	ended  <-chan struct{}
}

func (s *server) ServeHTTP(out http.ResponseWriter, q *http.Request) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	resource := parts[len(parts)-1]
	if q.Method != http.MethodGet {
		s.t.Errorf("%s %s", q.Method, q.URL)
	}
	if q.URL.Query().Get("sendInitialEvents") != "" { // as a server without streaming lists: the client lists then
		out.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	if q.URL.Query().Get("watch") != "" {
		out.Header().Set("Content-Type", "application/json")
		out.(http.Flusher).Flush()
		select {
		case <-q.Context().Done():
		case <-s.ended:
		}
		return
	}
	var answer any = map[string]any{
		"kind":       "List",
		"apiVersion": "v1",
		"metadata":   metav1.ListMeta{ResourceVersion: "1"},
		"items":      []any{},
	}
	code := http.StatusOK
	if s.refuse[resource] {
		code = http.StatusForbidden
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure,
			Reason:   metav1.StatusReasonForbidden,
			Code:     http.StatusForbidden,
			Message:  "jane may not list " + resource,
		}
	} else if kind := lists[resource]; kind != "" {
		answer.(map[string]any)["kind"] = kind
	}
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	if err := json.NewEncoder(out).Encode(answer); err != nil {
		s.t.Error(err)
	}
}

// lists are kinds of lists.
var lists = map[string]string{"pods": "PodList", "nodes": "NodeList"}

// watchFor runs a shadow of the server until its first line, or for a while if it has none.
func watchFor(t *testing.T, refuse ...string) (lines []Line, summary *Summary, err error) {
	t.Helper()
	ended := make(chan struct{})
	s := &server{t: t, refuse: map[string]bool{}, ended: ended}
	for _, resource := range refuse {
		s.refuse[resource] = true
	}
	listening := httptest.NewServer(s)
	defer listening.Close()
	defer close(ended)
	client, err := kube.NewClientForConfig(&rest.Config{Host: listening.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := schedulerconfig.Load("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	summary, err = Run(ctx, Options{Client: client, Config: config, Monitor: corelifecycle.Defaults(), Line: func(l Line) {
		lines = append(lines, l)
		stop()
	}})
	return lines, summary, err
}

// TestRights: without the right to list nodes or pods nothing is compared, and the error names the role. Without other
// rights the summary says what that means.
func TestRights(t *testing.T) {
	for _, resource := range []string{"nodes", "pods"} {
		_, _, err := watchFor(t, resource)
		if err == nil || !strings.Contains(err.Error(), "jane may not list "+resource) ||
			!strings.Contains(err.Error(), "deploy/rbac-shadow.yaml") {
			t.Errorf("%s: %v", resource, err)
		}
	}
	refuse := []string{"leases"}
	for i := range others {
		refuse = append(refuse, others[i].kind.Resource)
	}
	lines, summary, err := watchFor(t, refuse...)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) == 0 || lines[0].Kind != "Begin" {
		t.Errorf("lines: %+v", lines)
	}
	var unseen []string
	for _, u := range summary.Unseen {
		resource, _, _ := strings.Cut(u.What, ".")
		unseen = append(unseen, resource)
		if u.Effect == "" || !strings.Contains(u.Error, "jane may not list") {
			t.Errorf("%+v", u)
		}
	}
	slices.Sort(refuse)
	slices.Sort(unseen)
	if !slices.Equal(refuse, unseen) {
		t.Errorf("unseen: %q, want %q", unseen, refuse)
	}
	if text := string(summary.Text()); !strings.Contains(text, "Not seen: leases.coordination.k8s.io: silent nodes") ||
		!strings.Contains(text, "Nothing was written.") {
		t.Errorf("%s", text)
	}
}

// TestWhatTheySay: which conditions of a pod are the other scheduler's refusal, and the other controller's eviction.
func TestWhatTheySay(t *testing.T) {
	pod := func(c ...corev1.PodCondition) *podFacts {
		return keepPod(&corev1.Pod{Status: corev1.PodStatus{Conditions: c}}).(*keptPod).facts
	}
	no := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/1 nodes are available"}
	if f := pod(no); !f.refused || f.said != no.Message || f.byTaint {
		t.Errorf("%+v", f)
	}
	no.Reason = "SchedulingGated"
	if f := pod(no); f.refused {
		t.Errorf("%+v", f)
	}
	taint := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager"}
	if f := pod(taint); !f.byTaint {
		t.Errorf("%+v", f)
	}
	taint.Reason = "PreemptionByScheduler"
	if f := pod(taint); f.byTaint {
		t.Errorf("%+v", f)
	}
}

// TestEveryKindHasWords: each kind of Event has a text, and a line in the summary.
func TestEveryKindHasWords(t *testing.T) {
	for _, k := range coreshadow.Kinds() {
		if words[k] == "" {
			t.Errorf("%s: the summary has no words for it", k)
		}
		e := coreshadow.Event{Kind: k, Pod: "team/a\nb", Why: "why"}
		if k == coreshadow.BothDid || k == coreshadow.OnlyOurs || k == coreshadow.OnlyTheirs {
			e.Node = "n"
		}
		got := Line{Kind: string(k), Text: text(&e)}.String()
		if strings.Contains(got, "\n") || !strings.Contains(got, "team/a b") || strings.HasSuffix(got, "team/a b") {
			t.Errorf("%s: %q", k, got)
		}
	}
}
