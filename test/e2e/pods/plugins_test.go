//go:build e2e

package pods

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// csiDriver is a running test/csidriver.
type csiDriver struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	told  chan string // what it was told about its registration
}

// startDriver starts a driver that registers with the agent. Its own socket is in dir.
func (b bench) startDriver(dir, name string) *csiDriver {
	b.t.Helper()
	d := &csiDriver{told: make(chan string, 100), cmd: exec.Command(rig.Build(b.t, "test/csidriver/driver"),
		"--dir", dir, "--registry", filepath.Join(b.AgentRoot(), "plugins_registry"), "--name", name,
		"--node-id", "vol-"+b.ns, "--max", "10", "--topology", "topology."+name+"/zone=z1")}
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		d.stdin, err = d.cmd.StdinPipe()
	}
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d.told <- lines.Text()
		}
	}()
	b.t.Cleanup(d.kill)
	return d
}

// kill ends the driver as a crash does; it may have ended before.
func (d *csiDriver) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

func (d *csiDriver) say(t *testing.T, command string) {
	t.Helper()
	if _, err := fmt.Fprintln(d.stdin, command); err != nil {
		t.Fatal(err)
	}
}

// published waits until the driver's entry is as wanted; a count of 0 means that there is none.
func (b bench) published(name string, count int32) {
	b.t.Helper()
	rig.Eventually(b.t, soon, fmt.Sprintf("CSI driver %s with limit %d", name, count), func(ctx context.Context) error {
		object, err := b.API.StorageV1().CSINodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node, err := b.API.CoreV1().Nodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ids := map[string]string{}
		if text := node.Annotations["csi.volume.kubernetes.io/nodeid"]; text != "" {
			if err := json.Unmarshal([]byte(text), &ids); err != nil {
				return err
			}
		}
		key := "topology." + name + "/zone"
		var entry *storagev1.CSINodeDriver
		for i, d := range object.Spec.Drivers {
			if d.Name == name {
				entry = &object.Spec.Drivers[i]
			}
		}
		switch {
		case len(object.OwnerReferences) != 1 || object.OwnerReferences[0].UID != node.UID:
			return fmt.Errorf("owners %v, want Node %s", object.OwnerReferences, node.UID)
		case object.Annotations[corev1.MigratedPluginsAnnotationKey] == "":
			return fmt.Errorf("annotations %v lack the migrated plugins", object.Annotations)
		case count == 0 && (entry != nil || ids[name] != ""):
			return fmt.Errorf("entry %v, node IDs %v, want none", entry, ids)
		case count == 0:
			return nil
		case entry == nil || entry.NodeID != "vol-"+b.ns || entry.Allocatable == nil || *entry.Allocatable.Count != count ||
			len(entry.TopologyKeys) != 1 || entry.TopologyKeys[0] != key:
			return fmt.Errorf("entry %v", entry)
		case node.Labels[key] != "z1" || ids[name] != entry.NodeID:
			return fmt.Errorf("labels %v, node IDs %v", node.Labels, ids)
		}
		return nil
	})
}

// TestCSIDrivers checks what the API shows of a driver that registers, changes its limit, is killed, comes back, and
// leaves.
func TestCSIDrivers(t *testing.T) {
	b := at(t)
	name := b.ns + ".csi.example.com"
	seconds := int64(10) // the API's least
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds},
	}
	if _, err := b.API.StorageV1().CSIDrivers().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	first := b.startDriver(dir, name)
	b.hear(first, "registered")
	b.published(name, 10)
	first.say(t, "max 7")
	b.published(name, 7)

	first.kill()
	first = b.startDriver(dir, name)
	b.hear(first, "registered")
	b.published(name, 10)

	found := b.scrape("/metrics")
	for _, selector := range []string{
		fmt.Sprintf(`csi_operations_seconds_count{driver_name=%q,method_name="/csi.v1.Node/NodeGetInfo",grpc_status_code="OK",migrated="false"}`, name),
		fmt.Sprintf(`plugin_manager_total_plugins{socket_path=%q,state="actual_state_of_world"}`, filepath.Join(b.AgentRoot(),
			"plugins_registry", name+"-reg.sock")),
	} {
		if !found.has(t, selector, true) {
			t.Errorf("nothing is selected by %s", selector)
		}
	}
	first.say(t, "unregister")
	b.published(name, 0)
}

// hear waits until a driver gets the answer want to its registration.
func (b bench) hear(d *csiDriver, want string) {
	b.t.Helper()
	select {
	case got := <-d.told:
		if got != want {
			b.t.Fatalf("the driver was told %q, want %q", got, want)
		}
	case <-time.After(soon):
		b.t.Fatalf("the driver was not told %q", want)
	}
}
