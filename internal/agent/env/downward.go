package env

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Field returns the field of pod that an environment variable's fieldRef names.
func Field(pod *corev1.Pod, ref *corev1.ObjectFieldSelector, facts Facts) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	switch ref.FieldPath {
	case "spec.nodeName", "spec.host": // old v1 clients send the second one
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(facts.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(facts.HostIPs, ","), nil
	case "status.podIP":
		return first(facts.PodIPs), nil
	case "status.podIPs":
		return strings.Join(facts.PodIPs, ","), nil
	}
	return Metadata(pod, ref.FieldPath)
}

// Metadata returns a metadata field of pod; downwardAPI volumes support only these. A whole map is written as one
// key="value" per line, sorted by key, with values quoted as in Go.
func Metadata(pod *corev1.Pod, fieldPath string) (string, error) {
	if path, key, ok := subscript(fieldPath); ok {
		switch path {
		case "metadata.annotations":
			if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", fieldPath, strings.Join(problems, ";"))
			}
			return pod.Annotations[key], nil
		case "metadata.labels":
			if problems := validation.IsQualifiedName(key); len(problems) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", fieldPath, strings.Join(problems, ";"))
			}
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", fieldPath)
	}
	switch fieldPath {
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", fieldPath)
}

// subscript splits path['key'].
func subscript(fieldPath string) (path, key string, ok bool) {
	inner, ok := strings.CutSuffix(fieldPath, "']")
	if !ok {
		return "", "", false
	}
	path, key, ok = strings.Cut(inner, "['")
	return path, key, ok && path != ""
}

func formatMap(m map[string]string) string {
	var out strings.Builder
	for i, k := range sortedKeys(m) {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(k)
		out.WriteByte('=')
		out.WriteString(strconv.Quote(m[k]))
	}
	return out.String()
}

// Resource returns the request or limit that ref names, in units of its divisor, rounded up. A ref without a container
// name refers to c. If the container has no such limit, the pod's limit is returned, else the node's allocatable, so
// that a program can size itself by it. Huge pages have no default, because they are never overcommitted.
func Resource(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = containerNamed(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	if c == nil {
		return "", fmt.Errorf("resource %s: a volume's resourceFieldRef must name a container", ref.Resource)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := corev1.ResourceName(name)
	switch resourceName {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		if !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
			return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
		}
	}
	var quantity resource.Quantity
	switch kind {
	case "requests":
		quantity = c.Resources.Requests[resourceName]
	case "limits":
		if quantity = c.Resources.Limits[resourceName]; quantity.IsZero() && !strings.HasPrefix(name,
			corev1.ResourceHugePagesPrefix) {
			quantity = limitOutside(pod, resourceName, allocatable)
		}
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	if resourceName == corev1.ResourceCPU {
		return divideUp(quantity.MilliValue(), ref.Divisor.MilliValue(), 1000), nil
	}
	return divideUp(quantity.Value(), ref.Divisor.Value(), 1), nil
}

// limitOutside returns what limits a container that has no limit itself.
func limitOutside(pod *corev1.Pod, name corev1.ResourceName, allocatable corev1.ResourceList) resource.Quantity {
	if r := pod.Spec.Resources; r != nil && name != corev1.ResourceEphemeralStorage {
		if q, ok := r.Limits[name]; ok && !q.IsZero() {
			return q
		}
	}
	return allocatable[name]
}

// divideUp returns ceil(value/divisor); a zero divisor is one unit.
func divideUp(value, divisor, unit int64) string {
	if divisor == 0 {
		divisor = unit
	}
	n := value / divisor
	if value%divisor != 0 && (value > 0) == (divisor > 0) {
		n++
	}
	return strconv.FormatInt(n, 10)
}

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
