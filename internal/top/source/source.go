// Package source makes the States that plimsoll top shows, from a cluster of any kind.
//
// # Model
//
// Nodes and pods are watched; their sums are kept as changes arrive, so that a State costs a copy of the nodes. Events
// and the NodeResourceTopology object of the node in view are watched, too. What only others know is asked for: what
// nodes use, of metrics.k8s.io, which cannot be watched; of the node in view, how its resources are used and waited for
// and what was decided there, of its agent; and the journals that package explain knows. What nobody looks at is not
// asked for. Look says what somebody looks at.
//
// # Invariants
//
//   - Nothing is written. deploy/rbac-top.yaml has all that is read.
//   - What may not be read, or does not exist, is a Lack, and everything else is shown. Only nodes are necessary.
//   - While the API server does not answer, the last values stay.
//
// # What it does not do
//
// It does not ask the agents of nodes that nobody looks at: a large cluster would be asked thousands of questions.
package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// How often something is asked for. Chosen: metrics-server measures each 15 s; a sample of one node each 2 s shows a
// stall while it lasts, and costs its agent some milliseconds; a journal is read whole.
const (
	measureTime = 15 * time.Second
	sampleTime  = 2 * time.Second
	journalTime = 15 * time.Second
	readyTime   = 5 * time.Second
	retryTime   = 2 * time.Second
	answerTime  = 5 * time.Second // for one answer
)

// podsMeasuredMax is how many pods a cluster may have for all of them to be asked for at metrics.k8s.io, which has no
// pages (chosen: two megabytes an answer). Beyond that, each pod on the screen is asked for, asksMax at once.
const (
	podsMeasuredMax = 5000
	asksMax         = 8 // chosen: a screen of 50 pods is there within a second where an answer takes 100 ms
)

// Source watches one cluster. The zero values of its private fields are ready for use.
type Source struct {
	Client *kube.Client
	// Asker tells stories, and knows journals.
	Asker *explain.Asker

	mu       sync.Mutex
	nodes    map[string]*node
	order    []string            // their names in order; nil: nodes came or went
	pods     map[string]*podSlot // by UID
	sorted   podList             // of them, while the page of pods is shown
	waiting  int                 // how many of them have no node
	blind    bool                // pods may not be read; Start sets it
	synced   []cache.InformerSynced
	lacks    map[string]top.Lack // by what
	measured bool
	podUse   map[string]top.Usage // by NAMESPACE/NAME
	away     string
	answered time.Time
	events   ring
	recorded []top.Decision // of journals
	detail   *detail

	looks       top.Page
	seen        []string      // the pods on the screen
	seenBefore  []string      // when it was asked what they use
	look        chan struct{} // somebody looks at something else
	measuredMax int           // for tests; 0: podsMeasuredMax
}

// node is what is known of a node: its object, if it was seen, and the sums of its pods.
type node struct {
	kept      *keptNode
	requested top.Amounts
	used      top.Usage
	shown     *top.Node // as States have it; nil: there was a change since
}

// Start begins to watch. It returns when it is known what may be read, with an error if nodes may not.
func (s *Source) Start(ctx context.Context) error {
	s.nodes = map[string]*node{}
	s.pods = map[string]*podSlot{}
	s.lacks = map[string]top.Lack{}
	s.podUse = map[string]top.Usage{}
	s.look = make(chan struct{}, 1)
	if err := s.may(ctx, kube.Nodes); err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w (deploy/rbac-top.yaml has a role with all that is read)", err)
		}
		return fmt.Errorf("top: read nodes: %w", err)
	}
	s.answered = time.Now()
	s.watch(ctx, kube.Nodes, kube.Selection{Keep: keepNode}, s.nodeHandler())
	if err := s.may(ctx, kube.Pods); err != nil {
		s.blind = true
		s.lack("pods, and what they request", err.Error())
	} else {
		s.watch(ctx, kube.Pods, kube.Selection{Fields: kube.LivePods, Keep: keepPod}, s.podHandler())
	}
	if version, err := s.listEvents(ctx); err != nil {
		s.lack("decisions that Events tell", err.Error())
	} else {
		go s.watchEvents(ctx, version)
	}
	go s.probe(ctx)
	return nil
}

// Run asks for what cannot be watched, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	tick := time.NewTicker(sampleTime)
	defer tick.Stop()
	var measured, asked time.Time
	for {
		now := time.Now()
		if now.Sub(measured) >= measureTime {
			measured = now
			s.Measure(ctx)
		} else if s.scrolled() {
			s.measurePods(ctx)
		}
		journals := now.Sub(asked) >= journalTime
		if journals {
			asked = now
		}
		s.Ask(ctx, journals)
		select {
		case <-ctx.Done():
			return
		case <-s.look:
			asked = time.Time{}
			if s.page() == top.Pods {
				measured = time.Time{}
			}
		case <-tick.C:
		}
	}
}

// Ask asks for what the page shows that nobody else knows: of the node in view, or journals.
func (s *Source) Ask(ctx context.Context, journals bool) {
	s.mu.Lock()
	d, page := s.detail, s.looks
	s.mu.Unlock()
	if d != nil {
		s.sample(ctx, d)
		if journals {
			s.askJournal(ctx, d)
		}
	}
	if journals && page == top.Decisions {
		s.askJournals(ctx)
	}
}

// Synced waits until nodes and pods were read once, and the Events that there are.
func (s *Source) Synced(ctx context.Context) error {
	for {
		if s.isSynced() {
			return nil
		}
		select {
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			return errors.New("top: the cluster was not read in time; the API server answers: " + orOK(s.away))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func orOK(away string) string {
	if away == "" {
		return "ok"
	}
	return away
}

func (s *Source) isSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, done := range s.synced {
		if !done() {
			return false
		}
	}
	return true
}

// may asks whether objects of a kind may be listed.
func (s *Source) may(ctx context.Context, k kube.Kind) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
	defer cancel()
	return s.Client.List(ctx, k, "", metav1.ListOptions{Limit: 1}, k.NewList())
}

func (s *Source) watch(ctx context.Context, k kube.Kind, sel kube.Selection, h cache.ResourceEventHandler) {
	_, informer := s.Client.Informer(k, sel, h)
	s.mu.Lock()
	s.synced = append(s.synced, informer.HasSynced)
	s.mu.Unlock()
	go informer.RunWithContext(ctx)
}

// lack says why something is not known; an empty why: it is.
func (s *Source) lack(what, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" {
		delete(s.lacks, what)
		return
	}
	s.lacks[what] = top.Lack{What: what, Why: why}
}

// probe asks whether the API server answers. Watches tell that late, or not at all.
func (s *Source) probe(ctx context.Context) {
	for {
		err := s.Client.Ready(ctx)
		var status apierrors.APIStatus
		if errors.As(err, &status) && status.Status().Code != 0 && status.Status().Code < 500 {
			err = nil // it has answered, if only that one may not ask
		}
		s.mu.Lock()
		if s.away = ""; err != nil && ctx.Err() == nil {
			s.away = err.Error()
		} else {
			s.answered = time.Now()
		}
		s.mu.Unlock()
		if !pause(ctx, readyTime) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Look says what somebody looks at. name is the node of the page OneNode; it is kept while the user is in the story of
// one of its pods.
func (s *Source) Look(ctx context.Context, page top.Page, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.looks != page
	s.looks = page
	if page < top.OneNode && page != top.Pods { // who goes to a pod or to the help comes back
		s.sorted = podList{}
	}
	switch {
	case page == top.OneNode && (s.detail == nil || s.detail.name != name):
		if s.detail != nil {
			s.detail.stop()
		}
		ctx, stop := context.WithCancel(ctx)
		s.detail = &detail{name: name, stop: stop}
		go s.watchNUMA(ctx, s.detail)
		changed = true
	case page < top.OneNode && s.detail != nil:
		s.detail.stop()
		s.detail = nil
	}
	if changed {
		select {
		case s.look <- struct{}{}:
		default:
		}
	}
}

// See says which pods are on the screen, NAMESPACE/NAME.
func (s *Source) See(pods []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = pods
}

func (s *Source) page() top.Page {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// object returns the part of a node's object that says how to reach its agent; nil: there is no such node.
func (s *Source) object(name string) (*corev1.Node, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil || n.kept == nil {
		return nil, false
	}
	return n.kept.object(), n.kept.node.Ours
}
