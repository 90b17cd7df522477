package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// ParseLabels reads --node-labels: key=value,key=value. The error lists all problems.
func ParseLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	var problems []string
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			problems = append(problems, fmt.Sprintf("%q: want key=value", part))
			continue
		}
		if old, twice := labels[key]; twice && old != value {
			problems = append(problems, fmt.Sprintf("%q: %s is already %q", part, key, old))
		}
		labels[key] = value
	}
	problems = append(problems, CheckLabels(labels)...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("read --node-labels: %s", strings.Join(problems, "; "))
	}
	return labels, nil
}

// CheckLabels returns what is wrong with labels that a node sets on itself: the syntax, and names in Kubernetes' own
// domains that the NodeRestriction admission plugin forbids.
func CheckLabels(labels map[string]string) []string {
	var problems []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, problem := range validation.IsQualifiedName(key) {
			problems = append(problems, fmt.Sprintf("%q: %s", key, problem))
		}
		for _, problem := range validation.IsValidLabelValue(labels[key]) {
			problems = append(problems, fmt.Sprintf("%s: %q: %s", key, labels[key], problem))
		}
		domain, _, _ := strings.Cut(key, "/")
		reserved := strings.Contains(key, "/") && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"},
			func(d string) bool {
				return domain == d || strings.HasSuffix(domain, "."+d)
			})
		if reserved && !kubeletapis.IsKubeletLabel(key) {
			problems = append(problems,
				fmt.Sprintf("%s: a node must not set this label on itself: want another domain, one below %s, or one of %s",
					key, strings.Join(kubeletapis.KubeletLabelNamespaces(), " or "), strings.Join(kubeletapis.KubeletLabels(), ", ")))
		}
	}
	return problems
}

// ParseTaints reads --register-with-taints: key=value:Effect,key:Effect. The error lists all problems.
func ParseTaints(text string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	var problems []string
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		name, effect, ok := strings.Cut(part, ":")
		if !ok {
			problems = append(problems, fmt.Sprintf("%q: want key=value:Effect or key:Effect", part))
			continue
		}
		taint := corev1.Taint{Effect: corev1.TaintEffect(effect)}
		taint.Key, taint.Value, _ = strings.Cut(name, "=")
		for _, problem := range kubeletconfig.CheckTaint(taint) {
			problems = append(problems, fmt.Sprintf("%q: %s", part, problem))
		}
		if slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == taint.Key && t.Effect == taint.Effect }) {
			problems = append(problems, fmt.Sprintf("%q: key and effect are given twice", part))
		}
		taints = append(taints, taint)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("read --register-with-taints: %s", strings.Join(problems, "; "))
	}
	return taints, nil
}
