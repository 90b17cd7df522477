package pods

import (
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// What is written to the API of a status, as a difference from what it is known to have.

// sameStatus compares what we report; the server may hold more.
func sameStatus(server, ours corev1.PodStatus) bool {
	if set, over := conditionsToWrite(server, ours); len(set)+len(over) > 0 {
		return false
	}
	server.NominatedNodeName, server.Resize, server.ResourceClaimStatuses, server.Conditions = "", "", nil, nil
	ours.Conditions = nil
	return equality.Semantic.DeepEqual(server, ours)
}

// conditionsToWrite are those of our conditions that the server has not, or has otherwise, and those that it still has and that are
// over. Conditions of others are never written: what we saw of them may be old.
func conditionsToWrite(server, ours corev1.PodStatus) (set []corev1.PodCondition, over []corev1.PodConditionType) {
	for _, c := range ours.Conditions {
		has := conditionNamed(server, c.Type)
		if has != nil {
			c.LastProbeTime = has.LastProbeTime
		}
		if has == nil || !equality.Semantic.DeepEqual(*has, c) {
			set = append(set, c)
		}
	}
	for _, c := range server.Conditions {
		if comesAndGoes[c.Type] && conditionNamed(ours, c.Type) == nil {
			over = append(over, c.Type)
		}
	}
	return set, over
}

// patchBody is the status as a strategic merge patch: all of it but for conditions, which merge by type. Of them only those are in it
// that known has otherwise; addresses are replaced. The uid makes the server refuse it for another pod of the same name.
func patchBody(pod *corev1.Pod, known, status corev1.PodStatus) ([]byte, error) {
	set, over := conditionsToWrite(known, status)
	status.Conditions = set
	plain, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	parts := map[string]json.RawMessage{}
	if err := json.Unmarshal(plain, &parts); err != nil {
		return nil, err
	}
	for _, list := range []string{"podIPs", "hostIPs"} {
		if raw, ok := parts[list]; ok {
			var items []json.RawMessage
			if err := json.Unmarshal(raw, &items); err != nil {
				return nil, err
			}
			items = append([]json.RawMessage{json.RawMessage(`{"$patch":"replace"}`)}, items...)
			if parts[list], err = json.Marshal(items); err != nil {
				return nil, err
			}
		}
	}
	absentToNull(parts, "reason", "message", "podIP")
	if err := clearResources(parts, known, status); err != nil {
		return nil, err
	}
	if err := clearConditions(parts, over); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": parts})
}

// clearResources says null where known has an amount and status has not: these maps are merged key by key. (Replacing them as
// a whole loses them where the server has none.)
func clearResources(parts map[string]json.RawMessage, known, status corev1.PodStatus) error {
	merged := func(known, ours corev1.ResourceList) map[corev1.ResourceName]any {
		out := map[corev1.ResourceName]any{}
		for name := range known {
			out[name] = nil
		}
		for name, q := range ours {
			out[name] = q
		}
		return out
	}
	var err error
	if len(known.AllocatedResources)+len(status.AllocatedResources) > 0 {
		if parts["allocatedResources"], err = json.Marshal(merged(known.AllocatedResources, status.AllocatedResources)); err != nil {
			return err
		}
	}
	var was corev1.ResourceRequirements
	switch is := status.Resources; {
	case known.Resources == nil && is == nil: // naming them would make the server have some, though empty
	case is == nil:
		parts["resources"] = json.RawMessage("null")
	default:
		if known.Resources != nil {
			was = *known.Resources
		}
		parts["resources"], err = json.Marshal(map[string]any{"requests": merged(was.Requests, is.Requests), "limits": merged(was.Limits, is.Limits)})
	}
	return err
}

// clearConditions says null where a condition has no reason or message: conditions are merged field by field, and what the
// patch does not mention would stay. Conditions that are over are deleted.
func clearConditions(parts map[string]json.RawMessage, over []corev1.PodConditionType) error {
	var list []map[string]json.RawMessage
	if raw, ok := parts["conditions"]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
	}
	for _, c := range list {
		absentToNull(c, "reason", "message")
	}
	for _, t := range over {
		list = append(list, map[string]json.RawMessage{"$patch": json.RawMessage(`"delete"`), "type": json.RawMessage(strconv.Quote(string(t)))})
	}
	delete(parts, "conditions")
	if len(list) == 0 {
		return nil
	}
	raw, err := json.Marshal(list)
	parts["conditions"] = raw
	return err
}

func absentToNull(object map[string]json.RawMessage, keys ...string) {
	for _, key := range keys {
		if _, ok := object[key]; !ok {
			object[key] = json.RawMessage("null")
		}
	}
}
