package csivolume

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
)

const stages = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

func expectCalls(t *testing.T, d *testDriver, want ...string) {
	t.Helper()
	if got := d.called(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if len(d.problems) > 0 {
		t.Error(d.problems)
	}
}

// TestLife: two pods share a volume and see its files; a restarted agent makes no calls; and nothing is left in the
// end.
func TestLife(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages)
	r.start()
	a, b := podOfUID("a"), podOfUID("b")
	source := volumeOf(t, "d", "v1")
	path := r.place(a, source)
	if want := filepath.Join(r.root, "pods/a/volumes/kubernetes.io~csi/pv-v1/mount"); path != want {
		t.Errorf("at %s, want the kubelet's %s", path, want)
	}
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600))
	if text, err := os.ReadFile(filepath.Join(r.place(b, source), "file")); err != nil || string(text) != "kept" {
		t.Errorf("the other pod reads %q, %v", text, err)
	}
	expectCalls(t, d, "stage v1", "publish v1", "publish v1")
	data := map[string]string{}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(path), recordFile))
	must(t, err)
	must(t, json.Unmarshal(text, &data))
	for key, want := range map[string]string{
		"specVolID": "pv-v1", "volumeHandle": "v1", "driverName": "d", "nodeName": "n", "volumeLifecycleMode": "Persistent",
	} {
		if data[key] != want {
			t.Errorf("%s: %q in the record, want %q", key, data[key], want)
		}
	}

	r.start()
	r.place(a, source)
	r.Known()
	expectCalls(t, d, "stage v1", "publish v1", "publish v1")
	r.release(a)
	r.release(b) // it was only found after the restart
	r.empty()
	expectCalls(t, d, "stage v1", "publish v1", "publish v1", "unpublish v1", "unpublish v1", "unstage v1")
}

// TestTakesOverFromAKubelet: a volume that a kubelet mounted is mounted again, and not unmounted from a pod before it
// was released.
func TestTakesOverFromAKubelet(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages)
	r.start()
	a := podOfUID("a")
	source := volumeOf(t, "d", "v1")
	path := r.place(a, source)
	for _, target := range []string{path, r.staging(source.id)} {
		data, err := readRecord(target)
		must(t, err)
		delete(data, keyDone)
		must(t, data.write(target))
	}
	r.start()
	r.Known()
	expectCalls(t, d, "stage v1", "publish v1")
	r.place(a, source)
	expectCalls(t, d, "stage v1", "publish v1", "stage v1", "publish v1")
	r.release(a)
	r.empty()
}

// TestAttached: a volume that a controller attaches is first reported as in use. When it is attached, the driver is
// called, with what the attachment says. Until all pods are known, volumes in use stay in the Node's status.
func TestAttached(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil }))
	r.add("d", d.client(), stages)
	r.start()
	a := podOfUID("a")
	source := volumeOf(t, "d", "v1")
	_, err := r.Want(context.Background(), a, "data", source)
	if err == nil || !strings.Contains(err.Error(), "VolumesInUse") {
		t.Errorf("before it is reported: %v", err)
	}
	<-r.inUse
	const name = "kubernetes.io/csi/d^v1"
	if got := r.VolumesInUse([]corev1.UniqueVolumeName{"old"}); !slices.Equal(got, []corev1.UniqueVolumeName{name,
		"old"}) {
		t.Errorf("in use: %v", got)
	}
	r.Known()
	if got := r.VolumesInUse([]corev1.UniqueVolumeName{"old"}); !slices.Equal(got, []corev1.UniqueVolumeName{name}) {
		t.Errorf("in use, once all pods are known: %v", got)
	}
	r.put("attachment/"+r.attachment(source.id), &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"device": "sdx"},
	}})
	now := &corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{name}}
	r.NodeStatus(now)
	now.VolumesAttached = []corev1.AttachedVolume{{Name: name}}
	r.NodeStatus(now)
	r.place(a, source)
	if got := d.publish[0].PublishContext["device"]; got != "sdx" {
		t.Errorf("publish context: device %q", got)
	}
	r.release(a)
	r.empty()
}

// TestInline: an inline volume of a pod, with what its driver requests to know about the pod.
func TestInline(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	yes := true
	r.put("driver/d", detached(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount = &yes
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	}))
	r.put("secret/shop/s", &corev1.Secret{Data: map[string][]byte{"user": []byte("admin")}})
	r.add("d", d.client(), stages)
	r.start()
	a := podOfUID("a")
	group := int64(77)
	a.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	source, err := FromPod(a, &corev1.Volume{Name: "scratch",
		VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: "d", NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s"},
			VolumeAttributes: map[string]string{"size": "1Mi"},
		}}})
	must(t, err)
	path := r.place(a, source)
	expectCalls(t, d, "publish "+source.Handle) // it is not staged, whatever the driver's capabilities
	asked := d.publish[0]
	for key, want := range map[string]string{
		"size": "1Mi", "csi.storage.k8s.io/pod.name": "pod-a", "csi.storage.k8s.io/pod.uid": "a",
		"csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "true",
	} {
		if asked.VolumeContext[key] != want {
			t.Errorf("volume context %s: %q, want %q", key, asked.VolumeContext[key], want)
		}
	}
	if tokens := asked.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]; !strings.Contains(tokens,
		"token of sa for vault") {
		t.Errorf("tokens: %s", tokens)
	}
	if asked.Secrets["user"] != "admin" {
		t.Errorf("secrets: %v", asked.Secrets)
	}
	if !slices.Equal(r.shared, []string{path}) {
		t.Errorf("given to the group: %v", r.shared)
	}
	r.release(a)
	r.empty()
}

// TestGroups: who gives a volume's files to the pod's group.
func TestGroups(t *testing.T) {
	group := int64(77)
	pod := podOfUID("a")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	able := Driver{
		Can: map[csi.NodeServiceCapability_RPC_Type]bool{csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP: true},
	}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	const file, none, byType = storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy,
		storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	for what, c := range map[string]struct {
		driver Driver
		source Source
		policy storagev1.FSGroupPolicy
		want   bool
	}{
		"by policy File":               {policy: file, want: true},
		"by policy None":               {policy: none, source: Source{fsType: "ext4", modes: once}},
		"read-only":                    {policy: file, source: Source{readOnly: true}},
		"the driver does":              {policy: file, driver: able},
		"default, once, a file system": {policy: byType, source: Source{fsType: "ext4", modes: once}, want: true},
		"default, no type":             {policy: byType, source: Source{modes: once}},
		"default, many":                {policy: byType, source: Source{fsType: "nfs", modes: many}},
		"default, inline":              {policy: byType, source: Source{fsType: "ext4", id: id{Inline: true}}, want: true},
	} {
		if got := takesGroup(c.driver, &c.source, pod, c.policy); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
	if takesGroup(Driver{}, &Source{}, podOfUID("b"), file) {
		t.Error("a pod without a group gives its volume to one")
	}
	if got := capability(able, job{pod: pod, source: &Source{}}).GetMount().VolumeMountGroup; got != "77" {
		t.Errorf("the driver is told of group %q", got)
	}
}

// TestTrouble: one driver fails, one hangs, one gives wrong answers and one is not registered; another works meanwhile.
func TestTrouble(t *testing.T) {
	r := newRig(t)
	ill, well := startDriver(t, t.TempDir()), startDriver(t, t.TempDir())
	r.put("driver/ill", detached())
	r.put("driver/well", detached())
	r.add("ill", ill.client(), stages)
	r.start()
	a, b := podOfUID("a"), podOfUID("b")
	source := volumeOf(t, "ill", "v1")
	hang := make(chan struct{})
	ill.set(func() { ill.hang["stage"] = hang })
	want := func() error { _, err := r.Want(context.Background(), a, "data", source); return err }
	if want() == nil {
		t.Fatal("it is there before it was staged")
	}

	other := volumeOf(t, "well", "w1")
	if _, err := r.Want(context.Background(), b, "data", other); err == nil {
		t.Fatal("a volume of a driver that is not there")
	}
	r.event(t, "driver name well not found in the list of registered CSI drivers")
	r.add("well", well.client(), stages)
	r.place(b, other)

	ill.set(func() {
		delete(ill.hang, "stage")
		ill.fail["publish"] = status.Error(codes.Internal, "no such luck")
	})
	close(hang)
	r.event(t, `MountVolume.SetUp failed for volume "pv-v1" : rpc error: code = Internal desc = no such luck`)
	if _, err := os.Stat(filepath.Join(r.root, "pods/a/volumes/kubernetes.io~csi/pv-v1")); err == nil {
		t.Error("the record of a call that failed for certain is kept")
	}
	ill.set(func() { delete(ill.fail, "publish") })
	r.place(a, source)

	// The driver says that it has unmounted the volume, but it has not.
	ill.set(func() { ill.lie["unpublish"] = true })
	if r.Release(a.UID) {
		t.Error("released at once")
	}
	r.eventually("it was asked", func() bool { return slices.Contains(ill.called(), "unpublish v1") })
	r.eventually("the call has ended",
		func() bool { r.Manager.mu.Lock(); defer r.Manager.mu.Unlock(); return r.timer != nil })
	if r.Release(a.UID) || mountsAt(r.target(source.id, a.UID)) != 1 {
		t.Error("released though it is mounted")
	}
	ill.set(func() { delete(ill.lie, "unpublish") })
	r.release(a)
	r.release(b)
	r.Known()
	r.empty()
}

// event waits for an Event with a text.
func (r *rig) event(t *testing.T, text string) {
	t.Helper()
	r.eventually("an Event: "+text, func() bool {
		for {
			select {
			case e := <-r.events.Events:
				if strings.Contains(e, text) {
					return true
				}
			default:
				return false
			}
		}
	})
}

// TestGrows: a volume that is larger than its claim's status says is expanded on the node, and the status is updated.
func TestGrows(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.start()
	r.put("secret/shop/growth", &corev1.Secret{Data: map[string][]byte{"key": []byte("open sesame")}})
	a := podOfUID("a")
	r.place(a, volumeOf(t, "d", "v1", func(pv *corev1.PersistentVolume) {
		pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
		pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "shop", Name: "growth"}
	}))
	expectCalls(t, d, "stage v1", "publish v1", "expand v1")
	if got := r.grown["shop/claim-v1"]; got != 2<<30 {
		t.Errorf("the claim has %v", got)
	}
	if got := d.expanded.GetSecrets(); !maps.Equal(got, map[string]string{"key": "open sesame"}) {
		t.Errorf("the driver was given secrets %v", got)
	}
	r.release(a)
	r.empty()
}

// TestBlock: two pods have a block volume, a restarted agent has it published again, and nothing is left in the end;
// with and without staging. If a driver publishes something other than a device, that is an error.
func TestBlock(t *testing.T) {
	for _, staged := range []bool{true, false} {
		r := newRig(t)
		d := startDriver(t, t.TempDir())
		r.put("driver/d", detached())
		if staged {
			r.add("d", d.client(), stages)
		} else {
			r.add("d", d.client())
		}
		r.start()
		a, b, source := podOfUID("a"), podOfUID("b"), volumeOf(t, "d", "v1", block)
		path := r.place(a, source)
		if got, err := os.Readlink(filepath.Join(r.root, "pods/a/volumeDevices/kubernetes.io~csi/pv-v1")); got != path {
			t.Errorf("the pod's link leads to %q, %v; want %q", got, err, path)
		}
		r.place(b, source)
		kubelets := r.blockDir("pv-v1", "dev", "a") // a kubelet also binds the device there
		must(t, os.MkdirAll(filepath.Dir(kubelets), 0o750))
		must(t, d.bindDevice(kubelets))
		r.start()
		r.place(a, source)
		r.Known()
		r.release(a)
		if mountsAt(path)+mountsAt(kubelets) != 0 {
			t.Errorf("%s is mounted", path)
		}
		r.release(b)
		r.empty()
		if d.publish[0].VolumeCapability.GetBlock() == nil {
			t.Errorf("the driver was asked for %v", d.publish[0].VolumeCapability)
		}
		d.set(func() { d.lie["publish"] = true })
		_, err := r.Want(t.Context(), a, "data", source)
		if err == nil {
			t.Error("there before the driver was called")
		}
		r.eventually("an Event", func() bool {
			select {
			case e := <-r.events.Events:
				return strings.Contains(e, "FailedMapVolume") && strings.Contains(e, "the driver says that it succeeded")
			default:
				return false
			}
		})
		r.release(a)
		r.empty()
	}
}

// TestUnfinishedRecord: if an agent was killed while it wrote the record of a block volume, what it left is removed.
func TestUnfinishedRecord(t *testing.T) {
	r := newRig(t)
	must(t, os.MkdirAll(r.root+"/plugins/kubernetes.io/csi/volumeDevices/pv/data", 0o750))
	must(t, os.WriteFile(r.root+"/plugins/kubernetes.io/csi/volumeDevices/pv/data/."+recordFile+".new", nil, 0o600))
	r.start()
	if left, _ := filepath.Glob(r.blockDir("*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestGrowsLater: if a claim's volume is enlarged while a pod has it, the claim is read again and the volume expanded.
func TestGrowsLater(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.start()
	a := podOfUID("a")
	source := volumeOf(t, "d", "v1")
	r.place(a, source)
	r.sizes["pv-v1"] = 3 << 30
	r.grown["shop/claim-v1"] = 1 << 30
	r.look(t.Context(), core.Look{Volume: source.id.name("")}, source)
	r.eventually("the claim has grown", func() bool {
		_, has, _ := r.Sizes(t.Context(), source.claim, "pv-v1", false)
		return has == 3<<30
	})
	expectCalls(t, d, "stage v1", "publish v1", "expand v1")

	name := source.id.name("")
	known := func() Source {
		r.Manager.mu.Lock()
		defer r.Manager.mu.Unlock()
		return *r.volumes[name].source
	}
	has := known()
	r.cached = map[string]unit.Bytes{"pv-v1": 1 << 30}
	r.look(t.Context(), core.Look{Volume: name}, &has)
	if is := known(); is.size != 3<<30 || is.has != 3<<30 {
		t.Errorf("a cache that lags behind: the volume counts as %v of %v", is.has, is.size)
	}
	r.release(a)
	r.empty()
}

// TestToldToGrow: if others tell that a claim's volume is to grow, the claim is read at once and the volume expanded.
// If it is told before the pod has the volume, that follows when the pod has it.
func TestToldToGrow(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.start()
	first, second := volumeOf(t, "d", "v1"), volumeOf(t, "d", "v2")
	a := podOfUID("a")
	r.place(a, first)
	grow := func(pv, claim string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sizes[pv], r.grown[claim] = 3<<30, 1<<30
	}
	hasGrown := func(s *Source, pv string) {
		t.Helper()
		r.eventually(pv+" has grown", func() bool {
			_, has, _ := r.Sizes(t.Context(), s.claim, pv, false)
			return has == 3<<30
		})
	}
	grow("pv-v1", "shop/claim-v1")
	r.Told([]types.NamespacedName{first.claim, second.claim}, true)
	hasGrown(first, "pv-v1")
	grow("pv-v2", "shop/claim-v2")
	r.place(a, second)
	hasGrown(second, "pv-v2")
	expectCalls(t, d, "stage v1", "publish v1", "expand v1", "stage v2", "publish v2", "expand v2")
	r.release(a)
	r.empty()
}

// TestMissed: if a volume is to grow of which nobody told, volumes are looked at as often as if nobody told at all. It
// does not count if the volume has grown without the node.
func TestMissed(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached())
	r.add("d", d.client(), stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.start()
	r.Told(nil, true)
	source, a := volumeOf(t, "d", "v1"), podOfUID("a")
	r.place(a, source)
	name := source.id.name("")
	found := func(size, has unit.Bytes) time.Duration {
		r.mu.Lock()
		r.sizes["pv-v1"], r.grown["shop/claim-v1"] = size, has
		r.mu.Unlock()
		r.Manager.mu.Lock()
		known := *r.volumes[name].source
		r.Manager.mu.Unlock()
		r.look(t.Context(), core.Look{Volume: name}, &known)
		r.Manager.mu.Lock()
		defer r.Manager.mu.Unlock()
		return r.Manager.r.Step(r.now()).Wake.Sub(r.now())
	}
	if next := found(2<<30, 2<<30); next < 4*time.Minute {
		t.Errorf("it has grown without the node: the next look follows after %v, want more than 4 min", next)
	}
	if next := found(3<<30, 2<<30); next > 2*time.Minute {
		t.Errorf("nobody told: the next look follows after %v, want at most 2 min", next)
	}
	r.release(a)
	r.empty()
}

// TestNames: names of drivers and volumes do not lead out of their directories.
func TestNames(t *testing.T) {
	for _, driver := range []string{"", "..", "a/b", "../x", ".hidden", "volumeDevices"} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"},
			},
		}}
		pv.ObjectMeta = metav1.ObjectMeta{Name: "pv"}
		if _, err := FromVolume(pv, &corev1.PersistentVolumeClaim{}, false, false); err == nil {
			t.Errorf("driver name %q is taken", driver)
		}
	}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "../../etc"},
		},
	}}
	pv.Name = "../pv"
	if _, err := FromVolume(pv, &corev1.PersistentVolumeClaim{}, false, false); err == nil {
		t.Error("a volume's name with a slash is taken")
	}
}

// TestTriedAgain: a pod is tried again when no call for it is on its way any more, and at once when one has failed.
func TestTriedAgain(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.objects = map[string]any{"driver/d": detached()}
	r.add("d", d.client())
	r.start()
	slow := make(chan struct{})
	d.set(func() { d.hang["NodePublishVolume slow"] = slow })
	pod := podOfUID("u1")
	wants := func(handle string) error {
		must(t, os.MkdirAll(filepath.Join(d.dir, handle), 0o755))
		_, err := r.Want(t.Context(), pod, handle, volumeOf(t, "d", handle))
		return err
	}
	there := func(handles ...string) {
		t.Helper()
		for begun := time.Now(); ; time.Sleep(time.Millisecond) {
			missing := slices.DeleteFunc(slices.Clone(handles), func(h string) bool { return wants(h) == nil })
			if len(missing) == 0 {
				return
			}
			if time.Since(begun) > 30*time.Second {
				t.Fatalf("not within 30 s: %q", missing)
			}
		}
	}
	tried := func() {
		t.Helper()
		select {
		case <-r.changed:
		case <-time.After(30 * time.Second):
			t.Fatal("the pod was not tried again")
		}
	}
	_ = wants("slow") // it waits
	there("one", "two")
	close(slow)
	tried()
	if err := wants("slow"); err != nil {
		t.Errorf("tried again too early: %v", err)
	}

	hangs := make(chan struct{})
	defer close(hangs)
	d.set(func() {
		d.hang["NodePublishVolume hangs"] = hangs
		d.fail["NodePublishVolume"] = status.Error(codes.Internal, "no")
	})
	_ = wants("hangs")
	_ = wants("fails")
	tried()
}
