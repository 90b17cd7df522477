// Package podcert gets certificates for pods: the sources podCertificate of projected volumes (KEP-4317).
//
// # Model
//
// For each source the agent makes a key, and asks the API server for a certificate of it by a PodCertificateRequest,
// which a signer answers. internal/core/podcert decides when; this package has the keys, makes the requests, and
// watches those of this node from the moment when the first pod has such a source. Credentials is called when a volume
// is set up or refreshed. It makes a request if one is due, and returns the credentials that the pod has; Changed is
// called when it should be called again.
//
// # Invariants
//
//   - A key is in memory, and in the volume of its pod. It is not logged, and the API server never gets it.
//   - A key and the chain that was issued to it change together.
//   - A chain is used only if its certificate was issued to the key. The API server makes sure of that too.
//   - One source has one request without an answer at most, and a pod that waits for one asks nothing of the server.
//
// # A restart of the agent
//
// The volume is in memory and survives it. If it has a key and a certificate of it that has not expired, both stay in
// use, and are renewed after half the certificate's life. (The kubelet asks for new ones for all pods.) A key whose
// request had no answer yet is lost. A new request is made for a new key, after a pause if there were other requests.
package podcert

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/prometheus/client_golang/prometheus"

	core "github.com/plimsoll-dev/plimsoll/internal/core/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// API reads, watches and creates objects; *kube.Client does.
type API interface {
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
	Get(ctx context.Context, k kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
}

const (
	// firstWait bounds how long Credentials waits for the first list of requests. Chosen: a list takes a fraction of a
	// second; a volume that does not get it is tried again.
	firstWait = 5 * time.Second

	// answerWait is how long Credentials waits for the answer to a pod's first request, so that a pod with a quick
	// signer starts without an Event of a failure. Chosen: a signer that watches answers within a second.
	answerWait = 5 * time.Second

	// admitMax bounds how long a refused request is repeated. The API server refuses requests until its own caches have
	// seen the pod, which takes some milliseconds after the binding. Chosen.
	admitMax = 2 * time.Second

	// lookEvery is how often times are compared with the calendar. Chosen: the kubelet's minute. A timer alone would
	// stop while the machine is suspended.
	lookEvery = time.Minute
)

// Options are all required.
type Options struct {
	Node     string // this node's name
	API      API
	NodeUID  func(ctx context.Context) (types.UID, error) // of this Node at present
	Recorder record.EventRecorder
	Changed  func(types.UID) // the volumes of a pod must be set up or refreshed; called from any goroutine
}

// Cache has the keys and certificates of this node's pods. It is safe for concurrent use, but Credentials must not be
// called for the same pod twice at once.
type Cache struct {
	Options
	ctx   context.Context // of the watch
	began unit.Wall

	mu      sync.Mutex
	pods    map[types.UID]map[Place]*life // guarded by mu
	store   cache.Store                   // guarded by mu; nil: no pod has a source yet
	watches cache.Controller              // guarded by mu; nil: no pod has a source yet
}

// Place is where in a pod a source is.
type Place struct {
	Volume string
	Source int // its index
}

// life is one source. Its fields are guarded by Cache.mu.
type life struct {
	core.Life
	pod     *corev1.Pod
	signer  string
	keyType string
	request string // the name of the newest one
	asking  *pair  // of the next request, or the one without an answer
	has     Credentials
	waited  bool  // for the first answer
	failed  error // why the last request could not be made
	woken   chan struct{}
}

// New returns a Cache whose watch ends with ctx.
func New(ctx context.Context, o Options) *Cache {
	return &Cache{Options: o, ctx: ctx, began: unit.WallOf(time.Now()), pods: map[types.UID]map[Place]*life{}}
}

// Credentials returns the key and the chain of a source, or an error that says what it waits for. written returns what
// the volume has already, a key and then its chain; nil: nothing.
func (c *Cache) Credentials(
	ctx context.Context, pod *corev1.Pod, at Place, source *corev1.PodCertificateProjection, written func() []byte,
) (Credentials, error) {
	store, watches := c.watch()
	synced, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	if !cache.WaitForCacheSync(synced.Done(), watches.HasSynced) {
		return Credentials{}, fmt.Errorf("podCertificate of signer %q: PodCertificateRequests of this node are not known "+
			"yet: the API server must serve certificates.k8s.io/v1beta1 and have the feature gate PodCertificateRequest",
			source.SignerName)
	}
	l := c.life(pod, at, source, written)
	c.read(store, l)
	c.mu.Lock()
	when, never := l.Due(c.began, c.earlier(store, l))
	c.mu.Unlock()
	if !never && when <= unit.WallOf(time.Now()) {
		c.ask(ctx, l, source)
		c.read(store, l)
	}
	c.await(ctx, store, l)
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.HasCertificate() {
		return l.has, nil
	}
	return Credentials{}, c.waits(l, when)
}

// RefusedError says that a signer gives a pod no certificate. It is final for the pod.
type RefusedError struct {
	Phase core.Phase // Denied or Failed
	Text  string
}

func (e *RefusedError) Error() string { return e.Text }

// Reason is that of the pod's condition and Event.
func (e *RefusedError) Reason() string { return "PodCertificate" + string(e.Phase) }

// Untrack forgets a pod and its keys.
func (c *Cache) Untrack(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, uid)
}

// waits returns what a source without a certificate waits for. The caller has locked mu.
func (c *Cache) waits(l *life, when unit.Wall) error {
	what := fmt.Sprintf("podCertificate of signer %q", l.signer)
	answer, refused := l.Refused()
	switch {
	case refused:
		return refusal(l, answer)
	case l.Waits():
		return fmt.Errorf("%s: PodCertificateRequest %s/%s has no answer yet: "+
			"the signer must issue a certificate, or deny it", what, l.pod.Namespace, l.request)
	case l.failed != nil:
		return fmt.Errorf("%s: request it: %w", what, l.failed)
	}
	return fmt.Errorf("%s: requested again at %s: agents before this one have made requests that had no use",
		what, when.Time().Format(time.RFC3339))
}

// refusal says what a signer said, and what to do.
func refusal(l *life, a core.Answer) *RefusedError {
	did := "was denied"
	if a.Phase == core.Failed {
		did = "failed"
	}
	text := fmt.Sprintf("PodCertificateRequest %s/%s of signer %q %s: reason %q, message %q: "+
		"it is not requested again for this pod: mend the cause and replace the pod",
		l.pod.Namespace, l.request, l.signer, did, a.Reason, a.Message)
	return &RefusedError{a.Phase, text}
}

// watch begins the watch with the first user.
func (c *Cache) watch() (cache.Store, cache.Controller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.store == nil {
		notify := func(obj any) {
			if r, ok := kube.Deleted[*certificatesv1beta1.PodCertificateRequest](obj); ok {
				c.notify(r)
			}
		}
		// The node may list those of its own pods only.
		own := kube.Selection{Fields: fields.OneTermEqualSelector("spec.nodeName", c.Node)}
		c.store, c.watches = c.API.Informer(kube.PodCertificateRequests, own, cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, new any) { notify(new) },
		})
		go c.watches.RunWithContext(c.ctx)
		go c.look()
	}
	return c.store, c.watches
}

// notify reports the pod of a request that has an answer now.
func (c *Cache) notify(r *certificatesv1beta1.PodCertificateRequest) {
	if answerOf(r).Phase == core.Pending {
		return
	}
	uid, waits := r.Spec.PodUID, false
	c.mu.Lock()
	for _, l := range c.pods[uid] {
		if l.request != "" && l.request != r.Name {
			continue
		}
		waits = waits || l.Waits()
		select {
		case l.woken <- struct{}{}:
		default:
		}
	}
	c.mu.Unlock()
	if waits {
		c.Changed(uid)
	}
}

// look reports pods for which a request is due, and tells of certificates that are overdue.
func (c *Cache) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		now := unit.WallOf(time.Now())
		var due []types.UID
		c.mu.Lock()
		for uid, places := range c.pods {
			wants := false
			for _, l := range places {
				c.tell(l, now)
				when, never := l.Due(c.began, c.earlier(c.store, l))
				// A request that is not known to the watch is given up by a look at it.
				wants = wants || !never && when <= now || l.Waits()
			}
			if wants {
				due = append(due, uid)
			}
		}
		c.mu.Unlock()
		for _, uid := range due {
			c.Changed(uid)
		}
	}
}

// tell records Events of a certificate that was not renewed in time. The caller has locked mu.
func (c *Cache) tell(l *life, now unit.Wall) {
	for _, notice := range l.Notices(now) {
		text := "The certificate of signer %q is overdue for its renewal: the pod goes on with the old one: " +
			"see what the signer does with PodCertificateRequest %s/%s"
		if notice == core.Expired {
			text = "The certificate of signer %q has expired: the pod goes on with it: " +
				"see what the signer does with PodCertificateRequest %s/%s"
		}
		c.Recorder.Eventf(l.pod, corev1.EventTypeWarning, string(notice), text, l.signer, l.pod.Namespace, l.request)
	}
}

// life returns what is known of a source. Of one that is new here it takes over what the volume has.
func (c *Cache) life(pod *corev1.Pod, at Place, source *corev1.PodCertificateProjection, written func() []byte) *life {
	c.mu.Lock()
	l := c.pods[pod.UID][at]
	c.mu.Unlock()
	if l != nil {
		return l
	}
	l = &life{pod: pod, signer: source.SignerName, keyType: source.KeyType, woken: make(chan struct{}, 1)}
	if bundle := written(); bundle != nil {
		has, begins, expires, err := readWritten(bundle, source.KeyType)
		switch {
		case err != nil:
			slog.Warn("podcert: the key and certificate in the volume cannot be used; requesting new ones",
				"pod", pod.Namespace+"/"+pod.Name, "volume", at.Volume, "err", err)
		case l.Adopt(unit.WallOf(time.Now()), unit.WallOf(begins), unit.WallOf(expires), rand.Float64()):
			l.has = has
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[pod.UID] == nil {
		c.pods[pod.UID] = map[Place]*life{}
	}
	c.pods[pod.UID][at] = l
	return l
}

// earlier counts the requests for a source's pod and signer that this process did not make. The caller has locked mu.
func (c *Cache) earlier(store cache.Store, l *life) (count int) {
	own := map[string]bool{}
	for _, other := range c.pods[l.pod.UID] {
		own[other.request] = true
	}
	for _, object := range store.List() {
		r, ok := object.(*certificatesv1beta1.PodCertificateRequest)
		if ok && r.Spec.PodUID == l.pod.UID && r.Spec.SignerName == l.signer && !own[r.Name] {
			count++
		}
	}
	return count
}

// read takes the answer to the request of a source, if there is one.
func (c *Cache) read(store cache.Store, l *life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.Waits() {
		return
	}
	now := unit.WallOf(time.Now())
	object, known, _ := store.GetByKey(l.pod.Namespace + "/" + l.request)
	r, ok := object.(*certificatesv1beta1.PodCertificateRequest)
	if !known || !ok {
		if l.Lost(now) {
			l.asking = nil
			slog.Warn("podcert: a request was deleted before it had an answer; making another",
				"pod", l.pod.Namespace+"/"+l.pod.Name, "request", l.request)
		}
		return
	}
	answer := answerOf(r)
	var chain []byte
	if answer.Phase == core.Issued {
		chain = certificates([]byte(r.Status.CertificateChain))
		if _, err := leafOf(l.asking.key, chain, l.keyType); err != nil {
			answer = core.Answer{Phase: core.Failed, Reason: "UnusableCertificate", Message: err.Error()}
		}
	}
	if !l.Read(now, answer, rand.Float64()) {
		return
	}
	if answer.Phase == core.Issued {
		l.has = Credentials{l.asking.key, chain}
	} else if l.HasCertificate() { // otherwise the pod is held, and the hold has an Event
		said := refusal(l, answer)
		c.Recorder.Event(l.pod, corev1.EventTypeWarning, said.Reason(), said.Text+"; it goes on with the present certificate")
	}
	l.asking = nil
}

// answerOf returns what the API server says of a request.
func answerOf(r *certificatesv1beta1.PodCertificateRequest) core.Answer {
	for _, condition := range r.Status.Conditions {
		switch phase := core.Phase(condition.Type); phase {
		case core.Denied, core.Failed:
			return core.Answer{Phase: phase, Reason: condition.Reason, Message: condition.Message}
		case core.Issued:
			s := r.Status
			if s.BeginRefreshAt == nil || s.NotAfter == nil { // the API server wants both
				return core.Answer{}
			}
			return core.Answer{
				Phase: phase, RefreshAt: unit.WallOf(s.BeginRefreshAt.Time), Expires: unit.WallOf(s.NotAfter.Time),
			}
		}
	}
	return core.Answer{}
}

// await waits for the answer to the first request of a source, once.
func (c *Cache) await(ctx context.Context, store cache.Store, l *life) {
	over := time.NewTimer(answerWait)
	defer over.Stop()
	for {
		c.mu.Lock()
		done := l.waited || l.HasCertificate() || !l.Waits()
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-l.woken:
			c.read(store, l)
			continue
		case <-over.C:
		case <-ctx.Done():
		}
		c.mu.Lock()
		l.waited = true
		c.mu.Unlock()
	}
}

// ask makes a request. A key whose request could not be made is used for the next.
func (c *Cache) ask(ctx context.Context, l *life, source *corev1.PodCertificateProjection) {
	made, err := c.create(ctx, l, source)
	now := unit.WallOf(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		l.failed = err
		l.Tried(now)
		if l.HasCertificate() {
			slog.Warn("podcert: cannot request a renewal; the pod keeps the present certificate",
				"pod", l.pod.Namespace+"/"+l.pod.Name, "signer", l.signer, "err", err)
		}
		return
	}
	l.failed, l.request = nil, made
	l.Asked(now)
}

// create makes a request and returns its name.
func (c *Cache) create(ctx context.Context, l *life, source *corev1.PodCertificateProjection) (string, error) {
	if l.asking == nil {
		asking, err := newPair(source.KeyType)
		if err != nil {
			return "", err
		}
		l.asking = asking // read by calls for this pod alone
	}
	began := time.Now()
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		name, err := c.createOnce(ctx, l, source)
		if err == nil || !tooEarly(err) || time.Since(began)+wait > admitMax {
			return name, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", err
		}
	}
}

// tooEarly reports whether err may come from parts of the API server that have not seen the pod yet.
func tooEarly(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInternalError(err) }

func (c *Cache) createOnce(ctx context.Context, l *life, source *corev1.PodCertificateProjection) (string, error) {
	pod, account := l.pod, &corev1.ServiceAccount{}
	if err := c.API.Get(ctx, kube.ServiceAccounts, pod.Namespace, pod.Spec.ServiceAccountName, account); err != nil {
		return "", fmt.Errorf("read the pod's service account: %w", err)
	}
	node, err := c.NodeUID(ctx)
	if err != nil {
		return "", fmt.Errorf("read this node: %w", err)
	}
	made := &certificatesv1beta1.PodCertificateRequest{}
	err = c.API.Create(ctx, kube.PodCertificateRequests, pod.Namespace, "", &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: source.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(c.Node), NodeUID: node,
			MaxExpirationSeconds: source.MaxExpirationSeconds, StubPKCS10Request: l.asking.request,
			UnverifiedUserAnnotations: source.UserAnnotations,
		},
	}, made)
	return made.Name, err
}

var states = prometheus.NewDesc("kubelet_podcertificate_states",
	"Sources podCertificate of projected volumes, by signer and state", []string{"signer_name", "state"}, nil)

// Describe implements prometheus.Collector.
func (c *Cache) Describe(out chan<- *prometheus.Desc) { out <- states }

// Collect implements prometheus.Collector.
func (c *Cache) Collect(out chan<- prometheus.Metric) {
	counts, now := map[[2]string]int{}, unit.WallOf(time.Now())
	c.mu.Lock()
	for _, places := range c.pods {
		for _, l := range places {
			counts[[2]string{l.signer, l.State(now)}]++
		}
	}
	c.mu.Unlock()
	for of, count := range counts {
		out <- prometheus.MustNewConstMetric(states, prometheus.GaugeValue, float64(count), of[0], of[1])
	}
}
