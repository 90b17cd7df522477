//go:build e2e

package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/objectcache"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// cluster is a real API server without our agent. It has one client as administrator and one as the node.
type cluster struct {
	t           *testing.T
	admin, node *kube.Client
	namespace   string
}

// newCluster starts an instance without an agent. The test acts as its node.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	n := newNode(t)
	n.run("up", "--detach", "--no-agent", "--node-name", nodeName, "--apiserver-port", strconv.Itoa(freeport.ForTest(t)),
		"--controller-manager-port", "0")
	c := &cluster{t: t}
	var err error
	c.admin, err = kube.NewClient(kube.Options{Kubeconfig: filepath.Join(n.stateDir, "admin.kubeconfig"), QPS: -1})
	must(t, err)
	c.node, err = kube.NewClient(kube.Options{Kubeconfig: filepath.Join(n.stateDir, "pki/agent.kubeconfig"), QPS: -1})
	must(t, err)
	ctx := context.Background()
	if err := c.node.Create(ctx, kube.Nodes, "", "", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
		&corev1.Node{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "volume-test-"}}
	must(t, c.admin.Create(ctx, kube.Namespaces, "", "", ns, ns))
	c.namespace = ns.Name
	c.wait("the namespace's service account and root certificates", func() bool {
		return c.admin.Get(ctx, kube.ServiceAccounts, c.namespace, "default", &corev1.ServiceAccount{}) == nil &&
			c.admin.Get(ctx, kube.ConfigMaps, c.namespace, "kube-root-ca.crt", &corev1.ConfigMap{}) == nil
	})
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func volumeOf(name string, source corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: source}
}

func (c *cluster) wait(what string, done func() bool) {
	c.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// bind creates a pod on our node.
func (c *cluster) bind(name string, volumes ...corev1.Volume) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: volumes},
	}
	must(c.t, c.admin.Create(context.Background(), kube.Pods, c.namespace, "", pod, pod))
	return pod
}

// manager returns a volume.Manager with a real object cache, connected as in the agent.
func (c *cluster) manager(ctx context.Context, root string) *volume.Manager {
	c.t.Helper()
	var k *volume.Manager
	cache := objectcache.New(ctx, c.node, func(uid types.UID) { k.Changed(uid) })
	k, err := volume.New(ctx, volume.Options{RootDir: root, ClusterDomain: "cluster.local", Objects: cache,
		Tokens: volume.KubeTokens(c.node), Claims: volume.KubeClaims(c.node),
		NodeLabels: func() map[string]string { return nil }, Allocatable: func() corev1.ResourceList { return nil }})
	must(c.t, err)
	c.t.Cleanup(func() { _ = volume.UnmountAll(root) })
	return k
}

// TestVolumeManager runs the token flow and the object watches against a real kube-apiserver with the Node authorizer.
func TestVolumeManager(t *testing.T) {
	c := newCluster(t)
	t.Run("flow", func(t *testing.T) { c.t = t; c.flow() })
	t.Run("burst", func(t *testing.T) { c.t = t; c.burst() })
}

func (c *cluster) flow() {
	t := c.t
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	root := t.TempDir()
	k := c.manager(ctx, root)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "s"},
		Data: map[string][]byte{"k": []byte("1")}}
	must(t, c.admin.Create(ctx, kube.Secrets, c.namespace, "", secret, secret))
	pod := c.bind("p", volumeOf("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))
	began := time.Now()
	must(t, k.SetUp(ctx, pod))
	t.Logf("set up right after binding, Node authorizer included: %v", time.Since(began).Round(time.Millisecond))

	// The API server has added the token volume. The token in it is the pod's, and the API server accepts it.
	api := pod.Spec.Volumes[len(pod.Spec.Volumes)-1]
	dir, err := k.VolumePath(pod, api.Name)
	must(t, err)
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	must(t, err)
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(token)}}
	must(t, c.admin.Create(ctx, kube.TokenReviews, "", "", review, review))
	if got := review.Status.User.Extra["authentication.kubernetes.io/pod-uid"]; !review.Status.Authenticated ||
		len(got) != 1 || got[0] != string(pod.UID) {
		t.Errorf("token review: %+v", review.Status)
	}
	if ns, err := os.ReadFile(filepath.Join(dir, "namespace")); err != nil || string(ns) != c.namespace {
		t.Errorf("namespace: %q %v", ns, err)
	}
	if ca, err := os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil ||
		!strings.Contains(string(ca), "BEGIN CERTIFICATE") {
		t.Errorf("ca.crt: %.30q %v", ca, err)
	}

	// A change of an object reaches the volume by the watch.
	sdir, err := k.VolumePath(pod, "s")
	must(t, err)
	began = time.Now()
	patch, _ := json.Marshal(map[string]any{"stringData": map[string]string{"k": "2"}})
	must(t, c.admin.Patch(ctx, kube.Secrets, c.namespace, "s", types.MergePatchType, patch, nil))
	c.wait("the secret's change", func() bool {
		text, err := os.ReadFile(filepath.Join(sdir, "k"))
		return err == nil && string(text) == "2"
	})
	t.Logf("change visible after %v", time.Since(began).Round(time.Millisecond))

	// An object is missing: SetUp says so, and succeeds when the object exists.
	late := c.bind("late", volumeOf("cm",
		corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
		}))
	if err := k.SetUp(ctx, late); err == nil ||
		err.Error() != `MountVolume.SetUp failed for volume "cm" : configmap "cm" not found` {
		t.Errorf("missing: %v", err)
	}
	must(t, c.admin.Create(ctx, kube.ConfigMaps, c.namespace, "",
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"}}, &corev1.ConfigMap{}))
	c.wait("the configMap", func() bool { return k.SetUp(ctx, late) == nil })

	// A restarted agent uses the existing token and requests no new one.
	asked := 0
	k2 := c.manager(ctx, root)
	inner := k2.Tokens
	k2.Tokens = func(ctx context.Context, ns, sa string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest,
		error) {
		asked++
		return inner(ctx, ns, sa, r)
	}
	must(t, k2.SetUp(ctx, pod))
	if asked != 0 {
		t.Errorf("a restart asked for %d tokens", asked)
	}
	for _, p := range []*corev1.Pod{pod, late} {
		must(t, k2.TearDown(ctx, p.UID))
	}
}

// burst sets up 110 ordinary pods at once.
func (c *cluster) burst() {
	t := c.t
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k := c.manager(ctx, t.TempDir())
	var pods []*corev1.Pod
	for i := range 110 {
		pods = append(pods, c.bind(fmt.Sprint("p", i)))
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, pod := range pods {
		all.Go(func() {
			if err := k.SetUp(ctx, pod); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	t.Logf("110 pods set up in %v", time.Since(began).Round(time.Millisecond))
	for _, pod := range pods {
		must(t, k.TearDown(ctx, pod.UID))
	}
}
