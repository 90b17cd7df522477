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
	if mirror.Annotations["kubernetes.io/config.mirror"] == "" || mirror.Annotations["kubernetes.io/config.source"] != "file" {
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
	if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}); err != nil {
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
		if p, err := b.API.CoreV1().Pods(b.ns).Get(t.Context(), n, metav1.GetOptions{}); err != nil || id(p) != id(was) || container(p, "c").RestartCount != 0 {
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
