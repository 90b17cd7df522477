//go:build e2e

package storage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestBlock: a pod gets a volume as a block device, and what it writes is in the volume's file.
func TestBlock(t *testing.T) {
	c := rig.Shared(t)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	k.apply(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  resources: {requests: {storage: 16Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: raw}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: plimsoll.dev/workload:dev
    args: [write, /dev/raw, written by the pod]
    volumeDevices:
    - {name: data, devicePath: /dev/raw}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: raw}
`)
	k.kubectl("wait", "pod/raw", "--for=jsonpath={.status.phase}=Succeeded", rig.KubectlWaits)
	claim, err := c.API.CoreV1().PersistentVolumeClaims(k.ns).Get(t.Context(), "raw", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := c.API.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "the volume holds what the pod wrote", func(context.Context) error {
		return wantInFile(c, pv.Spec.CSI.VolumeHandle, "written by the pod")
	})
	k.kubectl("delete", "pod/raw", "persistentvolumeclaim/raw", "--wait=false")
	k.wantNothingKept()
}

// wantInFile returns an error if no file of a volume begins with text.
func wantInFile(c *rig.Cluster, volume, text string) error {
	var seen []string
	err := filepath.WalkDir(filepath.Join(c.StateDir, "volumes"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, volume) {
			return err
		}
		seen = append(seen, path)
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		begin := make([]byte, 512)
		if n, _ := f.Read(begin); bytes.Contains(begin[:n], []byte(text)) {
			return errFound
		}
		return nil
	})
	switch {
	case err == errFound:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("none of %v begins with %q", seen, text)
}

var errFound = fmt.Errorf("found")
