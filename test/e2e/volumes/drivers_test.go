//go:build e2e

package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/test/csidriver"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// driver is a CSI driver that runs in the test's process.
type driver struct {
	bench
	*csidriver.Driver
	name string

	mu   sync.Mutex
	fail map[string]error         // by call
	hang map[string]chan struct{} // by call: until it is closed
}

// startDriver starts a driver that is called after the test's namespace, and creates its CSIDriver.
func (b bench) startDriver(object storagev1.CSIDriverSpec, can ...spec.NodeServiceCapability_RPC_Type) *driver {
	b.t.Helper()
	d := &driver{bench: b, name: b.ns + ".example.com", fail: map[string]error{}, hang: map[string]chan struct{}{}}
	csiDriver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: d.name}, Spec: object}
	if _, err := b.API.StorageV1().CSIDrivers().Create(b.t.Context(), csiDriver, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.StorageV1().CSIDrivers().Delete(context.Background(), d.name, metav1.DeleteOptions{})
	})
	var err error
	d.Driver, err = csidriver.Start(b.t.TempDir(), filepath.Join(b.AgentRoot(), "plugins_registry"), csidriver.Answers{
		Name:         d.name,
		NodeID:       "n",
		Capabilities: can,
		Fail:         d.trouble,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = d.Unregister()
		d.Stop()
	})
	if told := <-d.Told; told != "" {
		b.t.Fatalf("the driver was refused: %s", told)
	}
	return d
}

func (d *driver) trouble(ctx context.Context, call string) error {
	d.mu.Lock()
	err, hang := d.fail[call], d.hang[call]
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
	return err
}

func (d *driver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func detached() storagev1.CSIDriverSpec {
	no := false
	return storagev1.CSIDriverSpec{AttachRequired: &no}
}

const stages = spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

// TestInline: the driver of an inline volume gets what its CSIDriver asks for: facts about the pod, and tokens. It also
// gets the volume's secret.
func TestInline(t *testing.T) {
	t.Parallel()
	b := at(t)
	object := detached()
	yes := true
	object.PodInfoOnMount = &yes
	object.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	object.TokenRequests = []storagev1.TokenRequest{{Audience: "storage"}}
	d := b.startDriver(object)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, Data: map[string][]byte{"password": []byte("open sesame")},
	}
	if _, err := b.API.CoreV1().Secrets(b.ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inline := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver:               d.name,
		VolumeAttributes:     map[string]string{"size": "1"},
		NodePublishSecretRef: &corev1.LocalObjectReference{Name: "key"},
	}}}
	p := b.create(pod("p", []corev1.Volume{inline}, "write /v/file inside", "sleep infinity"))
	b.ready("p")
	handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(p.UID)+"v")))
	requests := d.Published(handle)
	if len(requests) == 0 {
		t.Fatalf("nothing was published as %s", handle)
	}
	r := requests[0]
	for key, want := range map[string]string{
		"size": "1", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": b.ns,
		"csi.storage.k8s.io/pod.uid": string(p.UID), "csi.storage.k8s.io/serviceAccount.name": "default",
		"csi.storage.k8s.io/ephemeral": "true",
	} {
		if got := r.VolumeContext[key]; got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	var tokens map[string]struct{ Token string }
	err := json.Unmarshal([]byte(r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens)
	if err != nil || tokens["storage"].Token == "" {
		t.Errorf("tokens %v, %v", tokens, err)
	}
	if got := r.Secrets["password"]; got != "open sesame" {
		t.Errorf("the secret is %q", got)
	}
	b.has("p", "/v/file", "inside")
	b.delete("p")
}

// TestEphemeral: the claim of a generic ephemeral volume is bound, and its volume is mounted.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	b := at(t)
	d := b.startDriver(detached(), stages)
	claimed := func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = "p-v" }
	source := corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "e"}
	b.volume("unused", source, claimed)
	none := ""
	ephemeral := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": size}},
			StorageClassName: &none,
		}},
	}}}
	b.create(pod("p", []corev1.Volume{ephemeral}, "write /v/file inside", "sleep infinity"))
	b.ready("p")
	b.has("p", "/v/file", "inside")
	b.delete("p")
	b.nothingLeft(d.name)
}

// TestAttached: the agent calls the driver once the Node says that the volume is attached, and passes on what the
// VolumeAttachment says. The volume is in use until nothing of it is left. The test plays the attacher.
func TestAttached(t *testing.T) {
	t.Parallel()
	b := at(t)
	d := b.startDriver(storagev1.CSIDriverSpec{}, stages)
	b.volume("data", corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "disk"})
	b.create(pod("p", []corev1.Volume{claimOf("data")}, "sleep infinity"))
	name := fmt.Sprintf("csi-%x", sha256.Sum256([]byte("disk"+d.name+b.NodeName)))
	attachments := b.API.StorageV1().VolumeAttachments()
	rig.Eventually(t, soon, "attachment", func(ctx context.Context) error {
		a, err := attachments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		a.Status.Attached = true
		a.Status.AttachmentMetadata = map[string]string{"device": "sdx"}
		_, err = attachments.UpdateStatus(ctx, a, metav1.UpdateOptions{})
		return err
	})
	b.ready("p")
	if got := d.Published("disk")[0].PublishContext["device"]; got != "sdx" {
		t.Errorf("the driver was told of device %q", got)
	}
	used := corev1.UniqueVolumeName("kubernetes.io/csi/" + d.name + "^disk")
	inUse := func(ctx context.Context) bool {
		node, err := b.API.CoreV1().Nodes().Get(ctx, b.NodeName, metav1.GetOptions{})
		return err != nil || slices.Contains(node.Status.VolumesInUse, used)
	}
	if !inUse(t.Context()) {
		t.Errorf("%s is not in use", used)
	}
	b.killAgent()
	rig.Eventually(t, soon, "the agent", func(context.Context) error { _, err := b.in("p", "ls", "/data"); return err })
	if !inUse(t.Context()) {
		t.Errorf("%s is not in use after the agent's restart", used)
	}
	b.delete("p")
	rig.Eventually(t, soon, "detached", func(ctx context.Context) error {
		if inUse(ctx) {
			return fmt.Errorf("%s is in use", used)
		}
		if _, err := attachments.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("attachment: %v", err)
		}
		return nil
	})
	b.nothingLeft(d.name)
}

// TestTroubles: when a call of a driver fails, an Event says so in the kubelet's words. A call that hangs delays no
// other volume of the driver. Pods start when the cause is gone.
func TestTroubles(t *testing.T) {
	t.Parallel()
	b := at(t)
	d := b.startDriver(detached(), stages)
	for _, name := range []string{"a", "b", "c"} {
		b.volume(name, corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: name})
	}
	agentLives.RLock()
	mayDie := sync.OnceFunc(agentLives.RUnlock)
	defer mayDie()
	released := make(chan struct{})
	d.set(func() { d.hang["NodeStageVolume"] = released })
	b.create(pod("a", []corev1.Volume{claimOf("a")}, "sleep infinity"))
	rig.Eventually(t, soon, "the call that hangs", func(context.Context) error {
		if d.Called("NodeStageVolume") == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	d.set(func() { delete(d.hang, "NodeStageVolume") })
	b.create(pod("b", []corev1.Volume{claimOf("b")}, "sleep infinity"))
	b.ready("b")
	d.set(func() { d.fail["NodePublishVolume"] = status.Error(codes.Internal, "the disk is on fire") })
	close(released)
	b.event("a", "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q", b.ns+"-a"), "the disk is on fire")
	d.set(func() { clear(d.fail) })
	b.ready("a")
	mayDie()

	if err := d.Unregister(); err != nil {
		t.Fatal(err)
	}
	b.create(pod("c", []corev1.Volume{claimOf("c")}, "sleep infinity"))
	b.event("c", "FailedMount", "driver name "+d.name+" not found in the list of registered CSI drivers")
	if err := d.Register(); err != nil {
		t.Fatal(err)
	}
	b.ready("c")

	d.set(func() { d.fail["NodeUnpublishVolume"] = status.Error(codes.Internal, "it is stuck") })
	if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := d.Called("NodeUnpublishVolume")
	rig.Eventually(t, soon, "repeated calls", func(context.Context) error {
		if n := d.Called("NodeUnpublishVolume"); n < before+2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if _, err := b.API.CoreV1().Pods(b.ns).Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod went while it had its volume: %v", err)
	}
	d.set(func() { clear(d.fail) })
	b.gone("a")
	b.delete("b", "c")
	b.nothingLeft(d.name)
}

// TestStatistics: what a driver says about volumes is in the Summary and in /metrics. While it hangs, both answer, and
// the volumes of another driver have their numbers. It does not run beside TestAttached, which kills the agent:
// requests to the agent would fail.
func TestStatistics(t *testing.T) {
	b := at(t)
	d := b.startDriver(detached(), stages, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	d.Set(func(a *csidriver.Answers) {
		a.Usage = &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
			{Unit: spec.VolumeUsage_BYTES, Total: 1000, Available: 600, Used: 400},
			{Unit: spec.VolumeUsage_INODES, Total: 10, Available: 7, Used: 3},
		}}
	})
	b.volume("good", corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "good"})
	b.volume("hangs", corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "hangs"})
	b.create(pod("good", []corev1.Volume{claimOf("good")}, "sleep infinity"))
	b.ready("good")
	of := func(pod string) []statsapi.VolumeStats {
		var out []statsapi.VolumeStats
		for _, p := range b.summary().Pods {
			if p.PodRef.Namespace != b.ns || p.PodRef.Name != pod {
				continue
			}
			for _, v := range p.VolumeStats {
				if v.PVCRef != nil {
					out = append(out, v)
				}
			}
		}
		return out
	}
	rig.Eventually(t, soon, "numbers in the Summary", func(context.Context) error {
		got := of("good")
		if len(got) != 1 || got[0].Name != "good" || got[0].PVCRef.Name != "good" || *got[0].UsedBytes != 400 ||
			*got[0].CapacityBytes != 1000 || *got[0].AvailableBytes != 600 || *got[0].InodesUsed != 3 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	series := fmt.Sprintf(`kubelet_volume_stats_used_bytes{namespace="%s",persistentvolumeclaim="good"} 400`, b.ns)
	if text := b.metrics(); !strings.Contains(text, series) {
		t.Errorf("/metrics lacks %s", series)
	}

	released := make(chan struct{})
	d.set(func() { d.hang["NodeGetVolumeStats"] = released })
	before := d.Called("NodeGetVolumeStats")
	b.create(pod("hangs", []corev1.Volume{claimOf("hangs")}, "sleep infinity"))
	b.ready("hangs")
	rig.Eventually(t, soon, "the question that hangs", func(context.Context) error {
		of("hangs") // nobody is asked unless somebody wants to know
		if d.Called("NodeGetVolumeStats") == before {
			return errors.New("not yet")
		}
		return nil
	})
	if got := of("hangs"); len(got) != 0 {
		t.Errorf("numbers of a volume whose driver has not answered: %+v", got)
	}
	if got := of("good"); len(got) != 1 {
		t.Errorf("the other volume: %+v", got)
	}
	close(released)
	rig.Eventually(t, soon, "numbers after all", func(context.Context) error {
		if got := of("hangs"); len(got) != 1 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	b.delete("good", "hangs")
	b.nothingLeft(d.name)
}
