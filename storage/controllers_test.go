package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOnNode: the resizer of one node leaves the volumes of others alone.
func TestOnNode(t *testing.T) {
	term := func(key string, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values},
		}}
	}
	others := []corev1.NodeSelectorTerm{term("plimsoll.dev/node", "b")}
	here := map[string]string{"plimsoll.dev/node": "a"}
	for name, c := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  bool
	}{
		"ours":              {[]corev1.NodeSelectorTerm{term("plimsoll.dev/node", "a")}, true},
		"another node's":    {[]corev1.NodeSelectorTerm{term("plimsoll.dev/node", "b")}, false},
		"either":            {append(others, term("plimsoll.dev/node", "a")), true},
		"of another driver": {[]corev1.NodeSelectorTerm{term("zone", "a")}, false},
		"several of a node": {[]corev1.NodeSelectorTerm{term("plimsoll.dev/node", "b", "a")}, true},
		"no term fits none": {nil, false},
	} {
		pv := &corev1.PersistentVolume{}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: c.terms}}
		if got := onNode(pv, here); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !onNode(&corev1.PersistentVolume{}, here) {
		t.Error("a volume without affinity is on every node")
	}
}
