//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// manifest writes the manifest of a static pod by a rename, so that no reader sees a part of it.
func (b bench) manifest(name, args string) (path string) {
	b.t.Helper()
	path = filepath.Join(b.StaticPods(), b.ns+"-"+name+".yaml")
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: %q, args: [%s]}
`, name, b.ns, image, args)
	draft := filepath.Join(b.StaticPods(), "."+b.ns+"-"+name)
	err := os.WriteFile(draft, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

// Static pods start and end with their manifests. Their mirror pods only show them.
func TestStaticPods(t *testing.T) {
	b := at(t)
	path := b.manifest("a", "sleep, infinity")
	other := b.manifest("other", "sleep, infinity")
	name := "a-" + b.NodeName
	mirror := b.ready(name)
	bystander := b.ready("other-" + b.NodeName)
	if mirror.Annotations["kubernetes.io/config.mirror"] == "" ||
		mirror.Annotations["kubernetes.io/config.source"] != "file" {
		t.Errorf("annotations %v", mirror.Annotations)
	}
	if o := mirror.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != b.NodeName {
		t.Errorf("owners %v", o)
	}
	id := func(p *corev1.Pod) string { return container(p, "c").ContainerID }
	if got := b.kubectl("logs", name); got != "" {
		t.Errorf("logs %q", got)
	}
	b.want("exec", b.in(name, "env", "HOSTNAME"), name)

	// A deleted mirror is created again, with the same container.
	if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}); err != nil {
		t.Fatal(err)
	}
	b.until(name, "has another mirror", soon, func(p *corev1.Pod) error {
		if p.UID == mirror.UID || id(p) != id(mirror) || container(p, "c").State.Running == nil {
			return fmt.Errorf("uid %s, container %s", p.UID, id(p))
		}
		return nil
	})
	// A bad manifest affects no pod, not even the one that the file described before.
	if err := os.WriteFile(path, []byte("kind: Pod\nspec: {containers: [{name: c, image: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(b.StaticPods(), b.ns+"-bad.yaml")
	if err := os.WriteFile(bad, []byte("not: a pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(bad) })
	rig.Eventually(t, soon, "the log names the bad file", func(context.Context) error {
		log, err := os.ReadFile(b.LogFile("agent"))
		if err == nil && (!strings.Contains(string(log), bad) || !strings.Contains(string(log), "file="+path)) {
			err = fmt.Errorf("it does not")
		}
		return err
	})
	for n, was := range map[string]*corev1.Pod{name: mirror, bystander.Name: bystander} {
		if p, err := b.API.CoreV1().Pods(b.ns).Get(t.Context(), n, metav1.GetOptions{}); err != nil || id(p) != id(was) ||
			container(p, "c").RestartCount != 0 {
			t.Errorf("%s: %v, %+v", n, err, container(p, "c"))
		}
	}
	// An edited manifest is a new pod of the same name, which starts after the old one has ended.
	b.manifest("a", "sleep, 1h")
	edited := b.until(name, "runs as edited", soon, func(p *corev1.Pod) error {
		if p.Spec.Containers[0].Args[1] != "1h" || container(p, "c").State.Running == nil || id(p) == id(mirror) {
			return fmt.Errorf("args %v, container %+v", p.Spec.Containers[0].Args, container(p, "c").State)
		}
		return nil
	})
	for _, file := range []string{path, other} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []*corev1.Pod{edited, bystander} {
		b.gone(p.Name, soon)
		b.leavesNothing(p.Annotations["kubernetes.io/config.hash"])
	}
	// A static pod whose program crashes is restarted like any other.
	b.manifest("crash", "exit, --code, '7'")
	b.until("crash-"+b.NodeName, "backs off", soon, waiting("c", "CrashLoopBackOff"))
}

// A mirror that is deleted with a grace period is created again at once. The mirror of a pod whose manifest was removed
// stays until the pod has ended.
func TestMirrorDeletedWithGrace(t *testing.T) {
	b := at(t)
	path := b.manifest("a", "ignore-term")
	name := "a-" + b.NodeName
	was := b.ready(name)
	if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "another mirror", func(ctx context.Context) error {
		p, err := b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && (p.UID == was.UID || container(p, "c").State.Running == nil) {
			err = fmt.Errorf("uid %s", p.UID)
		}
		return err
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.gone(name, soon)
	if took := time.Since(began); took < time.Second {
		t.Errorf("the mirror was gone after %v, before its pod, which takes its grace of 1 s", took)
	}
	if _, err := b.API.CoreV1().Pods(b.ns).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the mirror is back: %v", err)
	}
}

// TestBadManifests puts files into the directory of manifests that are no manifests of static pods. For each, an Event
// of the Node and the log name the file and the problem. No other static pod is affected. A file that is corrected
// becomes a pod.
func TestBadManifests(t *testing.T) {
	b := at(t)
	b.manifest("bystander", "sleep, infinity")
	bystander := b.ready("bystander-" + b.NodeName)
	dir := b.StaticPods()
	file := func(name string) string { return filepath.Join(dir, b.ns+"-"+name+".yaml") }
	write := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	pod := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", name, b.ns, spec)
	}
	c := fmt.Sprintf("{name: c, image: %q", image)
	bad := map[string]struct {
		make func(path string) error
		text string
	}{
		"cut": {write("apiVersion: v1\nkind: Pod\nmetadata: {name: cut, names"), "decode manifest"},
		"nul": {write("apiVersion: v1\nkind: Pod\x00\n"), "control characters are not allowed"},
		"kind": {write("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
			"want a v1 Pod, found a *v1.ConfigMap"},
		"two": {write(pod("two", "containers: ["+c+"}]") + "---\n" + pod("three", "containers: ["+c+"}]")),
			"more than one document"},
		"large":     {write(strings.Repeat("# large\n", 1<<19)), "want a regular file of at most 3145728 bytes"},
		"taken":     {write(pod("bystander", "containers: ["+c+"}]")), "has a pod of this name"},
		"directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "want a regular file"},
		"dangling":  {func(path string) error { return os.Symlink("nowhere", path) }, "no such file"},
		"endless":   {func(path string) error { return os.Symlink("/dev/zero", path) }, "want a regular file"},
		"fifo":      {func(path string) error { return unix.Mkfifo(path, 0o600) }, "want a regular file"},
		"unknown": {write(pod("unknown", "containers: ["+c+", imagine: x}]")),
			`unknown field "spec.containers[0].imagine"`},
		"secret": {write(pod("secret", "containers: ["+c+", envFrom: [{secretRef: {name: s}}]}]")),
			"spec.containers[c].envFrom: a static pod may not refer to API objects"},
	}
	for name, f := range bad {
		path := file(name)
		if err := f.make(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		b.nodeSays(path, f.text)
	}
	for name := range bad {
		b.do(os.Remove(file(name)))
		b.manifest(name, "sleep, infinity")
	}
	for name := range bad {
		b.ready(name + "-" + b.NodeName)
	}
	b.flurry(file("cut"))
	p := b.ready("bystander-" + b.NodeName)
	if container(p, "c").ContainerID != container(bystander, "c").ContainerID {
		t.Errorf("the bystander was %+v and is %+v", container(bystander, "c"), container(p, "c"))
	}
}

// flurry rewrites a manifest a hundred times a second, valid and invalid in turn, and leaves a valid one.
func (b bench) flurry(path string) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := range 300 {
		<-tick.C
		if n%2 == 0 {
			b.do(os.WriteFile(path, []byte("kind: Po"), 0o600))
			continue
		}
		b.manifest("cut", fmt.Sprintf("sleep, %dh", n))
	}
	b.until("cut-"+b.NodeName, "runs as written last", soon, func(p *corev1.Pod) error {
		if p.Spec.Containers[0].Args[1] != "299h" || container(p, "c").State.Running == nil {
			return fmt.Errorf("args %v, container %+v", p.Spec.Containers[0].Args, container(p, "c").State)
		}
		return nil
	})
}

// nodeSays waits until an Event of the Node says of a file what is wrong with it.
func (b bench) nodeSays(path, text string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "an Event says of "+path+": "+text, func(ctx context.Context) error {
		said, err := b.API.CoreV1().Events(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{FieldSelector: "reason=StaticPodRefused"})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range said.Items {
			if strings.Contains(e.Message, path) && strings.Contains(e.Message, text) {
				return nil
			}
			all = append(all, e.Message)
		}
		return fmt.Errorf("they say %q", all)
	})
}
