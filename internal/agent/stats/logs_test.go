package stats

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// TestLogSizes: rotated files count, and a container without a directory of logs has no series.
func TestLogSizes(t *testing.T) {
	dir := t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "0.log"), make([]byte, 8192), 0o600),
		os.WriteFile(filepath.Join(dir, "0.log.20260101-000000.gz"), make([]byte, 4096), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(LogSizes(func() []Pod {
		return []Pod{{
			Ref:        statsapi.PodReference{Name: "p", Namespace: "ns", UID: "u"},
			Containers: []Container{{Name: "c", LogDir: dir}, {Name: "silent", LogDir: filepath.Join(dir, "none")}},
		}}
	}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "kubelet_container_log_filesystem_used_bytes" ||
		len(families[0].Metric) != 1 {
		t.Fatalf("families: %v", families)
	}
	m, labels := families[0].Metric[0], map[string]string{}
	for _, l := range m.Label {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["uid"] != "u" || labels["namespace"] != "ns" || labels["pod"] != "p" || labels["container"] != "c" ||
		m.GetGauge().GetValue() != 12288 {
		t.Errorf("%v", m)
	}
}
