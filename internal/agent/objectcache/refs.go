package objectcache

import corev1 "k8s.io/api/core/v1"

// Kind is the kind of an object: ConfigMap or Secret.
type Kind bool

// The kinds of objects that pods reference.
const (
	ConfigMap Kind = false
	Secret    Kind = true
)

func (k Kind) String() string {
	if k == Secret {
		return "secret"
	}
	return "configmap"
}

// Ref names an object.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

func (r Ref) String() string { return r.Kind.String() + " " + r.Namespace + "/" + r.Name }

// References returns the objects that pod references in its volumes, environment and pull secrets: those that the Node
// authorizer allows its node to read, except for volume kinds that the agent does not mount.
func References(pod *corev1.Pod) map[Ref]bool {
	refs := map[Ref]bool{}
	add := func(kind Kind, name string) {
		if name != "" {
			refs[Ref{kind, pod.Namespace, name}] = true
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.Secret != nil:
			add(Secret, v.Secret.SecretName)
		case v.ConfigMap != nil:
			add(ConfigMap, v.ConfigMap.Name)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					add(Secret, s.Secret.Name)
				}
				if s.ConfigMap != nil {
					add(ConfigMap, s.ConfigMap.Name)
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		environment(&pod.Spec.InitContainers[i], add)
	}
	for i := range pod.Spec.Containers {
		environment(&pod.Spec.Containers[i], add)
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		environment(&c, add)
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(Secret, s.Name)
	}
	return refs
}

func environment(c *corev1.Container, add func(Kind, string)) {
	for _, e := range c.EnvFrom {
		if e.ConfigMapRef != nil {
			add(ConfigMap, e.ConfigMapRef.Name)
		}
		if e.SecretRef != nil {
			add(Secret, e.SecretRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(ConfigMap, r.Name)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(Secret, r.Name)
		}
	}
}
