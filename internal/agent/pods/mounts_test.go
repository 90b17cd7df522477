package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

func TestReportMounts(t *testing.T) {
	mode := func(m corev1.RecursiveReadOnlyMode) *corev1.RecursiveReadOnlyMode { return &m }
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{
			{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b", ReadOnly: true},
			{Name: "d", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: mode(corev1.RecursiveReadOnlyIfPossible)},
		}}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPath: "/x"}}}}},
	}}
	for can, deep := range map[bool]corev1.RecursiveReadOnlyMode{true: corev1.RecursiveReadOnlyEnabled, false: corev1.RecursiveReadOnlyDisabled} {
		out := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}, EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "e"}}}
		reportMounts(pod, &out, can)
		got := out.ContainerStatuses[0].VolumeMounts
		if len(got) != 3 || got[0].RecursiveReadOnly != nil || *got[1].RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled || *got[2].RecursiveReadOnly != deep {
			t.Errorf("the handler can: %v: %+v", can, got)
		}
		if e := out.EphemeralContainerStatuses[0].VolumeMounts; len(e) != 1 || e[0].MountPath != "/x" || e[0].ReadOnly {
			t.Errorf("ephemeral: %+v", e)
		}
	}
}

func TestJoinTarget(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look"}, TargetContainerName: "c"}, {EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "beside"}},
	}}}
	running := map[string]podlife.Container{"id0": {Name: "c", State: podlife.Exited}, "id1": {Name: "c", State: podlife.Running}, "id2": {Name: "d", State: podlife.Running}}
	own := namespacesOf(pod)
	for _, name := range []string{"c", "beside"} {
		if err := joinTarget(own, pod, name, running); err != nil || own.Pid != runtimeapi.NamespaceMode_CONTAINER {
			t.Errorf("%s: %v, %v", name, own, err)
		}
	}
	if err := joinTarget(own, pod, "look", running); err != nil || own.Pid != runtimeapi.NamespaceMode_TARGET || own.TargetId != "id1" {
		t.Errorf("look: %v, %v", own, err)
	}
	if err := joinTarget(namespacesOf(pod), pod, "look", nil); err == nil || err.Error() != "unable to find target container c" {
		t.Errorf("without its target: %v", err)
	}
	shared := true
	pod.Spec.ShareProcessNamespace = &shared
	all := namespacesOf(pod)
	if err := joinTarget(all, pod, "look", nil); err != nil || all.Pid != runtimeapi.NamespaceMode_POD {
		t.Errorf("a pod whose containers see each other anyway: %v, %v", all, err)
	}
}
