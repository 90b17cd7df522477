package translate

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

// podlifePod has a container of every kind except ephemeral ones.
func podlifePod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	grace, deadline := int64(7), int64(60)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1"},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			TerminationGracePeriodSeconds: &grace,
			ActiveDeadlineSeconds:         &deadline,
			InitContainers: []corev1.Container{
				{Name: "init", Image: "i:1"},
				{Name: "side", Image: "s:1", RestartPolicy: &always},
			},
			Containers: []corev1.Container{
				{Name: "zeta", Image: "z:1"},
				{Name: "alpha", Image: "a:1", RestartPolicy: &always},
			},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}},
		},
	}
}

func TestPodlifeSpec(t *testing.T) {
	pod := podlifePod()
	got := PodlifeSpec(pod)
	hash := func(name, image string) string {
		return kubelethash.Container(&corev1.Container{Name: name, Image: image})
	}
	want := podlife.Spec{
		Name: "web_ns(uid-1)", Grace: 7 * time.Second, ActiveDeadline: time.Minute, Gates: []string{"example.com/lb"},
		Containers: []podlife.ContainerSpec{
			{Name: "init", Kind: podlife.Init, Policy: podlife.OnFailure, Hash: hash("init", "i:1"), Image: "i:1"},
			{Name: "side", Kind: podlife.Sidecar, Policy: podlife.Always, Hash: hash("side", "s:1"), Image: "s:1"},
			{Name: "zeta", Kind: podlife.Main, Policy: podlife.OnFailure, Hash: hash("zeta", "z:1"), Image: "z:1"},
			{Name: "alpha", Kind: podlife.Main, Policy: podlife.Always, Hash: hash("alpha", "a:1"), Image: "a:1"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestExitRules: a rule of an unknown operator, or without codes, matches nothing.
func TestExitRules(t *testing.T) {
	codes := func(operator string, values ...int32) *corev1.ContainerRestartRuleOnExitCodes {
		return &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOperator(operator),
			Values: values}
	}
	pod := podlifePod()
	pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
		{Action: "Restart"}, {Action: "Restart", ExitCodes: codes("Over", 1)},
		{Action: "Restart", ExitCodes: codes("In", 1, 2)}, {Action: "RestartAllContainers", ExitCodes: codes("NotIn", 0)},
	}
	want := []podlife.ExitRule{{Codes: []int32{1, 2}}, {Codes: []int32{0}, Except: true, All: true}}
	for _, s := range PodlifeSpec(pod).Containers {
		if s.Name == "zeta" != reflect.DeepEqual(s.Rules, want) {
			t.Errorf("%s: %+v", s.Name, s.Rules)
		}
	}
}

// TestFixedResources: only resources that the policy names, or the pod's limit where the container has none, require a
// new container.
func TestFixedResources(t *testing.T) {
	c := corev1.Container{Resources: amounts.Of("cpu=1 memory=1Gi", "memory=2Gi")}
	pod := &corev1.Pod{}
	if got := FixedResources(pod, &c); got != "" {
		t.Errorf("without a policy: %q", got)
	}
	c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer},
		{ResourceName: "cpu", RestartPolicy: corev1.NotRequired}}
	was := FixedResources(pod, &c)
	c.Resources = amounts.Of("cpu=2 memory=1024Mi", "cpu=3 memory=2048Mi")
	if got := FixedResources(pod, &c); got != was {
		t.Errorf("%q, was %q: only CPU and spelling changed", got, was)
	}
	c.Resources = amounts.Of("cpu=2 memory=1Gi", "memory=3Gi")
	if got := FixedResources(pod, &c); got == was {
		t.Errorf("%q: memory changed", got)
	}
	c.Resources, pod.Spec.Resources = amounts.Of("memory=1Gi",
		""), &corev1.ResourceRequirements{Limits: amounts.List("memory=3Gi")}
	was = FixedResources(pod, &c)
	pod.Spec.Resources.Limits = amounts.List("memory=4Gi")
	if got := FixedResources(pod, &c); got == was {
		t.Errorf("%q: the pod's limit changed, which is the container's", got)
	}
}

func TestGracePeriods(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		spec, deletion *int64
		bySpec, byOne  time.Duration
	}{
		{nil, nil, 30 * time.Second, 30 * time.Second},
		{seconds(5), nil, 5 * time.Second, 5 * time.Second},
		{seconds(-1), seconds(-1), time.Second, 0},
		{seconds(5), seconds(0), 5 * time.Second, 0},
		{seconds(5), seconds(60), 5 * time.Second, time.Minute},
	} {
		pod := podlifePod()
		pod.Spec.TerminationGracePeriodSeconds, pod.DeletionGracePeriodSeconds = c.spec, c.deletion
		if a, b := SpecGrace(pod), DeletionGrace(pod); a != c.bySpec || b != c.byOne {
			t.Errorf("got %s and %s, want %s and %s", a, b, c.bySpec, c.byOne)
		}
	}
}
