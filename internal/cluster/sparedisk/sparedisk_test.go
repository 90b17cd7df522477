package sparedisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// On a disk without free blocks or inodes, the reserve is enough for a starting instance. It is made again only when
// there is enough space.
func TestReserve(t *testing.T) {
	disk := smallfs.Tmpfs(t, fmt.Sprintf("size=%d,nr_inodes=%d", (room+1)*blocks, (room+1)*inodes))
	dir := filepath.Join(disk, "reserve")
	for _, fill := range []func() *smallfs.Filler{
		func() *smallfs.Filler { return smallfs.Fill(t, disk) },
		func() *smallfs.Filler { return smallfs.FillInodes(t, disk, 0) },
	} {
		if given, err := GiveIfShort(dir); given || err != nil {
			t.Errorf("with room: given %v, %v", given, err)
		}
		for range 2 {
			if err := Keep(dir); err != nil || !whole(dir) {
				t.Fatalf("with room: whole %v, %v", whole(dir), err)
			}
		}
		full := fill()
		if err := use(disk); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("on the full disk: %v: want ENOSPC", err)
		}
		if given, err := GiveIfShort(dir); !given || err != nil {
			t.Errorf("on the full disk: given %v, %v", given, err)
		}
		if err := use(disk); err != nil {
			t.Errorf("with what was reserved: %v", err)
		}
		if err := Keep(dir); err != nil || whole(dir) {
			t.Errorf("without room: whole %v, %v", whole(dir), err)
		}
		full.Free()
	}
}

// use uses the resources of an instance and frees them.
func use(disk string) error {
	dir := filepath.Join(disk, "run")
	err := os.Mkdir(dir, 0o700)
	for i := range inodes - 10 {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, blocks/inodes/2), 0o600))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// A reserve that a crash left incomplete does not count, and does not prevent a new one.
func TestHalfAReserve(t *testing.T) {
	disk := smallfs.Tmpfs(t, fmt.Sprintf("size=%d,nr_inodes=%d", (room+1)*blocks, (room+2)*inodes))
	dir := filepath.Join(disk, "reserve")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0", blocksFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Keep(dir); err != nil || !whole(dir) {
		t.Errorf("whole %v, %v", whole(dir), err)
	}
	if err := Keep(filepath.Join(disk, "none", "reserve")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("where there is nothing: %v", err)
	}
}
