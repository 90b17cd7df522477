// Package env builds a container's environment and command line: its declared variables with their sources resolved,
// the service variables, and expanded $(VAR) references.
//
// The variables are set in this order: envFrom sources as listed, then env entries as listed. Each can refer to the
// ones before it and to service variables. A later variable with the same name replaces the value of the earlier one
// and keeps its place. Service variables that were not replaced come last. The same pod, objects and services always
// give the same list in the same order, so that configurations of a container can be compared.
//
// Every error means that the container cannot be created with this configuration. It has the kubelet's text where users
// know one ("couldn't find key ..."), and the caller publishes it as CreateContainerConfigError. Whether a missing
// object appears later does not concern this package; the caller tries again.
//
// The package reads objects and services through interfaces, stores nothing between calls and starts nothing.
package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Objects reads the ConfigMaps and Secrets of this node's pods. For an object that does not exist it returns an API
// not-found error.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Services returns the services of one namespace, or an error while they are not known yet.
type Services func(namespace string) ([]*corev1.Service, error)

// Facts are the inputs of an environment other than the pod's own specification.
type Facts struct {
	PodIPs  []string // of the pod's sandbox, primary first
	HostIPs []string // of this node, primary first

	// Allocatable is the node's; it replaces limits that a container does not have.
	Allocatable corev1.ResourceList

	// VolumePath returns the host path of a volume of this pod, for fileKeyRef. If it is nil, fileKeyRef is an error.
	VolumePath func(volume string) (string, error)
}

// Builder builds environments. Both fields are required; a Services that always returns an empty list is valid.
type Builder struct {
	Objects  Objects
	Services Services
}

// Build returns the environment of container c of pod.
func (b *Builder) Build(ctx context.Context, pod *corev1.Pod, c *corev1.Container,
	facts Facts) ([]*runtimeapi.KeyValue, error) {
	services, err := b.serviceVars(pod)
	if err != nil {
		return nil, err
	}
	f := &fold{
		ctx: ctx, objects: b.Objects, pod: pod, container: c, facts: facts,
		services: services, at: map[string]int{},
		configMaps: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{},
	}
	for i := range c.EnvFrom {
		if err := f.from(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		if err := f.declared(&c.Env[i]); err != nil {
			return nil, err
		}
	}
	for _, v := range services.sorted() {
		if _, taken := f.at[v.name]; !taken {
			if err := f.set(v.name, v.value); err != nil {
				return nil, err
			}
		}
	}
	return finish(f.vars)
}

// CommandLine returns c's command and args with references to vars expanded.
func CommandLine(c *corev1.Container, vars []*runtimeapi.KeyValue) (command, args []string, err error) {
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Key] = string(v.Value)
	}
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	if command, err = ExpandAll(c.Command, lookup); err == nil {
		args, err = ExpandAll(c.Args, lookup)
	}
	return command, args, err
}

// ExpandAll expands the arguments of a process. If the result is more than the kernel can pass to a process, it is an
// error, and the result is not built.
func ExpandAll(in []string, lookup func(name string) (string, bool)) (out []string, err error) {
	total := 0
	for i, s := range in {
		s, err = Expand(s, lookup)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		if total += len(s) + 1; total > totalMax {
			return nil, fmt.Errorf("arguments: longer than the %d bytes that a process can receive", totalMax)
		}
		out = append(out, s)
	}
	return out, nil
}

// fold is one Build in progress.
type fold struct {
	ctx       context.Context
	objects   Objects
	pod       *corev1.Pod
	container *corev1.Container
	facts     Facts
	services  serviceVars

	vars  []variable
	at    map[string]int // name -> index in vars
	total int            // bytes of vars

	// One Build sees one version of each object, even if objects change meanwhile. A nil entry is an optional object
	// that does not exist.
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
}

// set sets a variable. A variable that the kernel cannot pass to a process is an error. The error does not contain the
// value, which may be secret.
func (f *fold) set(name, value string) error {
	if err := fits(len(name) + len("=") + len(value)); err != nil {
		return fmt.Errorf("environment variable %.100s: %w; mount it as a volume instead", name, err)
	}
	i, ok := f.at[name]
	if !ok {
		i = len(f.vars)
		f.at[name] = i
		f.vars = append(f.vars, variable{name: name})
		f.total += len(name) + len("=") + 1
	}
	f.total += len(value) - len(f.vars[i].value)
	f.vars[i].value = value
	if f.total > totalMax {
		return fmt.Errorf("environment variable %.100s: together with those before it longer than the %d bytes that a "+
			"process can receive; mount large values as a volume instead", name, totalMax)
	}
	return nil
}

// lookup resolves a $(NAME) reference: first the variables set so far, then service variables.
func (f *fold) lookup(name string) (string, bool) {
	if i, ok := f.at[name]; ok {
		return f.vars[i].value, true
	}
	v, ok := f.services[name]
	return v, ok
}

func (f *fold) from(source *corev1.EnvFromSource) error {
	switch {
	case source.ConfigMapRef != nil:
		cm, err := f.configMap(source.ConfigMapRef.Name, source.ConfigMapRef.Optional)
		if err != nil || cm == nil {
			return err
		}
		for _, k := range sortedKeys(cm.Data) {
			if err := f.set(source.Prefix+k, cm.Data[k]); err != nil {
				return err
			}
		}
	case source.SecretRef != nil:
		secret, err := f.secret(source.SecretRef.Name, source.SecretRef.Optional)
		if err != nil || secret == nil {
			return err
		}
		for _, k := range sortedKeys(secret.Data) {
			if err := f.set(source.Prefix+k, string(secret.Data[k])); err != nil {
				return err
			}
		}
	}
	return nil
}

// declared processes one env entry. An optional source that does not exist sets nothing.
func (f *fold) declared(v *corev1.EnvVar) error {
	if v.Value != "" || v.ValueFrom == nil {
		value, err := Expand(v.Value, f.lookup)
		if err != nil {
			return fmt.Errorf("environment variable %.100s: %w", v.Name, err)
		}
		return f.set(v.Name, value)
	}
	value, ok, err := f.resolve(v.ValueFrom)
	if err != nil || !ok {
		return err
	}
	return f.set(v.Name, value)
}

func (f *fold) resolve(source *corev1.EnvVarSource) (value string, ok bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = Field(f.pod, source.FieldRef, f.facts)
		return value, true, err
	case source.ResourceFieldRef != nil:
		value, err = Resource(f.pod, f.container, source.ResourceFieldRef, f.facts.Allocatable)
		return value, true, err
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		cm, err := f.configMap(ref.Name, ref.Optional)
		if err != nil || cm == nil {
			return "", false, err
		}
		if value, ok := cm.Data[ref.Key]; ok || isTrue(ref.Optional) {
			return value, ok, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, f.pod.Namespace, ref.Name)
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		secret, err := f.secret(ref.Name, ref.Optional)
		if err != nil || secret == nil {
			return "", false, err
		}
		if value, ok := secret.Data[ref.Key]; ok || isTrue(ref.Optional) {
			return string(value), ok, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, f.pod.Namespace, ref.Name)
	case source.FileKeyRef != nil:
		return f.fileKey(source.FileKeyRef)
	}
	return "", true, nil // the API does not admit a source without a member; here it is an empty value
}

func (f *fold) fileKey(ref *corev1.FileKeySelector) (value string, ok bool, err error) {
	if f.facts.VolumePath == nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	dir, err := f.facts.VolumePath(ref.VolumeName)
	if err != nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef: %w", ref.VolumeName, err)
	}
	value, ok, err = readEnvFile(dir, ref.Path, ref.Key)
	optional := isTrue(ref.Optional)
	switch {
	case errors.Is(err, fs.ErrNotExist) && optional:
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	case !ok && !optional:
		return "", false, fmt.Errorf("environment variable key %q not found in file %q of volume %q", ref.Key, ref.Path,
			ref.VolumeName)
	}
	return value, ok, nil
}

// configMap returns the named ConfigMap, or nil if it is optional and does not exist.
func (f *fold) configMap(name string, optional *bool) (*corev1.ConfigMap, error) {
	if cm := f.configMaps[name]; cm != nil {
		return cm, nil
	}
	cm, err := f.objects.ConfigMap(f.ctx, f.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && isTrue(optional) {
			return nil, nil
		}
		return nil, err
	}
	f.configMaps[name] = cm
	return cm, nil
}

// secret returns the named Secret, or nil if it is optional and does not exist.
func (f *fold) secret(name string, optional *bool) (*corev1.Secret, error) {
	if s := f.secrets[name]; s != nil {
		return s, nil
	}
	s, err := f.objects.Secret(f.ctx, f.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && isTrue(optional) {
			return nil, nil
		}
		return nil, err
	}
	f.secrets[name] = s
	return s, nil
}

type variable struct{ name, value string }

// finish converts vars for the CRI. It returns an error for a variable that no process can receive: execve(2) ends
// strings at NUL. Values are bytes in any encoding. They may be secret, and errors do not contain them.
func finish(vars []variable) ([]*runtimeapi.KeyValue, error) {
	out := make([]*runtimeapi.KeyValue, len(vars))
	for i, v := range vars {
		switch {
		case v.name == "" || strings.ContainsAny(v.name, "=\x00") || !utf8.ValidString(v.name):
			return nil, fmt.Errorf("environment variable name %q: must be non-empty UTF-8 text without '=' and NUL", v.name)
		case strings.Contains(v.value, "\x00"):
			return nil,
				fmt.Errorf("environment variable %s: its value contains a NUL byte, which no process can receive; "+
					"mount it as a volume instead", v.name)
		}
		out[i] = &runtimeapi.KeyValue{Key: v.name, Value: []byte(v.value)}
	}
	return out, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
