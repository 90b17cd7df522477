package volume

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
)

// awsID and otherAWSID are handles of volumes of kind awsElasticBlockStore.
const (
	awsID      = "aws://eu-central-1a/vol-0123"
	otherAWSID = "aws://eu-central-1a/vol-0456"
)

// TestMigrated: each kind that was migrated to CSI drivers is one of a driver, inline and behind a claim.
func TestMigrated(t *testing.T) {
	namespace := "default"
	for kind, c := range map[string]struct {
		driver     string
		inline     corev1.VolumeSource
		persistent corev1.PersistentVolumeSource
	}{
		"awsElasticBlockStore": {
			driver: "ebs.csi.aws.com",
			inline: corev1.VolumeSource{
				AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: otherAWSID},
			},
			persistent: corev1.PersistentVolumeSource{
				AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: awsID},
			},
		},
		"azureDisk": {
			driver: "disk.csi.azure.com",
			inline: corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/s/d"}},
			persistent: corev1.PersistentVolumeSource{
				AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/s/d"},
			},
		},
		"azureFile": {
			driver: "file.csi.azure.com",
			inline: corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "s", ShareName: "share"}},
			persistent: corev1.PersistentVolumeSource{
				AzureFile: &corev1.AzureFilePersistentVolumeSource{
					SecretName:      "s",
					SecretNamespace: &namespace,
					ShareName:       "share",
				},
			},
		},
		"cinder": {
			driver:     "cinder.csi.openstack.org",
			inline:     corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "c"}},
			persistent: corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "c"}},
		},
		"gcePersistentDisk": {
			driver: "pd.csi.storage.gke.io",
			inline: corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "p"}},
			persistent: corev1.PersistentVolumeSource{
				GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "p"},
			},
		},
		"portworxVolume": {
			driver:     "pxd.portworx.com",
			inline:     corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "x"}},
			persistent: corev1.PersistentVolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "x"}},
		},
		"vsphereVolume": {
			driver: "csi.vsphere.vmware.com",
			inline: corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[d] v.vmdk"}},
			persistent: corev1.PersistentVolumeSource{
				VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[d] v.vmdk"},
			},
		},
	} {
		inline := volumeOf("v", c.inline)
		translated, err := csiTranslator.TranslateInTreeInlineVolumeToCSI(klog.Background(), &inline, "default")
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if source, err := csivolume.FromMigrated(translated); err != nil || source.Driver != c.driver || source.Handle == "" {
			t.Errorf("%s, inline: %+v, %v", kind, source, err)
		}
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.persistent}}
		pv.Name = "pv"
		out, moved, err := migrated(pv)
		if err != nil || !moved || out.Name != "pv" || out.Spec.CSI.Driver != c.driver || out.Spec.CSI.VolumeHandle == "" {
			t.Errorf("%s, behind a claim: %+v, %v, %v", kind, out, moved, err)
		}
	}
}

// TestMigratedIsMounted mounts a volume of a migrated kind in both ways, by a driver of the name that upstream's has.
func TestMigratedIsMounted(t *testing.T) {
	r := newCSIRigOf(t, "ebs.csi.aws.com")
	r.bind("data", corev1.PersistentVolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: awsID},
	})
	pod := podWith("u1", claimVolume("claimed", "data"), volumeOf("inline", corev1.VolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: otherAWSID},
	}))
	pod.Namespace = "default"
	if err := r.again(func() error { return r.SetUp(t.Context(), pod) }); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"claimed", "inline"} {
		path, err := r.VolumePath(pod, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, handle := range map[string]string{"claimed": "vol-0123", "inline": "vol-0456"} {
		if _, err := os.Stat(filepath.Join(r.driver.Content(handle), file)); err != nil {
			t.Errorf("%s has not what was written to it: %v", handle, err)
		}
	}
	if err := r.again(func() error { return r.TearDown(t.Context(), "u1") }); err != nil {
		t.Fatal(err)
	}
	r.Manager.mu.Lock()
	left := len(r.Manager.byPod)
	r.Manager.mu.Unlock()
	const plugin = "kubernetes.io/csi:ebs.csi.aws.com"
	want := map[string]int{
		plugin + " volume_mount migrated":   2,
		plugin + " volume_unmount migrated": 2,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.took, func(key string, _ int) bool { return strings.Contains(key, "device") })
	if left != 0 || !maps.Equal(r.took, want) {
		t.Errorf("%d pods left, measured %v, want %v", left, r.took, want)
	}
}
