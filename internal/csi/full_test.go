package csi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/plimsoll-dev/plimsoll/internal/csi/store"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestFull: while the file system of the volumes has no blocks or no inodes, a volume is neither made nor expanded, and
// the caller, whose Events have the error, is told what to free. The volume that exists is unharmed. Everything
// succeeds when there is room again.
func TestFull(t *testing.T) {
	for _, test := range []struct {
		name                 string
		fill                 func(testing.TB, string) *smallfs.Filler
		wantMake, wantExpand string
	}{
		{"blocks", smallfs.Fill, "no room for 4Mi", "no room for 4Mi more"},
		{"inodes", func(t testing.TB, dir string) *smallfs.Filler { return smallfs.FillInodes(t, dir, 0) },
			"no space left on device: blocks or inodes are used up: free some in the file system of ",
			"no space left on device: blocks or inodes are used up: free some in the file system of "},
	} {
		t.Run(test.name, func(t *testing.T) {
			disk := smallfs.Ext4(t, "loop", "-N", "64")
			d, err := New(Options{
				Store:    store.Options{Dir: filepath.Join(disk, "volumes"), Node: "n"},
				Endpoint: filepath.Join(t.TempDir(), "csi.sock"),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			first, err := d.make("first")
			if err != nil {
				t.Fatal(err)
			}
			full := test.fill(t, disk)
			for range 2 {
				_, err = d.make("second")
				expectFull(t, err, test.wantMake)
				expectFull(t, d.enlarge(first), test.wantExpand)
			}
			if left, err := os.ReadDir(filepath.Join(disk, "volumes/new")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if v, err := d.store.Volume(first); err != nil || v.Size != 4<<20 {
				t.Errorf("the volume is %+v, %v", v, err)
			}
			full.Free()
			if _, err = d.make("second"); err != nil {
				t.Error(err)
			}
			if err := d.enlarge(first); err != nil {
				t.Error(err)
			}
			if v, err := d.store.Volume(first); err != nil || v.Size != 8<<20 {
				t.Errorf("the volume is %+v, %v", v, err)
			}
		})
	}
}

func expectFull(t *testing.T, err error, want string) {
	t.Helper()
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want ResourceExhausted and %q", err, want)
	}
}

// make makes a volume as a caller has it made, and returns its ID.
func (d *Driver) make(name string) (string, error) {
	r := &spec.CreateVolumeRequest{
		Name:          name,
		CapacityRange: &spec.CapacityRange{RequiredBytes: 4 << 20},
		VolumeCapabilities: []*spec.VolumeCapability{{
			AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
	v, err := answer(context.Background(), r, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
		return d.CreateVolume(ctx, r)
	})
	if err != nil {
		return "", err
	}
	return v.(*spec.CreateVolumeResponse).Volume.VolumeId, nil
}

// enlarge expands a volume to 8 MiB, as a caller does.
func (d *Driver) enlarge(id string) error {
	r := &spec.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &spec.CapacityRange{RequiredBytes: 8 << 20}}
	_, err := answer(context.Background(), r, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
		return d.ControllerExpandVolume(ctx, r)
	})
	return err
}
