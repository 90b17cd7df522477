package pods

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

const goodManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {kubernetes.io/config.hash: forged, note: kept}}
spec:
  containers:
  - {name: app, image: "example.com/app:1", resources: {limits: {cpu: "1"}}}
`

func decodeText(t *testing.T, text string) (*corev1.Pod, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return testRunner().static.decode(path)
}

func TestStaticPodIsCompleted(t *testing.T) {
	pod, err := decodeText(t, goodManifest)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "web-node-1" || pod.Namespace != "default" || pod.Spec.NodeName != "Node-1" || len(pod.UID) != 32 {
		t.Errorf("identity: %+v, node %s", pod.ObjectMeta, pod.Spec.NodeName)
	}
	a := pod.Annotations
	if a[annotationFile] != string(pod.UID) || a[annotationSource] != "file" || a["note"] != "kept" || a[annotationPath] == "" {
		t.Errorf("annotations: %v", a)
	}
	c := pod.Spec.Containers[0]
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || c.ImagePullPolicy != corev1.PullIfNotPresent || c.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("defaults: %+v", pod.Spec)
	}
	if n := len(pod.Spec.Tolerations); n != 1 || pod.Spec.Tolerations[0].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("tolerations: %+v", pod.Spec.Tolerations)
	}
}

// TestStaticPodIdentity: the uid follows path and content, and nothing else.
func TestStaticPodIdentity(t *testing.T) {
	dir, s := t.TempDir(), testRunner().static
	uid := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := s.decode(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(pod.UID)
	}
	first := uid("a.yaml", goodManifest)
	if uid("a.yaml", goodManifest) != first {
		t.Error("the same file has another uid the second time")
	}
	if uid("b.yaml", goodManifest) == first || uid("a.yaml", goodManifest+"# edited\n") == first {
		t.Error("another file or content has the same uid")
	}
}

func TestBadManifests(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(goodManifest, old, replacement, 1) }
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", with("image:", "imagine: x, image:"), `unknown field "spec.containers[0].imagine"`},
		{"duplicate field", with("kind: Pod", "kind: Pod\nkind: Pod"), `key "kind" already set`},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "have a *v1.ConfigMap, want a v1 Pod"},
		{"a kind nobody knows", "apiVersion: v1\nkind: Pud\n", `"Pud"`},
		{"no yaml", "\t:", "decode manifest"},
		{"empty", "", "decode manifest"},
		{"no containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n", "want at least one container"},
		{"bad pod name", with("name: web", "name: Web_1"), `metadata.name: "Web_1-node-1"`},
		{"no pod name", with("name: web, ", ""), `metadata.name: "-node-1"`},
		{"bad namespace", with("name: web", "namespace: A/B, name: web"), `metadata.namespace: "A/B"`},
		{"bad container name", with("name: app", "name: App"), `spec.containers.name: "App"`},
		{"container twice", goodManifest + "  - {name: app, image: b}\n", "container names must be unique"},
		{"no image", with(`image: "example.com/app:1"`, `image: " "`), "want an image"},
		{"service account", with("spec:", "spec:\n  serviceAccountName: x"), "spec.serviceAccountName: a static pod may not refer to API objects"},
		{"secret volume", with("spec:", "spec:\n  volumes: [{name: v, secret: {secretName: s}}]"), "spec.volumes[v]: a static pod may not refer to API objects"},
		{"token volume", with("spec:", "spec:\n  volumes: [{name: v, projected: {}}]"), "spec.volumes[v]"},
		{"claim", with("spec:", "spec:\n  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]"), "spec.volumes[v]"},
		{"env from secret", with("{name: app,", "{name: app, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}],"), "spec.containers[app].env[A]"},
		{"envFrom", with("{name: app,", "{name: app, envFrom: [{configMapRef: {name: s}}],"), "spec.containers[app].envFrom"},
		{"too large", goodManifest + "#" + strings.Repeat("x", 3<<20), "want a regular file of at most 3145728 bytes"},
	} {
		if pod, err := decodeText(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, error %v, want %q", c.name, pod != nil, err, c.want)
		}
	}
}

// TestEveryProblemIsReported: one reading of the error is enough to mend the manifest.
func TestEveryProblemIsReported(t *testing.T) {
	_, err := decodeText(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: W}\nspec: {serviceAccountName: x, containers: [{name: A}]}\n")
	for _, want := range []string{"metadata.name", "spec.serviceAccountName", `spec.containers.name: "A"`, "spec.containers[A].image"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestFilesThatAreNoFiles: a FIFO must not hang the agent; directories and missing files say what they are.
func TestFilesThatAreNoFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(fifo, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "want a regular file", link: "want a regular file", dir: "want a regular file", filepath.Join(dir, "gone"): "no such file"} {
		if _, err := testRunner().static.decode(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// TestReadKeepsPodsOfBrokenFiles: a half-written edit must not end a running pod; removing the file does.
func TestReadKeepsPodsOfBrokenFiles(t *testing.T) {
	r := testRunner()
	r.StaticDir = t.TempDir()
	path := filepath.Join(r.StaticDir, "pod.yaml")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(r.StaticDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.static.read()
	}
	write("pod.yaml", goodManifest)
	first := r.static.pods["default/web-node-1"]
	if first == nil {
		t.Fatalf("not read: %v", r.static.bad)
	}
	write("pod.yaml", "apiVersion: v1\nki")
	if r.static.pods["default/web-node-1"] != first || r.static.bad[path] == "" {
		t.Error("a broken edit ended the pod, or was not noted")
	}
	write("pod.yaml", goodManifest)
	write("twin.yaml", goodManifest)
	write(".hidden.yaml", strings.Replace(goodManifest, "web", "hidden", 1))
	if len(r.static.pods) != 1 || r.static.pods["default/web-node-1"].UID != first.UID || r.static.bad[path] != "" {
		t.Errorf("have %v, bad %v", r.static.pods, r.static.bad)
	}
	for _, name := range []string{"pod.yaml", "twin.yaml"} {
		if err := os.Remove(filepath.Join(r.StaticDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r.static.read()
	if len(r.static.pods) != 0 {
		t.Errorf("a pod outlived its file: %v", r.static.pods)
	}
}

// TestFailedStaticPodGoesWithItsManifest: one that was rejected or evicted has a stop order already, and goes all the
// same.
func TestFailedStaticPodGoesWithItsManifest(t *testing.T) {
	r := testRunner()
	r.pods = map[types.UID]*entry{}
	for name, stop := range map[string]*podlife.StopOrder{"running": nil, "rejected": {Phase: podlife.Failed, Reason: "PodOSNotSupported"}, "going": {Remove: true}} {
		e := newEntry(types.UID(name), 0)
		e.pod, e.static, e.stop = testPod(), true, stop
		e.pod.Name = name
		r.pods[e.uid] = e
	}
	live := r.static.endUnwanted(nil)
	for uid, e := range r.pods {
		if live["ns/"+string(uid)] != uid || e.stop == nil || !e.stop.Remove {
			t.Errorf("%s: stop order %+v", uid, e.stop)
		}
	}
}

// A pod that only the runtime knows may be one of a manifest, as long as the directory, or a file of it, could not be
// read: an agent that starts while the disk fails must not end the node's static pods.
func TestUnreadManifestsEndNothing(t *testing.T) {
	dir := t.TempDir()
	r := testRunner()
	r.StaticDir, r.pods, r.synced = filepath.Join(dir, "manifests"), map[types.UID]*entry{}, true
	l := &life{w: newWorld(1, dir)}
	r.Volumes, r.Groups = fakeVolumes{l}, fakeGroups{l}
	e := newEntry("uid-1", 0)
	r.pods[e.uid] = e
	ends := func() bool {
		r.static.read()
		r.static.reconcile()
		_, _, ok := r.observe(e)
		return ok
	}
	if err := os.WriteFile(r.StaticDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ends() {
		t.Error("the directory cannot be read, and a pod of before is ended")
	}
	loop := filepath.Join(r.StaticDir, "loop.yaml")
	for _, err := range []error{os.Remove(r.StaticDir), os.Mkdir(r.StaticDir, 0o700), os.Symlink("loop.yaml", loop)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if ends() {
		t.Error("a file cannot be read, and a pod of before is ended")
	}
	if err := os.Remove(loop); err != nil {
		t.Fatal(err)
	}
	if !ends() {
		t.Error("the directory has no such pod, and the one of before is not ended")
	}
}

// silent is an API server that never answers.
type silent struct{}

func (silent) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, q.Context().Err()
}

// Static pods come and go whether the API server answers or not: that is what they are for.
func TestManifestsDoNotWaitForMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api", Transport: silent{}, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		r := testRunner()
		r.Client, r.StaticDir, r.pods = client, t.TempDir(), map[types.UID]*entry{}
		changed := make(chan struct{}, 1)
		r.static.watch = func(context.Context, string) (<-chan struct{}, error) { return changed, nil }
		path := filepath.Join(r.StaticDir, "pod.yaml")
		if err := os.WriteFile(path, []byte(goodManifest), 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := r.static.decode(path)
		if err != nil {
			t.Fatal(err)
		}
		e := newEntry(pod.UID, 0) // it runs
		e.pod, e.static, r.pods[pod.UID] = pod, true, e
		ctx, cancel := context.WithCancel(t.Context())
		go r.static.run(ctx)
		r.static.apiSynced()
		synctest.Wait() // the mirror is being made
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		changed <- struct{}{}
		time.Sleep(2 * settle)
		synctest.Wait()
		if !e.stopping() {
			t.Error("its manifest is gone, and the pod goes on while the API server does not answer")
		}
		cancel()
	})
}

// Two versions of a static pod never run at once, not even where an agent before this one started the first.
func TestStaticPodWaitsForVersionOfBefore(t *testing.T) {
	r := testRunner()
	r.pods, r.Volumes = map[types.UID]*entry{}, fakeVolumes{}
	old, now := newEntry("old", 0), testPod()
	old.fallback = identity{namespace: now.Namespace, name: now.Name}
	r.pods[old.uid] = old
	r.static.pods = map[string]*corev1.Pod{key(now): now}
	r.static.reconcile()
	if r.entryOf(now.UID) != nil {
		t.Error("it is here beside the version before it")
	}
}

// Somebody who writes into the directory all the time does not keep it from being read.
func TestDirectoryWithoutRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				select {
				case changes <- struct{}{}:
				case <-ctx.Done():
				}
				time.Sleep(settle / 2)
			}
		}()
		begun := time.Now()
		time.AfterFunc(time.Minute, cancel)
		drain(ctx, changes)
		if took := time.Since(begun); took > settleLongest {
			t.Errorf("the directory is left unread for %s", took)
		}
		cancel()
		time.Sleep(settle) // the writer ends
	})
}
