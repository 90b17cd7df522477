package manifests

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

// Static pods do not pass through the API server. So what it would have done is done here: decoding, defaults and the
// checks without which a manifest must not run.

// DecodePod reads one Pod from YAML or JSON. Unknown and duplicate fields are errors.
func DecodePod(manifest []byte) (*corev1.Pod, error) {
	obj, _, err := strict.UniversalDeserializer().Decode(manifest, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("decode manifest: have a %T, want a v1 Pod", obj)
	}
	return pod, nil
}

var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)

// DefaultPod sets the defaults that the API server would have set, for the fields that the agent reads.
func DefaultPod(pod *corev1.Pod) {
	s := &pod.Spec
	setDefault(&s.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&s.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&s.SchedulerName, corev1.DefaultSchedulerName)
	setPointer(&s.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	setPointer(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			defaultContainer(&list[i], s.HostNetwork)
		}
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
}

func defaultContainer(c *corev1.Container, hostNetwork bool) {
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	policy := corev1.PullIfNotPresent
	if i := strings.LastIndexAny(c.Image, ":/@"); strings.HasSuffix(c.Image, ":latest") || i < 0 || c.Image[i] == '/' {
		policy = corev1.PullAlways // no tag, or the tag latest, which moves
	}
	setDefault(&c.ImagePullPolicy, policy)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
		if hostNetwork {
			setDefault(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, requested := c.Resources.Requests[name]; !requested {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		setDefault(&p.TimeoutSeconds, 1)
		setDefault(&p.PeriodSeconds, 10)
		setDefault(&p.SuccessThreshold, 1)
		setDefault(&p.FailureThreshold, 3)
		if p.HTTPGet != nil {
			setDefault(&p.HTTPGet.Path, "/")
			setDefault(&p.HTTPGet.Scheme, corev1.URISchemeHTTP)
		}
	}
}

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil {
		setPointer(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.DownwardAPI != nil {
		setPointer(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
	}
	if v.Projected != nil {
		setPointer(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	}
}

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
	problems = append(problems, apiReferences(pod)...)
	return errors.Join(problems...)
}

// apiReferences returns the references of a static pod to API objects. It must run without the API server, so it may
// have none.
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

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
