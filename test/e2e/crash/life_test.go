//go:build e2e

package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// TestLife runs the verbs on one instance in many orders. Each part needs the state that the part before it left.
func TestLife(t *testing.T) {
	t.Parallel()
	c := rig.New(t, "life", rig.Options{})
	w := newWitness(t, c)
	namespace := c.Namespace(t)
	w.crowd(namespace)
	for _, part := range []struct {
		name string
		run  func(*witness, string)
	}{
		{"up twice", (*witness).upTwice},
		{"up of another build", (*witness).upgrade},
		{"bad static manifest", (*witness).badManifest},
		{"image that is not there", (*witness).noImage},
		{"down twice and up", (*witness).downAndUp},
		{"corrupt files", (*witness).corrupt},
		{"kill everything, down, up", (*witness).killEverything},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(w.at(t), namespace) }) {
			return
		}
	}
}

// upTwice runs up on a running instance: it says so and changes nothing.
func (w *witness) upTwice(namespace string) {
	before, children := w.mustRuns(), runningChildren(w.t, w.c)
	out, err := w.c.Up()
	if err != nil || !strings.Contains(out, "already up") {
		w.t.Errorf("up twice: %v\n%s", err, out)
	}
	if after := runningChildren(w.t, w.c); !maps.Equal(children, after) {
		w.t.Errorf("children were %v and are %v", children, after)
	}
	w.undisturbed(before, namespace)
}

func (w *witness) mustRuns() map[string]run {
	w.t.Helper()
	runs, err := w.runs(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return runs
}

// upgrade runs up of another build on a running instance, and then of the first one again. Each takes over and replaces
// the parts, and no container is affected.
func (w *witness) upgrade(namespace string) {
	bin := filepath.Dir(rig.Binary(w.t))
	other := w.t.TempDir()
	for _, name := range []string{"plimsoll-controlplane", "images", "cni"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(other, name)); err != nil {
			w.t.Fatal(err)
		}
	}
	program := filepath.Join(other, "plimsoll")
	copyFile(w.t, rig.Binary(w.t), program)
	f, err := os.OpenFile(program, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString("another build")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	runs := w.mustRuns()
	for _, up := range []func() (string, error){func() (string, error) { return w.c.UpWith(program) }, w.c.Up} {
		before := runningChildren(w.t, w.c)
		_, supervised, err := w.c.Children()
		if err != nil {
			w.t.Fatal(err)
		}
		if out, err := up(); err != nil || strings.Contains(out, "already up") || !strings.Contains(out, "another build") {
			w.t.Fatalf("up of another build: %v\n%s", err, out)
		}
		after := runningChildren(w.t, w.c)
		_, now, err := w.c.Children()
		if err != nil || now == supervised {
			w.t.Errorf("the supervisor is process %d, as before, %v", now, err)
		}
		for _, name := range []string{agent, scheduler, lifecycle, apiServer, etcd} {
			if before[name] == after[name] {
				w.t.Errorf("%s is process %d, as before", name, after[name])
			}
		}
		w.undisturbed(runs, namespace)
	}
}

// badManifest writes an invalid manifest of a static pod: the agent's log says so, and other pods are not affected.
func (w *witness) badManifest(namespace string) {
	w.staticPod("a-broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken\n")
	w.staticPod("b-invalid.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: invalid}\nspec: {containers: []}\n")
	w.staticPod("c-good.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: good, namespace: "+namespace+
		"}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {name: c, image: "+workload+
		", args: [sleep, infinity]}\n")
	rig.Eventually(w.t, soon, "the good one runs", func(ctx ctxT) error {
		pod, err := w.c.API.CoreV1().Pods(namespace).Get(ctx, "good-"+w.c.NodeName, metav1.GetOptions{})
		if err == nil && !podReady(pod) {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	})
	log, err := os.ReadFile(w.c.LogFile(agent))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, want := range []string{"a-broken.yaml", "b-invalid.yaml"} {
		if !strings.Contains(string(log), want) {
			w.t.Errorf("the agent's log does not name %s", want)
		}
	}
	for _, file := range []string{"a-broken.yaml", "b-invalid.yaml", "c-good.yaml"} {
		if err := os.Remove(filepath.Join(w.c.StaticPods(), file)); err != nil {
			w.t.Error(err)
		}
	}
	rig.Eventually(w.t, soon, "it is gone with its file", func(ctx ctxT) error {
		_, err := running(ctx, w.c, namespace, crowd)
		return err
	})
}

// noImage starts a pod whose image does not exist: its status says so, and the pull is repeated. With imagePullPolicy
// Never the status says so at once.
func (w *witness) noImage(namespace string) {
	for name, c := range map[string]struct {
		policy corev1.PullPolicy
		reason []string
	}{
		"never":  {corev1.PullNever, []string{"ErrImageNeverPull"}},
		"absent": {corev1.PullIfNotPresent, []string{"ErrImagePull", "ImagePullBackOff"}},
	} {
		spec := w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity")
		spec.Containers[0].Image, spec.Containers[0].ImagePullPolicy = "plimsoll.invalid/none:1", c.policy
		if _, err := w.c.API.CoreV1().Pods(namespace).Create(w.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       spec,
		}, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
		for _, reason := range c.reason {
			rig.Eventually(w.t, soon, name+": "+reason, func(ctx ctxT) error {
				pod, err := w.c.API.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if s := pod.Status.ContainerStatuses; len(s) == 1 && s[0].State.Waiting != nil &&
					s[0].State.Waiting.Reason == reason && strings.Contains(s[0].State.Waiting.Message, "plimsoll.invalid/none:1") {
					return nil
				}
				return fmt.Errorf("%+v", pod.Status)
			})
		}
		if err := w.c.API.CoreV1().Pods(namespace).Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	rig.Eventually(w.t, soon, "they are gone", func(ctx ctxT) error {
		_, err := running(ctx, w.c, namespace, crowd)
		return err
	})
}

// downAndUp runs down, twice: the second prints nothing. Then up has all objects again and runs the pods again.
func (w *witness) downAndUp(namespace string) {
	pods, err := running(w.t.Context(), w.c, namespace, crowd)
	if err != nil {
		w.t.Fatal(err)
	}
	began := time.Now()
	if out, err := w.c.Plimsoll("down"); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	w.t.Logf("down with %d pods took %v", crowd, time.Since(began).Round(100*time.Millisecond))
	w.wantDown()
	if out, err := w.c.Plimsoll("down"); err != nil {
		w.t.Fatalf("down twice: %v\n%s", err, out)
	}
	w.upAgain(namespace, pods)
}

// wantDown looks for remains of the instance. Only the state directory may be left.
func (w *witness) wantDown() {
	w.t.Helper()
	err := w.c.Traces()
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "directory "+w.c.StateDir) {
		w.t.Errorf("after down, want nothing but the state directory: %v", err)
	}
}

// upAgain runs up, and checks that the same pods run again, each container with one more start.
func (w *witness) upAgain(namespace string, pods []corev1.Pod) {
	w.t.Helper()
	began := time.Now()
	if out, err := w.c.Up(); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	took := time.Since(began)
	rig.Eventually(w.t, soon, "the same pods run again", func(ctx ctxT) error {
		now, err := running(ctx, w.c, namespace, crowd)
		if err != nil {
			return err
		}
		for _, was := range pods {
			if !slices.Contains(uids(now), was.UID) {
				return fmt.Errorf("%s is another one", was.Name)
			}
		}
		return w.only(ctx, uids(now))
	})
	w.t.Logf("up again after %v, all pods run after %v", took.Round(100*time.Millisecond),
		time.Since(began).Round(100*time.Millisecond))
}

// corrupt breaks files of a stopped instance, one at a time. up replaces those that it can make again, and names the
// others in its error.
func (w *witness) corrupt(namespace string) {
	t, c := w.t, w.c
	pods, err := running(t.Context(), c, namespace, crowd)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Plimsoll("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, broken := range []struct {
		file    string
		content func(string) string
		refused bool // false: up replaces it
	}{
		{"pki/apiserver.crt", func(text string) string { return text[:len(text)/2] }, false},
		{"pki/apiserver.key", func(string) string { return "" }, false},
		{"admin.kubeconfig", func(text string) string { return text[:10] }, false},
		{"pki/ca.crt", func(string) string {
			return "not a certificate\n"
		}, true}, // the CA: all certificates depend on it, so up must not replace it
		{"pki/ca.key", func(text string) string { return text[:len(text)/2] }, true},
		{"options.json", func(text string) string { return text[:len(text)/2] }, false},
		{"agent.yaml", func(string) string { return "port: [\n" }, false},
		{"containerd.toml", func(string) string { return "= = =\n" }, false},
	} {
		path := filepath.Join(c.StateDir, broken.file)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(broken.content(string(good))), 0o600); err != nil {
			t.Fatal(err)
		}
		if !broken.refused {
			continue // all together, below, because each up takes seconds
		}
		out, err := c.Up()
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s corrupt: the error does not name it: %v\n%s", path, err, out)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// With an unreadable options file, down and status name the file and say what to do.
	out, err := c.Plimsoll("down")
	if err != nil && !strings.Contains(err.Error(), "options.json") {
		t.Errorf("down with a truncated options file: %v\n%s", err, out)
	}
	w.upAgain(namespace, pods)
}

// killEverything kills every process of the instance at once. Then down leaves nothing, and up has everything again.
func (w *witness) killEverything(namespace string) {
	pods, err := running(w.t.Context(), w.c, namespace, crowd)
	if err != nil {
		w.t.Fatal(err)
	}
	children, parent, err := w.c.Children()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := syscall.Kill(parent, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	for _, child := range children {
		if err := syscall.Kill(child.PID, syscall.SIGKILL); err != nil {
			w.t.Errorf("%s: %v", child.Name, err)
		}
	}
	shims, err := filepath.Glob(filepath.Join(w.c.RunDir, "containerd/io.containerd.runtime.v2.task/k8s.io/*/shim.pid"))
	if err != nil {
		w.t.Fatal(err)
	}
	for n, file := range shims { // and some shims, as the OOM killer may do
		if text, err := os.ReadFile(file); err == nil && n%3 == 0 {
			_ = exec.Command("kill", "-9", strings.TrimSpace(string(text))).Run() // containers of one pod share a shim
		}
	}
	if out, err := w.c.Plimsoll("down"); err != nil {
		w.t.Fatalf("down after kill -9 of everything: %v\n%s", err, out)
	}
	w.wantDown()
	w.upAgain(namespace, pods)
}

// TestHollow runs hollow nodes: without root, an instance of hollow nodes only, on which a Deployment runs; with root,
// hollow nodes beside the real one.
func TestHollow(t *testing.T) {
	t.Parallel()
	t.Run("nobody", hollowAlone)
	t.Run("root", func(t *testing.T) {
		c := rig.New(t, "hollow", rig.Options{UpFlags: []string{"--hollow", "3"}})
		rig.Eventually(t, soon, "four Ready nodes", func(ctx ctxT) error {
			nodes, err := c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			ready := 0
			for i := range nodes.Items {
				if condition(&nodes.Items[i]).Status == corev1.ConditionTrue {
					ready++
				}
			}
			if len(nodes.Items) != 4 || ready != 4 {
				return fmt.Errorf("%d nodes, %d Ready", len(nodes.Items), ready)
			}
			return nil
		})
	})
}

// giveProgram copies a program into dir, for users who may not read the directory where it was built, such as root's
// home.
func giveProgram(t *testing.T, program, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, filepath.Base(program))
	if err := os.Link(program, path); err != nil {
		copyFile(t, program, path)
	}
	return path
}

// nobody is the user of that name on Debian.
const nobody = 65534

// hollowAlone runs the verbs as a user without privileges, with a copy of the programs that this user may read.
func hollowAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become nobody")
	}
	binary := rig.Binary(t)
	dir, err := os.MkdirTemp("", "pl-") // a short name: socket paths have at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"plimsoll", "plimsoll-controlplane"} {
		giveProgram(t, filepath.Join(filepath.Dir(binary), name), dir)
	}
	plimsoll := func(verb string, args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, "plimsoll"), append([]string{
			verb, "--state-dir", filepath.Join(dir, "s"),
		}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}, dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		if out, err := plimsoll("down", "--purge"); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	port := fmt.Sprint(freeport.ForTest(t))
	if out, err := plimsoll("up", "--detach", "--hollow", "5", "--apiserver-port", port, "--controller-manager-port",
		"0"); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	for _, args := range [][]string{
		{"create", "deployment", "pretended", "--image", "x", "--replicas", "20"},
		{"rollout", "status", "deployment/pretended", "--timeout", "60s"},
	} {
		if out, err := plimsoll("kubectl", args...); err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	out, err := plimsoll("status", "-o", "json")
	var status struct{ Nodes []struct{ Ready bool } }
	if json.Unmarshal([]byte(out), &status) != nil || err != nil || len(status.Nodes) != 5 {
		t.Errorf("status: %v\n%s", err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
