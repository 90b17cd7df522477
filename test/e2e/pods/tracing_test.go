//go:build e2e

package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/otlp"
)

// With tracing in its configuration the agent sends spans to a collector: about the start and the stop of a pod, with
// what the runtime did for it below, and about requests to its server. Streams work as ever.
func TestTracing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	collector, socket := otlp.Start(t, "unix", filepath.Join(dir, "otlp"))
	config := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
		"tracing: {endpoint: %q, samplingRatePerMillion: 1000000}\n", "unix://"+socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := rig.New(t, "traced", rig.Options{UpFlags: []string{"--agent-config", config}})
	b := bench{c, t, c.Namespace(t)}
	pod := b.create("seen", lasting(workload("c", "sleep", "infinity")))
	b.ready("seen")
	b.want("exec", b.in("seen/c", "env", "HOSTNAME"), "seen")
	if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), "seen", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	of := func(name string) func(otlp.Span) bool {
		return func(s otlp.Span) bool { return s.Name == name && s.Attributes["k8s.pod.uid"] == string(pod.UID) }
	}
	below := func(parent string) func(otlp.Span) bool {
		return func(s otlp.Span) bool {
			for _, p := range collector.Spans() {
				if p.Trace == s.Trace && p.ID == s.Parent && of(parent)(p) {
					return true
				}
			}
			return false
		}
	}
	collector.Wait(t, soon, "the stop of the pod", of("syncTerminatingPod"))
	for call, parent := range map[string]string{"RunPodSandbox": "syncPod", "CreateContainer": "syncPod",
		"StartContainer": "syncPod", "StopContainer": "syncTerminatingPod", "StopPodSandbox": "syncTerminatingPod"} {
		collector.Wait(t, soon, call+" below "+parent, func(s otlp.Span) bool {
			return s.Name == "runtime.v1.RuntimeService/"+call && s.Kind == tracev1.Span_SPAN_KIND_CLIENT && !s.Failed &&
				s.Resource["host.name"] == c.NodeName && below(parent)(s)
		})
	}
	collector.Wait(t, soon, "exec", func(s otlp.Span) bool {
		return s.Kind == tracev1.Span_SPAN_KIND_SERVER && s.Name == "/exec/{namespace}/{pod}/{container}"
	})
	collector.Wait(t, soon, "a request to the API server", func(s otlp.Span) bool {
		return s.Kind == tracev1.Span_SPAN_KIND_CLIENT && strings.HasPrefix(s.Name, "HTTP ")
	})
	for _, s := range collector.Spans() {
		if strings.Contains(fmt.Sprint(s.Attributes), "HOSTNAME") {
			t.Errorf("%s has the command: %v", s.Name, s.Attributes)
		}
	}
}
