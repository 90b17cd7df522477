package stats

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
)

// TestVolumeByQuota: usage that the kernel counts is reported without a walk, and includes a file that was deleted and
// is still open.
func TestVolumeByQuota(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	base := t.TempDir()
	file, dir := filepath.Join(base, "disk"), filepath.Join(base, "m")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 32<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota",
		file).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop,prjquota", file, dir).CombinedOutput(); err != nil {
		t.Skipf("needs a loop device and project quota: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
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
