package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	hostcsi "github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/test/csidriver"
)

// csiRig is a rig with one driver, d.example.com or another, whose volumes are mounted in earnest.
type csiRig struct {
	*rig
	name    string
	driver  *csidriver.Driver
	node    csi.NodeClient
	changed chan types.UID
	events  *record.FakeRecorder

	mu   sync.Mutex
	took map[string]int
}

func newCSIRig(t *testing.T) *csiRig { t.Helper(); return newCSIRigOf(t, "d.example.com") }

func newCSIRigOf(t *testing.T, driver string) *csiRig {
	t.Helper()
	r := &csiRig{
		rig: newRig(t), name: driver, changed: make(chan types.UID,
			100), events: record.NewFakeRecorder(100), took: map[string]int{},
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := mount.UnmountBelow(r.root); err != nil {
			t.Error(err)
		}
		// The calls that a test did not wait for have been cut off, and remove their directories meanwhile.
		err := os.RemoveAll(filepath.Join(r.root, "plugins"))
		for begun := time.Now(); err != nil && time.Since(begun) < 10*time.Second; time.Sleep(time.Millisecond) {
			err = os.RemoveAll(filepath.Join(r.root, "plugins"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	var err error
	r.driver, err = csidriver.Start(dir, dir, csidriver.Answers{Name: driver})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.driver.Stop)
	client, err := hostcsi.Dial(r.driver.Endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	r.node = client
	root, err := filepath.EvalSymlinks(r.root)
	if err != nil {
		t.Fatal(err)
	}
	r.Took = r.measured
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r.CSI, err = csivolume.New(ctx, csivolume.Options{
		RootDir:  root,
		Node:     "n",
		Drivers:  r,
		API:      r,
		Share:    ShareWithGroup,
		Recorder: r.events,
		Changed:  func(uid types.UID) { r.changed <- uid },
		InUse:    func() {},
		Took:     r.measuredOf,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.CSI.DriverChanged(driver)
	return r
}

func (r *csiRig) measured(plugin, operation string, took time.Duration, err error) {
	r.measuredOf(plugin, operation, false, took, err)
}

func (r *csiRig) measuredOf(plugin, operation string, migrated bool, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := plugin + " " + operation
	if migrated {
		key += " migrated"
	}
	if err != nil {
		key += " failed"
	}
	r.took[key]++
}

func (r *csiRig) Driver(name string) (csivolume.Driver, bool) {
	return csivolume.Driver{
		Node: r.node,
		Can:  map[csi.NodeServiceCapability_RPC_Type]bool{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true},
	}, name == r.name
}

func (r *csiRig) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	attach := false
	policy := storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
		AttachRequired: &attach,
		FSGroupPolicy:  &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
			storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
		},
	}}, nil
}

func (r *csiRig) Attachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, errors.New("nothing is attached")
}

func (r *csiRig) Token(
	context.Context, string, string, *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	return nil, errors.New("no token is wanted")
}

func (r *csiRig) Grown(context.Context, string, string, unit.Bytes) error { return nil }

func (r *csiRig) Sizes(context.Context, types.NamespacedName, string, bool) (size, has unit.Bytes, err error) {
	return 0, 0, nil
}

// again repeats what waits for a driver, each time that something has changed, until it is done or fails otherwise.
func (r *csiRig) again(do func() error) error {
	r.t.Helper()
	for {
		err := do()
		if !OnlyWaits(err) {
			return err
		}
		select {
		case <-r.changed:
		case <-time.After(30 * time.Second):
			r.t.Fatalf("it waits, and nothing changes: %v", err)
		}
	}
}

// csiPod is a pod with a claim and an inline volume of the driver, and a secret.
func (r *csiRig) csiPod() *corev1.Pod {
	r.bind("data", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "d.example.com", VolumeHandle: "v1",
	}})
	inline := volumeOf("scratch", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d.example.com"}})
	pod := podWith("u1", claimVolume("data", "data"), inline, volumeOf("empty", corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{},
	}))
	pod.Namespace = "default"
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	return pod
}

// TestCSI: a pod waits until its drivers have mounted its volumes, mounts them with a subPath and for its group, and
// ends when they have unmounted them.
func TestCSI(t *testing.T) {
	r := newCSIRig(t)
	pod := r.csiPod()
	if err := r.SetUp(t.Context(), pod); !OnlyWaits(err) {
		t.Fatalf("at first: %v", err)
	}
	if err := r.again(func() error { return r.SetUp(t.Context(), pod) }); err != nil {
		t.Fatal(err)
	}
	mounts, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mounts[0].HostPath, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	content := r.driver.Content("v1")
	st, err := os.Stat(content)
	if err != nil || st.Sys().(*syscall.Stat_t).Gid != 4711 {
		t.Errorf("the volume: %+v, %v; want group 4711", st, err)
	}
	if _, err := os.Stat(filepath.Join(content, "sub/file")); err != nil {
		t.Errorf("what the container wrote in its subPath: %v", err)
	}
	if path, err := r.VolumePath(pod, "scratch"); err != nil || mounts[1].HostPath != path {
		t.Errorf("the inline volume is at %s (%v), mounted from %s", path, err, mounts[1].HostPath)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Manager)
	const mounted = "volume_manager_total_volumes kubernetes.io/csi:d.example.com actual_state_of_world"
	if got := series(t, registry)[mounted]; got != 2 {
		t.Errorf("%v volumes of the driver, want 2", got)
	}

	if err := r.TearDown(t.Context(), pod.UID); !OnlyWaits(err) {
		t.Fatalf("at first: %v", err)
	}
	if err := r.again(func() error { return r.TearDown(t.Context(), pod.UID) }); err != nil {
		t.Fatal(err)
	}
	points, err := mount.Below(filepath.Join(r.root, "pods"))
	if err != nil || len(points) != 0 {
		t.Errorf("left mounted: %v, %v", points, err)
	}
	if _, err := os.Stat(filepath.Join(content, "sub/file")); err != nil {
		t.Errorf("the volume's content went with the pod: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	want := map[string]int{
		"kubernetes.io/csi:d.example.com device_mount":   1,
		"kubernetes.io/csi:d.example.com volume_mount":   2,
		"kubernetes.io/csi:d.example.com volume_unmount": 2,
		"kubernetes.io/empty-dir volume_mount":           1,
		"kubernetes.io/empty-dir volume_unmount":         1,
	}
	delete(r.took, "kubernetes.io/csi:d.example.com unmount_device") // it may come later
	if !maps.Equal(r.took, want) {
		t.Errorf("measured %v, want %v", r.took, want)
	}
}

// TestCSIFails: a driver that fails is an Event in its own words, and the pod's other volumes are set up.
func TestCSIFails(t *testing.T) {
	r := newCSIRig(t)
	pod := r.csiPod()
	r.driver.Set(func(a *csidriver.Answers) {
		a.Fail = func(_ context.Context, call string) error {
			if call == "NodeStageVolume" {
				return status.Error(codes.Internal, "the disk is on fire")
			}
			return nil
		}
	})
	if err := r.SetUp(t.Context(), pod); !OnlyWaits(err) {
		t.Fatalf("at first: %v", err)
	}
	var told string
	select {
	case told = <-r.events.Events:
	case <-time.After(30 * time.Second):
		t.Fatal("no Event")
	}
	for _, text := range []string{
		"Warning FailedMount", `MountVolume.MountDevice failed for volume "pv-data"`, "on fire",
	} {
		if !strings.Contains(told, text) {
			t.Errorf("Event %q lacks %q", told, text)
		}
	}
	r.eventually("the other volumes", func() bool {
		_ = r.SetUp(t.Context(), pod)
		_, inline := r.VolumePath(pod, "scratch")
		_, empty := r.VolumePath(pod, "empty")
		return inline == nil && empty == nil
	})
	if path, err := r.VolumePath(pod, "data"); err == nil {
		t.Errorf("the failed volume is at %s", path)
	}
	r.driver.Set(func(a *csidriver.Answers) { a.Fail = nil })
	if err := r.again(func() error { return r.SetUp(t.Context(), pod) }); err != nil {
		t.Fatal(err)
	}
	if err := r.again(func() error { return r.TearDown(t.Context(), pod.UID) }); err != nil {
		t.Fatal(err)
	}
}

// TestCSIBlock: a container has a block volume as a device, with the access that its claim allows; volumes of the wrong
// mode are told apart.
func TestCSIBlock(t *testing.T) {
	r := newCSIRig(t)
	_, v := r.bind("raw", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "d.example.com", VolumeHandle: "v1",
	}})
	mode := corev1.PersistentVolumeBlock
	v.Spec.VolumeMode = &mode
	pod := podWith("u1", claimVolume("raw", "raw"))
	pod.Namespace = "default"
	err := r.SetUp(t.Context(), pod)
	if want := "volume raw has volumeMode Block, but is specified in volumeMounts"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("mounted: %v, want %q", err, want)
	}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = nil
	c.VolumeDevices = []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/xvda"}}
	if err := r.again(func() error { return r.SetUp(t.Context(), pod) }); err != nil {
		t.Fatal(err)
	}
	devices, err := r.BlockDevices(pod, c)
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices %v, %v", devices, err)
	}
	st, err := os.Stat(devices[0].HostPath)
	if err != nil || st.Mode()&os.ModeDevice == 0 || devices[0].ContainerPath != "/dev/xvda" {
		t.Errorf("device %v is %v, %v", devices[0], st, err)
	}
	if devices[0].Permissions != "mrw" {
		t.Errorf("permissions %s", devices[0].Permissions)
	}
	if err := r.again(func() error { return r.TearDown(t.Context(), pod.UID) }); err != nil {
		t.Fatal(err)
	}
	v.Spec.VolumeMode = nil
	err = r.SetUp(t.Context(), pod)
	if want := "volume raw has volumeMode Filesystem, but is specified in volumeDevices"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("as a device: %v, want %q", err, want)
	}
	// Another pod's volume of the driver is not disturbed, and the pod starts once its claim's mode is the container's.
	r.bind("other", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "d.example.com", VolumeHandle: "v2",
	}})
	other := podWith("u2", claimVolume("data", "other"))
	other.Namespace = "default"
	if err := r.again(func() error { return r.SetUp(t.Context(), other) }); err != nil {
		t.Error(err)
	}
	v.Spec.VolumeMode = &mode
	if err := r.again(func() error { return r.SetUp(t.Context(), pod) }); err != nil {
		t.Error(err)
	}
	for _, p := range []*corev1.Pod{pod, other} {
		if err := r.again(func() error { return r.TearDown(t.Context(), p.UID) }); err != nil {
			t.Error(err)
		}
	}
}

// TestWithoutWaits: what users are told of volumes that fail does not name those that only wait.
func TestWithoutWaits(t *testing.T) {
	waits := Failure{"a", &csivolume.WaitingError{Why: "the driver is being called"}}
	fails := Failure{"b", errors.New("no such object")}
	both := Failures{waits, fails}
	if OnlyWaits(both) || !OnlyWaits(Failures{waits}) {
		t.Error("which failures only wait")
	}
	if got := WithoutWaits(both).Error(); got != fails.Error() {
		t.Errorf("told %q, want %q", got, fails.Error())
	}
}
