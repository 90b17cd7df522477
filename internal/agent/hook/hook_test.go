package hook

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

type runtime func(ctx context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)

func (r runtime) ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
	_ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	return r(ctx, in)
}

// saving records how much of a command's output it is asked to keep.
type saving struct{ kept int }

func (s *saving) ExecSync(_ context.Context, _ *runtimeapi.ExecSyncRequest,
	options ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	s.kept = cri.KeptOutput(options)
	return &runtimeapi.ExecSyncResponse{}, nil
}

// TestOutputIsNotKept: the output of a hook is never read, so none of it is kept.
func TestOutputIsNotKept(t *testing.T) {
	s := &saving{kept: -1}
	c := with(&corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}})
	if err := (Runner{Runtime: s}).PostStart(t.Context(), &corev1.Pod{}, c, "id", ""); err != nil || s.kept != 0 {
		t.Errorf("%d bytes of each output are kept, %v", s.kept, err)
	}
}

func with(h *corev1.LifecycleHandler) *corev1.Container {
	return &corev1.Container{Name: "c", Lifecycle: &corev1.Lifecycle{PostStart: h, PreStop: h}}
}

func TestExec(t *testing.T) {
	var got *runtimeapi.ExecSyncRequest
	exit := int32(0)
	r := Runner{Runtime: runtime(func(_ context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse,
		error) {
		got = in
		return &runtimeapi.ExecSyncResponse{ExitCode: exit, Stderr: []byte("a secret")}, nil
	})}
	c := with(&corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}})
	ctx, cancel := context.WithTimeout(context.Background(), 7*time.Second)
	defer cancel()
	if err := r.PreStop(ctx, &corev1.Pod{}, c, "id", ""); err != nil || got.ContainerId != "id" || got.Timeout != 7 ||
		got.Cmd[0] != "bye" {
		t.Errorf("%v %v", got, err)
	}
	exit = 2
	if err := r.PostStart(context.Background(), &corev1.Pod{}, c, "id", ""); err == nil ||
		err.Error() != "exec: command exited with 2" || got.Timeout != 0 {
		t.Errorf("%v %v", got, err)
	}
	if err := r.PostStart(context.Background(), &corev1.Pod{}, &corev1.Container{}, "id", ""); err != nil {
		t.Errorf("no hook: %v", err)
	}
	if err := r.PreStop(context.Background(), &corev1.Pod{}, with(&corev1.LifecycleHandler{}), "id", ""); err == nil {
		t.Error("an empty handler is accepted")
	}
}

func TestHTTP(t *testing.T) {
	hits := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits++
		if r.Header.Get("User-Agent") != "kube-lifecycle/1.36" || r.Header.Get("Authorization") != "" && r.TLS == nil &&
			r.URL.Path == "/s" {
			t.Errorf("headers %v", r.Header)
		}
		w.WriteHeader(500) // any response counts as success
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	n, _ := strconv.Atoi(port)
	events := record.NewFakeRecorder(5)
	r := Runner{Recorder: events, Metrics: metrics.New("n")}
	action := &corev1.HTTPGetAction{Path: "/s", Port: intstr.FromInt(n)}
	if err := r.PostStart(context.Background(), &corev1.Pod{}, with(&corev1.LifecycleHandler{HTTPGet: action}), "id",
		"127.0.0.1"); err != nil || hits != 1 {
		t.Errorf("%v, %d hits", err, hits)
	}
	action.Scheme = "HTTPS"
	action.HTTPHeaders = []corev1.HTTPHeader{{Name: "Authorization", Value: "x"}}
	if err := r.PreStop(context.Background(), &corev1.Pod{}, with(&corev1.LifecycleHandler{HTTPGet: action}), "id",
		"127.0.0.1"); err != nil || hits != 2 {
		t.Errorf("https to http: %v, %d hits", err, hits)
	}
	if e := <-events.Events; !strings.Contains(e, "LifecycleHTTPFallback") {
		t.Errorf("event %q", e)
	}
	counted(t, r.Metrics, "kubelet_lifecycle_handler_http_fallbacks_total")
	server.Close()
	if err := r.PreStop(context.Background(), &corev1.Pod{}, with(&corev1.LifecycleHandler{HTTPGet: action}), "id",
		"127.0.0.1"); err == nil {
		t.Error("nobody there, no error")
	}
}

// counted checks that a counter is at one.
func counted(t *testing.T, m *metrics.Set, name string) {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && f.Metric[0].GetCounter().GetValue() == 1 {
			return
		}
	}
	t.Errorf("%s is not at one", name)
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := with(&corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}})
		began := time.Now()
		if err := (Runner{}).PreStop(context.Background(), &corev1.Pod{}, c, "", ""); err != nil ||
			time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began = time.Now()
		r := Runner{Metrics: metrics.New("n")}
		if err := r.PreStop(ctx, &corev1.Pod{}, c, "", ""); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		counted(t, r.Metrics, "kubelet_sleep_action_terminated_early_total")
	})
}
