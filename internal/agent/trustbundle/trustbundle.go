// Package trustbundle provides the trust anchors of ClusterTrustBundles for the volumes of pods.
//
// # Model
//
// A Cache begins to watch all ClusterTrustBundles of the cluster when the first pod needs anchors: few nodes have such
// pods, and few clusters serve the API (feature gate ClusterTrustBundle). It asks for one bundle first, and does not
// watch what the API server does not serve: a watch would be tried again and again, and log each error. Anchors
// collects the certificates that a source of a projected volume selects, by the bundle's name, or by signer and labels.
// When a bundle changes, every pod that uses anchors is reported as changed; its volume is written only if the content
// differs.
//
// # Invariants
//
//   - The content has certificates only, without comments, headers or blocks of other types, and each certificate once.
//   - The same certificates are always in the same order, so that a restart of the agent changes no file. The API
//     promises no order; the kubelet shuffles.
//   - A label selector that is absent selects nothing, an empty one everything, as upstream.
//
// # What it does not do
//
// It does not verify certificates: the API server does when a bundle is written.
package trustbundle

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// API reads and watches objects; *kube.Client implements it.
type API interface {
	List(ctx context.Context, k kube.Kind, namespace string, o metav1.ListOptions, out runtime.Object) error
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
}

// firstWait bounds how long Anchors waits for the first list. Chosen: a list takes a fraction of a second, and after an
// error the volume is tried again.
const firstWait = 5 * time.Second

// Cache has the bundles of the cluster. It is safe for concurrent use.
type Cache struct {
	ctx     context.Context // of the watch; never changes
	api     API             // never changes
	changed func(types.UID) // never changes

	mu      sync.Mutex
	users   map[types.UID]bool // pods that called Anchors; guarded by mu
	store   cache.Store        // guarded by mu; nil: no watch has begun
	watches cache.Controller   // guarded by mu; nil if store is nil
}

// New returns a Cache whose watch ends with ctx. When a bundle has changed, changed is called with each pod that uses
// anchors, from any goroutine.
func New(ctx context.Context, api API, changed func(types.UID)) *Cache {
	return &Cache{ctx: ctx, api: api, changed: changed, users: map[types.UID]bool{}}
}

// Anchors returns the certificates that a source of a volume of a pod selects, as PEM. It waits for the first list of
// bundles for a bounded time. If nothing is selected, the result is empty for an optional source, and an error
// otherwise.
func (c *Cache) Anchors(ctx context.Context, uid types.UID,
	source *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	store, watches, err := c.watch(ctx, uid)
	if err != nil {
		return nil, err
	}
	if !cache.WaitForCacheSync(ctx.Done(), watches.HasSynced) {
		return nil, errors.New("ClusterTrustBundles of the cluster are not known yet: " +
			"the API server must serve certificates.k8s.io/v1beta1 and let nodes read clustertrustbundles")
	}
	var all []*certificatesv1beta1.ClusterTrustBundle
	for _, object := range store.List() {
		if bundle, ok := object.(*certificatesv1beta1.ClusterTrustBundle); ok {
			all = append(all, bundle)
		}
	}
	return anchors(all, source)
}

// Untrack drops a pod.
func (c *Cache) Untrack(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, uid)
}

// watch adds a user, and begins the watch if it is the first and the API server has an answer.
func (c *Cache) watch(ctx context.Context, uid types.UID) (cache.Store, cache.Controller, error) {
	if store, watches := c.join(uid); store != nil {
		return store, watches, nil
	}
	one := metav1.ListOptions{Limit: 1}
	err := c.api.List(ctx, kube.ClusterTrustBundles, "", one, &certificatesv1beta1.ClusterTrustBundleList{})
	if apierrors.IsNotFound(err) {
		return nil, nil, errors.New("the API server does not serve ClusterTrustBundles of certificates.k8s.io/v1beta1, " +
			"the version that this agent reads: switch it on there, or remove the source from the pod")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list ClusterTrustBundles: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.store == nil {
		notify := func(any) { c.notify() }
		c.store, c.watches = c.api.Informer(kube.ClusterTrustBundles, kube.Selection{}, cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, new any) { notify(new) }, DeleteFunc: notify,
		})
		go c.watches.RunWithContext(c.ctx)
	}
	return c.store, c.watches, nil
}

// join adds a user. The results are nil before the watch has begun.
func (c *Cache) join(uid types.UID) (cache.Store, cache.Controller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users[uid] = true
	return c.store, c.watches
}

func (c *Cache) notify() {
	c.mu.Lock()
	var users []types.UID
	for uid := range c.users {
		users = append(users, uid)
	}
	c.mu.Unlock()
	for _, uid := range users {
		c.changed(uid)
	}
}

// anchors returns the certificates that a source selects among all bundles.
func anchors(all []*certificatesv1beta1.ClusterTrustBundle,
	source *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	var selected []string
	optional := source.Optional != nil && *source.Optional
	switch {
	case source.Name != nil:
		for _, b := range all {
			if b.Name == *source.Name {
				selected = append(selected, b.Spec.TrustBundle)
			}
		}
		if len(selected) == 0 && !optional {
			return nil, apierrors.NewNotFound(certificatesv1beta1.Resource("clustertrustbundles"), *source.Name)
		}
	case source.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(source.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("clusterTrustBundle: labelSelector: %w", err)
		}
		for _, b := range all {
			if b.Spec.SignerName == *source.SignerName && selector.Matches(labels.Set(b.Labels)) {
				selected = append(selected, b.Spec.TrustBundle)
			}
		}
		if len(selected) == 0 && !optional {
			return nil, fmt.Errorf("combination of signerName %q and labelSelector matched zero ClusterTrustBundles",
				*source.SignerName)
		}
	default:
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	return normalize(selected), nil
}

// normalize returns the certificates of several PEM texts, each once, ordered by their bytes.
func normalize(texts []string) []byte {
	var certificates []string
	for _, text := range texts {
		rest := []byte(text)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == certificateType {
				certificates = append(certificates, string(block.Bytes))
			}
		}
	}
	slices.SortFunc(certificates, strings.Compare)
	out := []byte{}
	for _, der := range slices.Compact(certificates) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: []byte(der)})...)
	}
	return out
}

const certificateType = "CERTIFICATE" // RFC 7468, the only type that the API server lets into a bundle
