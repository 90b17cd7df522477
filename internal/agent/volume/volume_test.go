package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// The ordinary pod: one token request, one payload, the real path for the runtime, the kubelet's path for people.
func TestPlainPod(t *testing.T) {
	r := newRig(t)
	r.put("configmap/kube-root-ca.crt", configMap("kube-root-ca.crt", map[string]string{"ca.crt": "CA", "other": "x"}))
	pod := podWith("u1", plainVolume())
	for range 3 {
		r.mustSetUp(pod)
	}
	if r.asked() != 1 {
		t.Errorf("%d token requests, want 1", r.asked())
	}
	mounts, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.1.0.7"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 3 {
		t.Fatalf("mounts: %v", mounts)
	}
	real := mounts[0].HostPath
	if want := filepath.Join(r.root, "memory/u1/kubernetes.io~projected/kube-api-access-x"); real != want ||
		!mounts[0].Readonly {
		t.Errorf("mount %v, want %s read-only", mounts[0], want)
	}
	if got := strings.Join([]string{r.read("pods/u1/volumes/kubernetes.io~projected/kube-api-access-x/ca.crt"),
		r.read("pods/u1/volumes/kubernetes.io~projected/kube-api-access-x/namespace")}, " "); got != "CA shop" {
		t.Errorf("upstream's path shows %q", got)
	}
	if st, err := os.Stat(filepath.Join(real, "token")); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("token: %v %v", st, err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(real, &st); err != nil || st.Type != 0x01021994 {
		t.Errorf("token is not on tmpfs: type %x, %v", st.Type, err)
	}
	if hosts := r.read("pods/u1/etc-hosts"); !strings.Contains(hosts, "10.1.0.7\tpod-u1\n") {
		t.Errorf("hosts file: %q", hosts)
	}
	// A restarted agent uses the existing token.
	before := r.read("memory/u1/kubernetes.io~projected/kube-api-access-x/token")
	link, _ := os.Readlink(filepath.Join(real, dataLink))
	r.restart()
	r.mustSetUp(pod)
	after, _ := os.Readlink(filepath.Join(real, dataLink))
	if r.asked() != 1 || r.read("memory/u1/kubernetes.io~projected/kube-api-access-x/token") != before || link != after {
		t.Errorf("after a restart: %d token requests, payload %s then %s", r.asked(), link, after)
	}
	r.tearDownClean(pod.UID)
}

// tearDownClean tears a pod down twice and checks that nothing is left.
func (r *rig) tearDownClean(uid types.UID) {
	r.t.Helper()
	for range 2 {
		if err := r.TearDown(context.Background(), uid); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, dir := range []string{"pods", "memory"} {
		if _, err := os.Lstat(filepath.Join(r.root, dir, string(uid))); !os.IsNotExist(err) {
			r.t.Errorf("%s/%s is still there: %v", dir, uid, err)
		}
	}
	if left, err := mount.Below(filepath.Join(r.Manager.pods, string(uid))); err != nil || len(left) > 0 {
		r.t.Errorf("still mounted: %v %v", left, err)
	}
	if r.tracked[uid] {
		r.t.Error("still tracked")
	}
}

func TestContent(t *testing.T) {
	yes := true
	group := int64(4242)
	user := int64(1001)
	mode400, mode440 := int32(0o400), int32(0o440)
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	for _, c := range []content{
		{name: "configMap",
			source: fromConfigMap("cm"),
			want:   "a 644 0:0 1\nbin 644 0:0 \xff\n"},
		{name: "items, paths and modes",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				DefaultMode: &mode440, Items: []corev1.KeyToPath{{Key: "a", Path: "x/y/z"}, {Key: "a", Path: "x/w",
					Mode: &mode400}}}},
			want: "x/w 400 0:0 1\nx/y/z 440 0:0 1\n"},
		{name: "missing key",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				Items: []corev1.KeyToPath{{Key: "zz", Path: "p"}}}},
			wantErr: `MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: zz`},
		{name: "missing key, optional",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				Optional: &yes, Items: []corev1.KeyToPath{{Key: "zz", Path: "p"}, {Key: "a", Path: "q"}}}},
			want: "q 644 0:0 1\n"},
		{name: "missing object", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}},
			wantErr: `MountVolume.SetUp failed for volume "v" : secret "none" not found`},
		{name: "missing object, optional", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none",
			Optional: &yes}}, want: ""},
		{name: "secret with fsGroup", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s",
			DefaultMode: &mode400}}, group: &group,
			want: "k 440 0:4242 hush\n"},
		{name: "downward",
			source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
				{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}}}}},
			want: "cpu 644 0:0 2\nlabels 644 0:0 app=\"till\"\n"},
		{name: "token of one user", user: &user,
			source: withToken("t"),
			want:   "t 600 1001:0 *\n"},
		{name: "token with fsGroup", group: &group,
			source: withToken("t"),
			want:   "t 640 0:4242 *\n"},
		{name: "every projected problem at once",
			source: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{
						{Secret: &corev1.SecretProjection{LocalObjectReference: local("none")}},
						{PodCertificate: &corev1.PodCertificateProjection{}},
					},
				},
			},
			wantErr: "secret \"none\" not found\n" +
				"volume type projected is not supported by this agent: source podCertificate needs the feature gate " +
				"PodCertificateRequest: switch it on in featureGates of the node's configuration"},
		{name: "path out",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				Items: []corev1.KeyToPath{{Key: "a", Path: "x/../../y"}}}},
			wantErr: "invalid path: must not contain '..'"},
		{name: "our own names",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				Items: []corev1.KeyToPath{{Key: "a", Path: "..data"}}}},
			wantErr: "invalid path: must not start with '..'"},
		{name: "file and directory",
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("cm"),
				Items: []corev1.KeyToPath{{Key: "a", Path: "p"}, {Key: "a", Path: "p/q"}}}},
			wantErr: "p is a file and cannot contain p/q"},
	} {
		t.Run(c.name, c.check)
	}
}

// content is a volume with what it must contain, or why it cannot be set up.
type content struct {
	name    string
	source  corev1.VolumeSource
	group   *int64
	user    *int64
	want    string // path mode gid content, one per line, sorted
	wantErr string
}

func (c content) check(t *testing.T) {
	r := newRig(t)
	cm := configMap("cm", map[string]string{"a": "1"})
	cm.BinaryData = map[string][]byte{"bin": {0xff}}
	r.put("configmap/cm", cm)
	r.put("secret/s", secret("s", map[string]string{"k": "hush"}))
	pod := podWith("u1", volumeOf("v", c.source))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: c.group, RunAsUser: c.user}
	err := r.SetUp(context.Background(), pod)
	if c.wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), c.wantErr) {
			t.Fatalf("error %v, want %q", err, c.wantErr)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := r.VolumePath(pod, "v")
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, dir); got != c.want {
		t.Errorf("got\n%swant\n%s", got, c.want)
	}
	r.tearDownClean(pod.UID)
}

// listing returns what a program sees in a content volume: path, mode, owner and content. Tokens are shown as *.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	data := filepath.Join(dir, dataLink)
	link, err := os.Readlink(data)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, link)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, _ := filepath.Rel(root, name)
		text, err := os.ReadFile(filepath.Join(dir, below)) // through the visible links
		if err != nil {
			return err
		}
		if strings.HasPrefix(string(text), "e30.") {
			text = []byte("*")
		}
		st, err := os.Stat(filepath.Join(dir, below))
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		out.WriteString(below + " " + itoa8(uint32(st.Mode().Perm())) + " " + itoa(sys.Uid) + ":" + itoa(sys.Gid) + " " +
			string(text) + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEmptyDir(t *testing.T) {
	r := newRig(t)
	group := int64(4242)
	size := resource.MustParse("8Mi")
	pod := podWith("u1",
		volumeOf("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("none", corev1.VolumeSource{}),
		volumeOf("mem", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: &size}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	r.mustSetUp(pod)
	base := filepath.Join(r.root, "pods/u1/volumes/kubernetes.io~empty-dir")
	for name, want := range map[string]string{"disk": "dgrwxrwxrwx", "none": "dgrwxrwxrwx", "mem": "dgtrwxrwxrwx"} {
		st, err := os.Stat(filepath.Join(base, name))
		if err != nil || st.Mode().String() != want || st.Sys().(*syscall.Stat_t).Gid != 4242 {
			t.Errorf("%s: %v %v, want %s of group 4242", name, st.Mode(), err, want)
		}
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(filepath.Join(base, "mem"), &fs); err != nil || int64(fs.Blocks)*fs.Bsize != 8<<20 {
		t.Errorf("tmpfs of %d bytes, %v, want 8Mi", int64(fs.Blocks)*fs.Bsize, err)
	}
	// What containers did is kept over a restart of the agent, including their modes.
	for _, name := range []string{"disk", "mem"} {
		must(t, os.WriteFile(filepath.Join(base, name, "f"), []byte("x"), 0o600))
		must(t, os.Chmod(filepath.Join(base, name), 0o700))
	}
	must(t, os.Mkdir(filepath.Join(base, unfinished+"disk"), 0o700)) // a crash in the middle
	r.restart()
	r.mustSetUp(pod)
	for _, name := range []string{"disk", "mem"} {
		if st, err := os.Stat(filepath.Join(base, name)); err != nil || st.Mode().Perm() != 0o700 ||
			r.read("pods/u1/volumes/kubernetes.io~empty-dir", name, "f") != "x" {
			t.Errorf("%s was touched: %v %v", name, st, err)
		}
	}
	r.tearDownClean("u1")
}

func TestUnsupported(t *testing.T) {
	r := newRig(t)
	pod := podWith("u1",
		volumeOf("ok", corev1.VolumeSource{}),
		volumeOf("fc", corev1.VolumeSource{FC: &corev1.FCVolumeSource{}}),
		volumeOf("csi", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}),
		volumeOf("huge", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Tape"}}),
		volumeOf("dropped", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{}}}}))
	err := r.SetUp(context.Background(), pod)
	var failures Failures
	if !errors.As(err, &failures) || len(failures) != 4 {
		t.Fatalf("error %v", err)
	}
	for i, want := range []string{
		`MountVolume.SetUp failed for volume "fc" : volume type fc is not supported by this agent: use a volume of the CSI driver`,
		`MountVolume.SetUp failed for volume "csi" : volume type csi is not supported`,
		`MountVolume.SetUp failed for volume "huge" : volume type emptyDir is not supported by this agent: unknown storage medium "Tape"`,
		`MountVolume.SetUp failed for volume "dropped" : volume type projected is not supported by this agent: sources[0] is empty`,
	} {
		var unsupported *UnsupportedError
		if !strings.HasPrefix(failures[i].Error(), want) || !errors.As(failures[i], &unsupported) {
			t.Errorf("%q, want %q", failures[i], want)
		}
	}
	if _, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{}); err == nil ||
		err.Error() != `cannot find volume "fc" to mount into container "c"` {
		t.Errorf("mounts: %v", err)
	}
}

func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, "p"), 0o600))
	for _, c := range []struct{ path, kind, wantErr string }{
		{"f", "File", ""}, {"f", "Directory", "f is not a directory"}, {"none", "", ""}, {"none", "File", "is not a file"},
		{"new/dir", "DirectoryOrCreate", ""},
		{"new/dir", "DirectoryOrCreate", ""},
		{"newfile", "FileOrCreate", ""},
		{"no/newfile", "FileOrCreate", "no such file"},
		{"f", "DirectoryOrCreate", "is not a directory"}, {"new", "FileOrCreate", "is not a file"},
		{"p", "Socket", "is not a socket file"},
		{"/dev/null", "CharDevice", ""},
		{"/dev/null", "BlockDevice", "is not a block device"},
		{"/dev/../etc", "", "must not contain '..'"}, {"f", "Banana", "Banana is an invalid volume type"},
	} {
		path := c.path
		if path[0] != '/' {
			path = filepath.Join(dir, path)
		}
		kind := corev1.HostPathType(c.kind)
		err := checkHostPath(&corev1.HostPathVolumeSource{Path: path, Type: &kind})
		if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A change of a ConfigMap reaches the volume. If it is deleted, containers keep their content.
func TestRefresh(t *testing.T) {
	r := newRig(t)
	r.put("configmap/cm", configMap("cm", map[string]string{"a": "1", "b": "x"}))
	pod := podWith("u1", volumeOf("v", fromConfigMap("cm")))
	r.mustSetUp(pod)
	dir, _ := r.VolumePath(pod, "v")
	r.put("configmap/cm", configMap("cm", map[string]string{"a": "2", "c": "y"}))
	r.Changed("u1")
	r.eventually("new content", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "a"))
		_, gone := os.Lstat(filepath.Join(dir, "b"))
		return err == nil && string(text) == "2" && os.IsNotExist(gone)
	})
	r.eventually("one payload", func() bool {
		entries, err := os.ReadDir(dir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err == nil && len(names) == 4 && slices.Contains(names, "a") && slices.Contains(names, "c") &&
			!slices.Contains(names, "b")
	})
	r.drop("configmap/cm")
	r.refresh("u1")
	if got := listing(t, dir); got != "a 644 0:0 2\nc 644 0:0 y\n" {
		t.Errorf("after its deletion: %q", got)
	}
	r.tearDownClean("u1")
	r.Changed("u1") // a late notification about a pod that was removed
}

// A token is renewed when it is due. While that fails, the old one stays, until it has expired.
func TestTokenRenewal(t *testing.T) {
	r := newRig(t)
	pod := podWith("u1", volumeOf("v", withToken("t")))
	r.mustSetUp(pod)
	file := "memory/u1/kubernetes.io~projected/v/t"
	first := r.read(file)
	age := func(renew, expires time.Duration) {
		s := r.lockPod("u1")
		for _, tok := range s.tokens {
			passed := r.clock().since - tok.got.since
			tok.renew, tok.life = passed+renew, passed+expires
		}
		s.mu.Unlock()
	}
	age(-time.Second, time.Minute)
	r.tokenErr = errors.New("away")
	r.refresh("u1")
	if r.read(file) != first || r.asked() != 2 {
		t.Errorf("a failed renewal: %d requests, token changed %v", r.asked(), r.read(file) != first)
	}
	r.refresh("u1")
	if r.asked() != 2 {
		t.Errorf("asked again at once: %d", r.asked())
	}
	age(-time.Second, -time.Second)
	if err := r.SetUp(context.Background(), pod); err != nil {
		t.Errorf("a dead token keeps containers from starting: %v", err)
	}
	if err := r.SetUp(context.Background(),
		func() *corev1.Pod { p := pod.DeepCopy(); p.UID = "u2"; return p }()); err == nil ||
		!strings.Contains(err.Error(), "failed to fetch token: away") {
		t.Errorf("no token at all: %v", err)
	}
	r.tokenErr = nil
	r.refresh("u1")
	if r.read(file) == first {
		t.Error("not renewed")
	}
	r.tearDownClean("u1")
}

// After a restart of the agent without an API server, containers may start with the present content of their volumes;
// changes still arrive later.
func TestRestartWhileAway(t *testing.T) {
	r := newRig(t)
	r.put("configmap/cm", configMap("cm", map[string]string{"a": "1"}))
	pod := podWith("u1", volumeOf("v", fromConfigMap("cm")), plainVolume())
	r.put("configmap/kube-root-ca.crt", configMap("kube-root-ca.crt", map[string]string{"ca.crt": "CA"}))
	r.mustSetUp(pod)
	r.drop("configmap/cm")
	r.restart()
	r.mustSetUp(pod)
	mounts, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(mounts[0].HostPath, "a")); err != nil || string(text) != "1" {
		t.Errorf("%q %v", text, err)
	}
	r.put("configmap/cm", configMap("cm", map[string]string{"a": "2"}))
	r.Changed("u1")
	r.eventually("the news", func() bool { return r.read("pods/u1/volumes/kubernetes.io~configmap/v/a") == "2" })
	r.tearDownClean("u1")
}

// A changed label reaches the downwardAPI volumes of a running pod; a changed status causes no refresh.
func TestUpdate(t *testing.T) {
	r := newRig(t)
	pod := podWith("u1", volumeOf("v",
		corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
				},
			},
		}))
	r.Update(pod) // too early: ignored
	r.mustSetUp(pod)
	next := pod.DeepCopy()
	next.Labels = map[string]string{"app": "desk"}
	r.Update(next)
	r.eventually("the label", func() bool {
		return r.read("memory/u1/kubernetes.io~downward-api/v/labels") == `app="desk"`
	})
	r.tearDownClean("u1")
}

func TestRenewTime(t *testing.T) {
	for life, latest := range map[time.Duration]time.Duration{time.Hour: 48 * time.Minute,
		10 * time.Minute: 8 * time.Minute, 100 * 24 * time.Hour: 24 * time.Hour} {
		for range 50 {
			got := newToken("", moment{}, life).renew
			if got > latest || got < latest*9/10 {
				t.Errorf("life %v: renewed at %v, want at most 10%% before %v", life, got, latest)
			}
		}
	}
}

func TestOrphans(t *testing.T) {
	r := newRig(t)
	r.put("secret/s", secret("s", map[string]string{"k": "v"}))
	for _, uid := range []string{"b", "a", "c"} {
		r.mustSetUp(podWith(uid, volumeOf("v", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}})))
	}
	must(t, os.MkdirAll(filepath.Join(r.root, "pods", removing+"1-1", "x"), 0o700))
	must(t, os.RemoveAll(filepath.Join(r.root, "pods/a"))) // half removed: only its secrets are left
	r.restart()
	got, err := r.Orphans(map[types.UID]bool{"c": true})
	if err != nil || !slices.Equal(got, []types.UID{"a", "b"}) {
		t.Errorf("%v %v", got, err)
	}
	for _, uid := range got {
		r.tearDownClean(uid)
	}
	if _, err := os.Lstat(filepath.Join(r.root, "pods", removing+"1-1")); !os.IsNotExist(err) {
		t.Error("remains of a removal stay")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
