package volume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestImageVolume: the runtime is told to mount the image, read-only and without a path of the host. What it cannot do
// is an error, and so is an image that is not there.
func TestImageVolume(t *testing.T) {
	r := newRig(t)
	image := &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "example.com/data:1"}
	has := ContainerFacts{
		Images:           map[string]*runtimeapi.ImageSpec{"data": image},
		ImageDirectories: true,
		Env:              []*runtimeapi.KeyValue{{Key: "PART", Value: []byte("share")}},
	}
	whole := has
	whole.ImageDirectories = false
	for _, c := range []struct {
		mount   corev1.VolumeMount
		facts   ContainerFacts
		subPath string
		err     string
	}{
		{corev1.VolumeMount{}, has, "", ""},
		{corev1.VolumeMount{ReadOnly: true}, whole, "", ""},
		{corev1.VolumeMount{SubPath: "usr/share"}, has, "usr/share", ""},
		{corev1.VolumeMount{SubPathExpr: "usr/$(PART)"}, has, "usr/share", ""},
		{corev1.VolumeMount{SubPath: "usr/share"}, whole, "", "mounts whole images only"},
		{corev1.VolumeMount{SubPath: "../etc"}, has, "", ".."},
		{corev1.VolumeMount{SubPath: "/etc"}, has, "", "absolute"},
		{corev1.VolumeMount{SubPathExpr: "$(GONE)"}, has, "", "missing value for GONE"},
		{corev1.VolumeMount{}, ContainerFacts{}, "", `image of volume "data" is not there`},
	} {
		c.mount.Name, c.mount.MountPath = "data", "data"
		pod := &corev1.Pod{}
		pod.UID = "uid-image"
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: "example.com/data:1"},
		}}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{c.mount}}}
		if err := r.SetUp(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		got, err := r.Mounts(pod, &pod.Spec.Containers[0], c.facts)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: %v, want %s", c.mount, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.mount, err)
			continue
		}
		m := got[0]
		if m.Image != image || m.ImageSubPath != c.subPath || !m.Readonly || m.HostPath != "" || m.ContainerPath != "/data" {
			t.Errorf("%+v: mounted %v", c.mount, m)
		}
		if path, err := r.VolumePath(pod, "data"); err == nil {
			t.Errorf("it has the path %q on the host", path)
		}
	}
	if err := r.TearDown(t.Context(), "uid-image"); err != nil {
		t.Error(err)
	}
}
