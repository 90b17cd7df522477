package statusreport

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
)

// This file computes the patch of a status: the difference from the status that the API is known to have.

// sameStatus compares the parts of a status that the agent writes.
func sameStatus(server, ours corev1.PodStatus) bool {
	if set, over := conditionsToWrite(server, ours); len(set)+len(over) > 0 {
		return false
	}
	server.NominatedNodeName = ""
	server.Resize = ""
	server.ResourceClaimStatuses = nil
	server.Conditions = nil
	ours.Conditions = nil
	return equality.Semantic.DeepEqual(server, ours)
}

// conditionsToWrite returns which of the agent's conditions must be set, because the server lacks them or has other
// values, and which must be deleted. Conditions of other writers are never written: the agent may know an old version.
func conditionsToWrite(server, ours corev1.PodStatus) (set []corev1.PodCondition, over []corev1.PodConditionType) {
	for _, c := range ours.Conditions {
		has := podstatus.Condition(server, c.Type)
		if has != nil {
			c.LastProbeTime = has.LastProbeTime
		}
		if has == nil || !equality.Semantic.DeepEqual(*has, c) {
			set = append(set, c)
		}
	}
	for _, c := range server.Conditions {
		if podstatus.Transient(c.Type) && podstatus.Condition(ours, c.Type) == nil {
			over = append(over, c.Type)
		}
	}
	return set, over
}

// statusPatch is a status for a strategic merge patch. In JSON, its own fields replace those of the embedded status.
type statusPatch struct {
	corev1.PodStatus
	Reason             *string                     `json:"reason"` // empty: null, since an absent field would not change
	Message            *string                     `json:"message"`
	PodIP              *string                     `json:"podIP"`
	PodIPs             []any                       `json:"podIPs,omitempty"`
	HostIPs            []any                       `json:"hostIPs,omitempty"`
	Conditions         []any                       `json:"conditions,omitempty"`
	AllocatedResources map[corev1.ResourceName]any `json:"allocatedResources,omitempty"`
	Resources          any                         `json:"resources,omitempty"`
}

// patchBody returns a status as a strategic merge patch. It contains the whole status, except that it contains only the
// conditions that differ from known, since conditions are merged by type. Lists of addresses are replaced. Because of
// the UID, the server refuses the patch for another pod of the same name.
func patchBody(pod *corev1.Pod, known, status corev1.PodStatus) ([]byte, error) {
	set, over := conditionsToWrite(known, status)
	patch := statusPatch{
		PodStatus:  status,
		Reason:     nonEmpty(status.Reason),
		Message:    nonEmpty(status.Message),
		PodIP:      nonEmpty(status.PodIP),
		PodIPs:     replacing(status.PodIPs),
		HostIPs:    replacing(status.HostIPs),
		Conditions: conditionsIn(set, over),
		Resources:  resourcesIn(known.Resources, status.Resources),
	}
	if len(known.AllocatedResources)+len(status.AllocatedResources) > 0 {
		patch.AllocatedResources = merged(known.AllocatedResources, status.AllocatedResources)
	}
	body := struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status statusPatch `json:"status"`
	}{Status: patch}
	body.Metadata.UID = pod.UID
	return json.Marshal(body)
}

func nonEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// replacing returns a list that replaces the server's list, instead of being merged into it.
func replacing[T any](list []T) []any {
	if len(list) == 0 {
		return nil
	}
	out := []any{map[string]string{"$patch": "replace"}}
	for _, item := range list {
		out = append(out, item)
	}
	return out
}

// merged returns ours, with null for each key that only known has: the server merges these maps key by key. (A patch
// that replaces a map loses it if the server has none.)
func merged(known, ours corev1.ResourceList) map[corev1.ResourceName]any {
	out := map[corev1.ResourceName]any{}
	for name := range known {
		out[name] = nil
	}
	for name, q := range ours {
		out[name] = q
	}
	return out
}

func resourcesIn(known, ours *corev1.ResourceRequirements) any {
	var was corev1.ResourceRequirements
	switch {
	case known == nil && ours == nil:
		return nil // otherwise the server would store an empty object
	case ours == nil:
		return json.RawMessage("null")
	case known != nil:
		was = *known
	}
	return map[string]any{"requests": merged(was.Requests, ours.Requests), "limits": merged(was.Limits, ours.Limits)}
}

// conditionPatch is a condition whose empty reason or message is null: conditions are merged field by field.
type conditionPatch struct {
	corev1.PodCondition
	Reason  *string `json:"reason"`
	Message *string `json:"message"`
}

// conditionsIn returns the patch of the conditions: those in set are written, those in over are deleted.
func conditionsIn(set []corev1.PodCondition, over []corev1.PodConditionType) (out []any) {
	for _, c := range set {
		out = append(out, conditionPatch{PodCondition: c, Reason: nonEmpty(c.Reason), Message: nonEmpty(c.Message)})
	}
	for _, t := range over {
		out = append(out, map[string]string{"$patch": "delete", "type": string(t)})
	}
	return out
}
