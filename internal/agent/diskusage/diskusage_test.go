package diskusage

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

func fs(bytes, capacity uint64) *statsapi.FsStats {
	inodes := uint64(3)
	return &statsapi.FsStats{UsedBytes: &bytes, CapacityBytes: &capacity, InodesUsed: &inodes}
}

// rig is a node with one pod, whose disk usage a test sets.
type rig struct {
	summary *statsapi.Summary
	err     error
	anew    bool // the last reading's argument
	limited bool // the pod has a limit
	same    bool
	sameErr error
	now     time.Time
}

func (r *rig) meter() *Meter {
	return New(Options{
		Read:    func(_ context.Context, anew bool) (*statsapi.Summary, error) { r.anew = anew; return r.summary, r.err },
		Limited: func() bool { return r.limited },
		ImageFS: "/images", NodeFS: "/", Now: func() time.Time { return r.now },
		SameDisk: func(string, string) (bool, error) { return r.same, r.sameErr },
	})
}

func testPod() *corev1.Pod {
	size := resource.MustParse("1Mi")
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c"}},
		Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}}},
	}}
	pod.UID = "u"
	return pod
}

// newRig returns a node whose pod uses 7 bytes in all, 4 and 1 by its container, and 2 MiB in a volume with a limit.
func newRig() *rig {
	images := fs(0, 200)
	return &rig{now: time.Unix(1000, 0), summary: &statsapi.Summary{
		Node: statsapi.NodeStats{Fs: fs(0, 100), Runtime: &statsapi.RuntimeStats{ImageFs: images, ContainerFs: images}},
		Pods: []statsapi.PodStats{{
			PodRef: statsapi.PodReference{UID: "u"}, EphemeralStorage: fs(7, 100),
			Containers:  []statsapi.ContainerStats{{Name: "c", Rootfs: fs(4, 200), Logs: fs(1, 100)}},
			VolumeStats: []statsapi.VolumeStats{{Name: "v", FsStats: *fs(2<<20, 100)}},
		}},
	}}
}

// filled returns what the meter knows of the pod.
func filled(m *Meter) eviction.Pod {
	p := translate.EvictionPod(testPod())
	p.Used = &eviction.Usage{WorkingSet: 5}
	m.Fill(testPod(), &p)
	return p
}

func TestMeter(t *testing.T) {
	r := newRig()
	m := r.meter()
	if p := filled(m); p.Used.Storage != 0 || p.Containers[0].Rootfs != nil {
		t.Errorf("filled before any reading: %+v", p)
	}
	if err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := filled(m)
	if p.Used.Storage != 7 || p.Used.WorkingSet != 5 || p.Containers[0].Rootfs.Bytes != 4 ||
		p.Containers[0].Logs.Bytes != 1 || p.Volumes[0].Used.Bytes != 2<<20 {
		t.Errorf("filled %+v", p)
	}
	if m.Disks() != eviction.ImageDisk {
		t.Errorf("disks %v", m.Disks())
	}
	// The core judges by what Fill sets, so the pod exceeds its limit.
	out := eviction.New(eviction.Config{LocalStorage: true}).Step(unit.Instant(1), eviction.Facts{Disks: m.Disks(),
		Pods: []eviction.Pod{p}})
	if len(out.Victims) != 1 || out.Victims[0].Cause != eviction.CauseEmptyDir {
		t.Errorf("victims %+v", out.Victims)
	}

	if err := m.Recount(t.Context()); err != nil || !r.anew {
		t.Errorf("%v, counted anew: %v", err, r.anew)
	}
}

// TestMeterOfEndedPods: a pod of which nothing runs any more, but whose files are not removed yet, keeps its numbers.
func TestMeterOfEndedPods(t *testing.T) {
	r := newRig()
	m := r.meter()
	if err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.summary.Pods, r.now = nil, r.now.Add(goneLife-time.Second)
	if err := m.Read(t.Context()); err != nil || filled(m).Used.Storage != 7 {
		t.Errorf("%v; what a pod had that has just ended is forgotten: %+v", err, filled(m))
	}
	r.now = r.now.Add(time.Second)
	if err := m.Read(t.Context()); err != nil || filled(m).Used.Storage != 0 {
		t.Errorf("%v; a pod that ended long ago has %+v", err, filled(m))
	}
}

// TestMeterWithoutRuntime: the last reading stands while it is fresh.
func TestMeterWithoutRuntime(t *testing.T) {
	r := newRig()
	m := r.meter()
	if err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.err = errors.New("the runtime is away")
	r.now = r.now.Add(staleAfter - time.Second)
	if err := m.Read(t.Context()); err == nil {
		t.Error("no error")
	}
	if p := filled(m); p.Used.Storage != 7 {
		t.Error("the last reading does not stand while it is fresh")
	}
	r.now = r.now.Add(2 * time.Second)
	if p := filled(m); p.Used.Storage != 0 || p.Volumes[0].Used != nil {
		t.Error("an old reading is told as if it were fresh")
	}
}

// TestDisks: how the disks of images and containers are told from the node's; what was known stays.
func TestDisks(t *testing.T) {
	r := newRig()
	m := r.meter()
	r.same = true
	if err := m.Read(t.Context()); err != nil || m.Disks() != eviction.OneDisk {
		t.Errorf("%v, disks %v", err, m.Disks())
	}
	r.sameErr = errors.New("no such directory")
	if err := m.Read(t.Context()); err != nil || m.Disks() != eviction.OneDisk {
		t.Errorf("%v, disks %v: what was known stays", err, m.Disks())
	}
	r.same, r.sameErr = false, nil
	r.summary.Node.Runtime.ContainerFs = fs(0, 100)
	if err := m.Read(t.Context()); err != nil || m.Disks() != eviction.SplitDisk {
		t.Errorf("%v, disks %v", err, m.Disks())
	}
}

// TestDue: while no pod has a limit of local storage, readings are rare. They become frequent as soon as one has.
func TestDue(t *testing.T) {
	r := &rig{now: time.Unix(1000, 0), summary: &statsapi.Summary{}, same: true}
	m := r.meter()
	if !m.due() {
		t.Error("no first reading")
	}
	if err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := func(after time.Duration) bool {
		r.now = time.Unix(1000, 0).Add(after)
		return m.due()
	}
	if at(every) || at(calm-every) {
		t.Error("read again although no pod has a limit")
	}
	if !at(calm) {
		t.Error("not read again")
	}
	if r.limited = true; !at(every) {
		t.Error("not read again although a pod has a limit")
	}
}
