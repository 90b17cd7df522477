package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/csi/store"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// mounter is a Driver with volumes that have a file system.
type mounter struct {
	*Driver
	t    testing.TB
	root string
}

func newMounter(t testing.TB) *mounter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{
		Store:    store.Options{Dir: filepath.Join(root, "volumes"), Node: "n"},
		Endpoint: filepath.Join(root, "csi.sock"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(mount.UnmountBelow(root), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return &mounter{d, t, root}
}

func ext4For(mode spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode},
	}
}

const (
	forMany = spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	forOne  = spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
)

func (m *mounter) must(_ any, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mounter) volume(name string) string {
	m.t.Helper()
	v, err := m.CreateVolume(context.Background(), &spec.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &spec.CapacityRange{RequiredBytes: 16 << 20},
		VolumeCapabilities: []*spec.VolumeCapability{ext4For(forMany)},
	})
	m.must(nil, err)
	return v.Volume.VolumeId
}

func (m *mounter) staging(id string) string       { return filepath.Join(m.root, "staged", id) }
func (m *mounter) target(id, pod string) string   { return filepath.Join(m.root, "pods", pod, id) }
func (m *mounter) publishTo(id, pod string) error { return m.publishFor(id, pod, forMany) }

func (m *mounter) publishFor(id, pod string, mode spec.VolumeCapability_AccessMode_Mode) error {
	_, err := m.NodePublishVolume(context.Background(), &spec.NodePublishVolumeRequest{
		VolumeId:          id,
		StagingTargetPath: m.staging(id),
		TargetPath:        m.target(id, pod),
		VolumeCapability:  ext4For(mode),
	})
	return err
}

func (m *mounter) stage(id string) {
	m.t.Helper()
	m.must(m.NodeStageVolume(context.Background(), &spec.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: m.staging(id), VolumeCapability: ext4For(forMany),
	}))
}

func (m *mounter) remove(id string, pods ...string) {
	m.t.Helper()
	ctx := context.Background()
	for _, pod := range pods {
		m.must(m.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: m.target(id, pod)}))
	}
	m.must(m.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: m.staging(id)}))
	m.must(m.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: id}))
}

// TestMount: a volume is mounted once at each target, however often it is published; it grows when it is staged again;
// what else is mounted at a target is not taken for the volume; and a volume for one pod is not given to a second.
func TestMount(t *testing.T) {
	m := newMounter(t)
	id, other := m.volume("one"), m.volume("other")
	m.stage(id)
	m.stage(id)
	for _, pod := range []string{"a", "a", "b"} {
		m.must(nil, m.publishTo(id, pod))
	}
	points, err := mount.Below(m.root)
	if err != nil || len(points) != 3 {
		t.Errorf("mounted at %q, %v; want its staging path and two targets", points, err)
	}
	m.must(nil, os.WriteFile(filepath.Join(m.target(id, "a"), "file"), []byte("hello"), 0o600))
	if text, err := os.ReadFile(filepath.Join(m.target(id, "b"), "file")); string(text) != "hello" {
		t.Errorf("the second pod reads %q, %v", text, err)
	}
	m.stage(other)
	m.must(nil, os.MkdirAll(m.target(other, "a"), 0o755))
	m.must(nil, unix.Mount(m.staging(id), m.target(other, "a"), "", unix.MS_BIND, ""))
	if err := m.publishTo(other, "a"); err == nil {
		t.Error("a volume was published where another one is mounted")
	}
	m.must(nil, unix.Unmount(m.target(other, "a"), 0))
	m.must(nil, m.publishFor(other, "a", forOne))
	m.must(nil, m.publishFor(other, "a", forOne))
	if err := m.publishFor(other, "b", forOne); err == nil {
		t.Error("a volume for one pod was given to a second")
	}
	m.remove(other, "a")

	blocks := func() uint64 {
		t.Helper()
		var s unix.Statfs_t
		m.must(nil, unix.Statfs(m.staging(id), &s))
		return s.Blocks
	}
	before := blocks()
	ctx := context.Background()
	for _, pod := range []string{"a", "b"} {
		m.must(m.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: m.target(id, pod)}))
	}
	m.must(m.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: m.staging(id)}))
	m.must(m.ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &spec.CapacityRange{RequiredBytes: 64 << 20},
	}))
	m.stage(id)
	if after := blocks(); after < 3*before {
		t.Errorf("the file system has %d blocks, and had %d before the volume grew fourfold", after, before)
	}
	m.remove(id)
}

// BenchmarkMount stages and publishes a volume on a node that has as many others as there were iterations before, and
// shows the CPU time that it takes, with the programs that it starts. TMPDIR must have room for all of them.
func BenchmarkMount(b *testing.B) {
	m := newMounter(b)
	var ids []string
	for i := range b.N {
		ids = append(ids, m.volume(fmt.Sprint(i)))
	}
	b.ResetTimer()
	before := cpuTime()
	for _, id := range ids {
		m.stage(id)
		m.must(nil, m.publishTo(id, "pod"))
	}
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
	for _, id := range ids {
		m.remove(id, "pod")
	}
}

// cpuTime returns the CPU time of this process and its children that have ended.
func cpuTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}
