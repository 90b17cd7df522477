package trustbundle

import (
	"bytes"
	"context"
	"encoding/pem"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// certificate is a block of PEM. Its bytes need not be a certificate: nothing here reads them.
func certificate(content string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(content)}))
}

func bundle(name, signer, environment string, texts ...string) *certificatesv1beta1.ClusterTrustBundle {
	return &certificatesv1beta1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": environment}},
		Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: strings.Join(texts, "")},
	}
}

func TestAnchors(t *testing.T) {
	ptr := func(s string) *string { return &s }
	a := certificate("a")
	b := certificate("b")
	c := certificate("c")
	odd := "a comment\n" + strings.Replace(b, "-----\n", "-----\nHeader: x\n\n", 1) +
		strings.ReplaceAll(certificate("key"), "CERTIFICATE", "PRIVATE KEY") + "more"
	all := []*certificatesv1beta1.ClusterTrustBundle{
		bundle("plain", "", "", c, a, c), bundle("odd", "", "", odd),
		bundle("s:live", "example.com/s", "live", b), bundle("s:test", "example.com/s", "test", a, b), bundle("t:live",
			"example.com/t", "live", c),
	}
	everything, live := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"env": "live"}}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Near"}}}
	yes := true
	for name, p := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   string
		err    string
	}{
		"each once, in order": {corev1.ClusterTrustBundleProjection{Name: ptr("plain")}, a + c, ""},
		"certificates only":   {corev1.ClusterTrustBundleProjection{Name: ptr("odd")}, b, ""},
		"not there": {corev1.ClusterTrustBundleProjection{Name: ptr("none")}, "",
			`clustertrustbundles.certificates.k8s.io "none" not found`},
		"not there, and optional": {corev1.ClusterTrustBundleProjection{Name: ptr("none"), Optional: &yes}, "", ""},
		"by signer and label": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/s"),
			LabelSelector: live}, b, ""},
		"of several bundles": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/s"),
			LabelSelector: everything}, a + b, ""},
		"no selector": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/s")}, "",
			"matched zero ClusterTrustBundles"},
		"no such signer": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/u"),
			LabelSelector: everything}, "", "matched zero ClusterTrustBundles"},
		"and optional": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/u"),
			LabelSelector: everything, Optional: &yes}, "", ""},
		"a bad selector": {corev1.ClusterTrustBundleProjection{SignerName: ptr("example.com/s"), LabelSelector: bad,
			Optional: &yes}, "", "labelSelector"},
		"neither": {corev1.ClusterTrustBundleProjection{Optional: &yes}, "",
			"requires either name or signerName"},
	} {
		got, err := anchors(all, &p.source)
		if string(got) != p.want || (err == nil) != (p.err == "") || err != nil && !strings.Contains(err.Error(), p.err) {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, p.want, p.err)
		}
	}
	if _, err := anchors(nil, &corev1.ClusterTrustBundleProjection{Name: ptr("none")}); !apierrors.IsNotFound(err) {
		t.Errorf("%v: a bundle that is not there is waited for, which needs the error's kind", err)
	}
}

// api is an API server whose list the test gives.
type api struct {
	mu      sync.Mutex
	begun   int   // watches; guarded by mu
	lists   error // what a list answers; changes while nothing runs
	store   cache.Store
	handler cache.ResourceEventHandler
	synced  bool // guarded by mu
}

func (a *api) List(context.Context, kube.Kind, string, metav1.ListOptions, runtime.Object) error {
	return a.lists
}

func (a *api) Informer(_ kube.Kind, _ kube.Selection, h cache.ResourceEventHandler) (cache.Store, cache.Controller) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun++
	a.handler = h
	return a.store, controller{a, nil}
}

type controller struct {
	a *api
	cache.Controller
}

func (c controller) RunWithContext(ctx context.Context) { <-ctx.Done() }
func (c controller) HasSynced() bool {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	return c.a.synced
}

func (a *api) set(t *testing.T, b *certificatesv1beta1.ClusterTrustBundle) {
	t.Helper()
	if err := a.store.Add(b); err != nil {
		t.Fatal(err)
	}
	a.handler.OnAdd(b, false)
}

// TestWatch: nothing is watched before a pod asks, and one watch is enough for all; pods that asked are told of changes
// until they are gone. A server that does not answer is an error after a while. What a server does not serve is not
// watched, and is found when the server serves it.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a := &api{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
		var told []types.UID
		c := New(ctx, a, func(uid types.UID) { told = append(told, uid) })
		if a.begun != 0 {
			t.Error("it watches though nobody asks")
		}
		name := "b"
		source := &corev1.ClusterTrustBundleProjection{Name: &name}
		a.lists = apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{}, "", "", 0, true)
		if _, err := c.Anchors(ctx, "u1", source); err == nil || a.begun != 0 ||
			!strings.Contains(err.Error(), "does not serve") {
			t.Errorf("not served: %v, %d watches", err, a.begun)
		}
		a.lists = nil
		if _, err := c.Anchors(ctx, "u1", source); err == nil ||
			!strings.Contains(err.Error(), "not known yet") {
			t.Errorf("no answer: %v", err)
		}
		a.mu.Lock()
		a.synced = true
		a.mu.Unlock()
		if _, err := c.Anchors(ctx, "u2", source); !apierrors.IsNotFound(err) {
			t.Errorf("no bundle: %v", err)
		}
		a.set(t, bundle("b", "", "", certificate("x")))
		slices.Sort(told)
		if !slices.Equal(told, []types.UID{"u1", "u2"}) {
			t.Errorf("told %v", told)
		}
		c.Untrack("u1")
		told = nil
		a.set(t, bundle("b", "", "", certificate("y")))
		got, err := c.Anchors(ctx, "u2", source)
		if err != nil || string(got) != certificate("y") || !slices.Equal(told, []types.UID{"u2"}) || a.begun != 1 {
			t.Errorf("%q, %v; told %v; %d watches", got, err, told, a.begun)
		}
	})
}

// FuzzNormalize: what comes out has certificates only, is the same when it is read again, and costs in proportion.
func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{certificate("a") + certificate("a"), "-----BEGIN CERTIFICATE-----\n", "x"} {
		f.Add(seed)
	}
	cost.Attack(f, certificate("a")+"text"+certificate("b"))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		once := normalize([]string{text})
		if again := normalize([]string{string(once), text}); !bytes.Equal(once, again) {
			t.Errorf("%q, read again %q", once, again)
		}
	})
}
