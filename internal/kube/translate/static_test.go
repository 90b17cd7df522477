package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestIsStaticPod: the annotation decides, even if its value is empty (pkg/kubelet/types/pod_update.go of upstream).
func TestIsStaticPod(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"no annotations":     {nil, false},
		"other annotations":  {map[string]string{"kubernetes.io/config.hash": "x"}, false},
		"from the API":       {map[string]string{"kubernetes.io/config.source": "api"}, false},
		"from a file":        {map[string]string{"kubernetes.io/config.source": "file"}, true},
		"from a URL":         {map[string]string{"kubernetes.io/config.source": "http"}, true},
		"empty source":       {map[string]string{"kubernetes.io/config.source": ""}, true},
		"mirror without one": {map[string]string{"kubernetes.io/config.mirror": "x"}, false},
	} {
		pod := &corev1.Pod{}
		pod.Annotations = c.annotations
		if got := IsStaticPod(pod); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if critical := QoSPod(pod).Critical; critical != (c.want || c.annotations["kubernetes.io/config.mirror"] != "") {
			t.Errorf("%s: critical %v", name, critical)
		}
	}
}

// TestFromAPI: no pod of the API is static, whatever its annotation says. A pod without the annotation stays as it is.
func TestFromAPI(t *testing.T) {
	for _, annotations := range []map[string]string{
		nil, {"a": "b"}, {"kubernetes.io/config.source": "api"}, {"kubernetes.io/config.source": "file",
			"a": "b"}, {"kubernetes.io/config.source": ""},
	} {
		pod := &corev1.Pod{}
		pod.Annotations = annotations
		before := len(annotations)
		FromAPI(pod)
		if IsStaticPod(pod) || QoSPod(pod).Critical || len(pod.Annotations) != before {
			t.Errorf("%v: static %v, critical %v", pod.Annotations, IsStaticPod(pod), QoSPod(pod).Critical)
		}
	}
}
