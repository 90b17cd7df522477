//go:build e2e

package volumes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/csi"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// ourDriver is a running plimsoll-csi, registered with the agent.
type ourDriver struct {
	bench
	controller spec.ControllerClient
}

// startOurs runs plimsoll-csi until the test ends. The test must have deleted its pods by then.
func (b bench) startOurs() ourDriver {
	b.t.Helper()
	no, policy := false, storagev1.FileFSGroupPolicy
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: csi.Name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &no, FSGroupPolicy: &policy},
	}
	if _, err := b.API.StorageV1().CSIDrivers().Create(b.t.Context(), object, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.StorageV1().CSIDrivers().Delete(context.Background(), csi.Name, metav1.DeleteOptions{})
	})
	endpoint := filepath.Join(b.RunDir, "csi.sock")
	cmd := exec.Command(filepath.Join(filepath.Dir(rig.Binary(b.t)), "plimsoll-csi"),
		"--dir", b.t.TempDir(), "--node-name", b.NodeName, "--endpoint", endpoint,
		"--registration-dir", filepath.Join(b.AgentRoot(), "plugins_registry"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	conn, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	rig.Eventually(b.t, soon, "label "+csi.TopologyKey, func(ctx context.Context) error {
		node, err := b.API.CoreV1().Nodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		if err == nil && node.Labels[csi.TopologyKey] != b.NodeName {
			err = fmt.Errorf("labels %v", node.Labels)
		}
		return err
	})
	return ourDriver{b, spec.NewControllerClient(conn)}
}

// make makes a volume and returns its handle.
func (d ourDriver) make(name string, capability *spec.VolumeCapability) (handle string) {
	d.t.Helper()
	capability.AccessMode = &spec.VolumeCapability_AccessMode{
		Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	}
	ctx, cancel := rig.StartClock().Limit(d.t.Context(), soon)
	defer cancel()
	answer, err := d.controller.CreateVolume(ctx, &spec.CreateVolumeRequest{
		Name:               d.ns + name,
		CapacityRange:      &spec.CapacityRange{RequiredBytes: 32 << 20},
		VolumeCapabilities: []*spec.VolumeCapability{capability},
	}, grpc.WaitForReady(true))
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.Volume.VolumeId
}

// provision makes a volume with a file system, and a persistent volume and a claim of it. It returns the volume's
// handle.
func (d ourDriver) provision(name string) (handle string) {
	d.t.Helper()
	handle = d.make(name, &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "ext4"}},
	})
	source := corev1.CSIPersistentVolumeSource{Driver: csi.Name, VolumeHandle: handle, FSType: "ext4"}
	d.volume(name, source, func(v *corev1.PersistentVolume) {
		v.Spec.MountOptions = []string{"noatime"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: csi.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{d.NodeName},
			}}}},
		}}
	})
	return handle
}

// remove removes a volume, which no pod may use any more.
func (d ourDriver) remove(handle string) {
	d.t.Helper()
	if _, err := d.controller.DeleteVolume(d.t.Context(), &spec.DeleteVolumeRequest{VolumeId: handle}); err != nil {
		d.t.Error(err)
	}
}

// TestFileSystems: pods share a claim, by a subPath and read-only, with a group and a mount option; the agent is killed
// while they run. A pod that comes later finds what was written, and nothing is left on the node in the end. Then the
// agent is killed at random moments while pods come and go.
func TestFileSystems(t *testing.T) {
	b := at(t)
	d := b.startOurs()
	handle := d.provision("data")

	group := int64(4711)
	writer := pod("writer", []corev1.Volume{claimOf("data")}, "write /data/file hello", "sleep infinity")
	writer.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group, RunAsUser: &group}
	writer.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	d.create(writer)
	d.ready("writer")
	reader := pod("reader", []corev1.Volume{claimOf("data")}, "sleep infinity")
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	d.create(reader)
	d.ready("reader")
	d.has("reader", "/data/sub/file", "hello")
	if out, err := d.in("reader", "write", "/data/x", "x"); err == nil {
		t.Errorf("the reader writes: %s", out)
	}
	staged := filepath.Join(b.AgentRoot(), "plugins/kubernetes.io/csi", csi.Name) + "/"
	table, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, staged) && !strings.Contains(line, "noatime") {
			t.Errorf("mounted without its option: %s", line)
		}
	}
	text := d.metrics()
	const plugin = "kubernetes.io/csi:" + csi.Name
	for _, want := range []string{
		`storage_operation_duration_seconds_count{migrated="false",operation_name="device_mount",status="success",` +
			`volume_plugin="` + plugin + `"} 1`,
		`volume_manager_total_volumes{plugin_name="` + plugin + `",state="actual_state_of_world"} 2`,
		`kubelet_volume_stats_capacity_bytes{namespace="` + d.ns + `",persistentvolumeclaim="data"}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}

	d.killAgent()
	d.delete("reader")
	d.has("writer", "/data/file", "hello")
	d.create(pod("later", []corev1.Volume{claimOf("data")}, "sleep infinity"))
	d.ready("later")
	d.has("later", "/data/sub/file", "hello")
	d.kills()
	d.delete("writer", "later")
	d.nothingLeft(csi.Name)
	d.remove(handle)
}

// TestDevices: pods share a block volume as a device, the agent is killed in between, and nothing is left on the node
// in the end.
func TestDevices(t *testing.T) {
	b := at(t)
	d := b.startOurs()
	handle := d.make("raw", &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
	})
	source := corev1.CSIPersistentVolumeSource{Driver: csi.Name, VolumeHandle: handle}
	d.volume("raw", source, func(v *corev1.PersistentVolume) {
		mode := corev1.PersistentVolumeBlock
		v.Spec.VolumeMode = &mode
	})
	device := func(name string, args ...string) *corev1.Pod {
		p := pod(name, []corev1.Volume{claimOf("raw")}, args...)
		p.Spec.Containers[0].VolumeMounts = nil
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
		return p
	}
	wrote := func(p *corev1.Pod, want string) {
		t.Helper()
		d.ready(p.Name)
		path := filepath.Join(
			b.AgentRoot(), "plugins/kubernetes.io/csi/volumeDevices/publish", d.ns+"-raw", string(p.UID))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		begin := make([]byte, len(want))
		if _, err := f.Read(begin); err != nil || string(begin) != want {
			t.Errorf("%s begins with %q, %v; want %q", path, begin, err, want)
		}
	}
	wrote(d.create(device("first", "write /dev/raw hello", "sleep infinity")), "hello")
	d.killAgent()
	wrote(d.create(device("second", "write /dev/raw later", "sleep infinity")), "later")
	d.delete("first", "second")
	d.nothingLeft("volumeDevices/publish")
	d.nothingLeft("volumeDevices/" + d.ns + "-raw")
	d.remove(handle)
}

// agentLives is locked by tests that count on a call of the agent, and exclusively while the agent is killed.
var agentLives sync.RWMutex

func (b bench) killAgent() {
	b.t.Helper()
	agentLives.Lock()
	defer agentLives.Unlock()
	if pid := b.PID(b.t, "agent"); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			b.t.Fatal(err)
		}
	}
}

// kills kills the agent at random moments while pods with claims of their own come and go. Each pod has its volume,
// with what its predecessor wrote.
func (d ourDriver) kills() {
	const claims, rounds = 3, 3
	seed := rand.Uint64()
	d.t.Logf("kills with seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	handles := make([]string, claims)
	for i := range handles {
		handles[i] = d.provision(fmt.Sprint("many-", i))
	}
	for round := range rounds {
		var names []string
		for i := range handles {
			volume := claimOf(fmt.Sprint("many-", i))
			name := fmt.Sprint("many-", i, "-", round)
			d.create(pod(name, []corev1.Volume{volume}, "write --append /"+volume.Name+"/file x", "sleep infinity"))
			names = append(names, name)
		}
		d.killAfter(random.IntN(40))
		d.ready(names...)
		for i, name := range names {
			d.has(name, fmt.Sprint("/many-", i, "/file"), strings.TrimSpace(strings.Repeat("x\n", round+1)))
		}
		for _, name := range names {
			if err := d.API.CoreV1().Pods(d.ns).Delete(d.t.Context(), name, metav1.DeleteOptions{}); err != nil {
				d.t.Fatal(err)
			}
		}
		d.killAfter(random.IntN(40))
		for _, name := range names {
			d.gone(name)
		}
	}
	d.Forgive(d.t)
	for _, handle := range handles {
		rig.Eventually(d.t, soon, "unstaged", func(ctx context.Context) error {
			_, err := d.controller.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: handle})
			return err
		})
	}
}

// killAfter kills the agent when the mount table has changed n times, or has not changed for a while: a moment between
// the calls of drivers.
func (d ourDriver) killAfter(n int) {
	d.t.Helper()
	before := ""
	for changes, same := 0, 0; changes <= n && same < 200; same++ {
		now, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			d.t.Fatal(err)
		}
		if string(now) != before {
			before = string(now)
			changes++
			same = 0
		}
	}
	d.killAgent()
}
