package volume

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Plugin directories, with the kubelet's names in paths.
const (
	emptyDirPlugin  = "kubernetes.io~empty-dir"
	configMapPlugin = "kubernetes.io~configmap"
	secretPlugin    = "kubernetes.io~secret"
	projectedPlugin = "kubernetes.io~projected"
	downwardPlugin  = "kubernetes.io~downward-api"
)

// elementMax is the longest path element in bytes: NAME_MAX of Linux (limits.h).
const elementMax = 255

func (k *Manager) podDir(uid types.UID) string    { return filepath.Join(k.pods, string(uid)) }
func (k *Manager) memoryDir(uid types.UID) string { return filepath.Join(k.memory, string(uid)) }

// visiblePath returns the path where the kubelet would have the volume.
func (k *Manager) visiblePath(uid types.UID, plugin, name string) string {
	return filepath.Join(k.pods, string(uid), volumesDir, plugin, name)
}

// pathOf returns the real path of v.
func (k *Manager) pathOf(uid types.UID, v *corev1.Volume) string {
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path
	case v.ConfigMap != nil:
		return k.visiblePath(uid, configMapPlugin, v.Name)
	case v.Secret != nil:
		return filepath.Join(k.memory, string(uid), secretPlugin, v.Name)
	case v.Projected != nil:
		return filepath.Join(k.memory, string(uid), projectedPlugin, v.Name)
	case v.DownwardAPI != nil:
		return filepath.Join(k.memory, string(uid), downwardPlugin, v.Name)
	}
	return k.visiblePath(uid, emptyDirPlugin, v.Name)
}

// readOnly reports whether containers may never write to v: the agent alone writes such content.
func readOnly(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.Projected != nil || v.DownwardAPI != nil
}

// kindOf returns the API's name of v's kind, for messages: csi, persistentVolumeClaim, ... A volume without a source is
// an emptyDir, the API's default.
func kindOf(v *corev1.Volume) string {
	if name := kindOfSource(v.VolumeSource); name != "" {
		return name
	}
	return "emptyDir"
}

// kindOfSource returns the name of the one field of a volume source that is set.
func kindOfSource(of any) string {
	source := reflect.ValueOf(of)
	for i := range source.NumField() {
		if !source.Field(i).IsNil() {
			name, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// checkPod returns an error for a pod whose names are not valid as single path elements. The API does not admit such
// names, but a static pod's manifest may contain anything.
func checkPod(pod *corev1.Pod) error {
	if err := checkElement("pod uid", string(pod.UID)); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		if err := checkElement("volume name", name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("set up volumes: volume name %q: used twice in one pod", name)
		}
		seen[name] = true
	}
	return nil
}

// checkElement accepts a name that is one path element, not hidden and not special.
func checkElement(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("set up volumes: %s: must not be empty", what)
	case len(name) > elementMax:
		return fmt.Errorf("set up volumes: %s %.64q...: longer than %d bytes", what, name, elementMax)
	case name[0] == '.' || strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("set up volumes: %s %q: must not begin with '.' or contain '/' or NUL", what, name)
	}
	return nil
}
