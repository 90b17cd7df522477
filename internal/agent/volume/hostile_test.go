package volume

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// outside is a directory that no pod may reach, with a snapshot of it to compare.
type outside struct {
	dir   string
	print string
}

func newOutside(t *testing.T, dir string) outside {
	must(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root"), 0o600))
	must(t, os.Symlink("etc", filepath.Join(dir, "link")))
	o := outside{dir: dir}
	o.print = o.fingerprint(t)
	return o
}

func (o outside) fingerprint(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	must(t, filepath.WalkDir(o.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(name)
		fmt.Fprintln(&out, name, info.Mode(), string(text))
		return nil
	}))
	return out.String()
}

func (o outside) check(t *testing.T, what string) {
	t.Helper()
	if now := o.fingerprint(t); now != o.print {
		t.Fatalf("%s changed what is outside:\n%s\nwas\n%s", what, now, o.print)
	}
}

// hostileWords are the parts of names and paths in TestHostileNames.
var hostileWords = []string{"..", ".", "/", "a", "..data", "..data_tmp", "..rm-1", ".new-v", "../../../outside/etc",
	"/outside", "link", "\x00", "", "etc/passwd", "memory", "pods", "v", "u1", "$(X)", "\n", " ", `\040`,
	strings.Repeat("x", 300)}

// TestHostileNames gives pods random names and paths, made of parts that are typical of escapes. Whatever is refused or
// set up, nothing outside the root directory changes, nothing of other pods does, and TearDown leaves nothing.
func TestHostileNames(t *testing.T) {
	needRoot(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	names := hostileNames{rand.New(rand.NewPCG(seed, 0))}
	r := newRig(t)
	out := newOutside(t, filepath.Join(filepath.Dir(r.root), "outside"))
	r.putEveryKind(1)
	r.put("configmap/cm", configMap("cm", map[string]string{"k": "v"}))
	neighbour := podWith("neighbour", volumeOf("v", fromConfigMap("cm")))
	r.mustSetUp(neighbour)
	made := 0
	for range 600 {
		pod := names.pod()
		if r.SetUp(context.Background(), pod) == nil {
			if _, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.0.0.1"}}); err == nil {
				made++
			}
		}
		out.check(t, fmt.Sprintf("pod %q", pod.UID))
		if err := r.TearDown(context.Background(), pod.UID); err == nil && pod.UID != "neighbour" {
			if _, err := os.Lstat(filepath.Join(r.root, "pods", string(pod.UID))); err == nil {
				t.Fatalf("pod %q left its directory", pod.UID)
			}
		}
		out.check(t, fmt.Sprintf("tear-down of pod %q", pod.UID))
	}
	if made < 20 {
		t.Errorf("only %d of 600 pods were made: the test tests refusals only", made)
	}
	if got := r.read("pods/neighbour/volumes/kubernetes.io~configmap/v/k"); got != "v" {
		t.Errorf("the neighbour's volume holds %q", got)
	}
	for _, dir := range []string{"pods", "memory"} {
		entries, err := os.ReadDir(filepath.Join(r.root, dir))
		must(t, err)
		for _, e := range entries {
			if e.Name() != "neighbour" {
				t.Errorf("%s/%q is left", dir, e.Name())
			}
		}
	}
}

// hostileNames generates pods some of whose names lead out of their directories.
type hostileNames struct{ *rand.Rand }

func (n hostileNames) word() string {
	var b strings.Builder
	for range 1 + n.IntN(3) {
		b.WriteString(hostileWords[n.IntN(len(hostileWords))])
	}
	return b.String()
}

// one returns a good name, or a word in one of four cases.
func (n hostileNames) one(good string) string {
	if n.IntN(4) > 0 {
		return good
	}
	return n.word()
}

func (n hostileNames) pod() *corev1.Pod {
	name := n.one("v")
	pod := podWith(n.one("u1"),
		volumeOf(name, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
			Items:                []corev1.KeyToPath{{Key: "k", Path: n.one("p")}},
		}}),
		volumeOf(n.one("e"), corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	if n.IntN(3) == 0 {
		pod.Spec.Volumes[0] = volumeOf(name, withToken(n.one("t")))
	}
	for _, v := range everyKind("").Spec.Volumes { // of the same name in each directory of kinds
		if n.IntN(4) == 0 {
			v.Name = n.one("v")
			pod.Spec.Volumes[1] = v
		}
	}
	c := &pod.Spec.Containers[0]
	c.Name = n.one("c")
	for i := range c.VolumeMounts {
		c.VolumeMounts[i].MountPath = n.word()
		c.VolumeMounts[i].Name = pod.Spec.Volumes[i].Name
		if n.IntN(2) == 0 {
			c.VolumeMounts[i].SubPath = n.word()
		}
	}
	return pod
}

func TestSubPath(t *testing.T) {
	r := newRig(t)
	out := newOutside(t, filepath.Join(filepath.Dir(r.root), "outside"))
	pod := r.withSubPaths()
	empty, _ := r.VolumePath(pod, "e")
	must(t, os.MkdirAll(filepath.Join(empty, "dir/sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(empty, "dir/f"), []byte("f"), 0o644))
	must(t, os.Symlink("dir", filepath.Join(empty, "inward")))
	must(t, os.Symlink(out.dir, filepath.Join(empty, "absolute")))
	must(t, os.Symlink(strings.Repeat("../", 20)+out.dir[1:], filepath.Join(empty, "upward")))
	must(t, os.Symlink("loop", filepath.Join(empty, "loop")))
	must(t, unix.Mkfifo(filepath.Join(empty, "fifo"), 0o600))
	for _, c := range []struct{ volume, sub, expr, want, wantErr string }{
		{volume: "e", sub: "dir", want: "dir"},
		{volume: "e", sub: "dir/f", want: "f"},
		{volume: "e", sub: "inward/sub", want: "dir"},
		{volume: "e", sub: "./dir//sub/", want: "dir"},
		{volume: "e", sub: "fifo", want: "fifo"},
		{volume: "e", sub: "new/deep/er", want: "dir"},
		{volume: "e", sub: "inward/made", want: "dir"},
		{volume: "e", expr: "pods/$(NAME)", want: "dir"},
		{volume: "e", expr: "$(NONE)", wantErr: "missing value for NONE"},
		{volume: "cm", sub: "k", want: "v1"},
		{volume: "e", sub: "absolute", wantErr: "leads out of its volume"},
		{volume: "e", sub: "absolute/etc/passwd", wantErr: "leads out of its volume"},
		{volume: "e", sub: "upward", wantErr: "leads out of its volume"},
		{volume: "e", sub: "absolute/new", wantErr: "leads out of its volume"},
		{volume: "e", sub: "loop", wantErr: "leads out of its volume"},
		{volume: "e", sub: "dir/f/x", wantErr: "not a directory"},
		{volume: "e", sub: "../e", wantErr: "must not contain '..'"},
		{volume: "e", sub: "/etc", wantErr: "must not be an absolute path"},
	} {
		container := corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: c.volume, MountPath: "/m",
			SubPath: c.sub, SubPathExpr: c.expr}}}
		mounts, err := r.Mounts(pod, &container,
			ContainerFacts{Env: []*runtimeapi.KeyValue{{Key: "NAME", Value: []byte("n")}}})
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		host := mounts[0].HostPath
		if want := filepath.Join(r.root, "pods/u1/volume-subpaths", c.volume, "c/0"); host != want {
			t.Errorf("%+v: host path %s, want %s", c, host, want)
		}
		if got := kindAt(t, host); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if st, err := os.Stat(filepath.Join(empty, "new/deep/er")); err != nil || st.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
		t.Errorf("made subPath: %v %v, want the volume's own mode", st.Mode(), err)
	}
	out.check(t, "subPaths")
	r.tearDownClean("u1")
	out.check(t, "tear-down")
}

// withSubPaths sets up a pod with an empty directory e and a volume cm with the key k.
func (r *rig) withSubPaths() *corev1.Pod {
	group := int64(4242)
	r.put("configmap/cm", configMap("cm", map[string]string{"k": "v1"}))
	pod := podWith("u1", volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("cm", fromConfigMap("cm")))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	r.mustSetUp(pod)
	return pod
}

// kindAt returns dir, fifo, or the content of a file.
func kindAt(t *testing.T, path string) string {
	st, err := os.Stat(path)
	must(t, err)
	switch {
	case st.Mode()&fs.ModeNamedPipe != 0:
		return "fifo"
	case st.IsDir():
		return "dir"
	}
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// TestChangedSubPath: a changed ConfigMap is another file. The next container gets it, mounted over the old one.
func TestChangedSubPath(t *testing.T) {
	r := newRig(t)
	pod := r.withSubPaths()
	container := corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "cm", MountPath: "/m",
		SubPath: "k"}}}
	mounts := func(want string) {
		if _, err := r.Mounts(pod, &container, ContainerFacts{}); err != nil {
			t.Fatal(err)
		}
		if got := r.read("pods/u1/volume-subpaths/cm/c/0"); got != want {
			t.Errorf("a container sees %q, want %q", got, want)
		}
	}
	mounts("v1")
	r.put("configmap/cm", configMap("cm", map[string]string{"k": "v2"}))
	r.refresh("u1")
	for range 3 {
		mounts("v2")
	}
	if points, _ := mount.Below(filepath.Join(r.root, "pods/u1/volume-subpaths/cm")); len(points) != 1 {
		t.Errorf("mounted %v, want one", points)
	}
	r.tearDownClean("u1")
}

// A container that exchanges a directory for a link out of the volume, as fast as it can, never gets the link's target.
func TestSubPathRace(t *testing.T) {
	r := newRig(t)
	out := newOutside(t, filepath.Join(filepath.Dir(r.root), "outside"))
	var target unix.Stat_t
	must(t, unix.Stat(filepath.Join(out.dir, "etc"), &target))
	pod := podWith("u1", volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	r.mustSetUp(pod)
	empty, _ := r.VolumePath(pod, "e")
	must(t, os.Mkdir(filepath.Join(empty, "real"), 0o755))
	must(t, os.Mkdir(filepath.Join(empty, "real/etc"), 0o755))
	must(t, os.Symlink(out.dir, filepath.Join(empty, "evil")))
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default: // exchanges the two names
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(empty, "real"), unix.AT_FDCWD, filepath.Join(empty, "evil"),
					unix.RENAME_EXCHANGE)
			}
		}
	})
	bound := 0
	// On a busy machine the other goroutine may stand still for all tries, with the link where the directory was.
	for begun, n := time.Now(), 0; n < 2000 || bound == 0 && time.Since(begun) < 30*time.Second; n++ {
		container := corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "e", MountPath: "/m",
			SubPath: "real/etc"}}}
		mounts, err := r.Mounts(pod, &container, ContainerFacts{})
		if err != nil {
			continue
		}
		bound++
		var got unix.Stat_t
		must(t, unix.Stat(mounts[0].HostPath, &got))
		if got.Ino == target.Ino && got.Dev == target.Dev {
			t.Fatal("the mount is outside of the volume")
		}
	}
	close(stop)
	swapping.Wait()
	if bound == 0 {
		t.Error("never bound anything")
	}
	out.check(t, "the race")
	r.tearDownClean("u1")
}

// TearDown unmounts what a container's Bidirectional mount left in a volume and does not delete through it.
func TestTearDownCrossesNoMount(t *testing.T) {
	r := newRig(t)
	out := newOutside(t, filepath.Join(filepath.Dir(r.root), "outside"))
	pod := podWith("u1", volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}))
	r.mustSetUp(pod)
	for _, name := range []string{"e", "m"} {
		dir, _ := r.VolumePath(pod, name)
		point := filepath.Join(dir, "a b\\c")
		must(t, os.Mkdir(point, 0o755))
		must(t, unix.Mount(out.dir, point, "", unix.MS_BIND, ""))
		must(t, unix.Mount(out.dir, point, "", unix.MS_BIND, "")) // and a second time on top
		must(t, os.Symlink(out.dir, filepath.Join(dir, "link")))
	}
	// removeTree alone refuses: the second line of defence.
	dir, _ := r.VolumePath(pod, "e")
	if err := removeTree(dir); err == nil || !strings.Contains(err.Error(), "busy") && !strings.Contains(err.Error(),
		"mounted") {
		t.Errorf("removed through a mount: %v", err)
	}
	out.check(t, "removeTree")
	r.tearDownClean("u1")
	out.check(t, "tear-down")
}

// A tree deeper than any number of file descriptors is removed.
func TestRemoveDeepTree(t *testing.T) {
	top := filepath.Join(t.TempDir(), "t")
	must(t, os.Mkdir(top, 0o755))
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range 1000 {
		for _, name := range []string{"d", "side"} {
			must(t, unix.Mkdirat(at, name, 0o755))
		}
		if i%100 == 0 {
			fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
			must(t, err)
			unix.Close(fd)
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	must(t, removeTree(top))
	entries, err := os.ReadDir(filepath.Dir(top))
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

func TestRemoveWideTree(t *testing.T) {
	top := filepath.Join(t.TempDir(), "t")
	must(t, os.Mkdir(top, 0o755))
	for i := range 3000 {
		must(t, os.WriteFile(filepath.Join(top, fmt.Sprint("a-rather-long-file-name-", i)), nil, 0o600))
	}
	must(t, removeTree(top))
	must(t, removeTree(top))
	if _, err := os.Lstat(top); !os.IsNotExist(err) {
		t.Error(err)
	}
}

func TestRejectedUID(t *testing.T) {
	r := newRig(t)
	for _, uid := range []types.UID{"", "..", ".", "../x", "a/b"} {
		if err := r.TearDown(context.Background(), uid); err == nil {
			t.Errorf("%q accepted", uid)
		}
	}
	if _, err := os.Stat(filepath.Join(r.root, "pods")); err != nil {
		t.Error(err)
	}
}

func FuzzPayloadPath(f *testing.F) {
	for _, s := range hostileWords {
		cost.Attack(f, s, "a")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		defer cost.Spend(t, len(a)+len(b))()
		cleaned, err := payload{a: {}, b: {}}.clean()
		if err != nil {
			return
		}
		for name := range cleaned {
			if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") || name == "." {
				t.Errorf("%q, %q: accepted as %q", a, b, name)
			}
		}
	})
}
