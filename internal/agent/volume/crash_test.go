package volume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// everyKind returns a pod with a volume of each supported kind, and subPaths.
func everyKind(uid string) *corev1.Pod {
	local := corev1.LocalObjectReference{Name: "cm"}
	pod := podWith(uid,
		volumeOf("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("mem", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}),
		volumeOf("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local}}),
		volumeOf("secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}),
		plainVolume(),
		volumeOf("labels",
			corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}},
			}}}))
	group := int64(4242)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts[0].SubPath = "made/for/me"
	c.VolumeMounts[2].SubPath = "a"
	return pod
}

func (r *rig) putEveryKind(round int) {
	r.put("configmap/kube-root-ca.crt", configMap("kube-root-ca.crt", map[string]string{"ca.crt": "CA"}))
	data := map[string]string{}
	for _, k := range []string{"a", "b", "c"} {
		data[k] = fmt.Sprint(round)
	}
	r.put("configmap/cm", configMap("cm", data))
	r.put("secret/s", secret("s", data))
}

// checkEveryKind checks what containers would see.
func (r *rig) checkEveryKind(pod *corev1.Pod, round int) {
	r.t.Helper()
	mounts, err := r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.1.0.1"}})
	if err != nil {
		r.t.Fatal(err)
	}
	for i, f := range map[int]string{2: "", 3: "b", 4: "ca.crt", 5: "labels"} {
		want := fmt.Sprint(round)
		switch f {
		case "ca.crt":
			want = "CA"
		case "labels":
			want = `app="till"`
		}
		text, err := os.ReadFile(filepath.Join(mounts[i].HostPath, f))
		if err != nil || string(text) != want {
			r.t.Errorf("mount %d %s: %q %v, want %q", i, f, text, err, want)
		}
	}
	for _, i := range []int{0, 1} {
		if st, err := os.Stat(mounts[i].HostPath); err != nil || !st.IsDir() || st.Mode()&os.ModeSetgid == 0 {
			r.t.Errorf("mount %d: %v %v", i, st, err)
		}
	}
	for _, name := range []string{"kubernetes.io~configmap/cm", "kubernetes.io~secret/secret"} {
		entries, err := os.ReadDir(filepath.Join(r.root, "pods", string(pod.UID), "volumes", name))
		payloads := 0
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "..20") {
				payloads++
			}
		}
		if err != nil || payloads != 1 {
			r.t.Errorf("%s: %d payloads, %v", name, payloads, err)
		}
	}
}

// checkHandedOver checks that a kubelet finds each volume in memory mounted where it expects it, with its content.
func (r *rig) checkHandedOver(pod *corev1.Pod, round int) {
	r.t.Helper()
	for path, want := range map[string]string{
		"kubernetes.io~secret/secret/b":                    fmt.Sprint(round),
		"kubernetes.io~projected/kube-api-access-x/ca.crt": "CA",
		"kubernetes.io~downward-api/labels/labels":         `app="till"`,
	} {
		file := filepath.Join(r.root, "pods", string(pod.UID), "volumes", path)
		volume := filepath.Dir(file)
		if mounted, err := crossesDevice(filepath.Dir(volume), volume); err != nil || !mounted {
			r.t.Errorf("%s: mounted: %v, %v", volume, mounted, err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			r.t.Errorf("%s: %q, %v, want %q", file, text, err, want)
		}
	}
}

const crashRootVar = "VOLUME_CRASH_ROOT"

// TestCrash kills a process that sets up, refreshes, hands over and tears down pods at random moments, and lets
// another process continue from what it left, a few dozen times on the same root directory.
func TestCrash(t *testing.T) {
	if root := os.Getenv(crashRootVar); root != "" {
		crashingAgent(t, root)
		return
	}
	r := newRig(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		child := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		child.Env = append(os.Environ(), crashRootVar+"="+r.root)
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		ready := bufio.NewScanner(out)
		for ready.Scan() && ready.Text() != "ready" {
		}
		timer := time.NewTimer(time.Duration(rnd.IntN(15_000)) * time.Microsecond)
		<-timer.C
		must(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		r.restart()
		r.putEveryKind(1000 + round)
		for _, uid := range []string{"u0", "u1"} {
			pod := everyKind(uid)
			if round%4 == 3 {
				r.tearDownClean(types.UID(uid)) // the pod was deleted while the agent was down
			}
			r.mustSetUp(pod)
			r.checkEveryKind(pod, 1000+round)
		}
		if round%2 == 1 {
			must(t, r.HandOver())
			for _, uid := range []string{"u0", "u1"} {
				r.checkHandedOver(everyKind(uid), 1000+round)
			}
		}
		if orphans, err := r.Orphans(map[types.UID]bool{"u0": true, "u1": true}); err != nil || len(orphans) > 0 {
			t.Errorf("orphans %v %v", orphans, err)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	for _, uid := range []types.UID{"u0", "u1"} {
		r.tearDownClean(uid)
	}
}

// crashingAgent does everything that a Manager does until it is killed.
func crashingAgent(t *testing.T, root string) {
	r := &rig{t: t, root: root, objects: map[string]any{}, tracked: map[types.UID]bool{}, life: time.Hour}
	r.restart()
	fmt.Println("ready")
	for round := 0; ; round++ {
		r.putEveryKind(round)
		var both sync.WaitGroup
		for _, uid := range []string{"u0", "u1"} {
			both.Go(func() {
				pod := everyKind(uid)
				_ = r.SetUp(context.Background(), pod)
				_, _ = r.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.1.0.1"}, Attempt: uint32(round)})
				r.refresh(types.UID(uid))
				if round%3 == 2 {
					_ = r.TearDown(context.Background(), types.UID(uid))
				}
			})
		}
		both.Wait()
		if round%3 == 1 {
			_ = r.HandOver()
			r.restart()
		}
	}
}

// TestHandOverAfterACrash: an agent may be killed between any two steps of a hand-over, and of taking a volume back.
// What is there then, the next hand-over completes, and so does the next agent.
func TestHandOverAfterACrash(t *testing.T) {
	for what, crash := range map[string]func(visible string) error{
		"the link is gone":             os.Remove,
		"the directory is not mounted": func(v string) error { return errors.Join(os.Remove(v), os.Mkdir(v, 0o750)) },
	} {
		for _, agentBetween := range []bool{false, true} {
			r := newRig(t)
			r.putEveryKind(1)
			pod := everyKind("u1")
			r.mustSetUp(pod)
			for _, v := range []string{"kubernetes.io~secret/secret", "kubernetes.io~downward-api/labels"} {
				must(t, crash(filepath.Join(r.root, "pods/u1/volumes", v)))
			}
			r.restart()
			if agentBetween {
				r.mustSetUp(pod)
				link := filepath.Join(r.root, "pods/u1/volumes/kubernetes.io~secret/secret")
				if _, err := os.Readlink(link); err != nil {
					t.Errorf("%s: the next agent: %v", what, err)
				}
				r.checkEveryKind(pod, 1)
			}
			must(t, r.HandOver())
			r.checkHandedOver(pod, 1)
			if t.Failed() {
				t.Fatalf("%s, an agent between: %v", what, agentBetween)
			}
			r.tearDownClean("u1")
		}
	}
}

// Readers that open ..data once see one payload throughout, whatever is replaced meanwhile. Readers of single files
// never see a partial one.
func TestReadersSeeNoMixture(t *testing.T) {
	r := newRig(t)
	r.putEveryKind(0)
	pod := podWith("u1", volumeOf("v", fromConfigMap("cm")))
	r.mustSetUp(pod)
	dir, _ := r.VolumePath(pod, "v")
	done := make(chan struct{})
	var readers sync.WaitGroup
	whole := 0
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			root, err := os.OpenRoot(filepath.Join(dir, dataLink))
			if err != nil {
				t.Errorf("open ..data: %v", err)
				return
			}
			var seen []string
			for _, name := range []string{"a", "b", "c"} {
				text, err := root.ReadFile(name)
				if os.IsNotExist(err) {
					break // the open payload was removed meanwhile: what was read of it is still of one payload
				}
				seen = append(seen, string(text))
			}
			root.Close()
			for _, s := range seen {
				if s != seen[0] || s == "" {
					t.Errorf("a mixture: %q", seen)
					return
				}
			}
			if len(seen) == 3 {
				whole++
			}
		}
	})
	for round := range 300 {
		r.putEveryKind(round)
		r.refresh("u1")
	}
	close(done)
	readers.Wait()
	if whole == 0 {
		t.Error("no reader ever saw a whole payload: the test tests nothing")
	}
}

// BenchmarkPlainPods measures set-up and tear-down of ordinary pods, many at once.
func BenchmarkPlainPods(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &rig{root: b.TempDir(), objects: map[string]any{}, tracked: map[types.UID]bool{}, life: time.Hour}
	defer func() { _ = UnmountAll(r.root) }()
	r.put("configmap/kube-root-ca.crt", configMap("kube-root-ca.crt", map[string]string{"ca.crt": strings.Repeat("x",
		1100)}))
	k, err := New(ctx, Options{RootDir: r.root, Objects: r, Tokens: r.giveToken,
		Allocatable: func() corev1.ResourceList { return nil }})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var all sync.WaitGroup
		for i := range 110 {
			all.Go(func() {
				pod := podWith(fmt.Sprint("u", i), plainVolume())
				if err := k.SetUp(ctx, pod); err != nil {
					b.Error(err)
				}
				if _, err := k.Mounts(pod, &pod.Spec.Containers[0], ContainerFacts{PodIPs: []string{"10.1.0.1"}}); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		b.StopTimer()
		for i := range 110 {
			if err := k.TearDown(ctx, types.UID(fmt.Sprint("u", i))); err != nil {
				b.Error(err)
			}
		}
		b.StartTimer()
	}
}
