package csivolume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
)

// TestNFS mounts and unmounts with the programs mount and umount, as for an export. The type of file system is tmpfs,
// which needs no server. A restarted agent finds the mount and makes no second one. If mount fails, there is an Event
// with its output, and no directory is left.
func TestNFS(t *testing.T) {
	r := newRig(t)
	start := func() {
		r.start()
		r.Manager.mu.Lock()
		defer r.Manager.mu.Unlock()
		r.nfsType = "tmpfs"
	}
	start()
	pod := podOfUID("u1")
	nfs := &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/export", ReadOnly: true}
	source, err := FromNFS("data", nfs, false, []string{"size=1m", "nr_inodes=10"})
	must(t, err)
	path := r.place(pod, source)
	if want := filepath.Join(r.root, "pods/u1/volumes/kubernetes.io~nfs/data"); path != want {
		t.Errorf("mounted at %s, want %s", path, want)
	}
	table, err := os.ReadFile("/proc/mounts")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[1] == path && (f[0] != "192.0.2.1:/export" || !strings.HasPrefix(f[3], "ro,") ||
			!strings.Contains(f[3], "nr_inodes=10")) {
			t.Errorf("mounted as %s", line)
		}
	}
	if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to a volume that is read-only: %v", err)
	}

	start()
	r.place(pod, source) // it is mounted once
	start()              // the pod was deleted while no agent ran
	r.release(pod)
	if n := mountsAt(path); n != 0 {
		t.Errorf("mounted %d times after the pod", n)
	}

	bad, err := FromNFS("bad", nfs, false, []string{"size=no"})
	must(t, err)
	waiting := new(WaitingError)
	r.eventually("the mount fails", func() bool {
		_, err := r.Want(t.Context(), pod, "bad", bad)
		if !errors.As(err, &waiting) {
			t.Fatal(err)
		}
		return strings.Contains(waiting.Why, "mount failed: exit status 32")
	})
	const failed = `Warning FailedMount MountVolume.SetUp failed for volume "bad" : mount failed`
	if event := <-r.events.Events; !strings.HasPrefix(event, failed) {
		t.Errorf("event %s", event)
	}
	r.release(pod)
	entries, err := os.ReadDir(filepath.Join(r.root, "pods/u1/volumes/kubernetes.io~nfs"))
	if err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if names, _ := r.r.InUse(); len(names) > 0 {
		t.Errorf("reported as in use: %v", names)
	}
}

// TestNFSRefuses: nothing that a pod's author writes is an option of mount, or leads out of the pod's directory.
func TestNFSRefuses(t *testing.T) {
	for _, c := range []struct{ name, server, path, export string }{
		{"data", "nfs.example.com", "/a", "nfs.example.com:/a"},
		{"data", "192.0.2.1", "/", "192.0.2.1:/"},
		{"data", "2001:db8::1", "/a", "[2001:db8::1]:/a"},
		{"data", "", "/a", ""},
		{"data", "-osuid", "/a", ""},
		{"data", "s", "a", ""},
		{"..", "s", "/a", ""},
		{"a/b", "s", "/a", ""},
		{"", "s", "/a", ""},
	} {
		s, err := FromNFS(c.name, &corev1.NFSVolumeSource{Server: c.server, Path: c.path}, false, nil)
		if (err == nil) != (c.export != "") || err == nil && s.export != c.export {
			t.Errorf("%+v: %+v, %v", c, s, err)
		}
	}
	if got := (id{Spec: "data", NFS: true}).name("u1"); got != core.Name("kubernetes.io/nfs/u1-data") {
		t.Errorf("name %s", got)
	}
}
