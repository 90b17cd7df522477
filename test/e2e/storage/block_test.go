//go:build e2e

package storage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestToldToGrow: a volume that a pod has grows as soon as its claim asks for that. The lifecycle controller tells the
// agent, which would not ask for itself in the first 30 s (core/volume, lookAfter).
func TestToldToGrow(t *testing.T) {
	c := rig.Shared(t)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	k.apply(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: grows}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  resources: {requests: {storage: 16Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: grows}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: plimsoll.dev/workload:dev
    args: [sleep, infinity]
    volumeDevices:
    - {name: data, devicePath: /dev/raw}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: grows}
`)
	k.ready("grows")
	k.kubectl("patch", "persistentvolumeclaim", "grows", "--patch",
		`{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
	const unasked = 25 * time.Second
	took := rig.Eventually(t, unasked, "the claim has grown", func(ctx context.Context) error {
		claim, err := c.API.CoreV1().PersistentVolumeClaims(k.ns).Get(ctx, "grows", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if has := claim.Status.Capacity.Storage(); has.Value() < 32<<20 {
			return fmt.Errorf("it has %v", has)
		}
		return nil
	})
	t.Logf("the claim had grown after %v", took.Round(time.Millisecond))
	devices, err := filepath.Glob(filepath.Join(c.AgentRoot(), "plugins/kubernetes.io/csi/volumeDevices/publish/*/*"))
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices of pods: %v, %v, want one", devices, err)
	}
	if size, err := sizeOf(devices[0]); err != nil || size < 32<<20 {
		t.Errorf("the pod's device has %d bytes, %v, want 32 MiB", size, err)
	}
	rig.Eventually(t, soon, "the node is told that nothing is to grow any more", func(ctx context.Context) error {
		node, err := c.API.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if text, told := node.Annotations["plimsoll.dev/claims-to-grow"]; !told || text != "" {
			return fmt.Errorf("told %t: %q", told, text)
		}
		return nil
	})
	k.kubectl("delete", "pod/grows", "persistentvolumeclaim/grows", "--wait=false")
	k.wantNothingKept()
}

// sizeOf returns the size of a block device.
func sizeOf(path string) (int64, error) {
	device, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer device.Close()
	return device.Seek(0, io.SeekEnd)
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
