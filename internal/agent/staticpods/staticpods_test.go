package staticpods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
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
	return Decode("Node-1", path)
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
	if a[annotationHash] != string(pod.UID) || a[translate.AnnotationSource] != "file" || a["note"] != "kept" ||
		a[annotationPath] == "" {
		t.Errorf("annotations: %v", a)
	}
	c := pod.Spec.Containers[0]
	if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || c.ImagePullPolicy != corev1.PullIfNotPresent ||
		c.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("defaults: %+v", pod.Spec)
	}
	if n := len(pod.Spec.Tolerations); n != 1 || pod.Spec.Tolerations[0].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("tolerations: %+v", pod.Spec.Tolerations)
	}
}

// TestStaticPodIdentity: the UID depends on the path and the content of the manifest. As in the kubelet, comments do
// not count.
func TestStaticPodIdentity(t *testing.T) {
	dir := t.TempDir()
	uid := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := Decode("Node-1", path)
		if err != nil {
			t.Fatal(err)
		}
		return string(pod.UID)
	}
	first := uid("a.yaml", goodManifest)
	if uid("a.yaml", goodManifest) != first {
		t.Error("the same file has another uid the second time")
	}
	if uid("a.yaml", goodManifest+"# edited\n") != first {
		t.Error("the UID follows a comment")
	}
	other := strings.Replace(goodManifest, "app:1", "app:2", 1)
	if uid("b.yaml", goodManifest) == first || uid("a.yaml", other) == first {
		t.Error("another file or content has the same UID")
	}
}

func TestBadManifests(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(goodManifest, old, replacement, 1) }
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", with("image:", "imagine: x, image:"), `unknown field "spec.containers[0].imagine"`},
		{"duplicate field", with("kind: Pod", "kind: Pod\nkind: Pod"), `key "kind" already set`},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "want a v1 Pod, found a *v1.ConfigMap"},
		{"a kind nobody knows", "apiVersion: v1\nkind: Pud\n", `"Pud"`},
		{"no yaml", "\t:", "decode manifest"},
		{"empty", "", "decode manifest"},
		{"cut short", goodManifest[:strings.Index(goodManifest, "limits")], "decode manifest"},
		{"NUL bytes", "apiVersion: v1\nkind: Pod\x00\x00\n", "decode manifest: yaml: control characters are not allowed"},
		{"binary", "\x7fELF\x02\x01\x01\x00\xff\xfe", "decode manifest"},
		{"two documents", goodManifest + "---\n" + goodManifest, "found more than one document, want one"},
		{"no containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n",
			"want at least one container"},
		{"bad pod name", with("name: web", "name: Web_1"), `metadata.name: "Web_1-node-1"`},
		{"no pod name", with("name: web, ", ""), `metadata.name: "-node-1"`},
		{"bad namespace", with("name: web", "namespace: A/B, name: web"), `metadata.namespace: "A/B"`},
		{"bad container name", with("name: app", "name: App"), `spec.containers.name: "App"`},
		{"container twice", goodManifest + "  - {name: app, image: b}\n", "container names must be unique"},
		{"no image", with(`image: "example.com/app:1"`, `image: " "`), "want an image"},
		{"service account", with("spec:", "spec:\n  serviceAccountName: x"),
			"spec.serviceAccountName: a static pod may not refer to API objects"},
		{"secret volume", with("spec:", "spec:\n  volumes: [{name: v, secret: {secretName: s}}]"),
			"spec.volumes[v]: a static pod may not refer to API objects"},
		{"token volume", with("spec:", "spec:\n  volumes: [{name: v, projected: {}}]"), "spec.volumes[v]"},
		{"claim", with("spec:", "spec:\n  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]"), "spec.volumes[v]"},
		{"env from secret", with("{name: app,",
			"{name: app, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}],"), "spec.containers[app].env[A]"},
		{"envFrom", with("{name: app,", "{name: app, envFrom: [{configMapRef: {name: s}}],"), "spec.containers[app].envFrom"},
		{"too large", goodManifest + "#" + strings.Repeat("x", 3<<20), "want a regular file of at most 3145728 bytes"},
	} {
		if pod, err := decodeText(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, error %v, want %q", c.name, pod != nil, err, c.want)
		}
	}
}

// Separators and comments do not count as a second document.
func TestSeparatorsAreNoDocuments(t *testing.T) {
	for _, text := range []string{"# first\n---" + goodManifest, goodManifest + "---\n", "---" + goodManifest +
		"---\n# last\n"} {
		if _, err := decodeText(t, text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestEveryProblemIsReported: the error lists all problems of the manifest.
func TestEveryProblemIsReported(t *testing.T) {
	_, err := decodeText(t,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: W}\nspec: {serviceAccountName: x, containers: [{name: A}]}\n")
	for _, want := range []string{"metadata.name", "spec.serviceAccountName", `spec.containers.name: "A"`,
		"spec.containers[A].image"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestFilesThatAreNoFiles: a FIFO does not hang the agent, and errors about directories and missing files say so.
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
	endless, dangling := filepath.Join(dir, "endless"), filepath.Join(dir, "dangling")
	if err := errors.Join(os.Symlink("/dev/zero", endless), os.Symlink("nowhere", dangling)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "want a regular file", link: "want a regular file", dir: "want a regular file", endless: "want a regular file",
		dangling: "no such file", filepath.Join(dir, "gone"): "no such file",
	} {
		if _, err := Decode("Node-1", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// TestReadKeepsPodsOfBrokenFiles: a half-written edit must not end a running pod; removing the file does.
func TestReadKeepsPodsOfBrokenFiles(t *testing.T) {
	src := New(Options{Node: "Node-1", Dir: t.TempDir()})
	path := filepath.Join(src.Dir, "pod.yaml")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(src.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		src.read()
	}
	write("pod.yaml", goodManifest)
	first := src.wanted["default/web-node-1"]
	if first == nil {
		t.Fatalf("not read: %v", src.bad)
	}
	write("pod.yaml", "apiVersion: v1\nki")
	if src.wanted["default/web-node-1"] != first || src.bad[path] == "" {
		t.Error("a broken edit ended the pod, or was not noted")
	}
	write("pod.yaml", goodManifest)
	write("twin.yaml", goodManifest)
	write(".hidden.yaml", strings.Replace(goodManifest, "web", "hidden", 1))
	if len(src.wanted) != 1 || src.wanted["default/web-node-1"].UID != first.UID || src.bad[path] != "" {
		t.Errorf("have %v, bad %v", src.wanted, src.bad)
	}
	for _, name := range []string{"pod.yaml", "twin.yaml"} {
		if err := os.Remove(filepath.Join(src.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	src.read()
	if len(src.wanted) != 0 {
		t.Errorf("a pod outlived its file: %v", src.wanted)
	}
}

// If a new file has a pod with the name of another file's pod, the first file's pod stays, and the new file is refused
// once, whatever the order of their names. When the first file is removed, the new one has the name.
func TestNameOfAnotherFile(t *testing.T) {
	src := New(Options{Node: "Node-1", Dir: t.TempDir()})
	var refused []string
	src.Refused = func(path string, err error) {
		refused = append(refused, fmt.Sprintf("%s: %v", filepath.Base(path), err))
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(src.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		src.read()
	}
	from := func() string { return filepath.Base(src.wanted["default/web-node-1"].Annotations[annotationPath]) }
	write("b.yaml", goodManifest)
	write("a.yaml", goodManifest)
	src.read()
	want := `a.yaml: metadata.name: "default/web-node-1": the file ` + filepath.Join(src.Dir, "b.yaml") +
		" has a pod of this name"
	if len(refused) != 1 || !strings.HasPrefix(refused[0], want) || from() != "b.yaml" {
		t.Errorf("the pod is that of %s, refused %q", from(), refused)
	}
	write("b.yaml", "no: pod") // it keeps its pod, and so the name
	if len(refused) != 2 || from() != "b.yaml" {
		t.Errorf("with a bad edit the pod is that of %s, refused %q", from(), refused)
	}
	if err := os.Mkdir(filepath.Join(src.Dir, "c.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if src.read(); len(refused) != 3 || !strings.Contains(refused[2], "have a d") {
		t.Errorf("a directory: %q", refused)
	}
	if err := os.Remove(filepath.Join(src.Dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	if src.read(); from() != "a.yaml" || len(src.bad) != 1 {
		t.Errorf("afterwards the pod is that of %s, bad %v", from(), src.bad)
	}
}

// silent is an API server that never answers.
type silent struct{}

func (silent) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, q.Context().Err()
}

// node is a Runner whose pods the test determines.
type node struct {
	mu      sync.Mutex
	here    map[types.UID]Here
	started []string // names, in order
	stopped map[types.UID]bool
}

func newNode(here ...Here) *node {
	n := &node{here: map[types.UID]Here{}, stopped: map[types.UID]bool{}}
	for _, h := range here {
		n.here[h.UID] = h
	}
	return n
}

func (n *node) Start(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.here[pod.UID] = Here{UID: pod.UID, Name: key(pod), Static: true}
	n.started = append(n.started, pod.Name)
}

func (n *node) Stop(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped[uid] = true
}

func (n *node) Here() []Here {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.here))
}

// gone ends a pod.
func (n *node) gone(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.here, uid)
}

func (n *node) Mirrored(types.UID, *corev1.Pod)                 {}
func (n *node) DeleteMirror(context.Context, *corev1.Pod) error { return nil }
func (n *node) Order(a, b *corev1.Pod) int                      { return strings.Compare(a.Name, b.Name) }
func (n *node) StaticSynced()                                   {}

// Static pods start and end whether the API server answers or not.
func TestManifestsDoNotWaitForMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api", Transport: silent{}, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		changed := make(chan struct{}, 1)
		n := newNode()
		s := New(Options{
			Node: "Node-1", Dir: dir, Client: client, Runner: n,
			Watch: func(context.Context, string) (<-chan struct{}, error) { return changed, nil },
		})
		path := filepath.Join(dir, "pod.yaml")
		if err := os.WriteFile(path, []byte(goodManifest), 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := Decode("Node-1", path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		s.MirrorsSynced()
		synctest.Wait() // it runs, and the mirror is being created
		if len(n.started) == 0 || !s.Synced() {
			t.Error("the pod is not started")
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		changed <- struct{}{}
		time.Sleep(2 * quiet)
		synctest.Wait()
		if !n.stopped[pod.UID] {
			t.Error("its manifest is gone, and the pod goes on while the API server does not answer")
		}
		cancel()
	})
}

// Two versions of a static pod never run at once, whether this agent or an earlier one started the first.
func TestVersionsFollowOneAnother(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pod.yaml")
	if err := os.WriteFile(path, []byte(goodManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, static := range []bool{true, false} {
		n := newNode(Here{UID: "old", Name: "default/web-node-1", Static: static})
		s := New(Options{Node: "Node-1", Dir: dir, Runner: n})
		s.read()
		if s.reconcile(); len(n.started) > 0 {
			t.Error("it is here beside the version before it")
		}
		if n.stopped["old"] != static {
			t.Errorf("static: %t, stopped: %t", static, n.stopped["old"])
		}
		n.gone("old")
		if s.reconcile(); len(n.started) != 1 {
			t.Error("it does not come when the version before it has gone")
		}
	}
}

// The directory is read even if a program writes into it all the time.
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
				time.Sleep(quiet / 2)
			}
		}()
		begun := time.Now()
		time.AfterFunc(time.Minute, cancel)
		drain(ctx, changes)
		if took := time.Since(begun); took > quietLongest {
			t.Errorf("the directory is left unread for %s", took)
		}
		cancel()
		time.Sleep(quiet) // the writer ends
	})
}
