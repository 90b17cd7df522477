package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
)

// mountAsKubelet makes a volume's directory as a kubelet does: a tmpfs of its own, with the content of an earlier time.
func (r *rig) mountAsKubelet(uid, plugin, name string, content map[string]string) string {
	r.t.Helper()
	dir := filepath.Join(r.root, "pods", uid, "volumes", plugin, name)
	const payload = "..2026_01_02_03_04_05.123456789"
	for _, err := range []error{
		os.MkdirAll(dir, 0o750), unix.Mount("tmpfs", dir, "tmpfs", 0, ""), os.Mkdir(filepath.Join(dir, payload), 0o755),
		os.Symlink(payload, filepath.Join(dir, dataLink)),
	} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	for key, text := range content {
		if err := os.WriteFile(filepath.Join(dir, payload, key), []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dataLink, key), filepath.Join(dir, key)); err != nil {
			r.t.Fatal(err)
		}
	}
	return dir
}

// TestKubeletsVolumesStayFresh: containers that a kubelet started read the tmpfs that it mounted. Changes arrive there,
// and nowhere else. With the pod it goes.
func TestKubeletsVolumesStayFresh(t *testing.T) {
	r := newRig(t)
	r.put("secret/s", secret("s", map[string]string{"key": "1"}))
	r.put("configmap/kube-root-ca.crt", configMap("kube-root-ca.crt", map[string]string{"ca.crt": "CA"}))
	access := plainVolume()
	pod := podWith("u1",
		volumeOf("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), access,
		volumeOf("d", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "app", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels['app']"}},
		}}}),
	)
	secretDir := r.mountAsKubelet("u1", poddir.Secret, "s", map[string]string{"key": "1"})
	tokenDir := r.mountAsKubelet("u1", poddir.Projected, access.Name, map[string]string{"token": "expired"})
	r.mountAsKubelet("u1", poddir.DownwardAPI, "d", map[string]string{"app": "old"})

	for range 2 { // the second agent finds what the first one left
		r.mustSetUp(pod)
		if path, err := r.VolumePath(pod, "s"); err != nil || path != secretDir {
			t.Errorf("the secret is at %s, %v, want %s", path, err, secretDir)
		}
		if text, err := os.ReadFile(filepath.Join(tokenDir, "token")); err != nil || string(text) == "expired" {
			t.Errorf("the token was not renewed: %q, %v", text, err)
		}
		if got := r.read("pods/u1/volumes", poddir.DownwardAPI, "d/app"); got != "till" {
			t.Errorf("the label is %q", got)
		}
		r.restart()
	}
	r.mustSetUp(pod)
	r.put("secret/s", secret("s", map[string]string{"key": "2"}))
	r.Changed("u1")
	r.eventually("the new secret", func() bool { return r.read("pods/u1/volumes", poddir.Secret, "s/key") == "2" })
	if _, err := os.Lstat(filepath.Join(r.root, "memory/u1")); !os.IsNotExist(err) {
		t.Errorf("content was written where nothing reads it: %v", err)
	}
	r.tearDownClean("u1")
}

// TestHandOver: a kubelet finds each volume mounted where it expects it, and containers see what it writes there. The
// next agent finds everything as it was.
func TestHandOver(t *testing.T) {
	r := newRig(t)
	r.put("secret/s", secret("s", map[string]string{"key": "1"}))
	pod := podWith("u1",
		volumeOf("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}),
		volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
	)
	visible := filepath.Join(r.root, "pods/u1/volumes", poddir.Secret, "s")
	inContainers := filepath.Join(r.root, "memory/u1", poddir.Secret, "s")
	for range 2 {
		r.mustSetUp(pod)
		if target, err := os.Readlink(visible); err != nil || target != inContainers {
			t.Fatalf("the link: %s, %v", target, err)
		}
		for range 2 { // once more changes nothing
			if err := r.HandOver(); err != nil {
				t.Fatal(err)
			}
		}
		if mounted, err := crossesDevice(filepath.Dir(visible), visible); err != nil || !mounted {
			t.Errorf("not mounted: %v", err)
		}
		if err := os.WriteFile(filepath.Join(visible, "by-kubelet"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(inContainers, "by-kubelet")); err != nil {
			t.Errorf("containers do not see what a kubelet writes: %v", err)
		}
		if _, err := os.Stat(filepath.Join(r.root, "pods/u1/plugins", poddir.EmptyDir, "e/ready")); err != nil {
			t.Errorf("the emptyDir has no mark: %v", err)
		}
		r.restart()
	}
	r.mustSetUp(pod)
	r.put("secret/s", secret("s", map[string]string{"key": "2"}))
	r.Changed("u1")
	r.eventually("the new secret", func() bool {
		text, err := os.ReadFile(filepath.Join(inContainers, "key"))
		return err == nil && string(text) == "2"
	})
	if err := r.HandOver(); err != nil {
		t.Fatal(err)
	}
	r.tearDownClean("u1")
}
