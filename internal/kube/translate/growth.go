package translate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/plimsoll-dev/plimsoll/internal/core/growth"
)

// AnnotationClaimsToGrow is on Nodes: the claims of its pods whose volumes are to grow on the node, as
// namespace/name, separated by commas. It may be empty. A node may read claims, but neither list nor watch them, so the
// lifecycle controller, which watches them, tells it so.
const AnnotationClaimsToGrow = "plimsoll.dev/claims-to-grow"

// ClaimsToGrow returns the claims in AnnotationClaimsToGrow, and whether a Node has that annotation. What is no name of
// a claim is left out.
func ClaimsToGrow(node *corev1.Node) (claims []types.NamespacedName, told bool) {
	text, told := node.Annotations[AnnotationClaimsToGrow]
	for one := range strings.SplitSeq(text, ",") {
		if namespace, name, ok := strings.Cut(one, "/"); ok && namespace != "" && name != "" {
			claims = append(claims, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return claims, told
}

// GrowthNode translates a node for core/growth.
func GrowthNode(node *corev1.Node) growth.Node {
	text, told := node.Annotations[AnnotationClaimsToGrow]
	return growth.Node{Name: node.Name, Listens: OurAgent(node), Told: told, Claims: text}
}

// GrowthPod translates a pod for core/growth.
func GrowthPod(pod *corev1.Pod) growth.Pod {
	out := growth.Pod{ID: string(pod.UID), Node: pod.Spec.NodeName}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return out
	}
	for i := range pod.Spec.Volumes {
		if name := claimOf(pod, &pod.Spec.Volumes[i]); name != "" {
			out.Claims = append(out.Claims, pod.Namespace+"/"+name)
		}
	}
	return out
}

// claimOf returns the name of a volume's claim; empty: it has none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

// onlyClaims returns the volumes that GrowthPod reads, and of each what it reads.
func onlyClaims(in []corev1.Volume) []corev1.Volume {
	var out []corev1.Volume
	for i := range in {
		one := corev1.Volume{Name: in[i].Name}
		switch {
		case in[i].PersistentVolumeClaim != nil:
			one.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: in[i].PersistentVolumeClaim.ClaimName,
			}
		case in[i].Ephemeral != nil:
			one.Ephemeral = &corev1.EphemeralVolumeSource{}
		default:
			continue
		}
		out = append(out, one)
	}
	return out
}

// Grows reports whether a claim's volume is to grow on the node that has it: a controller has enlarged it, and waits
// for the node (upstream's external-resizer sets these).
func Grows(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending {
		return true
	}
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// TrimGrowthClaim removes what Grows does not read, which is most of a claim.
func TrimGrowthClaim(claim *corev1.PersistentVolumeClaim) {
	kept := corev1.PersistentVolumeClaim{TypeMeta: claim.TypeMeta}
	kept.Namespace, kept.Name = claim.Namespace, claim.Name
	kept.UID, kept.ResourceVersion = claim.UID, claim.ResourceVersion
	if Grows(claim) {
		kept.Status.Conditions = claim.Status.Conditions
		kept.Status.AllocatedResourceStatuses = claim.Status.AllocatedResourceStatuses
	}
	*claim = kept
}
