package pods

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// TestFailedStaticPodGoesWithItsManifest: a static pod that was rejected or evicted has a stop order already, and is
// removed all the same when its manifest is.
func TestFailedStaticPodGoesWithItsManifest(t *testing.T) {
	r := testRunner()
	r.pods = map[types.UID]*podentry.Entry{}
	r.StaticDir = t.TempDir()
	r.static = newStatic(r, unwatched)
	for name, stop := range map[string]*podlife.StopOrder{"running": nil, "rejected": {Phase: podlife.Failed,
		Reason: "PodOSNotSupported"}, "going": {Remove: true}} {
		e := r.newEntry(types.UID(name))
		pod := testPod()
		pod.Name = name
		e.Claim(true)
		e.Set(pod, noon)
		if stop != nil {
			e.Evict(noon, 0, *stop)
		}
		r.pods[e.UID()] = e
	}
	readOnce(r.static)
	live := map[string]types.UID{}
	for _, h := range (staticRunner{r}).Here() {
		live[h.Name] = h.UID
	}
	for uid, e := range r.pods {
		if stop := e.Snapshot().Stop; live["ns/"+string(uid)] != uid || stop == nil || !stop.Remove {
			t.Errorf("%s: stop order %+v", uid, stop)
		}
	}
}

// As long as the directory of manifests or a file in it could not be read, a pod that only the runtime has may be a
// static pod. So an agent that starts while the disk fails does not end the node's static pods.
func TestUnreadManifestsEndNothing(t *testing.T) {
	dir := t.TempDir()
	r := testRunner()
	r.StaticDir = filepath.Join(dir, "manifests")
	r.pods = map[types.UID]*podentry.Entry{}
	r.synced = true
	r.static = newStatic(r, unwatched)
	l := &life{w: newWorld(1, dir)}
	r.Volumes, r.Groups = fakeVolumes{l}, fakeGroups{l}
	e := r.newEntry("uid-1")
	r.pods[e.UID()] = e
	ends := func() bool {
		readOnce(r.static)
		_, _, ok := workerOf(r, e).observe()
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

// Two versions of a static pod never run at once, not even if an earlier agent started the first one.
func TestStaticPodWaitsForVersionOfBefore(t *testing.T) {
	r := testRunner()
	r.pods, r.Volumes = map[types.UID]*podentry.Entry{}, fakeVolumes{}
	r.StaticDir = t.TempDir()
	r.static = newStatic(r, unwatched)
	now := writeManifest(t, r, "web")
	old := r.newEntry("old")
	old.FoundInRuntime(podentry.Identity{Namespace: now.Namespace, Name: now.Name}, nil)
	r.pods[old.UID()] = old
	readOnce(r.static)
	if r.entryOf(now.UID) != nil {
		t.Error("it is here beside the version before it")
	}
}

// TestManifestsInOrder: static pods that come together are admitted in order, not in the random order of a map.
func TestManifestsInOrder(t *testing.T) {
	r := testRunner()
	r.pods, r.Volumes = map[types.UID]*podentry.Entry{}, fakeVolumes{}
	r.StaticDir = t.TempDir()
	r.static = newStatic(r, unwatched)
	const names = "abcdefgh"
	for _, name := range names {
		writeManifest(t, r, string(name))
	}
	readOnce(r.static)
	came := ""
	for _, e := range r.turns.Waiting() {
		came += e.Object().Name[:1]
	}
	if came != names {
		t.Errorf("they came as %s, want %s", came, names)
	}
}

// writeManifest writes a manifest into the runner's directory, and returns its pod.
func writeManifest(t *testing.T, r *Runner, name string) *corev1.Pod {
	t.Helper()
	path := filepath.Join(r.StaticDir, name+".yaml")
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: app, image: a}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, err := staticpods.Decode(r.Node, path)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// unwatched watches nothing.
func unwatched(context.Context, string) (<-chan struct{}, error) { return nil, nil }

// readOnce makes the source read the directory and start and end pods.
func readOnce(s *staticpods.Source) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Run(ctx)
}
