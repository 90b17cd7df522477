package podfields

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AllLeaves returns the sorted paths of all fields of a pod that are not themselves structs of the API. Fields of init
// and ephemeral containers are written as spec.containers[] where containers have them too, and those of their statuses
// as status.containerStatuses[].
func AllLeaves() []string { return slices.Clone(leaves) }

// Leaves returns the fields that a row's path stands for: itself, or with a star, all below it.
func Leaves(path string) []string {
	at, below := strings.CutSuffix(path, "*")
	if !below {
		return []string{path}
	}
	var out []string
	for _, leaf := range leaves {
		if rest, ok := strings.CutPrefix(leaf, at); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			out = append(out, leaf)
		}
	}
	return out
}

var leaves = func() []string {
	all := map[string]bool{}
	walk("metadata", reflect.TypeFor[metav1.ObjectMeta](), all)
	walk("spec", reflect.TypeFor[corev1.PodSpec](), all)
	walk("status", reflect.TypeFor[corev1.PodStatus](), all)
	var out []string
	for leaf := range all {
		for main, others := range Alike {
			for _, other := range others {
				if rest, ok := strings.CutPrefix(leaf, other); ok && all[main+rest] {
					leaf = main + rest
				}
			}
		}
		out = append(out, leaf)
	}
	slices.Sort(out)
	return slices.Compact(out)
}()

// Alike are the lists of a pod with the same fields, by the list that stands for all of them in paths.
var Alike = map[string][]string{
	"spec.containers[]":          {"spec.initContainers[]", "spec.ephemeralContainers[]"},
	"status.containerStatuses[]": {"status.initContainerStatuses[]", "status.ephemeralContainerStatuses[]"},
}

// opened are the types of other packages into which walk descends.
var opened = []reflect.Type{reflect.TypeFor[metav1.ObjectMeta](), reflect.TypeFor[metav1.OwnerReference]()}

// walk adds the leaves of a type: fields whose type is neither a struct of k8s.io/api/core/v1 nor in opened.
func walk(path string, t reflect.Type, all map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			path += "[]"
		}
		t = t.Elem()
	}
	ours := t.PkgPath() == reflect.TypeFor[corev1.PodSpec]().PkgPath() || slices.Contains(opened, t)
	if t.Kind() != reflect.Struct || !ours {
		all[path] = true
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" { // embedded
			walk(path, f.Type, all)
			continue
		}
		walk(path+"."+name, f.Type, all)
	}
}
