package store

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFills: an ext4 fills its image until the image grows by a block, whatever the size of a block and the features; a
// damaged superblock, another file system and nothing do not.
func TestFills(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  int64
		block int64
		args  []string
	}{
		{"small", 16 << 20, 1024, nil},
		{"odd", 16<<20 + 512, 1024, nil},
		{"large blocks", 64 << 20, 4096, []string{"-b", "4096"}},
		{"with 64bit", 64 << 20, 4096, []string{"-b", "4096", "-O", "64bit"}},
		{"without 64bit", 64 << 20, 1024, []string{"-b", "1024", "-O", "^64bit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			size := func(n int64) {
				t.Helper()
				f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if err := f.Truncate(n); err != nil {
					t.Fatal(err)
				}
			}
			want := func(want bool) {
				t.Helper()
				if got, err := Fills(image); err != nil || got != want {
					t.Errorf("fills %v, %v; want %v", got, err, want)
				}
			}
			size(c.size)
			want(false)
			if err := run("mkfs.ext4", append(append([]string{"-q", "-F"}, c.args...), image)...); err != nil {
				t.Fatal(err)
			}
			want(true)
			size(c.size + c.block)
			want(false)
			size(2 * c.size) // resize2fs adds no blocks of which too few would be left for files
			if err := Check(image); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("resize2fs", image).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want(true)
		})
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Fills(empty); got || err != nil {
		t.Errorf("nothing fills: %v, %v", got, err)
	}
}

// TestFillsOfNonsense: no superblock, however damaged, breaks the driver.
func TestFillsOfNonsense(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		super := make([]byte, superSize)
		for i := range super {
			super[i] = byte(rnd.Uint32())
		}
		binary.LittleEndian.PutUint16(super[superMagic:], ext4Magic)
		binary.LittleEndian.PutUint32(super[superLogBlock:], rnd.Uint32N(40))
		fills(super, rnd.Int64())
	}
}
