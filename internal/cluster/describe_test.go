package cluster

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func pod(name string, phase corev1.PodPhase, requests corev1.ResourceList) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// Reserved is capacity minus allocatable; finished pods do not count; an unknown value is a dash.
func TestAllocatable(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{
		Capacity: list("cpu", "2", "memory", "24684092Ki", "pods", "110", "ephemeral-storage", "252Gi", "hugepages-2Mi",
			"0", "example.com/gpu", "2"),
		Allocatable: list("cpu", "2", "memory", "24581692Ki", "pods", "110", "ephemeral-storage", "226Gi", "hugepages-2Mi",
			"0", "example.com/gpu", "2"),
	}}
	pods := []corev1.Pod{
		pod("a", corev1.PodRunning, list("cpu", "250m", "memory", "64Mi")),
		pod("b", corev1.PodPending, list("cpu", "500m", "example.com/gpu", "1")),
		pod("c", corev1.PodSucceeded, list("cpu", "1")),
	}
	used := usage(summary{}, parseSummary(t,
		`{"node":{"cpu":{"usageNanoCores":123456789},"memory":{"workingSetBytes":1073741824}}}`))
	var out bytes.Buffer
	if err := printResources(&out, resourceRows(node, pods, used)); err != nil {
		t.Fatal(err)
	}
	const want = `
  RESOURCE           CAPACITY  RESERVED  ALLOCATABLE  REQUESTED  USED
  cpu                       2         0            2       750m  123m
  memory              24106Mi     100Mi      24006Mi       64Mi   1Gi
  ephemeral-storage     252Gi      26Gi        226Gi          0     -
  pods                    110         0          110          2     2
  example.com/gpu           2         0            2          1     -
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got:%s\nwant:%s", got, want)
	}
	out.Reset()
	if err := printResources(&out, resourceRows(node, nil, nil)); err != nil || !strings.Contains(out.String(), "-") {
		t.Errorf("without usage: %s, %v", out.String(), err)
	}
}

func parseSummary(t *testing.T, text string) (s summary) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// An agent has no CPU rate in its first answer. It is computed from two answers.
func TestUsageRate(t *testing.T) {
	a := parseSummary(t, `{"node":{"cpu":{"usageCoreNanoSeconds":5000000000}}}`)
	b := parseSummary(t, `{"node":{"cpu":{"usageCoreNanoSeconds":8000000000}}}`)
	b.at = a.at.Add(2 * time.Second)
	if got := usage(a, b)[corev1.ResourceCPU]; got.String() != "1500m" {
		t.Errorf("usage %s, want 1500m", got.String())
	}
	for _, same := range []summary{a, {}} {
		if got, known := usage(same, same)[corev1.ResourceCPU]; known {
			t.Errorf("one answer gives a rate: %s", got.String())
		}
	}
}

// TestFlagsFindTheInstance: the commands that up suggests act on its own instance, also with a chosen directory.
func TestFlagsFindTheInstance(t *testing.T) {
	for _, c := range []struct{ instance, state, want string }{
		{DefaultInstance, "/var/lib/plimsoll", ""},
		{"x", "/var/lib/plimsoll-x", " --instance x"},
		{DefaultInstance, "/data", " --state-dir /data"},
		{"x", "/data", " --instance x --state-dir /data"},
	} {
		o := Options{Instance: c.instance, StateDir: c.state}
		if got := o.flags(true, func(string) string { return "" }); got != c.want {
			t.Errorf("%s in %s: flags %q, want %q", c.instance, c.state, got, c.want)
		}
	}
}
