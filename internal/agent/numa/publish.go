package numa

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// API is the part of the API client that publishing uses; kube.Client implements it.
type API interface {
	Get(ctx context.Context, kind kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, kind kube.Kind, namespace, name string, obj, out runtime.Object,
		subresources ...string) error
	Update(ctx context.Context, kind kube.Kind, namespace, name string, obj, out runtime.Object,
		subresources ...string) error
}

const (
	// publishTimeout bounds one request. Chosen: far above the latency of a healthy server.
	publishTimeout = 10 * time.Second
	// republishFirst and republishMost bound the pause after a failure, which doubles each time. A server that is away
	// is asked again soon; a cluster without the CustomResourceDefinition rarely.
	republishFirst = time.Second
	republishMost  = time.Minute
	// lookEvery is the periodic resync: how often the object is read although the state did not change, in case another
	// client deleted or changed it. Chosen: a request per node every five minutes costs the server little.
	lookEvery = 5 * time.Minute
	// announceMax bounds how long a registration waits for Announce. Chosen: two requests take milliseconds, and a slow
	// server must not keep a node out of the cluster.
	announceMax = 2 * time.Second
)

// Publish keeps the node's NodeResourceTopology equal to the state until ctx ends. Each change is written at once.
// owner returns a reference to the Node, with which the object is deleted; nil until the Node is known.
func (k *Manager) Publish(ctx context.Context, api API, owner func() *metav1.OwnerReference) error {
	p := publisher{k: k, api: api, owner: owner}
	pause, said := republishFirst, ""
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		var tried chan<- struct{}
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		case tried = <-k.announce:
			p.last = nil
		case <-timer.C:
			p.last = nil // the object may have been changed: read it
		}
		err := p.write(ctx)
		if tried != nil {
			close(tried)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pause, said = republishFirst, ""
			timer.Reset(lookEvery)
			continue
		}
		if text := err.Error(); text != said { // log it once, not with each try
			tell(err)
			said = text
		}
		timer.Reset(pause)
		pause = min(2*pause, republishMost)
	}
}

// errNotOffered is a cluster that does not take the object: it has no definition of it, or gives nodes no right to it.
// Nothing is wrong then, as on a cluster of upstream's components.
var errNotOffered = errors.New("the cluster takes none of its nodes; deploy/noderesourcetopology.yaml has the " +
	"definition and the roles")

// tell logs why the object was not published.
func tell(err error) {
	if errors.Is(err, errNotOffered) {
		slog.Info("schedulers do not learn which NUMA nodes have CPUs and memory left: no NodeResourceTopology", "why", err)
		return
	}
	slog.Warn("NodeResourceTopology not published; trying again", "err", err)
}

// Announce publishes the state now, whatever was published before. It returns when that was tried, or ctx ends. A
// node's resources must be known before pods are sent to it: for a node without a NodeResourceTopology, schedulers
// assume that CPUs and memory may come from any NUMA node.
func (k *Manager) Announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, announceMax)
	defer cancel()
	tried := make(chan struct{})
	select {
	case k.announce <- tried:
	case <-ctx.Done():
		return
	}
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

type publisher struct {
	k     *Manager
	api   API
	owner func() *metav1.OwnerReference
	last  *topology.Object // as the server has it; nil: not known
}

// write makes the object equal to the present state.
func (p *publisher) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	want := p.k.encoder.Encode(p.k.State())
	if p.last == nil {
		has := &topology.Object{}
		err := p.api.Get(ctx, kube.Topologies, "", want.Name, has)
		switch {
		case apierrors.IsNotFound(err):
			return p.create(ctx, want)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("read NodeResourceTopology: %w: %w", errNotOffered, err)
		case err != nil:
			return fmt.Errorf("read NodeResourceTopology: %w", err)
		}
		p.last = has
	}
	own := p.owner()
	if slices.Equal(p.last.Attributes, want.Attributes) && (own == nil ||
		slices.ContainsFunc(p.last.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == own.UID })) {
		return nil // the zones are derived from the attributes
	}
	want.ObjectMeta = *p.last.ObjectMeta.DeepCopy()
	p.ownedBy(want, own)
	written := &topology.Object{}
	if err := p.api.Update(ctx, kube.Topologies, "", want.Name, want, written); err != nil {
		p.last = nil // deleted, or written by another client
		return fmt.Errorf("write NodeResourceTopology: %w", err)
	}
	p.last = written
	return nil
}

func (p *publisher) create(ctx context.Context, want *topology.Object) error {
	p.ownedBy(want, p.owner())
	written := &topology.Object{}
	err := p.api.Create(ctx, kube.Topologies, "", "", want, written)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // the path, since it names no object; or the right
		return fmt.Errorf("write NodeResourceTopology: %w: %w", errNotOffered, err)
	case err != nil:
		return fmt.Errorf("write NodeResourceTopology: %w", err)
	}
	p.last = written
	return nil
}

// ownedBy replaces a reference to an earlier Node of this name.
func (p *publisher) ownedBy(o *topology.Object, owner *metav1.OwnerReference) {
	if owner == nil {
		return
	}
	o.OwnerReferences = slices.DeleteFunc(o.OwnerReferences,
		func(r metav1.OwnerReference) bool { return r.Kind == owner.Kind })
	o.OwnerReferences = append(o.OwnerReferences, *owner)
}
