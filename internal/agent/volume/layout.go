package volume

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
)

// elementMax is the longest path element in bytes: NAME_MAX of Linux (limits.h).
const elementMax = 255

func (k *Manager) podDir(uid types.UID) string    { return filepath.Join(k.pods, string(uid)) }
func (k *Manager) memoryDir(uid types.UID) string { return filepath.Join(k.memory, string(uid)) }

// visiblePath returns the path where the kubelet would have the volume.
func (k *Manager) visiblePath(uid types.UID, plugin, name string) string {
	return filepath.Join(k.pods, string(uid), poddir.Volumes, plugin, name)
}

// pathOf returns the real path of a volume of the pod; empty: it is a claim (see podState.claims), or of a kind that is
// not mounted. A kubelet's tmpfs stays where it is.
func (k *Manager) pathOf(s *podState, uid types.UID, v *corev1.Volume) string {
	kind, _ := kindOf(v)
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path
	case kind.dir == "":
		return ""
	case kind.memory && !s.adopted[v.Name]:
		return filepath.Join(k.memoryDir(uid), kind.dir, v.Name)
	}
	return k.visiblePath(uid, kind.dir, v.Name)
}

// readOnly reports whether containers may never write to v: the agent alone writes such content.
func readOnly(v *corev1.Volume) bool {
	kind, _ := kindOf(v)
	return kind.render != nil
}

// nameOfKind returns the API's name of v's kind: csi, persistentVolumeClaim, ... A volume without a source is an
// emptyDir, the API's default.
func nameOfKind(v *corev1.Volume) string {
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
