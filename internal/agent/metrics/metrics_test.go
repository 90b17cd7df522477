package metrics

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestOperationType(t *testing.T) {
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/RunPodSandbox":      "run_podsandbox",
		"/runtime.v1.RuntimeService/PodSandboxStatus":   "podsandbox_status",
		"/runtime.v1.RuntimeService/ListPodSandbox":     "list_podsandbox",
		"/runtime.v1.RuntimeService/ReopenContainerLog": "reopen_container_log",
		"/runtime.v1.ImageService/ImageFsInfo":          "image_fs_info",
		"/runtime.v1.RuntimeService/Version":            "version",
	} {
		if got := operationType(method); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
}

// A call to a runtime that does not exist is counted as a call and as an error.
func TestRuntimeCallsAreCounted(t *testing.T) {
	s := New("n")
	conn, err := grpc.NewClient("passthrough:///x", s.RuntimeCalls(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody") }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{})
	families, err := s.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
	}
	for _, want := range []string{
		"kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total", "kubelet_runtime_operations_duration_seconds",
		"kubelet_node_name", "kubelet_pod_start_duration_seconds", "process_resident_memory_bytes",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
}
