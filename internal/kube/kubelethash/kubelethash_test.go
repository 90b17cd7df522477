package kubelethash

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestContainer: the hash depends on the name and the image alone. oracle/ tests that it is the kubelet's.
func TestContainer(t *testing.T) {
	c := corev1.Container{Name: "app", Image: "app:1"}
	first := Container(&c)
	c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	if Container(&c) != first {
		t.Error("the hash follows what cannot change in a running container")
	}
	c.Image = "app:2"
	if Container(&c) == first {
		t.Error("the hash does not follow the image")
	}
	if Container(&corev1.Container{Name: "app:1", Image: "app"}) == first {
		t.Error("name and image are confused")
	}
}

// TestStaticPod: the UID depends on the content, the node and the file. A manifest may have a UID of its own.
func TestStaticPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:1"}}
	first := StaticPod(pod, "n", "/etc/pods/web.yaml")
	if len(first) != 32 || StaticPod(pod, "n", "/etc/pods/web.yaml") != first {
		t.Errorf("%q is not one UID of 32 digits", first)
	}
	if StaticPod(pod, "m", "/etc/pods/web.yaml") == first || StaticPod(pod, "n", "/etc/pods/b.yaml") == first {
		t.Error("another node or file has the same UID")
	}
	other := pod.DeepCopy()
	other.Spec.HostNetwork = true
	if StaticPod(other, "n", "/etc/pods/web.yaml") == first {
		t.Error("another pod has the same UID")
	}
	other.UID = "own"
	if got := StaticPod(other, "n", "/etc/pods/web.yaml"); got != "own" {
		t.Errorf("the manifest's own UID became %q", got)
	}
}

// TestEveryFieldIsWritten: no field of the API's types is forgotten where the internal type has another order.
func TestEveryFieldIsWritten(t *testing.T) {
	elsewhere := map[string]bool{ // in the security context, or merged into another field
		"HostNetwork": true, "HostPID": true, "HostIPC": true, "ShareProcessNamespace": true, "HostUsers": true,
		"DeprecatedServiceAccount": true, "PodIP": true,
	}
	for of, names := range map[reflect.Type][]string{
		reflect.TypeFor[corev1.PodSpec]():      podSpecFields,
		reflect.TypeFor[corev1.PodStatus]():    podStatusFields,
		reflect.TypeFor[corev1.VolumeSource](): volumeSourceFields,
	} {
		written := map[string]bool{}
		for _, name := range names {
			written[name] = true
		}
		for i := range of.NumField() {
			if name := of.Field(i).Name; !written[name] && !elsewhere[name] {
				t.Errorf("%s.%s is not in the hash", of, name)
			}
		}
	}
	api := reflect.TypeFor[corev1.PodSecurityContext]()
	for i := range api.NumField() {
		if _, has := reflect.TypeFor[podSecurityContext]().FieldByName(api.Field(i).Name); !has {
			t.Errorf("%s.%s is not in the hash", api, api.Field(i).Name)
		}
	}
}

// TestTextOfCheckpoints: the shapes that only checkpoint files have.
func TestTextOfCheckpoints(t *testing.T) {
	type inner struct{ Size uint64 }
	type outer struct {
		Map  map[int]*inner
		Nil  map[string]string
		List []string
		None *inner
	}
	names := map[reflect.Type]string{reflect.TypeFor[outer](): "state.Outer", reflect.TypeFor[inner](): "state.Inner"}
	w := writer{names: func(t reflect.Type) string { return names[t] }}
	w.write(reflect.ValueOf(&outer{Map: map[int]*inner{10: {1}, 2: nil}, List: []string{"a", "b"}}), true)
	want := "(*state.Outer){Map:(map[int]*state.Inner)map[2:<nil> 10:<*>{Size:(uint64)1}] " +
		"Nil:(map[string]string)<nil> List:([]string)[a b] None:(*state.Inner)<nil>}"
	if got := string(w.text); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
