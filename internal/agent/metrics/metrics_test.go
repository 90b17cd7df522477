package metrics

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
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

func TestImageSize(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0-10MB", 10<<20 - 1: "0-10MB", 10 << 20: "10MB-100MB", 499 << 20: "100MB-500MB", 1 << 30: "1GB-5GB",
		200 << 30: "GT100GB",
	} {
		if got := ImageSize(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}

// Every measurement of the set is used by other packages of the agent: a metric that is declared and never recorded is
// worse than none, since an alert on it never fires.
func TestEveryMeasurementIsRecorded(t *testing.T) {
	var fields []string
	for i := range reflect.TypeFor[Set]().NumField() {
		if f := reflect.TypeFor[Set]().Field(i); strings.HasPrefix(f.Type.String(), "prometheus.") ||
			strings.HasPrefix(f.Type.String(), "*prometheus.") {
			fields = append(fields, f.Name)
		}
	}
	for i := range reflect.TypeFor[PodResources]().NumField() {
		fields = append(fields, reflect.TypeFor[PodResources]().Field(i).Name)
	}
	var code strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil || len(fields) < 40 {
		t.Fatalf("%d measurements found, %v", len(fields), err)
	}
	for _, f := range fields {
		used := regexp.MustCompile(`\.` + f + `\.(WithLabelValues|Inc|Observe|Set|SetToCurrentTime|Add)\b`)
		if f != "Registry" && f != "Probes" && !used.MatchString(code.String()) {
			t.Errorf("%s is declared and nothing records it", f)
		}
	}
}

// A call to a runtime that does not exist is counted as a call and as an error.
func TestRuntimeCallsAreCounted(t *testing.T) {
	s := New("n")
	conn, err := grpc.NewClient("passthrough:///x", s.RuntimeCalls(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
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
		"kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total",
		"kubelet_runtime_operations_duration_seconds",
		"kubelet_node_name", "kubelet_pod_start_duration_seconds", "kubernetes_build_info", "process_resident_memory_bytes",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
}
