package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPluginNames: each kind that is mounted has the kubelet's name of its plugin.
func TestPluginNames(t *testing.T) {
	names := map[string]string{
		"configMap":   "kubernetes.io/configmap",
		"downwardAPI": "kubernetes.io/downward-api",
		"emptyDir":    "kubernetes.io/empty-dir",
		"hostPath":    "kubernetes.io/host-path",
		"image":       "kubernetes.io/image",
		"projected":   "kubernetes.io/projected",
		"secret":      "kubernetes.io/secret",
	}
	eachKind(func(kind string, v *corev1.Volume) {
		want, named := names[kind]
		if !named {
			return
		}
		s := &podState{pod: podWith("u1", *v)}
		if got := pluginOf(s, v); got != want {
			t.Errorf("%s: plugin %s, want %s", kind, got, want)
		}
		delete(names, kind)
	})
	if len(names) > 0 {
		t.Errorf("no kinds of volumes of the API: %v", names)
	}
}
