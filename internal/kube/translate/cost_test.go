package translate

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzSchedulerPod: the cost of reading the fields of a pod that the scheduler and the lifecycle controller read
// (selectors, tolerations, spread, ports) is in proportion to their length.
func FuzzSchedulerPod(f *testing.F) {
	for _, spec := range []string{
		`"tolerations":[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]`,
		`"nodeSelector":{"a":"b"}`,
		`"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"z","labelSelector":{"matchLabels":{"a":"b"}},"matchLabelKeys":["k"]}]`,
		`"topologySpreadConstraints":[{"labelSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}}]`,
		`"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}]}}}`,
		`"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"z","namespaces":["n"],"labelSelector":{"matchLabels":{"a":"b"}}}]}}`,
		`"containers":[{"name":"a","ports":[{"hostPort":80}],"resources":{"requests":{"cpu":"1","example.com/x":"1"}}}]`,
	} {
		cost.Attack(f, []byte(`{"metadata":{"labels":{"k":"v"}},"spec":{`+spec+`}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		var pod corev1.Pod
		if json.Unmarshal(data, &pod) != nil {
			return
		}
		if got := SchedulerPod(&pod); len(got.Tolerations) != len(pod.Spec.Tolerations) {
			t.Errorf("%d tolerations became %d", len(pod.Spec.Tolerations), len(got.Tolerations))
		}
		if got := LifecyclePod(&pod); len(got.Tolerations) != len(pod.Spec.Tolerations) {
			t.Errorf("%d tolerations became %d for the lifecycle controller", len(pod.Spec.Tolerations), len(got.Tolerations))
		}
	})
}

// FuzzSchedulerNode: the cost of reading a node object is in proportion to its length.
func FuzzSchedulerNode(f *testing.F) {
	cost.Attack(f,
		[]byte(`{"metadata":{"name":"n","labels":{"a":"b"},"annotations":{"c":"d"}},"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`))
	cost.Attack(f,
		[]byte(`{"status":{"images":[{"names":["a:1"],"sizeBytes":5}],"allocatable":{"cpu":"1"},"conditions":[{"type":"Ready"}]}}`))
	cost.Attack(f,
		[]byte(`{"status":{"volumesAttached":[{"name":"v"}],"volumesInUse":["v"],"declaredFeatures":["F"],"addresses":[{"type":"a"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		var node corev1.Node
		if json.Unmarshal(data, &node) != nil {
			return
		}
		if got := SchedulerNode(&node); got.Name != node.Name || len(got.Taints) > len(node.Spec.Taints)+1 {
			t.Errorf("%q with %d taints became %q with %d", node.Name, len(node.Spec.Taints), got.Name, len(got.Taints))
		}
		LifecycleNode(&node)
	})
}
