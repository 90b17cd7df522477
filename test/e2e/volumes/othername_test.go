//go:build e2e

package volumes

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/csidriver"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestOtherName: a driver says another name, registers with it, and then registers with its first one again, with
// another name of the node and other topology. An Event says each time why a volume waits. A pod that has a volume
// keeps it, and the CSINode object has what was registered last. Then the volume comes. It does not run beside tests
// that kill the agent: a new agent asks the driver for its name, and so registers it by the other one.
func TestOtherName(t *testing.T) {
	b := at(t)
	d := b.startDriver(detached(), stages)
	for _, name := range []string{"stays", "comes"} {
		b.volume(name, corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: name})
	}
	b.create(pod("stays", []corev1.Volume{claimOf("stays")}, "write /stays/file inside", "sleep infinity"))
	b.ready("stays")
	other := "other-" + d.name
	d.Set(func(a *csidriver.Answers) { a.Name = other })
	b.create(pod("comes", []corev1.Volume{claimOf("comes")}, "sleep infinity"))
	b.event("comes", "FailedMount", "the program at the socket of driver "+d.name+` says now that its name is "`+other+`"`)
	if err := d.Register(); err != nil {
		t.Fatal(err)
	}
	b.entry(other, "n")
	b.entry(d.name, "")
	b.event("comes", "FailedMount", "driver name "+d.name+" not found in the list of registered CSI drivers")
	b.has("stays", "/stays/file", "inside")

	key := "example.com/" + b.ns
	d.Set(func(a *csidriver.Answers) {
		a.Name = d.name
		a.NodeID = "moved"
		a.Topology = map[string]string{key: "t"}
	})
	if err := d.Register(); err != nil {
		t.Fatal(err)
	}
	b.entry(d.name, "moved", key)
	b.entry(other, "")
	b.ready("comes")
	d.Set(func(a *csidriver.Answers) { a.NodeID = "again" })
	if err := d.Register(); err != nil { // at once: the agent may not have written that it left
		t.Fatal(err)
	}
	b.entry(d.name, "again", key)
	b.has("stays", "/stays/file", "inside")
	b.delete("stays", "comes")
	b.nothingLeft(d.name)
}

// entry waits until the CSINode object has a driver with a name of the node and topology keys; "": until it has not.
func (b bench) entry(driver, nodeID string, keys ...string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, fmt.Sprintf("%s is %q in the CSINode", driver, nodeID), func(ctx context.Context) error {
		object, err := b.API.StorageV1().CSINodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
		if at < 0 && nodeID == "" {
			return nil
		}
		if at < 0 || object.Spec.Drivers[at].NodeID != nodeID || !slices.Equal(object.Spec.Drivers[at].TopologyKeys, keys) {
			return fmt.Errorf("%+v", object.Spec.Drivers)
		}
		return nil
	})
}
