// Package sample has pods that together set every field that the agent carries out. It checks whether a translation
// reads a field: its result for a pod with the field, and for the same pod without it, must differ.
//
// Tests of the packages that translate pods call Unproved with their translation, for the rows of podfields that name
// them. A field that no sample sets cannot be proved; a sample for which the translation fails proves nothing.
//
// Only tests import it. It does not know which result would be right: other tests check that.
package sample

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

//go:embed *.yaml
var files embed.FS

// Pods returns new copies of the samples. A field that a sample does not set is absent, defaults included.
func Pods() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range decoded() {
		pods = append(pods, pod.DeepCopy())
	}
	return pods
}

var decoded = sync.OnceValue(func() []*corev1.Pod {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err)
	}
	var pods []*corev1.Pod
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		pod, err := manifests.DecodePod(text)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", e.Name(), err))
		}
		pods = append(pods, pod)
	}
	return pods
})

// Observe is a translation of a pod; its results are compared as JSON.
type Observe func(*corev1.Pod) (any, error)

// Unproved returns the rows of an observer that its translation of the samples does not prove; nil: all are proved.
func Unproved(observer string, observe Observe) error {
	whole, err := steady(observe)
	if err != nil {
		return err
	}
	var problems []error
	none := true
	for _, row := range podfields.Rows() {
		if row.By != observer {
			continue
		}
		none = false
		for _, path := range podfields.Leaves(row.Path) {
			if err := ignored(path, observe, whole); err != nil {
				problems = append(problems, err)
			}
		}
	}
	if none {
		problems = append(problems, fmt.Errorf("no row names %s", observer))
	}
	return errors.Join(problems...)
}

// steady returns the translation of each sample. It is an error if two translations of the same sample differ: then a
// difference would prove nothing.
func steady(observe Observe) (map[string]string, error) {
	whole := map[string]string{}
	for _, pod := range Pods() {
		once, err := seen(observe, pod)
		if err != nil {
			return nil, fmt.Errorf("sample %s: %w", pod.Name, err)
		}
		if again, err := seen(observe, pod); err != nil || once != again {
			return nil, fmt.Errorf("sample %s: its translation differs from one time to the next (%v)", pod.Name, err)
		}
		whole[pod.Name] = once
	}
	return whole, nil
}

// ignored returns an error if the translations of the samples are the same with a field and without it.
func ignored(path string, observe Observe, whole map[string]string) error {
	set := false
	for _, pod := range Pods() {
		name := pod.Name
		if !Clear(pod, path) {
			continue
		}
		set = true
		if bare, err := seen(observe, pod); err != nil || bare != whole[name] {
			return nil // a translation that fails without the field reads it, too
		}
	}
	if !set {
		return fmt.Errorf("%s: no sample sets it", path)
	}
	return fmt.Errorf("%s: the pod's translation is the same without it", path)
}

func seen(observe Observe, pod *corev1.Pod) (string, error) {
	out, err := observe(pod.DeepCopy())
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// Clear removes a field from a pod, wherever its path leads, and reports whether it was set.
func Clear(pod *corev1.Pod, path string) bool {
	found := false
	for main, others := range podfields.Alike {
		rest, ok := strings.CutPrefix(path, main)
		if !ok {
			continue
		}
		for _, at := range others {
			found = clearField(reflect.ValueOf(pod).Elem(), strings.Split(at+rest, ".")) || found
		}
	}
	return clearField(reflect.ValueOf(pod).Elem(), strings.Split(path, ".")) || found
}

// clearField follows a path from v, a struct.
func clearField(v reflect.Value, path []string) bool {
	name, each := strings.CutSuffix(path[0], "[]")
	f := fieldOf(v, name)
	if !f.IsValid() {
		return false
	}
	if len(path) == 1 {
		set := !f.IsZero()
		f.SetZero()
		return set
	}
	if f.Kind() == reflect.Pointer {
		if f.IsNil() {
			return false
		}
		found := clearField(f.Elem(), path[1:])
		if found && f.Elem().IsZero() {
			f.SetZero() // no other field was set there
		}
		return found
	}
	if !each {
		return clearField(f, path[1:])
	}
	found := false
	for i := range f.Len() {
		found = clearField(f.Index(i), path[1:]) || found
	}
	return found
}

// fieldOf returns a field by its JSON name, in embedded structs as well. An invalid value means that there is none.
func fieldOf(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return v.Field(i)
		}
		if tag == "" && f.Anonymous {
			if in := fieldOf(v.Field(i), name); in.IsValid() {
				return in
			}
		}
	}
	return reflect.Value{}
}

// Set sets a field of a pod to some value, so that it is not absent.
func Set(pod *corev1.Pod, path string) error {
	if !setField(reflect.ValueOf(pod).Elem(), strings.Split(path, ".")) {
		return fmt.Errorf("set %s: a pod has no such field", path)
	}
	return nil
}

func setField(v reflect.Value, path []string) bool {
	name, each := strings.CutSuffix(path[0], "[]")
	f := fieldOf(v, name)
	if !f.IsValid() {
		return false
	}
	if f.Kind() == reflect.Pointer && f.IsNil() {
		f.Set(reflect.New(f.Type().Elem()))
	}
	if each && f.Len() == 0 {
		f.Set(reflect.MakeSlice(f.Type(), 1, 1))
	}
	switch {
	case len(path) == 1:
		if f.Kind() == reflect.String {
			f.SetString("x")
		}
		return true
	case each:
		return setField(f.Index(0), path[1:])
	case f.Kind() == reflect.Pointer:
		f = f.Elem()
	}
	return setField(f, path[1:])
}
