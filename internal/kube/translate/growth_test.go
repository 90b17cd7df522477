package translate

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/growth"
)

// TestClaimsToGrow: what a node is told is read back. A node without the annotation is told nothing, and what is no
// name of a claim is left out.
func TestClaimsToGrow(t *testing.T) {
	x, y := types.NamespacedName{Namespace: "a", Name: "x"}, types.NamespacedName{Namespace: "b", Name: "y"}
	for _, c := range []struct {
		annotations map[string]string
		want        []types.NamespacedName
		told        bool
	}{
		{nil, nil, false},
		{map[string]string{AnnotationClaimsToGrow: ""}, nil, true},
		{map[string]string{AnnotationClaimsToGrow: "a/x,b/y"}, []types.NamespacedName{x, y}, true},
		{map[string]string{AnnotationClaimsToGrow: "a/x,,c,/d,e/,b/y"}, []types.NamespacedName{x, y}, true},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations}}
		got, told := ClaimsToGrow(node)
		if !reflect.DeepEqual(got, c.want) || told != c.told {
			t.Errorf("%v: %v, %t, want %v, %t", c.annotations, got, told, c.want, c.told)
		}
	}
}

// TestGrowthPod: a pod uses its claims and those of its ephemeral volumes, until it has ended. The fields that
// TrimLifecyclePod removes do not matter.
func TestGrowthPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u"}}
	pod.Spec.NodeName = "n"
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x", ReadOnly: true},
		}},
		{Name: "none", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{},
		}}},
	}
	want := growth.Pod{ID: "u", Node: "n", Claims: []string{"a/x", "a/p-own"}}
	if got := GrowthPod(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	TrimLifecyclePod(pod)
	if got := GrowthPod(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("trimmed: %+v, want %+v", got, want)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if got := GrowthPod(pod); len(got.Claims) != 0 {
		t.Errorf("ended: %+v, want no claims", got)
	}
}

// TestGrows: a claim waits for its node by its condition or by the status of its resource, also when it is trimmed.
func TestGrows(t *testing.T) {
	pending := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue,
	}
	over := pending
	over.Status = corev1.ConditionFalse
	of := func(status corev1.ClaimResourceStatus) corev1.PersistentVolumeClaimStatus {
		statuses := map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: status}
		return corev1.PersistentVolumeClaimStatus{AllocatedResourceStatuses: statuses}
	}
	type conditions = []corev1.PersistentVolumeClaimCondition
	for what, c := range map[string]struct {
		status corev1.PersistentVolumeClaimStatus
		want   bool
	}{
		"nothing":              {corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}, false},
		"the condition":        {corev1.PersistentVolumeClaimStatus{Conditions: conditions{pending}}, true},
		"the condition, false": {corev1.PersistentVolumeClaimStatus{Conditions: conditions{over}}, false},
		"the node is next":     {of(corev1.PersistentVolumeClaimNodeResizePending), true},
		"the controller is":    {of(corev1.PersistentVolumeClaimControllerResizeInProgress), false},
	} {
		claim := &corev1.PersistentVolumeClaim{Status: c.status}
		claim.Spec.VolumeName = "pv"
		if got := Grows(claim); got != c.want {
			t.Errorf("%s: %t, want %t", what, got, c.want)
		}
		if TrimGrowthClaim(claim); Grows(claim) != c.want || claim.Spec.VolumeName != "" {
			t.Errorf("%s: trimmed to %+v, want %t", what, claim, c.want)
		}
	}
}
