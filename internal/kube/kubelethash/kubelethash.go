// Package kubelethash computes the hashes by which the kubelet recognises what it made: the hashes of containers, of
// static pods' manifests and of the kubelet's checkpoint files.
//
// # Model
//
// The kubelet hashes texts. A text is a value with the names of its Go types and fields, as k8s.io/utils/dump writes it
// ("%#v" of github.com/davecgh/go-spew). So the names and the order of fields in upstream's types are part of each
// hash. For pods, upstream hashes its internal type, which this module does not have. So a writer here walks the API's
// type and writes the names of the internal one.
//
// # Invariants
//
//   - Container returns the hash that a kubelet of the same release gives to that container. So neither a kubelet nor
//     an agent that takes a node over restarts a container because of its hash.
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

// converted returns the pod with the values that it has after upstream's conversion to the internal type. What the
// conversion changes in types is in internalFields.
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

// oldAnnotations are the annotations that contained init containers while these were alpha and beta (Kubernetes 1.8 and
// before). The conversion drops them.
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
