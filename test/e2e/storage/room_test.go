//go:build e2e

package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// diskSize is the size of the disk of volumes in TestNoRoom. A file of otherSize leaves room for two small claims and
// not for the large one: 15 % of the disk stay free, and the file system itself needs some.
const (
	diskSize  = 192 * unit.MiB
	otherSize = 90 * unit.MiB
)

// TestNoRoom: the disk of the volumes is so full of other files that a claim does not fit, which the scheduler does
// not know yet. An Event of the claim says how much is free and what to do. A pod that has a volume is not affected,
// and another claim gets one. When there is room, so does the claim.
func TestNoRoom(t *testing.T) {
	var volumes string
	o := options
	o.Prepare = func(c *rig.Cluster) error {
		volumes = filepath.Join(c.StateDir, "volumes")
		if err := os.MkdirAll(volumes, 0o700); err != nil {
			return err
		}
		// By this file `up` knows that the directory is an instance's.
		if err := os.WriteFile(filepath.Join(c.StateDir, "lock"), nil, 0o600); err != nil {
			return err
		}
		smallfs.ForTest(t, volumes, diskSize)
		return nil
	}
	c := rig.New(t, "room", o)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	k.apply(claim("before", "16Mi") + podWith("before"))
	k.ready("before")
	other := filepath.Join(volumes, "other")
	fill(t, other)

	// The annotation is what a scheduler writes that has found room.
	k.apply(claim("large", "64Mi", "volume.kubernetes.io/selected-node: "+k.NodeName))
	for _, part := range []string{
		"code = ResourceExhausted",
		"no room for 64Mi: ",
		" are free for new volumes (",
		" on the disk, of which other volumes may still fill ",
		" stay free): delete claims, snapshots or files on that disk, or ask for less",
	} {
		k.event("large", "ProvisioningFailed", part)
	}
	k.apply(podWith("large"))
	k.apply(claim("small", "16Mi") + podWith("small"))
	k.ready("small")
	for _, pod := range []string{"before", "small"} {
		k.kubectl("exec", pod, "--", "/workload", "write", "/data/file", "hello")
	}
	phase := k.kubectl("get", "persistentvolumeclaim", "large", "--output=jsonpath={.status.phase}")
	if phase != "Pending" {
		t.Errorf("the claim that does not fit is %s", phase)
	}

	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	// The room is read again at once when a volume was deleted, else within a minute.
	k.kubectl("delete", "pod/small", "persistentvolumeclaim/small")
	k.ready("large")
	if out := k.kubectl("exec", "before", "--", "/workload", "cat", "/data/file"); strings.TrimSpace(out) != "hello" {
		t.Errorf("the volume that was there before has %q", out)
	}
	k.kubectl("delete", "pods,persistentvolumeclaims", "--all", "--wait=false")
	k.wantNothingKept()
}

// fill makes a file of otherSize, with blocks.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(otherSize)); err != nil {
		t.Fatalf("make %s: %v: %v", path, otherSize, err)
	}
}

// claim returns a claim of the default StorageClass, as a YAML document.
func claim(name, size string, annotations ...string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: %s
  annotations: {%s}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
`, name, strings.Join(annotations, ", "), size)
}

// podWith returns a pod with the claim of its name at /data, as a YAML document.
func podWith(name string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: plimsoll.dev/workload:dev
    args: [sleep, infinity]
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: %[1]s}
`, name)
}

// ready waits until a pod is Ready. The room on the disk, for which it may have to wait, is read every minute.
func (k keeper) ready(pod string) {
	k.t.Helper()
	k.kubectl("wait", "pod/"+pod, "--for=condition=Ready", rig.KubectlWaits)
}

// event waits for an Event of an object with a reason and a text.
func (k keeper) event(object, reason, text string) {
	k.t.Helper()
	rig.Eventually(k.t, soon, "an Event "+reason+" of "+object+" with "+text, func(ctx context.Context) error {
		events, err := k.API.CoreV1().Events(k.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name != object {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			said = append(said, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("%d Events of it:\n%s", len(said), strings.Join(said, "\n"))
	})
}
