package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
)

// rendering is the content of a volume as far as it has been collected.
type rendering struct {
	payload
	use    volumelimit.Use // of payload
	medium volumelimit.Medium
	texts  map[string][]byte // the bytes of ConfigMaps' texts and of fields, by their source
}

func (r *rendering) add(path string, f file) error {
	return r.payload.add(&r.use, r.medium, path, f)
}

// once returns the bytes of a text that many files may have. There is one copy for all of them, so that a volume's
// content needs no more memory than its sources.
func (r *rendering) once(from, text string) []byte {
	if _, had := r.texts[from]; !had {
		r.texts[from] = []byte(text)
	}
	return r.texts[from]
}

// render collects the present content of v. It returns every problem, not only the first. It never builds more content
// than one pod may have.
func (k *Manager) render(ctx context.Context, s *podState, v *corev1.Volume) (payload, error) {
	out := &rendering{payload: payload{}, medium: mediumOf(v), texts: map[string][]byte{}}
	kind, _ := kindOf(v)
	err := kind.render(k, ctx, out, s, v)
	return out.payload, err
}

func (k *Manager) renderConfigMap(ctx context.Context, out *rendering, s *podState, v *corev1.Volume) error {
	c := v.ConfigMap
	return k.addConfigMap(ctx, out, s.pod.Namespace, c.Name, c.Items, c.DefaultMode, isTrue(c.Optional))
}

func (k *Manager) renderSecret(ctx context.Context, out *rendering, s *podState, v *corev1.Volume) error {
	c := v.Secret
	return k.addSecret(ctx, out, s.pod.Namespace, c.SecretName, c.Items, c.DefaultMode, isTrue(c.Optional))
}

func (k *Manager) renderDownward(_ context.Context, out *rendering, s *podState, v *corev1.Volume) error {
	return k.addDownward(out, s.pod, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
}

func (k *Manager) renderProjected(ctx context.Context, out *rendering, s *podState, v *corev1.Volume) error {
	var problems []error
	for i := range v.Projected.Sources {
		err := k.addSource(ctx, out, s, v, i)
		if isTooLarge(err) {
			return err
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (k *Manager) addSource(ctx context.Context, out *rendering, s *podState, v *corev1.Volume, index int) error {
	source, mode := &v.Projected.Sources[index], v.Projected.DefaultMode
	switch {
	case source.Secret != nil:
		return k.addSecret(ctx, out, s.pod.Namespace, source.Secret.Name, source.Secret.Items, mode,
			isTrue(source.Secret.Optional))
	case source.ConfigMap != nil:
		return k.addConfigMap(ctx, out, s.pod.Namespace, source.ConfigMap.Name, source.ConfigMap.Items, mode,
			isTrue(source.ConfigMap.Optional))
	case source.DownwardAPI != nil:
		return k.addDownward(out, s.pod, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return k.addToken(ctx, out, s, v, source.ServiceAccountToken)
	case source.ClusterTrustBundle != nil:
		return k.addAnchors(ctx, out, s.pod, mode, source.ClusterTrustBundle)
	case source.PodCertificate != nil:
		return k.addCertificate(ctx, out, s, v, index)
	}
	if kind := kindOfSource(*source); kind != "" {
		return &UnsupportedError{"projected", "source " + kind + " is not known"}
	}
	return &UnsupportedError{"projected", fmt.Sprintf("sources[%d] is empty: the API server has dropped its kind, which "+
		"is newer or behind a feature gate there, or this agent is older than the kind; remove the source from the pod, or "+
		"switch it on", index)}
}

// privateFile is a file for the one user of a pod's containers, if there is one; an fsGroup adds its own access.
func privateFile(pod *corev1.Pod, mode *int32) file {
	own := ownerOf(pod)
	f := file{mode: modeOf(mode), user: own.user}
	if own.user != nil || own.group != nil {
		f.mode = 0o600
	}
	return f
}

// addAnchors adds the certificates of ClusterTrustBundles. Their file has the kubelet's mode, which is that of a token.
func (k *Manager) addAnchors(ctx context.Context, out *rendering, pod *corev1.Pod, mode *int32,
	source *corev1.ClusterTrustBundleProjection) error {
	if k.Bundles == nil {
		return &UnsupportedError{"projected",
			"source clusterTrustBundle needs the feature gate ClusterTrustBundleProjection: " +
				"switch it on in featureGates of the node's configuration"}
	}
	data, err := k.Bundles.Anchors(ctx, pod.UID, source)
	if err != nil {
		return err
	}
	f := privateFile(pod, mode)
	f.data = data
	return out.add(source.Path, f)
}

func (k *Manager) addToken(ctx context.Context, out *rendering, s *podState, v *corev1.Volume,
	source *corev1.ServiceAccountTokenProjection) error {
	f := privateFile(s.pod, v.Projected.DefaultMode)
	written := ""
	if filepath.IsLocal(source.Path) { // the payload is checked later
		written = filepath.Join(k.pathOf(s, s.pod.UID, v), dataLink, source.Path)
	}
	value, err := k.token(ctx, s, source, written)
	if err != nil {
		return err
	}
	f.data = []byte(value)
	return out.add(source.Path, f)
}

func (k *Manager) addConfigMap(ctx context.Context, out *rendering, namespace, name string, items []corev1.KeyToPath,
	mode *int32, optional bool) error {
	cm, err := k.Objects.ConfigMap(ctx, namespace, name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	lookup := func(key string) ([]byte, bool) {
		if text, ok := cm.Data[key]; ok {
			return out.once("configMap/"+name+"/"+key, text), true
		}
		data, ok := cm.BinaryData[key]
		return data, ok
	}
	keys := append(slices.Collect(maps.Keys(cm.Data)), slices.Collect(maps.Keys(cm.BinaryData))...)
	return addKeys(out, "configmap references non-existent config key", keys, lookup, items, mode, optional)
}

func (k *Manager) addSecret(ctx context.Context, out *rendering, namespace, name string, items []corev1.KeyToPath,
	mode *int32, optional bool) error {
	secret, err := k.Objects.Secret(ctx, namespace, name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	lookup := func(key string) ([]byte, bool) { data, ok := secret.Data[key]; return data, ok }
	return addKeys(out, "references non-existent secret key", slices.Collect(maps.Keys(secret.Data)), lookup, items, mode,
		optional)
}

// addKeys adds all keys, or those that items select, at their paths.
func addKeys(out *rendering, complaint string, keys []string, lookup func(string) ([]byte, bool),
	items []corev1.KeyToPath, mode *int32, optional bool) error {
	if len(items) == 0 {
		for _, key := range keys {
			data, _ := lookup(key)
			if err := out.add(key, file{data: data, mode: modeOf(mode)}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		data, ok := lookup(item.Key)
		if !ok && !optional {
			return fmt.Errorf("%s: %s", complaint, item.Key)
		} else if !ok {
			continue
		}
		if err := out.add(item.Path, file{data: data, mode: modeOf(item.Mode, mode)}); err != nil {
			return err
		}
	}
	return nil
}

func (k *Manager) addDownward(out *rendering, pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile,
	mode *int32) error {
	var problems []error
	for _, item := range items {
		data, err := k.fieldData(out, pod, item)
		problems = append(problems, err)
		if err := out.add(item.Path, file{data: data, mode: modeOf(item.Mode, mode)}); err != nil {
			return err
		}
	}
	return errors.Join(problems...)
}

// fieldData returns the content of a file with a field of the pod.
func (k *Manager) fieldData(out *rendering, pod *corev1.Pod, item corev1.DownwardAPIVolumeFile) ([]byte, error) {
	switch {
	case item.FieldRef != nil:
		from := "field/" + item.FieldRef.FieldPath
		if data, had := out.texts[from]; had {
			return data, nil
		}
		value, err := env.Metadata(pod, item.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		return out.once(from, value), nil
	case item.ResourceFieldRef != nil:
		value, err := env.Resource(pod, nil, item.ResourceFieldRef, k.Allocatable())
		return []byte(value), err
	}
	return nil, nil
}
