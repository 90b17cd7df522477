// Package kubelethash computes the hashes by which the kubelet recognises what it made: of a container, of a static
// pod's manifest and of its checkpoint files.
//
// # Model
//
// The kubelet hashes texts. A text is a value with the names of its Go types and fields, as k8s.io/utils/dump writes it
// ("%#v" of github.com/davecgh/go-spew). So the names and the order of fields in upstream's types are part of each
// hash. Of pods, upstream hashes its internal type, which has no place in this module. A writer here walks our value
// and writes the names of upstream's type.
//
// # Invariants
//
//   - A container that the kubelet created has the hash that Container returns, and the other way round. So whoever
//     takes a node over restarts no container because of its hash.
//   - A static pod has the UID that a kubelet of the same release gives it.
//
// The module oracle compares all of it with Kubernetes 1.36.3. Another minor release of the kubelet may have other
// fields, and with them other UIDs of static pods, as between two releases of the kubelet.
//
// # What it does not do
//
// It sets no defaults (kube/manifests does) and reads no file.
package kubelethash

import (
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"reflect"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Container returns the hash of a container's name and image, in hexadecimal as in the annotation
// io.kubernetes.container.hash. These two are what cannot change in a running container (Kubernetes 1.31 and later).
func Container(c *corev1.Container) string {
	// Strings are always marshalled; an error is not possible.
	text, _ := json.Marshal(struct {
		Image string `json:"image"`
		Name  string `json:"name"`
	}{c.Image, c.Name})
	return strconv.FormatUint(uint64(Sum(text, nil)), 16)
}

// Sum returns the checksum of a value: the 32-bit FNV-1a hash of its text. names has upstream's names for our types;
// types that are not in it have their own.
func Sum(value any, names map[reflect.Type]string) uint32 {
	w := writer{names: func(t reflect.Type) string { return names[t] }}
	w.write(reflect.ValueOf(value), true)
	h := fnv.New32a()
	h.Write(w.text)
	return h.Sum32()
}

// StaticPod returns the UID of the static pod in a file. The pod is as it was decoded, with defaults set, and otherwise
// unchanged. A UID in the manifest stays. node is the Node's name; path is the file's, clean, below the configured
// directory.
func StaticPod(pod *corev1.Pod, node, path string) types.UID {
	if pod.UID != "" {
		return pod.UID
	}
	w := writer{names: internalName, fields: internalFields}
	w.write(reflect.ValueOf(converted(pod)), true)
	h := fnv.New128a()
	h.Write(w.text)
	h.Write([]byte("host:" + node))
	h.Write([]byte("file:" + path))
	return types.UID(hex.EncodeToString(h.Sum(nil)))
}

// converted returns the pod as it is when the API server's code has converted it to its internal type, as far as that
// changes values: internalFields has what it changes in types.
func converted(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.TypeMeta = metav1.TypeMeta{}
	out.Annotations = withoutOld(pod.Annotations)
	if out.Spec.ServiceAccountName == "" {
		out.Spec.ServiceAccountName = out.Spec.DeprecatedServiceAccount
	}
	if grace := out.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		out.Spec.TerminationGracePeriodSeconds = new(int64)
		*out.Spec.TerminationGracePeriodSeconds = 1
	}
	if s := &out.Status; s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP) {
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	return &out
}

// oldAnnotations were how alpha and beta releases spelled init containers (Kubernetes 1.8 and before). The conversion
// drops them.
var oldAnnotations = []string{
	"pod.alpha.kubernetes.io/init-containers", "pod.alpha.kubernetes.io/init-container-statuses",
	"pod.beta.kubernetes.io/init-containers", "pod.beta.kubernetes.io/init-container-statuses",
}

func withoutOld(annotations map[string]string) map[string]string {
	out := annotations
	for _, old := range oldAnnotations {
		if _, has := out[old]; !has {
			continue
		}
		kept := make(map[string]string, len(out))
		for name, value := range out {
			if name != old {
				kept[name] = value
			}
		}
		out = kept
	}
	return out
}
