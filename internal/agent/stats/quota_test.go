package stats

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestVolumeByQuota: usage that the kernel counts is reported without a walk, and includes a file that was deleted and
// is still open.
func TestVolumeByQuota(t *testing.T) {
	dir := smallfs.Ext4(t, "loop,prjquota", "-O", "project,quota", "-E", "quotatype=prjquota")
	volume := filepath.Join(dir, "volume")
	if err := os.Mkdir(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := quota.Begin(volume); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(volume, "gone"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, unit.MiB)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	p := &pass{Reader: New(Options{}), ctx: t.Context()}
	out, inMemory := p.volume(volume)
	if out == nil || inMemory || *out.UsedBytes < uint64(unit.MiB) || p.walked != 0 {
		t.Fatalf("volume %+v, in memory %v, walked %d", out, inMemory, p.walked)
	}
}
