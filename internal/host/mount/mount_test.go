package mount

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestParse(t *testing.T) {
	got := Parse(`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
40 35 0:33 / /run/a\040b\134c\011 rw shared:1 master:2 - tmpfs tmpfs rw
short line
41 35 0:33 / /odd\9 rw - tmpfs tmpfs rw
`)
	if want := []string{"/mnt2", "/run/a b\\c\t", `/odd\9`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAt: mounted are a directory and a file on which something is mounted, not what is below, links to them, what is
// not there, or what was unmounted.
func TestAt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := UnmountBelow(root); err != nil {
			t.Error(err)
		}
	})
	path := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.MkdirAll(path("dir/plain"), 0o700),
		os.Mkdir(path("same"), 0o700),
		os.WriteFile(path("file"), nil, 0o600),
		os.WriteFile(path("on"), nil, 0o600),
		os.Symlink(path("dir"), path("link")),
		unix.Mount("tmpfs", path("dir"), "tmpfs", 0, "size=4k"),
		unix.Mount(path("same"), path("same"), "", unix.MS_BIND, ""),
		unix.Mount(path("file"), path("on"), "", unix.MS_BIND, ""),
		os.Mkdir(path("dir/inside"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]bool{
		"dir": true, "same": true, "on": true, "file": false, "link": false, "dir/inside": false, "none": false,
		"file/none": false, ".": false,
	}
	check := func() {
		t.Helper()
		for name, mounted := range want {
			if got, err := At(path(name)); got != mounted || err != nil {
				t.Errorf("%s is mounted: %v, %v; want %v", name, got, err, mounted)
			}
		}
	}
	check()
	if err := unix.Unmount(path("dir"), 0); err != nil {
		t.Fatal(err)
	}
	want["dir"] = false
	check()
}

func FuzzParse(f *testing.F) {
	cost.Attack(f, "36 35 98:0 / /mnt\\0402 rw - ext3 /dev/root rw x\n")
	f.Fuzz(func(t *testing.T, table string) {
		defer cost.Spend(t, len(table))()
		if points := Parse(table); len(points) > strings.Count(table, "\n")+1 {
			t.Errorf("%d mounts from %q", len(points), table)
		}
	})
}

func TestWithin(t *testing.T) {
	for path, want := range map[string]bool{"/run/p": true, "/run/p/x": true, "/run/pp": false, "/run": false} {
		if Within(path, "/run/p") != want {
			t.Errorf("Within(%s, /run/p) is not %v", path, want)
		}
	}
	if !Within("/x", "/") {
		t.Error("/x is not below /")
	}
}

// TestUnmountBelow mounts over and inside other mounts, with an open file and names that need escapes, and uses a
// symbolic link.
func TestUnmountBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	root := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	outer, inner := filepath.Join(root, "a b"), filepath.Join(root, "a b", `c\d`)
	for _, dir := range []string{outer, outer, inner} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	open, err := os.Open(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	points, err := Below(link)
	if want := []string{inner, outer, outer}; err != nil || !slices.Equal(points, want) {
		t.Errorf("below: %q, %v; want %q", points, err, want)
	}
	if points, err := Inside(link, outer); err != nil || !slices.Equal(points, []string{inner}) {
		t.Errorf("inside: %q, %v; want %q", points, err, inner)
	}
	if err := UnmountInside(outer); err != nil {
		t.Error(err)
	}
	if points, err := Below(root); err != nil || !slices.Equal(points, []string{outer, outer}) {
		t.Errorf("after unmounting inside: %q, %v; want %q twice", points, err, outer)
	}
	if err := UnmountBelow(link, filepath.Join(root, "none")); err != nil {
		t.Error(err)
	}
	if points, err := Below(root); err != nil || len(points) > 0 {
		t.Errorf("left: %q, %v", points, err)
	}
}
