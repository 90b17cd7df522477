package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// smallDisk mounts a file system with these options, among them size=1m.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fillDisk takes all blocks of the file system of dir and returns a function that frees them.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() { must(t, os.Remove(name)) }
}

// A container extends the hosts file that is mounted into it to 8 TiB. The next container of the pod finds the right
// file; reading the extended one would have used up the agent's memory.
func TestHostsFileOfEightTebibytes(t *testing.T) {
	r := newRig(t)
	pod := podWith("u1")
	r.mustSetUp(pod)
	mounts := func() string {
		t.Helper()
		m, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.0.0.1"}})
		must(t, err)
		return m[0].HostPath
	}
	file := mounts()
	want := r.read("pods/u1/etc-hosts")
	if err := os.Truncate(file, 8<<40); err != nil {
		t.Skipf("this file system has no files of 8 TiB: %v", err)
	}
	mounts()
	if got := r.read("pods/u1/etc-hosts"); got != want {
		t.Errorf("%d bytes %.40q, want %q", len(got), got, want)
	}
	must(t, os.WriteFile(file, []byte(want+"# mine"), 0o644))
	mounts()
	if got := r.read("pods/u1/etc-hosts"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.tearDownClean("u1")
}

// On a full disk the hosts file keeps what its containers read. The error names the file, and the next try writes it.
func TestFullDiskLeavesTheHostsFile(t *testing.T) {
	r := newRigIn(t, smallDisk(t, "size=1m"))
	pod := podWith("u1")
	r.mustSetUp(pod)
	mounts := func(ips ...string) error {
		_, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: ips})
		return err
	}
	must(t, mounts("10.0.0.1"))
	before := r.read("pods/u1/etc-hosts")
	var many []string
	for i := range 2000 { // more than the page that the file has
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	free := fillDisk(t, r.root)
	err := mounts(many...)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "etc-hosts") {
		t.Errorf("%v: want ENOSPC and the file", err)
	}
	if got := r.read("pods/u1/etc-hosts"); got != before {
		t.Errorf("the file was torn: %d bytes, %d before", len(got), len(before))
	}
	free()
	must(t, mounts(many...))
	if got := r.read("pods/u1/etc-hosts"); !strings.Contains(got, many[len(many)-1]) {
		t.Error("the file is not made when there is room")
	}
	r.tearDownClean("u1")
}

// An agent starts on a disk without free bytes or inodes, even for its first start, and sets up volumes as soon as
// there is space, also for pods that it tried before.
func TestComesUpOnAFullDisk(t *testing.T) {
	root := smallDisk(t, "size=1m,nr_inodes=40")
	var taken []string
	for {
		name := filepath.Join(root, fmt.Sprint("taken", len(taken)))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			break
		}
		taken = append(taken, name)
	}
	r := newRigIn(t, root)
	r.put("secret/s", secret("s", map[string]string{"a": "1"}))
	pod := podWith("u1", volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))
	for free := range 14 { // each file and directory on the way is once the one without space
		err := r.SetUp(context.Background(), pod)
		if err == nil {
			if free < 5 {
				t.Errorf("made with %d inodes", free)
			}
			break
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%d inodes free: %v: want ENOSPC", free, err)
		}
		if orphans, err := r.Orphans(nil); err != nil || len(orphans) > 1 {
			t.Errorf("orphans %v, %v", orphans, err)
		}
		must(t, os.Remove(taken[free]))
	}
	r.mustSetUp(pod)
	for _, name := range taken[len(taken)-5:] { // for the hosts file and the termination log
		must(t, os.Remove(name))
	}
	_, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.0.0.1"}})
	must(t, err)
	r.tearDownClean("u1")
}

// An emptyDir that could not be completed is set up by the next try.
func TestEmptyDirIsTriedAgain(t *testing.T) {
	r := newRig(t)
	pod := podWith("u1", volumeOf("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	plugin := filepath.Join(r.root, "pods/u1/volumes", poddir.EmptyDir)
	must(t, os.MkdirAll(plugin, 0o755))
	inTheWay := filepath.Join(plugin, "e")
	must(t, os.WriteFile(inTheWay, nil, 0o600))
	for range 2 {
		if err := r.SetUp(context.Background(), pod); !errors.Is(err, unix.ENOTDIR) {
			t.Fatalf("%v: want ENOTDIR from the rename, also the second time", err)
		}
	}
	must(t, os.Remove(inTheWay))
	r.mustSetUp(pod)
	r.tearDownClean("u1")
}

// While the memory for secrets is full, a volume keeps its content, and tries to update it leave nothing behind that
// fills the memory further.
func TestFullMemoryKeepsContent(t *testing.T) {
	r := newRig(t)
	s := secret("s", map[string]string{"a": "1"})
	r.put("secret/s", s)
	pod := podWith("u1", volumeOf("v", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))
	r.mustSetUp(pod)
	must(t, unix.Mount("", r.memory, "", unix.MS_REMOUNT, "size=256k,nr_inodes=64"))
	r.MaxPods = 1 // the whole memory is this pod's share
	dir, _ := r.VolumePath(pod, "v")
	payloads := func() (n int) {
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if e.IsDir() {
				n++
			}
		}
		return n
	}
	for left := range 6 { // inodes: each step of a write runs out once
		var taken []string
		for {
			name := filepath.Join(r.memory, fmt.Sprint("taken", len(taken)))
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				break
			}
			taken = append(taken, name)
		}
		for range left {
			must(t, os.Remove(taken[len(taken)-1]))
			taken = taken[:len(taken)-1]
		}
		value := fmt.Sprint("new", left)
		before := r.read("memory/u1/kubernetes.io~secret/v/a")
		next := secret("s", map[string]string{"a": value})
		r.put("secret/s", next)
		for range 5 {
			r.refresh("u1")
			if got := r.read("memory/u1/kubernetes.io~secret/v/a"); got != before && got != value {
				t.Fatalf("%d inodes left: content %q", left, got)
			}
		}
		if n := payloads(); n > 2 {
			t.Errorf("%d inodes left: %d payloads lie about", left, n)
		}
		for _, name := range taken {
			must(t, os.Remove(name))
		}
		r.refresh("u1")
		if got := r.read("memory/u1/kubernetes.io~secret/v/a"); got != value {
			t.Errorf("with room again: %q, want %q", got, value)
		}
		r.eventually("one payload", func() bool { return payloads() == 1 })
	}
	r.tearDownClean("u1")
}

// A pod that mounts ten secrets with many empty keys is refused with the reason. Other pods get their secrets, whatever
// it does.
func TestOnePodCannotTakeTheMemoryForSecrets(t *testing.T) {
	r := newRig(t)
	must(t, unix.Mount("", r.memory, "", unix.MS_REMOUNT, "size=8m,nr_inodes=4000"))
	keys := map[string]string{}
	for i := range 500 {
		keys[fmt.Sprint("k", i)] = ""
	}
	r.put("secret/many", secret("many", keys))
	r.put("secret/large", secret("large", map[string]string{"k": strings.Repeat("x", 1<<20)}))
	r.put("secret/own", secret("own", map[string]string{"k": "v"}))
	for uid, name := range map[string]string{"inodes": "many", "bytes": "large"} {
		var volumes []corev1.Volume
		for i := range 10 {
			volumes = append(volumes, volumeOf(fmt.Sprint("v", i),
				corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}))
		}
		var failures Failures
		if err := r.SetUp(context.Background(), podWith(uid, volumes...)); !errors.As(err, &failures) ||
			!isTooLarge(failures[0]) {
			t.Fatalf("%s: %v", uid, err)
		}
		if text := failures[0].Error(); !strings.HasPrefix(text, "MountVolume.SetUp failed for volume ") ||
			!strings.Contains(text, "the limit for one pod is") {
			t.Errorf("%s: %s", uid, text)
		}
	}
	for i := range 8 {
		r.mustSetUp(podWith(fmt.Sprint("n", i), volumeOf("v",
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "own"}})))
	}
}

// One pod's excessive content is refused before it is built: 10,000 paths of one key of a mebibyte would use up the
// agent's memory.
func TestPathsWithoutEnd(t *testing.T) {
	r := newRig(t)
	r.put("configmap/cm", configMap("cm", map[string]string{"k": strings.Repeat("x", 1<<20)}))
	r.put("secret/s", secret("s", map[string]string{"k": strings.Repeat("x", 1<<20)}))
	var items []corev1.KeyToPath
	for i := range 10_000 {
		items = append(items, corev1.KeyToPath{Key: "k", Path: fmt.Sprint("p", i)})
	}
	pod := podWith("u1", volumeOf("disk",
		corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
				Items:                items,
			},
		}),
		volumeOf("memory", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Items: items}}))
	var failures Failures
	if err := r.SetUp(context.Background(), pod); !errors.As(err, &failures) || len(failures) != 2 ||
		!failures.all(isTooLarge) {
		t.Errorf("%v", err)
	}
	s := r.lockPod("u1")
	defer s.mu.Unlock()
	s.pod = pod
	for i := range pod.Spec.Volumes { // before it is built
		if _, err := r.render(context.Background(), s, &pod.Spec.Volumes[i]); !isTooLarge(err) {
			t.Errorf("%s was collected: %v", pod.Spec.Volumes[i].Name, err)
		}
	}
}

// A text that many files share is built once: a volume of 300 files that are one annotation, or 60 times one ConfigMap,
// costs the agent the size of its sources, not the 60 MiB of its files.
func TestTextsAreHeldOnce(t *testing.T) {
	r := newRig(t)
	text := strings.Repeat("x", 200<<10)
	r.put("configmap/cm", configMap("cm", map[string]string{"k": text}))
	var fields []corev1.DownwardAPIVolumeFile
	var sources []corev1.VolumeProjection
	for i := range 300 {
		item := corev1.DownwardAPIVolumeFile{Path: fmt.Sprint("p", i),
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"}}
		fields = append(fields, item)
		source := corev1.VolumeProjection{
			DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{item}},
		}
		if i%2 == 0 {
			source = corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "k",
					Path: fmt.Sprint("p", i)}},
			}}
		}
		sources = append(sources, source)
	}
	pod := podWith("u1", volumeOf("fields",
		corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: fields}}),
		volumeOf("sources", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}))
	pod.Annotations = map[string]string{"a": text}
	s := r.lockPod("u1")
	defer s.mu.Unlock()
	s.pod = pod
	for i := range pod.Spec.Volumes {
		cost.Under(t, cost.Budget{Bytes: 4 << 20, BytesPerByte: 4, CPU: time.Second}, len(text), func() {
			content, err := r.render(context.Background(), s, &pod.Spec.Volumes[i])
			if err != nil || len(content) != 300 {
				t.Fatalf("%s: %d files, %v", pod.Spec.Volumes[i].Name, len(content), err)
			}
			for name, f := range content {
				if len(f.data) < len(text) {
					t.Fatalf("%s: %s has %d bytes", pod.Spec.Volumes[i].Name, name, len(f.data))
				}
			}
		})
	}
}

// Tokens are renewed by the server's lifetime and this machine's clocks: after a suspend, during which timers stop, and
// when the calendar is set a year forward or back; but not each time they are checked.
func TestTokensAndClocks(t *testing.T) {
	r := newRig(t)
	// how far the calendar is ahead of the other clock; how far the other clock has advanced
	var set, passed time.Duration
	real := r.clock
	r.clock = func() moment { m := real(); return moment{m.wall.Add(passed + set), m.since + passed} }
	year := 365 * 24 * time.Hour
	pod := podWith("u1", volumeOf("v", withToken("t")))
	r.mustSetUp(pod)
	for i, step := range []struct {
		name        string
		wall, since time.Duration // calendar beyond the clock that stops in a suspend; that clock
		renewed     bool
	}{
		{"half an hour awake", 0, 30 * time.Minute, false},
		{"fifty minutes awake", 0, 20 * time.Minute, true},
		{"suspended for fifty minutes", 50 * time.Minute, 0, true},
		{"at rest", 0, time.Minute, false},
		{"a year on", year, 0, true},
		{"at rest a year on", 0, time.Minute, false},
		{"a year back", -year, 0, true},
		{"at rest after that", 0, time.Minute, false},
		{"slewed by a second", -time.Second, 0, false},
		{"fifty minutes after that", 0, 50 * time.Minute, true},
	} {
		set, passed = set+step.wall, passed+step.since
		before := r.asked()
		r.refresh("u1")
		r.refresh("u1")
		if got := r.asked() - before; got != map[bool]int{true: 1}[step.renewed] {
			t.Errorf("%d, %s: %d tokens asked for", i, step.name, got)
		}
	}
	r.tearDownClean("u1")
}

// A namespace is deleted: its ConfigMaps first, then its pods. That is not worth a warning. A ConfigMap that a pod
// lacks for longer is.
func TestObjectsOfDyingNamespaces(t *testing.T) {
	r := newRig(t)
	var log strings.Builder
	had := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(had)
	at := time.Duration(0)
	real := r.clock
	r.clock = func() moment { m := real(); m.since += at; return m }
	r.put("configmap/cm", configMap("cm", map[string]string{"a": "1"}))
	source := fromConfigMap("cm")
	pod := podWith("u1", volumeOf("v", source))
	token := podWith("u2", volumeOf("v", withToken("t")))
	r.mustSetUp(pod)
	r.mustSetUp(token)
	r.drop("configmap/cm")
	terminating := apierrors.NewForbidden(corev1.Resource("serviceaccounts/token"), "sa",
		errors.New("it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	r.tokenErr = terminating
	warnings := func() int { return strings.Count(log.String(), "not refreshed") }
	r.refresh("u1")
	at += 2 * time.Hour // the token has expired
	r.refresh("u2")
	if n := warnings(); n != 0 {
		t.Errorf("%d warnings at once:\n%s", n, log.String())
	}
	going := token.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	r.Update(going)
	at += goneMin
	for range 3 {
		r.refresh("u1")
		r.lockPod("u2").latest.Store(going)
		r.byPod["u2"].mu.Unlock()
		r.refresh("u2")
	}
	if n := warnings(); n != 1 || !strings.Contains(log.String(), "pod-u1") {
		t.Errorf("%d warnings, want one, of the pod that stays:\n%s", n, log.String())
	}
}
