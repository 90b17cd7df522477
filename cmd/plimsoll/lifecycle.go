package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/lifecycle"
)

func newLifecycleCommand() *cobra.Command {
	var kubeconfig string
	o := lifecycle.Options{Health: corelifecycle.Defaults(), Metrics: lifecycle.NewMetrics()}
	c := &cobra.Command{
		Use:   "lifecycle",
		Short: "Watch over the health of nodes, and move pods off those that are lost",
		Long: `Watch over the health of nodes, in place of kube-controller-manager's node-lifecycle-controller and
taint-eviction-controller; run that with --controllers=*,-node-lifecycle-controller,-taint-eviction-controller.

Conditions become taints the moment they change. A node that gave no sign for its grace, and the pods on it, are marked as
not ready at once; it is given a NoExecute taint at the pace of its zone, and its pods leave when their tolerations
are over. Nobody is judged while the API server cannot be heard. Of several of these processes one acts.

Where it does more than upstream, a flag keeps upstream's way: --pace-by-room=false, --respect-disruption-budgets=false (the
default), --collect-pods=false, --node-monitor-period=5s, --pod-eviction-attempts=5.`,
		Example: "  plimsoll lifecycle --kubeconfig /etc/kubernetes/controller-manager.conf",
		Args:    cobra.NoArgs,
	}
	f := c.Flags()
	h := &o.Health
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	f.DurationVar(&h.Grace, "node-monitor-grace-period", h.Grace, "how long a node may give no sign before it is Unknown")
	f.DurationVar(&h.StartupGrace, "node-startup-grace-period", h.StartupGrace, "the same for a node that has never reported, from its creation")
	f.DurationVar(&h.MonitorPeriod, "node-monitor-period", 0, "look at all nodes together this often; 0: at each when its grace is over")
	f.Float32Var(&h.EvictionRate, "node-eviction-rate", h.EvictionRate, "nodes per second and zone that are given a NoExecute taint because they are down")
	f.Float32Var(&h.SecondaryRate, "secondary-node-eviction-rate", h.SecondaryRate, "the same in a large zone that is unhealthy, and while there is no room for the pods")
	f.Float32Var(&h.UnhealthyZone, "unhealthy-zone-threshold", h.UnhealthyZone, "share of a zone's nodes, and at least 3, that are down when it is unhealthy")
	f.IntVar(&h.LargeZone, "large-cluster-size-threshold", h.LargeZone, "a zone of more nodes is large; one that is not empties no node while it is unhealthy")
	f.BoolVar(&h.ByRoom, "pace-by-room", h.ByRoom, "fall to the secondary rate while the pods of a node do not fit on the healthy nodes")
	f.BoolVar(&o.RespectBudgets, "respect-disruption-budgets", false, "evict pods through the Eviction API, which keeps PodDisruptionBudgets, and not by deletion")
	f.IntVar(&h.EvictAttempts, "pod-eviction-attempts", 0, "give the eviction of a pod up after so many attempts; 0: it is tried until it is done")
	f.BoolVar(&h.Collect, "collect-pods", h.Collect, "remove pods of deleted nodes, and terminating pods of nodes that are out-of-service, as pod garbage collection also does")
	f.DurationVar(&h.OrphanAfter, "orphan-quarantine", h.OrphanAfter, "how long a node must be missing before its pods are removed")
	leader := leaderElectionFlags(f, "plimsoll-lifecycle")
	port := servingFlags(f, portLifecycle)
	_ = c.MarkFlagRequired("kubeconfig")
	c.RunE = func(c *cobra.Command, _ []string) error {
		// The jitter of retries differs from process to process.
		h.Seed = uint64(time.Now().UnixNano())
		var err error
		// Writes are bounded by how many may be in flight and by the server's priority and fairness, not by a rate.
		if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-lifecycle", QPS: -1}); err != nil {
			return usageError{err}
		}
		if o.Events, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-lifecycle-events", QPS: -1}); err != nil {
			return usageError{err}
		}
		if err := errors.Join(o.Check(), port.Check(), leader.Check()); err != nil {
			return usageError{err}
		}
		port.API, port.Registry = o.Events, o.Metrics.Registry
		return port.beside(c.Context(), func(ctx context.Context) error {
			return leader.run(ctx, kubeconfig, "plimsoll-lifecycle", func(ctx context.Context, leads func() bool) error {
				o.Leads = leads
				return lifecycle.Run(ctx, o)
			})
		})
	}
	return c
}
