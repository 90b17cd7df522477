package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// servedRetry is the pause before the API server is asked again whether it serves a kind and allows this process to
// read it. Chosen: when an administrator installs the kind, that takes effect within a minute.
const servedRetry = time.Minute

// followReports watches the agents' reports about their NUMA nodes. The returned function reports whether the first
// list was delivered, or there is none to wait for.
func (m *loop) followReports(ctx context.Context, client *kube.Client) cache.InformerSynced {
	const otherwise = "the API server serves no reports of NUMA nodes: pods are placed without them"
	return whereServed(ctx, client, kube.Topologies, otherwise, func() cache.Controller {
		_, watch := client.Informer(kube.Topologies, kube.Selection{Trim: trimReport}, m.reportHandler(ctx))
		return watch
	})
}

// whereServed watches a kind that not every API server serves, as soon as it is served. Until then it logs otherwise
// once. The returned function reports whether the first list was delivered, or there is none to wait for.
func whereServed(
	ctx context.Context, client *kube.Client, k kube.Kind, otherwise string, open func() cache.Controller,
) cache.InformerSynced {
	var ready atomic.Bool
	go func() {
		for logged := false; ; logged = true {
			err := client.List(ctx, k, "", metav1.ListOptions{Limit: 1}, k.NewList())
			if err == nil {
				break
			}
			if missing := apierrors.IsNotFound(err) || apierrors.IsForbidden(err); missing {
				ready.Store(true)
				if !logged {
					slog.Info(otherwise, "err", err)
				}
			}
			wait := servedRetry
			if !ready.Load() {
				wait = time.Second // the API server cannot be reached: nothing is placed until it answers
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		watch := open()
		go watch.RunWithContext(ctx)
		if cache.WaitForCacheSync(ctx.Done(), watch.HasSynced) {
			ready.Store(true)
		}
	}()
	return ready.Load
}

// trimReport drops the fields that this scheduler does not read.
func trimReport(obj runtime.Object) {
	if o, ok := obj.(*topology.Object); ok {
		o.Zones, o.TopologyPolicies = nil, nil
	}
}

// reportHandler translates reports into facts, in the informer's goroutine. A report that cannot be decoded counts as
// missing: then pods are placed on the node without regard to NUMA, as upstream places all pods.
func (m *loop) reportHandler(ctx context.Context) cache.ResourceEventHandler {
	var decoder topology.Decoder
	gone := func(name string) {
		m.submit(ctx, func(now unit.Instant) { m.placer.ReportGone(now, name) })
	}
	seen := func(o *topology.Object) {
		n, err := decoder.Decode(o)
		if err != nil {
			if !errors.Is(err, topology.ErrForeign) {
				slog.Warn("invalid report of NUMA nodes ignored", "node", o.Name, "err", err)
			}
			gone(o.Name)
			return
		}
		m.submit(ctx, func(now unit.Instant) {
			m.report = o
			m.placer.ReportSeen(now, o.Name, n.State)
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(*topology.Object)) },
		UpdateFunc: func(_, after any) { seen(after.(*topology.Object)) },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[*topology.Object](obj); ok {
				gone(o.Name)
			}
		},
	}
}
