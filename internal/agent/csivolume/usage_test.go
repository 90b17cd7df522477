package csivolume

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// condition is how CSI 1.9 encodes a VolumeCondition in an answer.
func condition(abnormal bool, message string) []byte {
	inner := protowire.AppendTag(nil, fieldAbnormal, protowire.VarintType)
	inner = protowire.AppendVarint(inner, protowire.EncodeBool(abnormal))
	inner = protowire.AppendTag(inner, fieldMessage, protowire.BytesType)
	inner = protowire.AppendString(inner, message)
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), inner)
}

// TestUsage asks a driver on a real socket how full a volume is, in several units, and for the volume's condition, a
// field that this version of CSI does not know.
func TestUsage(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.start()
	const stats = csi.NodeServiceCapability_RPC_GET_VOLUME_STATS
	source := volumeOf(t, "d", "v1")
	ask := func() (volumestats.Usage, error) { return r.Usage(t.Context(), "u1", source) }
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "driver name d not found") {
		t.Errorf("no driver: %v", err)
	}
	r.add("d", d.client())
	if _, err := ask(); !errors.Is(err, volumestats.ErrNone) || len(d.called()) > 0 {
		t.Errorf("a driver that cannot: %v, called %v", err, d.called())
	}
	r.add("d", d.client(), stats)
	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 100, Available: 60, Used: 40}
	inodes := &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: 10, Available: 7, Used: 3}
	other := &csi.VolumeUsage{Unit: csi.VolumeUsage_Unit(77), Total: 5}
	d.set(func() {
		d.usage = &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{bytes, other, inodes}}
		d.usage.ProtoReflect().SetUnknown(condition(true, "worn out"))
	})
	want := volumestats.Usage{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}
	if got, err := ask(); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got := d.asked; got.VolumeId != "v1" || got.VolumePath != r.target(source.id, "u1") {
		t.Errorf("request %v", got)
	}

	r.add("d", d.client(), stats, CapabilityCondition)
	bad := volumestats.Health{Abnormal: true, Message: "worn out"}
	if got, err := ask(); err != nil || got.Health == nil || *got.Health != bad {
		t.Errorf("with a condition: %+v, %v", got, err)
	}
	d.set(func() { d.usage = &csi.NodeGetVolumeStatsResponse{} })
	if got, err := ask(); err != nil || got.Health == nil || got.Health.Abnormal {
		t.Errorf("without a condition: %+v, %v", got, err)
	}
	r.add("d", d.client(), stats)
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "no usage") {
		t.Errorf("an empty answer: %v", err)
	}
	d.set(func() { d.fail["usage"] = status.Error(codes.Internal, "it is on fire") })
	if _, err := ask(); status.Code(err) != codes.Internal {
		t.Errorf("a driver that fails: %v", err)
	}
	d.set(func() { d.hang["usage"] = make(chan struct{}) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Usage(ctx, "u1", source); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a driver that hangs: %v", err)
	}
}

// FuzzHealth: whatever a driver puts into fields that this version of CSI does not know is read, or is an error.
func FuzzHealth(f *testing.F) {
	cost.Attack(f, condition(true, "worn out"))
	f.Add(condition(false, "")[:3])
	f.Fuzz(func(t *testing.T, fields []byte) {
		defer cost.Spend(t, len(fields))()
		if h, err := healthOf(fields); err == nil && h == nil {
			t.Error("neither a condition nor an error")
		}
	})
}
