package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

// Static pods do not pass through the API server. So this file does what the API server does for other pods: decoding,
// defaults and the checks without which a manifest must not run.

// DecodePod reads one Pod from YAML or JSON. Unknown and duplicate fields are errors, and so is a second document.
func DecodePod(manifest []byte) (*corev1.Pod, error) {
	document, err := onlyDocument(manifest)
	if err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	obj, _, err := strict.UniversalDeserializer().Decode(document, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("decode manifest: want a v1 Pod, found a %T", obj)
	}
	return pod, nil
}

// onlyDocument returns the one document of a manifest. It is an error if there are several, because a decoder would
// ignore all but the first.
func onlyDocument(manifest []byte) (only []byte, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for n := 0; ; {
		document, err := documents.Read()
		switch {
		case err == io.EOF:
			return only, nil
		case err != nil:
			return nil, err
		case isBlank(document):
			continue
		}
		if n++; n > 1 {
			return nil, errors.New("found more than one document, want one: write each pod into a file of its own")
		}
		only = document
	}
}

var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)

// CheckStaticPod returns every problem that forbids running a static pod.
func CheckStaticPod(pod *corev1.Pod) error {
	var problems []error
	bad := func(path, value, rule string) {
		problems = append(problems, fmt.Errorf("%s: %q: %s", path, value, rule))
	}
	for _, rule := range validation.IsDNS1123Subdomain(pod.Name) {
		bad("metadata.name", pod.Name, rule)
	}
	for _, rule := range validation.IsDNS1123Label(pod.Namespace) {
		bad("metadata.namespace", pod.Namespace, rule)
	}
	if len(pod.Spec.Containers) == 0 {
		bad("spec.containers", "", "want at least one container")
	}
	seen := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, rule := range validation.IsDNS1123Label(c.Name) {
				bad("spec.containers.name", c.Name, rule)
			}
			if seen[c.Name] {
				bad("spec.containers.name", c.Name, "is used twice: container names must be unique")
			}
			seen[c.Name] = true
			if strings.TrimSpace(c.Image) == "" {
				bad("spec.containers["+c.Name+"].image", c.Image, "want an image")
			}
		}
	}
	problems = append(problems, userNamespaceProblems(pod)...)
	problems = append(problems, imageVolumeProblems(pod)...)
	problems = append(problems, apiReferences(pod)...)
	return errors.Join(problems...)
}

// userNamespaceProblems returns the fields that a static pod may not have with a user namespace (hostUsers: false), or
// without one.
func userNamespaceProblems(pod *corev1.Pod) (problems []error) {
	bad := func(path, rule string) { problems = append(problems, fmt.Errorf("%s: %s", path, rule)) }
	s := &pod.Spec
	own := s.HostUsers != nil && !*s.HostUsers
	for _, shared := range []struct {
		field string
		set   bool
	}{{"hostNetwork", s.HostNetwork}, {"hostPID", s.HostPID}, {"hostIPC", s.HostIPC}} {
		if own && shared.set {
			bad("spec."+shared.field, "must not be true with hostUsers: false")
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			c, path := &list[i], "spec.containers["+list[i].Name+"]"
			if own && len(c.VolumeDevices) > 0 {
				bad(path+".volumeDevices", "must be empty with hostUsers: false")
			}
			if c.SecurityContext == nil || c.SecurityContext.ProcMount == nil {
				continue
			}
			switch mount := *c.SecurityContext.ProcMount; {
			case mount != corev1.DefaultProcMount && mount != corev1.UnmaskedProcMount:
				bad(path+".securityContext.procMount", fmt.Sprintf("%q: want Default or Unmasked", mount))
			case mount == corev1.UnmaskedProcMount && !own:
				bad(path+".securityContext.procMount", "Unmasked needs hostUsers: false")
			}
		}
	}
	return problems
}

// imageVolumeProblems returns what is wrong with the image volumes of a static pod.
func imageVolumeProblems(pod *corev1.Pod) (problems []error) {
	for _, v := range pod.Spec.Volumes {
		if v.Image == nil {
			continue
		}
		bad := func(field, value, want string) {
			problems = append(problems, fmt.Errorf("spec.volumes[%s].image.%s: %q: want %s", v.Name, field, value, want))
		}
		if strings.TrimSpace(v.Image.Reference) == "" {
			bad("reference", v.Image.Reference, "an image")
		}
		switch v.Image.PullPolicy {
		case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		default:
			bad("pullPolicy", string(v.Image.PullPolicy), "Always, IfNotPresent or Never")
		}
	}
	return problems
}

// apiReferences returns a problem for each reference of a static pod to an API object. A static pod must run without
// the API server, so it may have none.
func apiReferences(pod *corev1.Pod) (problems []error) {
	bad := func(path string) {
		problems = append(problems, fmt.Errorf("%s: a static pod may not refer to API objects", path))
	}
	if pod.Spec.ServiceAccountName != "" {
		bad("spec.serviceAccountName")
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil || v.ConfigMap != nil || v.PersistentVolumeClaim != nil || v.Projected != nil {
			bad("spec.volumes[" + v.Name + "]")
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, from := range list[i].EnvFrom {
				if from.ConfigMapRef != nil || from.SecretRef != nil {
					bad("spec.containers[" + list[i].Name + "].envFrom")
				}
			}
			for _, v := range list[i].Env {
				if v.ValueFrom != nil && (v.ValueFrom.ConfigMapKeyRef != nil || v.ValueFrom.SecretKeyRef != nil) {
					bad("spec.containers[" + list[i].Name + "].env[" + v.Name + "]")
				}
			}
		}
	}
	return problems
}
