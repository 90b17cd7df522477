//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A claim with WaitForFirstConsumer is bound when its pod is placed. Our scheduler chooses the volume and reserves it
// for the claim, upstream's volume controller binds the two, and our agent mounts the directory. A pod without a
// suitable volume waits, and is placed when the volume is created.
func TestClaims(t *testing.T) {
	b := at(t)
	class := b.ns + "-local"
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := b.API.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.API.StorageV1().StorageClasses().Delete(context.Background(), class, metav1.DeleteOptions{})
	})
	dir := b.localVolume(class, "a")
	b.claim(class, "a")
	b.claim(class, "b")
	for _, name := range []string{"a", "b"} {
		spec := lasting(workload("c", "run", "write /data/file hello-"+name, "sleep infinity"))
		spec.Volumes = []corev1.Volume{{Name: "data",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}}
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		b.create(name, spec)
		if name == "a" {
			b.ready("a")
		}
	}
	b.wrote(dir, "hello-a")
	b.until("b", "waiting for a volume", soon, func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message,
				"1 node(s) didn't find available persistent volumes to bind") {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", p.Status.Conditions)
	})
	dir = b.localVolume(class, "b")
	b.ready("b")
	b.wrote(dir, "hello-b")
	v, err := b.API.CoreV1().PersistentVolumes().Get(t.Context(), b.ns+"-b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ref := v.Spec.ClaimRef; v.Status.Phase != corev1.VolumeBound || ref == nil || ref.Name != "b" ||
		v.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
		t.Errorf("volume %+v of %+v, annotations %v", v.Status, ref, v.Annotations)
	}
}

// localVolume creates a volume of kind local on this machine, and returns its directory.
func (b bench) localVolume(class, name string) string {
	b.t.Helper()
	nodes, err := b.API.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	name = b.ns + "-" + name
	_, err = b.API.CoreV1().PersistentVolumes().Create(b.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{"storage": quantity("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key:      "kubernetes.io/hostname",
					Operator: "In",
					Values:   []string{nodes.Items[0].Labels["kubernetes.io/hostname"]},
				}}}},
			}},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return dir
}

func (b bench) claim(class, name string) {
	b.t.Helper()
	_, err := b.API.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": quantity("1Gi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
}

// wrote checks what a container wrote into a volume.
func (b bench) wrote(dir, want string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "content of the volume", func(context.Context) error {
		content, err := os.ReadFile(filepath.Join(dir, "file"))
		if err == nil && strings.TrimSpace(string(content)) != want {
			err = fmt.Errorf("%s: %q, want %q", dir, content, want)
		}
		return err
	})
}
