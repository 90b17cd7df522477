package podfields

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AllLeaves are the paths of all fields of a pod's specification that are no structs of the API's own, sorted. Those of
// init and ephemeral containers are written as spec.containers[] where these have them, too.
func AllLeaves() []string { return slices.Clone(leaves) }

// Leaves are those that a row's path means: itself, or with a star, all below it.
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
	walk("spec", reflect.TypeFor[corev1.PodSpec](), all)
	var out []string
	for leaf := range all {
		for _, kind := range []string{"spec.initContainers[]", "spec.ephemeralContainers[]"} {
			if rest, ok := strings.CutPrefix(leaf, kind); ok && all["spec.containers[]"+rest] {
				leaf = "spec.containers[]" + rest
			}
		}
		out = append(out, leaf)
	}
	slices.Sort(out)
	return slices.Compact(out)
}()

// walk notes the leaves of a type: what is no struct of k8s.io/api/core/v1.
func walk(path string, t reflect.Type, all map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			path += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[corev1.PodSpec]().PkgPath() {
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
