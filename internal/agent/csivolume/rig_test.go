package csivolume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	hostcsi "github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// rig is a Manager with an API server's objects that the test controls, and drivers.
type rig struct {
	*Manager
	t       testing.TB
	root    string
	events  *record.FakeRecorder
	changed chan types.UID
	inUse   chan struct{}
	stop    context.CancelFunc

	mu      sync.Mutex
	drivers map[string]Driver
	objects map[string]any
	grown   map[string]unit.Bytes // by claim
	sizes   map[string]unit.Bytes // by persistent volume
	cached  map[string]unit.Bytes // what the API server's cache has, if it lags behind
	shared  []string
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: volumes are mounts")
	}
}

func newRig(t testing.TB) *rig {
	t.Helper()
	needRoot(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	r := rigIn(t, root)
	t.Cleanup(func() {
		r.stop()
		must(t, mount.UnmountBelow(root))
	})
	return r
}

func rigIn(t testing.TB, root string) *rig {
	return &rig{
		t: t, root: root, drivers: map[string]Driver{}, objects: map[string]any{}, grown: map[string]unit.Bytes{},
		sizes: map[string]unit.Bytes{},
	}
}

// start starts an agent, which replaces the earlier one.
func (r *rig) start() {
	r.t.Helper()
	if r.stop != nil {
		r.stop()
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	r.events = record.NewFakeRecorder(1000)
	r.changed = make(chan types.UID, 1000)
	r.inUse = make(chan struct{}, 1000)
	changed, inUse := r.changed, r.inUse
	var err error
	r.Manager, err = New(ctx, Options{
		RootDir: r.root, Node: "n", Drivers: r, API: r, Recorder: r.events,
		Share: func(path string, pod *corev1.Pod) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.shared = append(r.shared, path)
			return nil
		},
		Changed: func(uid types.UID) { changed <- uid },
		InUse:   func() { inUse <- struct{}{} },
	})
	must(r.t, err)
	for name := range r.drivers {
		r.DriverChanged(name)
	}
}

// add registers a driver with these capabilities.
func (r *rig) add(name string, client *hostcsi.Client, can ...csi.NodeServiceCapability_RPC_Type) {
	d := Driver{Node: client, Identity: client.Identity, Can: map[csi.NodeServiceCapability_RPC_Type]bool{}}
	if who, err := client.Identity.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}); err == nil {
		d.Said = who.GetName()
	}
	for _, c := range can {
		d.Can[c] = true
	}
	r.mu.Lock()
	r.drivers[name] = d
	r.mu.Unlock()
	if r.Manager != nil {
		r.DriverChanged(name)
	}
}

func (r *rig) Driver(name string) (Driver, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.drivers[name]
	return d, ok
}

func (r *rig) put(key string, object any) { r.mu.Lock(); defer r.mu.Unlock(); r.objects[key] = object }

func get[T any](r *rig, key string) (*T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o, ok := r.objects[key].(*T); ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("thing"), key)
}

func (r *rig) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return get[storagev1.CSIDriver](r, "driver/"+name)
}

func (r *rig) Attachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return get[storagev1.VolumeAttachment](r, "attachment/"+name)
}

func (r *rig) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return get[corev1.Secret](r, "secret/"+namespace+"/"+name)
}

func (r *rig) Token(
	_ context.Context, _, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	out := request.DeepCopy()
	out.Status.Token = "token of " + account + " for " + strings.Join(request.Spec.Audiences, ",")
	return out, nil
}

func (r *rig) Grown(_ context.Context, namespace, claim string, size unit.Bytes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grown[namespace+"/"+claim] = size
	return nil
}

// eventually tries again whenever a pod has changed, as its worker does.
func (r *rig) eventually(what string, done func() bool) {
	r.t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-r.changed:
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// place waits until a volume is mounted.
func (r *rig) place(pod *corev1.Pod, source *Source) string {
	r.t.Helper()
	var place Place
	r.eventually(source.Spec+" is there", func() bool {
		var err error
		place, err = r.Want(context.Background(), pod, "data", source)
		var waiting *WaitingError
		if err != nil && !errors.As(err, &waiting) {
			r.t.Fatal(err)
		}
		return err == nil
	})
	if mountsAt(place.Path) != 1 {
		r.t.Fatalf("%s is mounted %d times", place.Path, mountsAt(place.Path))
	}
	return place.Path
}

// release waits until a pod has no volume.
func (r *rig) release(pod *corev1.Pod) {
	r.t.Helper()
	r.eventually(pod.Name+" has nothing", func() bool { return r.Release(pod.UID) })
}

// empty waits until nothing of any volume is left: no mount, no record, no directory.
func (r *rig) empty() {
	r.t.Helper()
	var left []string
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("left: %v", left)
		}
	})
	r.eventually("nothing is left", func() bool {
		left = nil
		points, err := mount.Below(r.root)
		must(r.t, err)
		left = append(left, points...)
		for _, dir := range []string{"plugins/kubernetes.io/csi", "pods"} {
			_ = filepath.WalkDir(filepath.Join(r.root, dir), func(path string, e fs.DirEntry, err error) error {
				base := filepath.Base(path)
				if err == nil && (!e.IsDir() || base == "mount" || base == "globalmount" || len(base) == 64) {
					left = append(left, path)
				}
				return err
			})
		}
		r.Manager.mu.Lock()
		names, _ := r.r.InUse()
		r.Manager.mu.Unlock()
		return len(left) == 0 && len(names) == 0
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func podOfUID(uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + uid, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{ServiceAccountName: "sa"},
	}
}

// volumeOf returns the source of a persistent volume of a driver, after changes to it.
func volumeOf(t testing.TB, driver, handle string, change ...func(*corev1.PersistentVolume)) *Source {
	t.Helper()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: handle, VolumeAttributes: map[string]string{"kind": "fast"},
			}},
		},
	}
	for _, c := range change {
		c(pv)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "claim-" + handle}}
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	source, err := FromVolume(pv, claim, false, false)
	must(t, err)
	return source
}

func block(pv *corev1.PersistentVolume) {
	mode := corev1.PersistentVolumeBlock
	pv.Spec.VolumeMode = &mode
}

// detached returns a CSIDriver whose volumes no controller attaches.
func detached(change ...func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	no := false
	policy := storagev1.FileFSGroupPolicy
	d := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, FSGroupPolicy: &policy, VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
			storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
		},
	}}
	for _, c := range change {
		c(&d.Spec)
	}
	return d
}

func (r *rig) Sizes(
	_ context.Context, claim types.NamespacedName, volume string, cached bool,
) (size, has unit.Bytes, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.cached[volume]; ok && cached {
		return old, old, nil
	}
	return r.sizes[volume], r.grown[claim.String()], nil
}
